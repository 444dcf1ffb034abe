"""Capture blocks: code captured where it stands, launched on other arrays."""

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import check_libraries, normal, poison_free_memory, same_bits
from helpers.processes import run_python

import graphjit


def prepared(fn, *arguments):
    """Run a function once, so that its kernels are compiled before a capture."""
    return fn(*arguments)


def work(x, y):
    t = cp.sin(x) @ y
    return {"t": t * 2, "sum": (t + x).sum(axis=0)}


@pytest.mark.parametrize("patch", ["auto", "host", "device"])
def test_a_block_is_launched_on_other_arrays(patch):
    """Each launch uses the arrays that it is given and returns fresh memory."""
    x, y = normal(20, 20), normal(20, 20)
    prepared(work, x, y)
    with graphjit.capture(inputs={"x": x, "y": y}, patch=patch) as block:
        block.outputs = work(block.inputs["x"], block.inputs["y"])
    results = []
    for _ in range(4):
        a, b = normal(20, 20), normal(20, 20)
        expected = work(a, b)
        poison_free_memory()
        got = block.launch(y=b, x=a)
        assert got is block.outputs
        results.append((expected, got))
    assert all(same_bits(expected, got) for expected, got in results)
    assert block.info().launches == 4


def test_nothing_runs_inside_the_statement():
    """The work of the statement is not executed before the first launch."""
    x = cp.zeros(5, np.float32)
    x += 1
    x[:] = 0
    with graphjit.capture(inputs={"x": x}) as block:
        inside = block.inputs["x"]
        inside += 1
    del inside
    assert x.tolist() == [0.0] * 5
    for k in range(3):
        assert block.launch(x=x) is None
        assert x.tolist() == [k + 1.0] * 5


def test_other_arrays_are_used_where_they_are():
    """An array that is no input is read, and written, at its own address."""
    x, total = normal(6), cp.zeros(6, np.float32)
    total += x
    total[:] = 0
    with graphjit.capture(inputs={"x": x}) as block:
        total += block.inputs["x"]
    expected = cp.zeros(6, np.float32)
    for _ in range(3):
        x = normal(6)
        expected += x
        block.launch(x=x)
    assert same_bits(total, expected)


def test_static_outputs_of_a_block():
    """With outputs="static" every launch writes to the same memory."""
    x = normal(6)
    prepared(lambda x: x * 3, x)
    with graphjit.capture(inputs={"x": x}, outputs="static") as block:
        block.outputs = block.inputs["x"] * 3
    y = normal(6)
    first, second = block.launch(x=x), block.launch(x=y)
    assert first.data.ptr == second.data.ptr
    assert same_bits(first, y * 3)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (lambda: {"x": normal(7)}, "x: now float32 (7,)"),
        (lambda: {"x": normal(6, dtype=np.float64)}, "x: now float64"),
        (lambda: {"x": normal(7)[1:]}, "aligned to 4"),
        (lambda: {"y": normal(6)}, "lacks x"),
        (dict, "lacks x"),
    ],
)
def test_other_arrays_than_were_captured_are_refused(arrays, text):
    """A launch on an array of another kind, or without one, is refused; nothing is launched."""
    x = normal(6)
    prepared(lambda x: x * 3, x)
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = block.inputs["x"] * 3
    with pytest.raises(graphjit.SignatureError) as caught:
        block.launch(**arrays())
    assert text in str(caught.value)
    assert block.info().launches == 0
    assert same_bits(block.launch(x=x), x * 3)


def test_inputs_that_share_memory():
    """Inputs that overlap when captured must overlap alike when launched."""
    base = normal(30)

    def fn(a, b):
        a += b
        return a * 2

    prepared(fn, base[:20], base[10:])
    with graphjit.capture(inputs={"a": base[:20], "b": base[10:]}) as block:
        block.outputs = fn(block.inputs["a"], block.inputs["b"])
    for _ in range(3):
        base = normal(30)
        copied = base.copy()
        expected = fn(copied[:20], copied[10:])
        assert same_bits(block.launch(a=base[:20], b=base[10:]), expected)
        assert same_bits(base, copied)
    with pytest.raises(graphjit.SignatureError, match=r"memory|bytes"):
        block.launch(a=normal(30)[:20], b=normal(30)[10:])


def test_an_exception_inside_the_statement():
    """The exception comes out, the block cannot be launched, and the stream is usable."""
    x = normal(6)
    with pytest.raises(KeyError), graphjit.capture(inputs={"x": x}) as block:  # noqa: PT012
        block.outputs = block.inputs["x"] * 3
        raise KeyError("mine")
    with pytest.raises(graphjit.CaptureError, match="not complete"):
        block.launch(x=x)
    check_libraries()


def test_a_host_read_inside_the_statement():
    """Reading the device inside the statement is refused with the line."""
    x = normal(6)
    x.sum()
    with (
        pytest.raises(graphjit.HostReadError, match="test_capture_blocks"),
        graphjit.capture(inputs={"x": x}) as block,
    ):
        float(block.inputs["x"].sum())
    check_libraries()


def test_a_reduction_in_two_passes():
    """A large reduction, for which a capture has to be repeated, works or is refused."""
    x = normal(1 << 22)
    prepared(lambda x: (x.sum(), x.max()), x)
    try:
        with graphjit.capture(inputs={"x": x}) as block:
            block.outputs = block.inputs["x"].sum(), block.inputs["x"].max()
    except graphjit.GraphjitError:
        check_libraries()
        return
    for _ in range(3):
        x = normal(1 << 22)
        assert same_bits(block.launch(x=x), (x.sum(), x.max()))


def test_names_that_are_no_identifiers():
    """Inputs become keywords of launch, so that other names are refused at once."""
    with (
        pytest.raises(graphjit.SignatureError, match="a b"),
        graphjit.capture(inputs={"a b": normal(3)}),
    ):
        pass


def test_a_closed_block():
    """A block that was closed frees its graph and cannot be launched."""
    x = normal(6)
    prepared(lambda x: x * 3, x)
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = block.inputs["x"] * 3
    block.close()
    block.close()
    with pytest.raises(graphjit.CaptureError):
        block.launch(x=x)


def test_a_block_when_switched_off():
    """With GRAPHJIT_DISABLE a block is refused: its code cannot run again by itself."""
    code = (
        "import cupy as cp, graphjit\n"
        "try:\n"
        "    with graphjit.capture(inputs={'x': cp.ones(3)}):\n"
        "        pass\n"
        "except graphjit.CaptureError as error:\n"
        "    print(error)"
    )
    done = run_python("-c", code, GRAPHJIT_DISABLE="1")
    assert done.returncode == 0, done.stderr
    assert "GRAPHJIT_DISABLE" in done.stdout
