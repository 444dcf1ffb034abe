"""A small NumPy-like array module on the simulated device.

``from graphjit.testing import simulated as xp`` and use it like CuPy: every operation
launches kernels, copies or fills on the current stream, and its result equals NumPy's bit for
bit. Reading contents on the host (``float(x)``, ``if x:``, ``xp.asnumpy``) synchronises, and
is refused while a function is captured.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.simulated_device import Event, Stream

__all__ = ["Array", "Event", "Stream", "asarray", "asnumpy"]
Shape = int | tuple[int, ...]


class Array:
    """An array on the simulated device."""

    __module__ = "graphjit.testing"
    __array_priority__ = 100

    def __init__(
        self,
        shape: Shape,
        dtype: Any = float,
        *,
        block: Any = None,
        byte_offset: int = 0,
        strides: tuple[int, ...] | None = None,
        base: Array | None = None,
    ) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.strides = (
            strides if strides is not None else _contiguous(self.shape, self.dtype.itemsize)
        )
        self.block = device.allocate(self.nbytes) if block is None else block
        self.device_ptr: int = self.block.ptr + byte_offset
        self.base = base

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return int(self.size * self.dtype.itemsize)

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def _view(self, like: np.ndarray[Any, Any], probe: np.ndarray[Any, Any]) -> Array:
        """Make the view that NumPy made of a probe with the same layout."""
        offset = like.__array_interface__["data"][0] - probe.__array_interface__["data"][0]
        at = self.device_ptr - self.block.ptr + (offset if like.size else 0)
        base = self if self.base is None else self.base
        return Array(
            like.shape,
            like.dtype,
            block=self.block,
            byte_offset=at,
            strides=like.strides,
            base=base,
        )

    def _probe(self) -> np.ndarray[Any, Any]:
        """Return an array of the same layout whose contents nobody looks at."""
        low, high = device.extent(self.shape, self.strides, self.dtype.itemsize)
        memory = np.empty(builtins.max(high - low, 1), np.uint8)
        return np.ndarray(self.shape, self.dtype, memory, -low, self.strides)

    def _viewed(self, make: Callable[[Any], Any]) -> Array:
        probe = self._probe()
        return self._view(make(probe), probe)

    # -- views and copies

    def transpose(self, *axes: int) -> Array:
        return self._viewed(lambda p: p.transpose(*axes))

    def reshape(self, *shape: Any) -> Array:
        probe = self._probe()
        shaped = probe.reshape(*shape)
        if np.shares_memory(shaped, probe) or not probe.size:
            return self._view(shaped, probe)
        return self.copy().reshape(*shape)

    def ravel(self) -> Array:
        return self.reshape(-1)

    def view(self, dtype: Any = None) -> Array:
        return self._viewed(lambda p: p.view(dtype) if dtype is not None else p.view())

    def copy(self) -> Array:
        result = Array(self.shape, self.dtype)
        _copy_into(result, self)
        return result

    def astype(self, dtype: Any) -> Array:
        result = Array(self.shape, dtype)
        device.launch("astype", _astype_body, [self, result])
        return result

    def __getitem__(self, key: Any) -> Array:
        if isinstance(key, list) or (isinstance(key, Array) and key.dtype.kind in "iu"):
            return take(self, key)
        if isinstance(key, Array):
            return take(self, np.flatnonzero(key.get()).tolist())  # a mask has to be counted
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis not in keys:
            keys = (*keys, Ellipsis)  # a 0-d array where NumPy would give a scalar
        return self._viewed(lambda probe: probe[keys])

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        source = value if isinstance(value, Array) else asarray(value, self.dtype)
        if _overlap(target, source):
            source = source.copy()
        if source.shape == target.shape and source.dtype == target.dtype:
            _copy_into(target, source)
        else:
            device.launch("assign", _assign_body, [source, target])

    # -- reading on the host

    def get(self) -> np.ndarray[Any, Any]:
        """Copy to the host; refused during a capture."""
        hooks = device.hooks()
        if hooks is not None or getattr(self.block, "hooks", None) is not None:
            raise (hooks or self.block.hooks).host_read("graphjit.testing.Array.get")
        device.driver().refuse_unsafe_call("cuMemcpyDtoH")
        low, high = device.extent(self.shape, self.strides, self.dtype.itemsize)
        memory = device.driver().memory.view(self.device_ptr + low, high - low)
        return np.ndarray(self.shape, self.dtype, memory, -low, self.strides).copy()

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        return repr(self.get()) if device.hooks() is None else f"<array {self.dtype} {self.shape}>"

    def __str__(self) -> str:
        return str(self.get())

    # -- reductions and the like, as methods

    def sum(self, axis: Any = None, keepdims: bool = False) -> Array:
        return _reduce(np.sum, self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        return _reduce(np.max, self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        return _reduce(np.min, self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Array:
        return _reduce(np.mean, self, axis, keepdims)

    def fill(self, value: Any) -> None:
        device.launch("fill", _Fill(np.asarray(value, self.dtype)[()]), [self])

    def __matmul__(self, other: Array) -> Array:
        return matmul(self, other)

    def __neg__(self) -> Array:
        return negative(self)


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= builtins.max(n, 1)
    return tuple(reversed(strides))


def _overlap(left: Array, right: Array) -> bool:
    spans = []
    for array in (left, right):
        low, high = device.extent(array.shape, array.strides, array.dtype.itemsize)
        spans.append((array.device_ptr + low, array.device_ptr + high))
    (a, b), (c, d) = spans
    return a < d and c < b


def _is_contiguous(array: Array) -> bool:
    return array.strides == _contiguous(array.shape, array.dtype.itemsize)


def _copy_into(dst: Array, src: Array) -> None:
    """Copy; contiguous memory by a copy, as CuPy does, anything else by a kernel."""
    if _is_contiguous(dst) and _is_contiguous(src) and dst.shape == src.shape:
        stream = device.current_stream().handle
        device.driver().memcpy_async(dst.device_ptr, src.device_ptr, dst.nbytes, stream)
    else:
        device.launch("assign", _assign_body, [src, dst])


# -- bodies of kernels: what they do with NumPy views of device memory


def _assign_body(src: Any, dst: Any) -> None:
    dst[...] = src


def _astype_body(src: Any, dst: Any) -> None:
    dst[...] = src.astype(dst.dtype)


class _Fill:
    """Fill with a value that is part of the kernel, as a template argument would be."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, dst: Any) -> None:
        dst[...] = self.value

    def __hash__(self) -> int:
        return hash((self.value.dtype.str, self.value.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fill) and hash(self) == hash(other)


@functools.cache
def _ufunc_body(ufunc: Any, scalars: tuple[tuple[int, type, str], ...], n: int) -> Any:
    """Make the body of an elementwise kernel; Python scalars are compiled in."""

    def body(*arrays: Any) -> None:
        values = list(arrays[:-1])
        for at, kind, text in scalars:
            values.insert(at, kind(text) if kind is not bool else text == "True")
        arrays[-1][...] = ufunc(*values)

    return body


def _elementwise(ufunc: Any, *values: Any, out: Array | None = None) -> Array:
    arrays = [v for v in values if isinstance(v, Array)]
    scalars = tuple((i, type(v), repr(v)) for i, v in enumerate(values) if not isinstance(v, Array))
    samples = [np.empty((1,) * v.ndim, v.dtype) if isinstance(v, Array) else v for v in values]
    with np.errstate(all="ignore"):
        dtype = ufunc(
            *(s if not isinstance(s, np.ndarray) else np.ones_like(s) for s in samples)
        ).dtype
    if out is None:
        out = Array(np.broadcast_shapes(*(a.shape for a in arrays)), dtype)
    elif any(_overlap(a, out) and not _same_place(a, out) for a in arrays):
        arrays = [a.copy() for a in arrays]
    body = _ufunc_body(ufunc, scalars, len(arrays))
    style = device.PACKED if len(arrays) == 2 else device.PLAIN
    device.launch(ufunc.__name__, body, [*arrays, out], style)
    return out


def _same_place(left: Array, right: Array) -> bool:
    return (left.device_ptr, left.shape, left.strides) == (
        right.device_ptr,
        right.shape,
        right.strides,
    )


def _make_ufunc(ufunc: Any) -> Callable[..., Array]:
    def function(*values: Any, out: Array | None = None) -> Array:
        return _elementwise(ufunc, *values, out=out)

    function.__name__ = function.__qualname__ = ufunc.__name__
    function.__doc__ = f"Elementwise, as ``numpy.{ufunc.__name__}``."
    return function


add, subtract, multiply = map(_make_ufunc, (np.add, np.subtract, np.multiply))
divide, power, negative = map(_make_ufunc, (np.divide, np.power, np.negative))
maximum, minimum = map(_make_ufunc, (np.maximum, np.minimum))
exp, log, sqrt, sin, cos = map(_make_ufunc, (np.exp, np.log, np.sqrt, np.sin, np.cos))
tanh, abs, square = map(_make_ufunc, (np.tanh, np.absolute, np.square))  # noqa: A001
greater, less, equal = map(_make_ufunc, (np.greater, np.less, np.equal))
where = _make_ufunc(np.where)


def _install_operators() -> None:
    """Give arrays the operators, plain, reflected and in place."""
    ufunc: Any
    for name, ufunc in (
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("truediv", np.divide),
        ("pow", np.power), ("mod", np.remainder),
    ):  # fmt: skip
        setattr(Array, f"__{name}__", lambda a, b, f=ufunc: _elementwise(f, a, b))
        setattr(Array, f"__r{name}__", lambda a, b, f=ufunc: _elementwise(f, b, a))
        setattr(Array, f"__i{name}__", lambda a, b, f=ufunc: _elementwise(f, a, b, out=a))
    for name, ufunc in (
        ("gt", np.greater), ("lt", np.less), ("ge", np.greater_equal), ("le", np.less_equal),
        ("eq", np.equal), ("ne", np.not_equal),
    ):  # fmt: skip
        setattr(Array, f"__{name}__", lambda a, b, f=ufunc: _elementwise(f, a, b))
    Array.__hash__ = None  # type: ignore[assignment]  # compared elementwise, like NumPy's


_install_operators()


# -- creation


def empty(shape: Shape, dtype: Any = float) -> Array:
    """Return an array that holds whatever its memory held."""
    return Array(shape, dtype)


def zeros(shape: Shape, dtype: Any = float) -> Array:
    """Return zeros, by a fill of bytes."""
    result = Array(shape, dtype)
    stream = device.current_stream().handle
    device.driver().memset_async(result.device_ptr, 0, result.nbytes, stream)
    return result


def full(shape: Shape, value: Any, dtype: Any = None) -> Array:
    """Return an array filled with a value."""
    result = Array(shape, np.asarray(value).dtype if dtype is None else dtype)
    result.fill(value)
    return result


def ones(shape: Shape, dtype: Any = float) -> Array:
    """Return ones."""
    return full(shape, 1, dtype)


def zeros_like(array: Array) -> Array:
    """Return zeros of the same shape and dtype."""
    return zeros(array.shape, array.dtype)


def arange(*args: Any, dtype: Any = None) -> Array:
    """Return a range, computed by a kernel."""
    values = np.arange(*args, dtype=dtype)
    result = Array(values.shape, values.dtype)

    def body(dst: Any) -> None:
        dst[...] = values

    device.launch("arange", body, [result])
    return result


def asarray(value: Any, dtype: Any = None) -> Array:
    """Return an array on the device; host data is copied there."""
    if isinstance(value, Array):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    host = np.ascontiguousarray(np.asarray(value, dtype))
    result = Array(np.shape(value), host.dtype)
    hooks = device.hooks()
    if hooks is None:
        device.driver().memcpy_htod(result.device_ptr, host.tobytes())
    elif host.nbytes:
        source = hooks.upload_constant(host.tobytes())
        stream = device.current_stream().handle
        device.driver().memcpy_async(result.device_ptr, source, host.nbytes, stream)
    return result


def asnumpy(array: Array) -> np.ndarray[Any, Any]:
    """Copy an array to the host."""
    return array.get()


# -- reductions, linear algebra, manipulation


@functools.cache
def _reduce_body(function: Any, axis: Any, keepdims: bool) -> Any:
    def body(src: Any, dst: Any) -> None:
        dst[...] = function(src, axis=axis, keepdims=keepdims)

    return body


def _reduce(function: Any, array: Array, axis: Any, keepdims: bool) -> Array:
    sample = function(np.ones(array.shape, array.dtype), axis=axis, keepdims=keepdims)
    result = Array(np.shape(sample), sample.dtype)
    name = getattr(function, "__name__", "reduce")
    device.launch(name, _reduce_body(function, axis, keepdims), [array, result])
    return result


sum, max, min, mean = (  # noqa: A001 - NumPy's names
    functools.partial(lambda f, a, axis=None, keepdims=False: _reduce(f, a, axis, keepdims), f)
    for f in (np.sum, np.max, np.min, np.mean)
)


def _matmul_body(left: Any, right: Any, workspace: Any, dst: Any) -> None:
    workspace[...] = 1  # a library scribbles in its workspace
    dst[...] = np.matmul(left, right)


def matmul(left: Array, right: Array) -> Array:
    """Multiply matrices, with a workspace allocated in stream order, as cuBLAS does."""
    shape = np.matmul(np.empty(left.shape), np.empty(right.shape)).shape
    result = Array(shape, np.result_type(left.dtype, right.dtype))
    stream = device.current_stream().handle
    ptr = device.driver().mem_alloc_async(1024, stream)
    block = device.Block(ptr, 1024, lambda *_: device.driver().mem_free_async(ptr, stream))
    workspace = Array(1024, np.uint8, block=block)
    device.launch("matmul", _matmul_body, [left, right, workspace, result])
    return result


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join arrays; more than eight through a table of their addresses, as CuPy does."""
    shape = np.concatenate([np.empty(a.shape) for a in arrays], axis).shape
    result = Array(shape, np.result_type(*(a.dtype for a in arrays)))
    if len(arrays) > 8 and builtins.all(_is_contiguous(a) for a in arrays) and axis == 0:
        _concatenate_by_table(list(arrays), result)
        return result
    begin = 0
    for a in arrays:
        end = begin + a.shape[axis]
        result[(slice(None),) * axis + (slice(begin, end),)] = a
        begin = end
    return result


def _concatenate_by_table(arrays: list[Array], result: Array) -> None:
    table = asarray(np.array([a.device_ptr for a in arrays], np.uint64))
    sizes = [(a.shape, a.dtype, a.nbytes) for a in arrays]

    def body(table: Any, dst: Any) -> None:
        memory = device.driver().memory
        parts = [
            memory.view(int(ptr), nbytes).view(dtype).reshape(shape)
            for ptr, (shape, dtype, nbytes) in zip(table, sizes, strict=True)
        ]
        dst[...] = np.concatenate(parts)

    device.launch("concatenate", body, [table, result])


def take(array: Array, indices: Any) -> Array:
    """Select rows by integers; a list becomes an array of constants."""
    index = indices if isinstance(indices, Array) else asarray(np.asarray(indices, np.int64))
    result = Array(index.shape + array.shape[1:], array.dtype)
    device.launch("take", _take_body, [array, index, result])
    return result


def _take_body(src: Any, index: Any, dst: Any) -> None:
    dst[...] = src[index]


def sort(array: Array) -> Array:
    """Sort along the last axis."""
    result = array.copy()
    device.launch("sort", _sort_body, [result])
    return result


def _sort_body(dst: Any) -> None:
    dst[...] = np.sort(dst)


def cumsum(array: Array) -> Array:
    """Return running sums of the flattened array."""
    result = Array(array.size, np.cumsum(np.ones(1, array.dtype)).dtype)
    device.launch("cumsum", _cumsum_body, [array, result])
    return result


def _cumsum_body(src: Any, dst: Any) -> None:
    dst[...] = np.cumsum(src)


def broadcast_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view with strides of zero."""
    return array._viewed(lambda probe: np.broadcast_to(probe, shape))


def kernel(body: Callable[..., None]) -> Callable[..., None]:
    """Make a kernel of a function over NumPy views of device memory.

    Examples
    --------
    >>> from graphjit.testing import simulated as xp
    >>> @xp.kernel
    ... def saxpy(x, y):
    ...     y += 2 * x
    >>> x, y = xp.ones(3), xp.zeros(3)
    >>> saxpy(x, y)
    >>> print(y)
    [2. 2. 2.]
    """

    @functools.wraps(body)
    def launch(*arrays: Array) -> None:
        device.launch(body.__name__, body, list(arrays))

    return launch
