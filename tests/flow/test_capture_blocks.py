"""Capture blocks: a piece of code captured where it stands, launched on other arrays."""

import gc

import pytest
from helpers.flow_checks import counted, held_on_device, normal, same_bits

import graphjit
from graphjit._adapters import simulated_device as device
from graphjit.testing import simulated as xp


@pytest.fixture
def block():
    """A block with two inputs, one of which is changed in place."""
    with graphjit.capture(inputs={"x": normal(3), "state": normal(3)}) as made:
        made.inputs["state"] += made.inputs["x"]
        made.outputs = {"double": made.inputs["x"] * 2, "state": made.inputs["state"]}
    yield made
    made.close()
    made.outputs = None


def test_launches_on_other_arrays(block):
    """Every launch reads and changes the arrays that it is given, in fresh outputs."""
    results = []
    for _ in range(4):
        x, state = normal(3), normal(3)
        expected = state + x
        results.append((block.launch(x=x, state=state), x))
        assert results[-1][0]["state"] is state
        assert same_bits(state, expected)
        assert block.outputs is results[-1][0]
    assert all(same_bits(out["double"], x * 2) for out, x in results)


def test_nothing_runs_inside_the_statement():
    """The code runs once, under capture; its kernels do not."""
    x = normal(3)
    saved = x.copy()
    with graphjit.capture(inputs={"x": x}) as block:
        block.inputs["x"] += 1
    assert same_bits(x, saved)
    assert counted("graph_launches", lambda: block.launch(x=x)) == 1
    assert same_bits(x, saved + 1)
    block.close()


@pytest.mark.parametrize("patch", ["auto", "host", "device"])
@pytest.mark.parametrize("mode", ["thread_local", "global", "relaxed"])
def test_options_of_a_block(patch, mode):
    """Every patch and every capture mode gives the same."""
    with graphjit.capture(inputs={"x": normal(4)}, patch=patch, mode=mode) as block:
        block.outputs = xp.sin(block.inputs["x"]) + 1
    for _ in range(3):
        x = normal(4)
        assert same_bits(block.launch(x=x), xp.sin(x) + 1)
    block.close()


def test_static_outputs_of_a_block():
    """With ``outputs="static"`` each launch writes to the same memory."""
    with graphjit.capture(inputs={"x": normal(2)}, outputs="static") as block:
        block.outputs = block.inputs["x"] + 1
    first = block.launch(x=xp.zeros(2))
    second = block.launch(x=xp.ones(2))
    assert first.device_ptr == second.device_ptr
    assert first.tolist() == [2.0, 2.0]
    block.close()


def test_arrays_that_are_no_inputs_are_used_where_they_are():
    """A captured array of outside is listed as external, and kept alive."""
    w = normal(3)
    with graphjit.capture(inputs={"x": normal(3)}) as block:
        block.outputs = block.inputs["x"] * w
    expected = w.copy()
    del w
    gc.collect()
    x = normal(3)
    assert same_bits(block.launch(x=x), x * expected)
    (external,) = block.info().externals
    assert external.holder == "an array float64 (3,)"
    del external
    block.close()


def test_other_inputs_are_refused(block):
    """Another shape, a missing name and an unknown one: errors that name them."""
    x, state = normal(3), normal(3)
    with pytest.raises(graphjit.SignatureError, match=r"x: now float64 \(4,\)"):
        block.launch(x=normal(4), state=state)
    with pytest.raises(graphjit.SignatureError, match="lacks state"):
        block.launch(x=x)
    with pytest.raises(graphjit.SignatureError, match="y"):
        block.launch(x=x, state=state, y=x)
    with pytest.raises(graphjit.SignatureError, match="state: now x"):
        block.launch(x=x, state=x)
    assert same_bits(block.launch(x=x, state=state)["double"], x * 2)


def test_names_must_be_identifiers():
    """A name that cannot be a keyword is refused before the capture."""
    with (
        pytest.raises(graphjit.SignatureError, match="not a name"),
        graphjit.capture(inputs={"not a name": normal(2)}),
    ):
        pass


def test_an_exception_inside_the_statement():
    """It comes out as it is; the block is incomplete, and the stream usable."""
    before = held_on_device()
    block = None

    def fail():
        nonlocal block
        with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
            block.inputs["x"] * xp.asarray([1.0, 2.0, 3.0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(graphjit.CaptureError, match="left by ZeroDivisionError"):
        block.launch(x=xp.ones(3))
    with pytest.raises(graphjit.CaptureError, match="not complete"):
        block.info()
    block = None
    gc.collect()
    assert held_on_device() == before
    assert not device.current_stream().is_capturing()


def test_a_host_read_inside_the_statement_is_refused():
    """The error names the line."""

    def read():
        with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
            float(block.inputs["x"].sum())

    with pytest.raises(graphjit.HostReadError, match=r"test_capture_blocks\.py:.*float"):
        read()


def test_a_stand_in_is_of_no_use_afterwards():
    """An input that outlives the statement cannot be read; the error says what it is."""
    with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
        kept = block.inputs["x"]
        block.outputs = kept * 2
    with pytest.raises(graphjit.CaptureError, match="stand-in"):
        kept.get()
    block.close()


def test_closing_frees_the_graph():
    """After ``close`` nothing is held and launches are refused."""
    before = held_on_device()
    x = xp.ones(3)
    with_argument = held_on_device()
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = block.inputs["x"] + xp.asarray([1.0, 2.0, 3.0])
    assert held_on_device().graph_execs == before.graph_execs + 1
    block.close()
    block.close()
    assert held_on_device() == with_argument
    with pytest.raises(graphjit.CaptureError):
        block.launch(x=x)


def test_a_dropped_block_frees_its_graph():
    """A block that nobody holds any more takes its graph with it."""
    before = held_on_device()
    with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
        block.outputs = block.inputs["x"] + xp.asarray([1.0, 2.0, 3.0])
    del block
    gc.collect()
    assert held_on_device() == before


def test_a_block_that_is_not_complete_says_why():
    """Inside the statement, and after it was closed."""
    with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
        block.outputs = block.inputs["x"] * 2
        with pytest.raises(graphjit.CaptureError, match="launched behind the `with` statement"):
            block.launch(x=xp.ones(3))
    block.launch(x=xp.ones(3))
    block.close()
    for call in (lambda: block.launch(x=xp.ones(3)), block.info):
        with pytest.raises(graphjit.CaptureError, match="has been closed"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": "gpu"}, r"capture\(patch='gpu'\): must be one of auto"),
        ({"outputs": "reuse"}, r"capture\(outputs='reuse'\): must be one of fresh"),
        ({"mode": "fast"}, r"capture\(mode='fast'\): must be one of global"),
        ({"optimize": "yes"}, r"capture\(optimize='yes'\): must be True or False"),
    ],
)
def test_options_of_a_block_are_checked(options, message):
    """Before anything is captured, by name and choices."""
    with (
        pytest.raises(ValueError, match=message),
        graphjit.capture(inputs={"x": xp.ones(3)}, **options),
    ):
        pass


def test_inputs_that_are_none():
    """A list, a keyword of Python's, a number."""
    for inputs, error, message in (
        ([xp.ones(3)], TypeError, "dictionary of names and arrays"),
        ({"lambda": xp.ones(3)}, graphjit.SignatureError, "must be identifiers"),
        ({"x": xp.ones(3), "n": 3}, graphjit.SignatureError, "n is none"),
    ):
        with pytest.raises(error, match=message), graphjit.capture(inputs=inputs):
            pass


def test_a_block_inside_a_graphed_function():
    """It cannot be made there, and the error says what can."""

    def makes(x):
        with graphjit.capture(inputs={"x": x}) as inner:
            inner.outputs = inner.inputs["x"] * 2
        return inner.launch(x=x)

    with pytest.raises(graphjit.CaptureError, match=r"is made in it; make it before, and launch"):
        graphjit.graphed(makes)(xp.ones(3))


def test_reads_in_a_block():
    """The cure is not an option that blocks do not have."""
    with (
        pytest.raises(graphjit.HostReadError, match="on a function that does it"),
        graphjit.capture(inputs={"x": xp.ones(3)}) as block,
    ):
        float(block.inputs["x"].sum())
