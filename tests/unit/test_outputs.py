"""The plan of outputs: where the memory of each returned leaf comes from."""

import numpy as np
import pytest

from graphjit._adapters.interface import Memory
from graphjit._adapters.registry import simulated_adapter
from graphjit._arguments import ArgumentReader
from graphjit._capture import Captured, capturing, new_capture
from graphjit._outputs import (
    EmptyOutput,
    FreshOutput,
    OutputPlan,
    SameOutput,
    StaticOutput,
    ViewOutput,
    plan_outputs,
)
from graphjit._setup import Setup
from graphjit.errors import CaptureError
from graphjit.testing import simulated as xp


def plan(fn, *arrays, implicit=()) -> OutputPlan:
    """Capture a function and plan what it returns."""
    call = ArgumentReader(fn, ()).read(arrays, {})
    setup = Setup(call, list(implicit), new_capture(call.adapter, "fn", {}))
    captured: Captured
    with capturing(setup.capture, "thread_local") as captured:
        captured.result = fn(*setup.stand_ins)
    outputs = plan_outputs(
        setup.capture, captured.result, [*setup.stand_ins, *implicit], [object, "text"]
    )
    captured.close()
    return outputs


def kinds(outputs):
    """Name the kinds of the leaves."""
    return [type(leaf) for leaf in outputs.leaves]


def test_every_kind_of_leaf():
    """Fresh memory, an argument, a view of one, a value, an empty array."""
    held = xp.ones(4)
    empty = xp.empty(0)

    def fn(x):
        return [x + 1, x, x[1:], 3, empty, held, held[2:]]

    found = plan(fn, xp.ones(3), implicit=[held])
    expected = [
        FreshOutput, SameOutput, ViewOutput, StaticOutput, EmptyOutput, SameOutput, ViewOutput,
    ]  # fmt: skip
    assert kinds(found) == expected
    assert found.leaves[2].byte_offset == 8
    assert (found.leaves[5].array, found.leaves[6].array) == (1, 1)
    assert found.leaves[6].byte_offset == 16
    assert found.nbytes == 24


def test_views_of_one_temporary_share_its_memory():
    """One block of the temporary's size, with offsets and strides."""

    def fn(x):
        y = x * 2
        return y[1:], y[::-1], x + 1

    found = plan(fn, xp.ones(4))
    assert [leaf.memory for leaf in found.leaves] == [0, 0, 1]
    assert [leaf.byte_offset for leaf in found.leaves] == [8, 24, 0]
    assert found.leaves[1].spec.strides == (-8,)
    assert [region.nbytes for region in found.regions] == [32, 32]


def test_building_puts_leaves_into_their_containers():
    """What is built has the types and the order of what was returned."""
    adapter = simulated_adapter()
    x = xp.arange(4.0)

    def fn(x):
        return {"b": (x + 1, [x]), "a": None}

    found = plan(fn, x)
    memories = [adapter.allocate(nbytes) for nbytes in (region.nbytes for region in found.regions)]
    built = found.build(adapter, memories, [x])
    assert list(built) == ["b", "a"]
    assert built["b"][1][0] is x
    assert built["b"][0].device_ptr == memories[0].ptr
    assert built["a"] is None


def test_a_single_leaf_has_no_container():
    """An array alone is not a list of one."""
    found = plan(lambda x: x, xp.ones(2))
    assert found.tree is None
    assert not found.is_plain_tuple
    x = xp.ones(2)
    assert found.build(simulated_adapter(), [], [x]) is x


@pytest.mark.parametrize(
    ("fn", "is_plain", "n_templates"),
    [
        (lambda x: x + 1, False, 1),
        (lambda x: (x + 1, x * 2), True, 2),
        (lambda x: [x + 1], False, None),
        (lambda x: (x + 1, x), True, None),
        (lambda x: (x + 1)[::-1], False, None),
        (lambda x: (x + 1)[1:], False, None),
        (lambda x: ((x + 1,),), False, None),
    ],
    ids=["one", "tuple", "list", "argument", "reversed", "part", "nested"],
)
def test_templates_are_for_what_the_compiled_hit_can_build(fn, is_plain, n_templates):
    """Fresh arrays that fill their memory, alone or in a tuple."""
    found = plan(fn, xp.ones(4))
    assert found.is_plain_tuple == is_plain
    templates = found.templates(simulated_adapter())
    assert (None if templates is None else len(templates)) == n_templates


def test_values_are_returned_as_they_are():
    """Numbers, text and dtypes; NumPy arrays as copies."""
    found = plan(lambda x: (1, "text", np.dtype("f4"), np.float32(2), slice(3)), xp.ones(1))
    assert kinds(found) == [StaticOutput] * 5
    assert found.build(simulated_adapter(), [], [])[3] == np.float32(2)
    array = np.arange(3)
    assert StaticOutput(array).build(simulated_adapter(), [], []) is not array


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x: {1, 2}, "returns a set"),
        (lambda x: np.arange(3), "returns a ndarray"),
        (lambda x: xp.Stream, "returns a type"),
    ],
    ids=["set", "ndarray", "type"],
)
def test_leaves_that_cannot_be_built_again_are_refused(fn, text):
    """The error names the type."""
    with pytest.raises(CaptureError, match=text):
        plan(fn, xp.ones(1))


def test_arrays_of_nobody_are_refused():
    """An array that the function was not given, and did not make."""
    stranger = xp.ones(3)
    with pytest.raises(CaptureError, match="neither made nor was given"):
        plan(lambda x: stranger, xp.ones(1))


def test_memory_keeps_its_owner():
    """An array that is built holds the block that it lies in."""
    adapter = simulated_adapter()
    found = plan(lambda x: x + 1, xp.ones(2))
    block = adapter.allocate(16)
    array = found.build(adapter, [Memory(block.ptr, block.owner)], [])
    assert array.block is block.owner
