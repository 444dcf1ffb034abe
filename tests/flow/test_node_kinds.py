"""One function for each kind of node: recorded, rebuilt, pointed at other arrays, and equal."""

import pytest
from helpers.flow_checks import agrees, normal

import graphjit
from graphjit import PinnedArray, graphed, host_callback
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, while_loop
from graphjit.testing import simulated as xp

EVENT = xp.Event()


def driver_and_stream():
    return device.driver(), device.current_stream().handle


def kernels(x):
    return xp.sin(x) * 2 + x.sum()


def memcpy_on_the_device(x):
    driver, stream = driver_and_stream()
    y = xp.empty(x.shape)
    driver.memcpy_async(y.device_ptr, x.device_ptr, 8 * x.size, stream)
    return y + 1


def memcpy_of_host_data(x):
    return x + xp.asarray([1.0, 2.0, 3.0])


def memset(x):
    driver, stream = driver_and_stream()
    driver.memset_async(x.device_ptr + 8, 0, 8, stream)
    return x * 2


def memory_of_a_library(x):
    driver, stream = driver_and_stream()
    y, nbytes = xp.empty(x.shape), 8 * x.size
    ptr = driver.mem_alloc_async(nbytes, stream)
    driver.memcpy_async(ptr, x.device_ptr, nbytes, stream)
    driver.memcpy_async(y.device_ptr, ptr, nbytes, stream)
    driver.mem_free_async(ptr, stream)
    return y + x


def child_graph(x):
    return graphed(kernels)(x) + 1


def conditional(x):
    y = cond(x.sum() > 0, lambda: x * 2, lambda: x - 1)
    return while_loop(lambda c: abs(c).max() > 0.5, lambda c: c / 2, y)


def event(x):
    graphjit.wait_event(EVENT)
    y = x + 1
    graphjit.record_event(EVENT)
    return y


def host(x):
    host_callback(len, x)
    return x * 3


KINDS = {
    kernels: ["kernel"],
    memcpy_on_the_device: ["memcpy"],
    memcpy_of_host_data: ["memcpy"],
    memset: ["memset"],
    memory_of_a_library: ["mem_alloc", "mem_free", "memcpy"],
    child_graph: ["child_graph"],
    conditional: ["conditional"],
    event: ["event"],
    host: ["host"],
}


@pytest.mark.parametrize("fn", KINDS, ids=lambda fn: fn.__name__)
def test_every_kind_of_node(fn, patch):
    """The kind is in the captured graph, and what is launched does the same as the eager call."""
    call = graphed(patch=patch)(fn)
    for _ in range(6):
        assert agrees(call, fn, normal(3))
    assert call.cache_info()[:2] == (5, 1)
    assert set(call.cache_entries()[0].nodes) >= set(KINDS[fn])


def test_copies_to_and_from_page_locked_memory(patch):
    """They are kernels of graphjit's own, with one address that moves and one that stays."""
    given, out = (PinnedArray(3, like=normal(1)) for _ in range(2))

    def fn(x):
        y = x + given.to_device()
        out.copy_from(y)
        return y

    call = graphed(patch=patch)(fn)
    for k in range(4):
        given.host[...] = k
        x = normal(3)
        assert agrees(call, fn, x)
        assert out.host.tobytes() == (x + k).get().tobytes()
