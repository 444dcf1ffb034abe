"""CuPy functions on fresh arguments: equal to eager bit for bit, or refused with the reason."""

import re

import cupy as cp
import pytest
from helpers.cupy_cases import CASES
from helpers.gpu_checks import (
    check_libraries,
    close,
    copy_arrays,
    poison_free_memory,
    same_bits,
)

import graphjit
from graphjit import graphed

GRAPHS = [case for case in CASES.values() if case.expected == "graph"]
REFUSALS = [case for case in CASES.values() if case.expected != "graph"]


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: case.name)
def test_hits_equal_the_eager_call(case, patch):
    """Six calls on fresh random arguments: one capture, five launches, all equal to eager."""
    fn = graphed(patch=patch)(case.fn)
    kept = []  # so that no address comes back
    for call in range(6):
        arguments = case.make()
        kept.append(arguments)
        copies = copy_arrays(arguments)
        expected = case.fn(*copies)
        poison_free_memory()
        got = fn(*arguments)
        if case.tolerance:
            assert close(expected, got, case.tolerance), f"call {call}"
        else:
            assert same_bits(expected, got), f"call {call}"
        assert same_bits(copies, arguments), f"arguments of call {call}"
    assert fn.cache_info()[:2] == (5, 1)
    (entry,) = fn.cache_entries()
    # Addresses inside constants (a table of pointers) can only be written on the device.
    assert entry.patch_kind in {patch, "none"} or (entry.constant_nbytes and patch == "host")


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refusals_name_the_reason_and_the_line(case):
    """A function that cannot be a graph raises an error with the reason, the line and the
    eager result; afterwards every library works, and nothing has been cached.
    """
    fn = graphed(case.fn)
    arguments = case.make()
    with pytest.raises(graphjit.GraphjitError, match=case.expected) as caught:
        fn(*arguments)
    named = re.search(r"cupy_cases\.py:(\d+)", str(caught.value))
    assert named, caught.value
    lines = {line for _, _, line in case.fn.__code__.co_lines()}
    assert int(named[1]) in lines
    assert caught.value.eager_result is not None
    assert fn.cache_info().current_entries == 0
    check_libraries()


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refused_functions_run_eagerly_on_request(case):
    """With on_unsupported="eager" a refused function gives what it gives, and is counted."""
    fn = graphed(on_unsupported="eager")(case.fn)
    for _ in range(3):
        arguments = case.make()
        cp.random.seed(5)
        expected = case.fn(*copy_arrays(arguments))
        cp.random.seed(5)
        assert same_bits(expected, fn(*arguments))
    info = fn.cache_info()
    assert (info.misses, info.hits, info.eager_calls) == (1, 0, 2)
    check_libraries()


def test_there_are_enough_cases():
    """The table shows at least sixty functions that become graphs."""
    assert len(GRAPHS) >= 60
