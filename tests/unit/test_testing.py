"""The helpers for tests: they find what is wrong, and say where."""

import numpy as np
import pytest

from graphjit import graphed
from graphjit.errors import CacheGrowthWarning, DriverError, HostReadError
from graphjit.testing import (
    DRIVER_CHECKS,
    SimulatedDriver,
    assert_matches_eager,
    check_driver,
    count_captures,
)
from graphjit.testing import simulated as xp


def make():
    """Return one fresh array."""
    return (xp.asarray(np.random.rand(3, 4)),)


def test_count_captures():
    """One for each signature, evicted ones included."""
    fn = graphed(max_entries=1)(lambda x: x + 1)
    fn(xp.ones(2))
    with pytest.warns(CacheGrowthWarning):
        fn(xp.ones(3))
    for shape in (3, 2, 2):
        fn(xp.ones(shape))
    assert count_captures(fn) == 3


def test_assert_matches_eager_returns_the_graphed_form():
    """All calls after the first are launches."""
    fn = assert_matches_eager(lambda x: {"y": x.T @ x, "z": (x.sum(), 3)}, make, calls=3)
    assert (fn.cache_info().hits, fn.cache_info().misses) == (3, 1)


def test_assert_matches_eager_finds_a_difference():
    """A function that depends on what nobody sees is caught."""
    calls = iter(range(100))
    with pytest.raises(AssertionError, match="output 0 differs"):
        assert_matches_eager(lambda x: x + next(calls), make)


def test_assert_matches_eager_finds_a_changed_argument():
    """What becomes of the arguments is compared, too."""
    counter = iter(range(100))

    def fn(x):
        if next(counter) == 0:
            x += 1
        return x * 2

    with pytest.raises(AssertionError, match=r"call 0: (output|argument)"):
        assert_matches_eager(fn, make)


@pytest.mark.parametrize("patch", ["host", "device"])
def test_every_way_of_packing_parameters_is_relocated(patch):
    """Structs, addresses behind small fields, tables of addresses, constants, workspaces."""

    def fn(x):
        y = (x[:, ::-1] * 2 + xp.sin(x)) @ x.T
        y[1:] = y[:-1]
        z = xp.concatenate([y + i for i in range(9)])
        filled = xp.zeros((3, 3))
        filled[0] = xp.asarray([1.0, 2.0, 3.0])
        return z, filled + y.sum(axis=1, keepdims=True), y[[2, 0]], xp.sort(x, axis=0).T

    assert_matches_eager(fn, make, patch="device" if patch == "device" else "auto")


def test_streams_in_a_captured_function_become_branches():
    """Switching to a stream forks it; the branches are joined by themselves."""
    side = xp.Stream()

    def fn(x):
        with side:
            y = x * 2
        z = x + 1
        xp.current_stream().wait_event(side.record())
        return y + z

    assert_matches_eager(fn, make)


@pytest.mark.parametrize(
    "read",
    [float, bool, lambda v: v.item(), xp.asnumpy, lambda v: xp.nonzero(v.reshape(1)), str],
    ids=["float", "bool", "item", "asnumpy", "nonzero", "str"],
)
def test_host_reads_are_refused_with_the_line(read):
    """The error names the line of the read, and the device works afterwards."""

    def fn(x):
        read(x.sum())
        return x

    with pytest.raises(HostReadError, match=r"test_testing\.py:\d+"):
        graphed(fn)(*make())
    assert_matches_eager(lambda x: x + 1, make)


def test_a_broken_driver_is_found():
    """The suite fails on a driver that does something else, and names the check."""

    class Forgetful(SimulatedDriver):
        def graph_exec_kernel_node_set_params(self, graph_exec, node, params):
            pass

    with pytest.raises((AssertionError, DriverError)) as caught:
        check_driver(Forgetful())
    assert "graph_exec_owns_its_parameters" in caught.value.__notes__[0]
    assert len(DRIVER_CHECKS) > 20


def test_driver_without_device_patch_passes():
    """The checks of the device patch are left out where there is none."""
    check_driver(SimulatedDriver(device_patch=False))
