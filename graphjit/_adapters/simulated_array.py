"""A small NumPy-like array module on the simulated device.

``from graphjit.testing import simulated as xp`` and use it like CuPy: every operation launches
kernels, copies or fills on the current stream, and its result equals NumPy's bit for bit.
Reading contents on the host (``float(x)``, ``if x:``, ``xp.asnumpy``) waits, and is refused
while a function is captured.
Raises: what NumPy raises; ``DriverError`` and ``HostReadError``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.simulated_compute import compute, copy_into, from_host, matmul
from graphjit._adapters.simulated_device import Event, Stream, current_stream, null_stream
from graphjit._adapters.simulated_kernel import kernel
from graphjit._adapters.simulated_launch import PACKED
from graphjit._adapters.simulated_ndarray import Array
from graphjit._adapters.simulated_random import Generator
from graphjit._adapters.simulated_storage import Shape, is_contiguous

__all__ = [
    "Event", "Generator", "Stream", "null_stream", "matmul", "current_stream", "kernel", "Array",
    "ndarray", "empty", "zeros", "full", "ones",
    "empty_like", "zeros_like", "ones_like", "full_like", "arange", "asarray", "array",
    "asnumpy", "add", "subtract", "multiply", "divide", "power", "negative", "floor_divide",
    "remainder", "maximum", "minimum", "clip", "exp", "log", "log1p", "sqrt", "sin", "cos",
    "tanh", "floor", "absolute", "square", "sign", "greater", "greater_equal", "less",
    "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not", "isnan",
    "where", "abs", "sum", "prod", "mean", "var", "max", "min", "any", "all", "argmax",
    "argmin", "cumsum", "sort", "argsort", "nonzero", "take", "concatenate", "stack", "einsum",
    "dot", "broadcast_to", "transpose", "reshape", "ravel", "expand_dims", "flip", "copyto",
    "synchronize",
]  # fmt: skip

ndarray = Array


# -- creation


def empty(shape: Shape, dtype: Any = float) -> Array:
    """Return an array that holds whatever its memory held."""
    return Array(shape, dtype)


def zeros(shape: Shape, dtype: Any = float) -> Array:
    """Return zeros, by a fill of bytes."""
    result = Array(shape, dtype)
    if result.size:
        stream = current_stream().handle
        device.driver().memset_async(result.device_ptr, 0, result.nbytes, stream)
    return result


def full(shape: Shape, value: Any, dtype: Any = None) -> Array:
    """Return an array filled with a scalar."""
    result = Array(shape, np.asarray(value).dtype if dtype is None else dtype)
    result.fill(value)
    return result


def ones(shape: Shape, dtype: Any = float) -> Array:
    """Return ones."""
    return full(shape, 1, dtype)


def empty_like(array: Array) -> Array:
    """Return an array of the same shape and dtype that holds whatever its memory held."""
    return empty(array.shape, array.dtype)


def zeros_like(array: Array) -> Array:
    """Return zeros of the same shape and dtype."""
    return zeros(array.shape, array.dtype)


def ones_like(array: Array) -> Array:
    """Return ones of the same shape and dtype."""
    return ones(array.shape, array.dtype)


def full_like(array: Array, value: Any) -> Array:
    """Return an array of the same shape and dtype filled with a scalar."""
    return full(array.shape, value, array.dtype)


def arange(*args: Any, dtype: Any = None) -> Array:
    """Return a range."""
    result = np.arange(*args, dtype=dtype)
    out = Array(result.shape, result.dtype)
    return compute(Array, np.arange, *args, out=out, dtype=result.dtype)


def asarray(value: Any, dtype: Any = None) -> Array:
    """Return an array on the device; host data is copied there."""
    if isinstance(value, Array):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    return from_host(Array, np.asarray(value, dtype))


def array(value: Any, dtype: Any = None) -> Array:
    """Return a new array on the device."""
    result = asarray(value, dtype)
    return result.copy() if result is value else result


def asnumpy(array: Array) -> np.ndarray[Any, Any]:
    """Copy an array to the host."""
    return array.get()


# -- elementwise functions


def _elementwise(function: Any) -> Callable[..., Array]:
    def wrapper(*values: Any, out: Array | None = None) -> Array:
        return compute(Array, function, *values, out=out)

    wrapper.__name__ = wrapper.__qualname__ = function.__name__
    wrapper.__doc__ = f"Compute elementwise, as ``numpy.{function.__name__}``."
    return wrapper


add, subtract, multiply = map(_elementwise, (np.add, np.subtract, np.multiply))
divide, power, negative = map(_elementwise, (np.divide, np.power, np.negative))
floor_divide, remainder = map(_elementwise, (np.floor_divide, np.remainder))
maximum, minimum, clip = map(_elementwise, (np.maximum, np.minimum, np.clip))
exp, log, log1p, sqrt = map(_elementwise, (np.exp, np.log, np.log1p, np.sqrt))
sin, cos, tanh, floor = map(_elementwise, (np.sin, np.cos, np.tanh, np.floor))
absolute, square, sign = map(_elementwise, (np.absolute, np.square, np.sign))
greater, greater_equal = map(_elementwise, (np.greater, np.greater_equal))
less, less_equal = map(_elementwise, (np.less, np.less_equal))
equal, not_equal = map(_elementwise, (np.equal, np.not_equal))
logical_and, logical_or = map(_elementwise, (np.logical_and, np.logical_or))
logical_not, isnan = map(_elementwise, (np.logical_not, np.isnan))
where = _elementwise(np.where)
abs = absolute  # noqa: A001 - NumPy's name


# -- reductions, scans, sorting


def _reduction(function: Any) -> Callable[..., Array]:
    def wrapper(array: Array, axis: Any = None, *, keepdims: bool = False) -> Array:
        return compute(Array, function, array, style=PACKED, axis=axis, keepdims=keepdims)

    wrapper.__name__ = wrapper.__qualname__ = function.__name__
    wrapper.__doc__ = f"Reduce, as ``numpy.{function.__name__}``."
    return wrapper


# NumPy's names hide the builtins here, as they do in NumPy.
sum, prod, mean, var = map(_reduction, (np.sum, np.prod, np.mean, np.var))  # noqa: A001
max, min = map(_reduction, (np.max, np.min))  # noqa: A001
any, all = map(_reduction, (np.any, np.all))  # noqa: A001
argmax, argmin = map(_reduction, (np.argmax, np.argmin))


def cumsum(array: Array, axis: int | None = None) -> Array:
    """Return running sums along an axis, by default of the flattened array."""
    return compute(Array, np.cumsum, array, style=PACKED, axis=axis)


def sort(array: Array, axis: int = -1) -> Array:
    """Return a sorted copy."""
    return compute(Array, np.sort, array, style=PACKED, axis=axis)


def argsort(array: Array, axis: int = -1) -> Array:
    """Return the indices that sort an array."""
    return compute(Array, np.argsort, array, style=PACKED, axis=axis)


def nonzero(array: Array) -> tuple[Array, ...]:
    """Return the indices of the elements that are not zero; their number has to be read."""
    return tuple(from_host(Array, i) for i in array.read("nonzero()").nonzero())


# -- indexing, joining, layout


def take(array: Array, indices: Any, axis: int | None = None) -> Array:
    """Select by integers; a list of them becomes a constant."""
    return compute(Array, np.take, array, asarray(indices), style=PACKED, axis=axis)


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join arrays; more than eight through a table of their addresses, as CuPy does."""
    dtype = np.result_type(*(a.dtype for a in arrays))
    result = Array(np.concatenate([np.empty(a.shape) for a in arrays], axis).shape, dtype)
    if len(arrays) > _MAX_COPIES and axis == 0:
        parts = [a if a.dtype == dtype and is_contiguous(a) else a.astype(dtype) for a in arrays]
        rows = [[a.device_ptr, a.size] for a in parts]
        _join(from_host(Array, np.array(rows, np.uint64)), result)
        return result
    begin = 0
    for a in arrays:
        end = begin + a.shape[axis]
        target = result.swapaxes(0, axis)[begin:end].swapaxes(0, axis)
        copy_into(target, a)
        begin = end
    return result


_MAX_COPIES = 8


def _join_parts(memory: Any, table: Any, result: Any) -> None:
    begin, flat = 0, result.reshape(-1)
    for ptr, size in table.tolist():
        flat[begin : begin + size] = memory.array(ptr, (size,), result.dtype)
        begin += size


_join = kernel(_join_parts, takes_memory=True)


def _stack(*arrays: Any, axis: int) -> Any:
    return np.stack(arrays, axis)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join arrays along a new axis."""
    return compute(Array, _stack, *arrays, axis=axis)


def _einsum(*arrays: Any, subscripts: str) -> Any:
    return np.einsum(subscripts, *arrays)


def einsum(subscripts: str, *arrays: Array) -> Array:
    """Sum products over named axes."""
    return compute(Array, _einsum, *arrays, subscripts=subscripts)


def dot(left: Array, right: Array) -> Array:
    """Multiply as ``numpy.dot`` does."""
    return compute(Array, np.dot, left, right)


def broadcast_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view with strides of zero."""
    return array.as_view(functools.partial(np.broadcast_to, shape=shape))


def transpose(array: Array, axes: Any = None) -> Array:
    """Return a view with permuted axes."""
    return array.transpose(axes)


def reshape(array: Array, shape: Any) -> Array:
    """Return a view of another shape, or a copy."""
    return array.reshape(shape)


def ravel(array: Array) -> Array:
    """Return a one-dimensional view, or a copy."""
    return array.ravel()


def expand_dims(array: Array, axis: Any) -> Array:
    """Return a view with one more axis of length one."""
    return array.as_view(functools.partial(np.expand_dims, axis=axis))


def flip(array: Array, axis: Any = None) -> Array:
    """Return a view in reversed order."""
    axes = range(array.ndim) if axis is None else [axis % array.ndim]
    return array[tuple(slice(None, None, -1 if i in axes else 1) for i in range(array.ndim))]


def copyto(target: Array, value: Any) -> None:
    """Copy a value into an array."""
    copy_into(target, value)


def synchronize() -> None:
    """Wait for the device; CUDA refuses that during a capture."""
    device.driver().device_synchronize()
