"""Arrays of the simulated device equal NumPy's bit for bit, views and errors included."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphjit._adapters import simulated_device as device
from graphjit.errors import DriverError
from graphjit.testing import simulated as xp

DTYPES = st.sampled_from(["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
ARRAYS = hnp.arrays(DTYPES, SHAPES)
FLOATS = hnp.arrays(st.sampled_from(["f2", "f4", "f8"]), SHAPES)
QUICK = settings(max_examples=60, deadline=None)


def same(array, host) -> None:
    """Assert equality of dtype, shape and bits."""
    host = np.asarray(host)
    assert (array.dtype, array.shape) == (host.dtype, host.shape)
    assert array.get().tobytes() == host.tobytes()


def quiet(function, *values):
    """Call NumPy without its warnings, which a GPU does not give either."""
    with np.errstate(all="ignore"):
        return function(*values)


@QUICK
@given(ARRAYS)
def test_host_data_comes_back(host):
    """What is sent to the device is what is read."""
    same(xp.asarray(host), host)


@QUICK
@given(st.data(), ARRAYS)
def test_basic_indexing_gives_the_view_that_numpy_gives(data, host):
    """Slices with any steps, new axes and integers: the same elements, in shared memory."""
    key = data.draw(hnp.basic_indices(host.shape, allow_newaxis=True))
    array = xp.asarray(host)
    view = array[key]
    same(view, host[key])
    assert view.block is array.block
    if view.size:
        view[...] = 1
        copy = host.copy()
        copy[key] = 1
        same(array, copy)


@QUICK
@given(st.data(), ARRAYS)
def test_transposes_and_reshapes(data, host):
    """Permuted axes and other shapes, as views or copies."""
    axes = data.draw(st.permutations(range(host.ndim)))
    array = xp.asarray(host).transpose(axes)
    same(array, host.transpose(axes))
    same(array.reshape(-1), host.transpose(axes).reshape(-1))
    same(array.ravel()[::-1], host.transpose(axes).ravel()[::-1])
    same(array.copy(), host.transpose(axes))
    same(xp.flip(array), np.flip(host.transpose(axes)))


UNARY = ["exp", "log", "sqrt", "sin", "cos", "tanh", "abs", "square", "floor", "sign", "isnan"]
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
@QUICK
@given(st.data(), hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
def test_operators(function, data, shapes):
    """Operators of two arrays, or of an array and a scalar: NumPy's promotion and broadcasting."""
    kinds = st.sampled_from(["i4", "i8", "f4", "f8"])
    left, right = (data.draw(hnp.arrays(kinds, shape)) for shape in shapes.input_shapes)
    same(function(xp.asarray(left), xp.asarray(right)), quiet(function, left, right))
    scalar = data.draw(st.sampled_from([3, 2.5, np.float32(0.1), np.int64(7)]))
    same(function(xp.asarray(left), scalar), quiet(function, left, scalar))
    same(function(scalar, xp.asarray(left)), quiet(function, scalar, left))


@pytest.mark.parametrize("name", UNARY)
@QUICK
@given(FLOATS)
def test_elementwise_functions(name, host):
    """Functions of one array, by name and through NumPy's own ufuncs."""
    expected = quiet(getattr(np, name), host)
    same(getattr(xp, name)(xp.asarray(host)), expected)
    if name != "abs":
        same(getattr(np, name)(xp.asarray(host)), expected)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "any", "argmax"])
@QUICK
@given(st.data(), hnp.arrays(st.sampled_from(["i4", "f4", "f8"]), hnp.array_shapes(max_side=6)))
def test_reductions(name, data, host):
    """Reductions over all or one axis, with and without keeping it, of arrays and views."""
    axis = data.draw(st.sampled_from([None, *range(host.ndim)]))
    keepdims = data.draw(st.booleans())
    expected = quiet(lambda: getattr(np, name)(host.T, axis=axis, keepdims=keepdims))
    same(getattr(xp, name)(xp.asarray(host).T, axis, keepdims=keepdims), expected)
    same(getattr(xp.asarray(host).T, name)(axis=axis, keepdims=keepdims), expected)


@QUICK
@given(FLOATS, st.sampled_from([2, 0.5, -1, 3, 2.5]))
def test_powers_of_python_scalars(host, exponent):
    """``x ** 2`` takes the shortcuts that NumPy takes."""
    same(xp.asarray(host) ** exponent, quiet(operator.pow, host, exponent))


@QUICK
@given(hnp.arrays("f8", st.integers(4, 12)), st.integers(-3, 3))
def test_overlapping_assignment(host, shift):
    """``x[1:] = x[:-1]`` and ``x[1:] += x[:-1]`` read everything before they write."""
    n = host.size
    to, source = slice(max(shift, 0), n + min(shift, 0)), slice(max(-shift, 0), n - max(shift, 0))
    array, copy = xp.asarray(host), host.copy()
    array[to] = array[source]
    copy[to] = host[source]
    same(array, copy)
    array[to] += array[source]
    quiet(lambda: np.add(copy[to], copy[source].copy(), out=copy[to]))
    same(array, copy)
    array[...] = array[::-1]
    same(array, copy[::-1])


def test_in_place_operators_keep_the_array():
    """``x += y`` writes into x; a result that does not fit is refused."""
    array = x = xp.arange(6).reshape(2, 3)
    x += x[:1]
    x *= 2
    assert x is array
    same(x, (np.arange(6).reshape(2, 3) + np.arange(3)) * 2)
    with pytest.raises(TypeError, match="cannot cast"):
        x += 0.5
    row = x[0]
    with pytest.raises(ValueError, match="shape"):
        row += x


def test_creation():
    """zeros, ones, full, arange and their relatives."""
    same(xp.zeros((2, 3), "f4"), np.zeros((2, 3), "f4"))
    same(xp.ones(3, "i2"), np.ones(3, "i2"))
    same(xp.full((2, 2), 7.5), np.full((2, 2), 7.5))
    same(xp.arange(2, 9, 3), np.arange(2, 9, 3))
    same(xp.arange(3.0, dtype="f4"), np.arange(3.0, dtype="f4"))
    same(xp.ones_like(xp.zeros(2, "u1")), np.ones(2, "u1"))
    same(xp.zeros((0, 3)), np.zeros((0, 3)))
    same(xp.array([[1, 2], [3, 4]]).astype("c8"), np.array([[1, 2], [3, 4]], "c8"))


def test_linear_algebra():
    """Products of matrices, stacks of them, and vectors."""
    a, b = np.random.rand(4, 5), np.random.rand(5, 3)
    same(xp.asarray(a) @ xp.asarray(b), a @ b)
    same(xp.asarray(b).T @ xp.asarray(a).T, b.T @ a.T)
    same(xp.asarray(a[None]) @ xp.asarray(b), a[None] @ b)
    same(xp.asarray(a) @ xp.asarray(b[:, 0].copy()), a @ b[:, 0].copy())
    same(xp.einsum("ij,jk->ki", xp.asarray(a), xp.asarray(b)), np.einsum("ij,jk->ki", a, b))
    with pytest.raises(ValueError, match="matmul"):
        xp.asarray(a) @ xp.asarray(a)


def test_manipulation():
    """Joining, selecting, sorting, running sums."""
    host = np.random.rand(3, 4).astype("f4")
    x = xp.asarray(host)
    same(xp.concatenate([x, x * 2]), np.concatenate([host, host * 2]))
    same(xp.concatenate([x, x.astype("f8")], axis=1), np.concatenate([host, host.astype("f8")], 1))
    many, many_host = [x[::-1], *[x + i for i in range(9)]], [host[::-1]]
    many_host += [host + np.float32(i) for i in range(9)]
    same(xp.concatenate(many), np.concatenate(many_host))
    same(xp.stack([x, x], axis=1), np.stack([host, host], axis=1))
    same(xp.take(x, [2, 0], axis=0), np.take(host, [2, 0], axis=0))
    same(x[[2, 0]], host[[2, 0]])
    same(x[xp.asarray([1, 2]), xp.asarray([0, 3])], host[[1, 2], [0, 3]])
    same(x[x > 0.5], host[host > 0.5])
    same(xp.nonzero(x > 0.5)[1], np.nonzero(host > 0.5)[1])
    same(xp.sort(x, axis=0), np.sort(host, axis=0))
    same(xp.argsort(x), np.argsort(host))
    same(xp.cumsum(x), np.cumsum(host))
    same(xp.where(x > 0.5, x, 0), np.where(host > 0.5, host, 0))
    same(xp.broadcast_to(x, (2, 3, 4)), np.broadcast_to(host, (2, 3, 4)))
    x[[0, 2]] = 0
    x[x > 0.5] = -1
    host[[0, 2]] = 0
    host[host > 0.5] = -1
    same(x, host)


def test_reading_on_the_host():
    """Python numbers, truth, text; NumPy does not get arrays without being asked."""
    x = xp.arange(3)
    assert (float(x[2]), int(x[1]), bool(x[0]), x[2].item()) == (2.0, 1, False, 2)
    assert [10, 20, 30][x[1]] == 20
    assert (str(x), repr(x), x.tolist(), len(x)) == ("[0 1 2]", "array([0, 1, 2])", [0, 1, 2], 3)
    assert [int(v) for v in x] == [0, 1, 2]
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="implicitly"):
        np.asarray(x)
    with pytest.raises(TypeError, match="unsupported"):
        x + np.arange(3)
    assert (x == None) is False  # noqa: E711 - Python's answer, as nothing can be compared


def test_memory_is_reused_last_in_first_out_and_poisoned():
    """A stale address shows: the next array of that size lies there, and holds garbage."""
    first = xp.zeros(100)
    ptr = first.device_ptr
    used = device.pool.used_nbytes
    del first
    assert device.pool.used_nbytes == used - 1024
    second = xp.empty(100)
    assert second.device_ptr == ptr
    assert set(second.view("u1").tolist()) == {0xCB}


def test_pool_cannot_grow_in_a_capture():
    """Outside of graphjit a capture meets the allocation that CUDA refuses."""
    stream = xp.Stream(non_blocking=True)
    device.driver().stream_begin_capture(stream.handle, "thread_local")
    with stream, pytest.raises(DriverError, match="STREAM_CAPTURE_UNSUPPORTED"):
        xp.empty(123_457)
    device.driver().stream_abandon_capture(stream.handle)


def test_streams_are_current_in_one_thread():
    """``with stream:`` nests, and events order streams."""
    outer, inner = xp.Stream(), xp.Stream(non_blocking=True)
    assert xp.current_stream() is xp.null_stream
    with outer:
        with inner:
            assert xp.current_stream() is inner
            x = xp.ones(3) + 1
        outer.wait_event(inner.record())
        same(x * 2, np.full(3, 4.0))
    outer.synchronize()
    xp.Event().record().synchronize()
    xp.synchronize()


def test_kernels_of_ones_own():
    """Kernels over views, and over raw parameters with structs, packed or padded."""
    packed = np.dtype([("tag", "i1"), ("x", "u8"), ("scale", "f4")])

    @xp.kernel(params=["int32", packed, "pointer"])
    def scaled(memory, n, source, out_ptr):
        x = memory.array(int(source["x"]), (n,), "f4")
        memory.array(out_ptr, (n,), "f4")[...] = x * source["scale"]

    x, y = xp.arange(4.0, dtype="f4"), xp.zeros(4, "f4")
    scaled(4, (1, x, 2.5), y)
    same(y, np.arange(4, dtype="f4") * np.float32(2.5))
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
        scaled(4000, (1, x, 2.5), y)
