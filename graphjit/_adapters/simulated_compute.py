"""NumPy functions computed by one kernel each, on simulated arrays.

Input: a function, arrays and scalars. Output: a new array of the class of the first one, or
the array given to receive the result.
Raises: what NumPy raises for the same shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.simulated_launch import PLAIN, RAW, Work, is_array, is_operand, launch
from graphjit._adapters.simulated_storage import (
    ArrayStorage,
    is_contiguous,
    is_same_place,
    may_overlap,
)

A = TypeVar("A", bound=ArrayStorage)


@lru_cache(maxsize=4096)
def result_of(
    function: Callable[..., Any], kinds: tuple[Any, ...], static: tuple[tuple[str, Any], ...]
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Ask NumPy for the shape and dtype of a result, or for its error."""
    values = [np.zeros(kind[1], kind[2]) if kind[0] == "array" else kind[2] for kind in kinds]
    with np.errstate(all="ignore"):
        result = np.asarray(function(*values, **dict(static)))
    return result.shape, result.dtype


def _kind(value: Any) -> tuple[Any, ...]:
    if is_array(value):
        return "array", value.shape, value.dtype
    if not is_operand(value):
        raise TypeError(f"unsupported operand of type {type(value).__qualname__}")
    return "scalar", type(value), value


def compute(
    kind: type[A],
    function: Callable[..., Any],
    *values: Any,
    out: A | None = None,
    style: str = PLAIN,
    **static: Any,
) -> A:
    """Compute ``function(*values, **static)`` in one kernel.

    Parameters
    ----------
    kind : type
        Class of the result.
    function : callable
        A NumPy function, or a function of NumPy arrays that lives as long as the module.
    *values : array or scalar
        Python scalars take part in the promotion of dtypes as they do in NumPy.
    out : array, optional
        Receives the result, by "same_kind" casting.
    style : str
        How the parameters are packed.
    **static
        Hashable keyword arguments, compiled into the kernel.

    Returns
    -------
    array
        ``out``, or a new array.
    """
    items = tuple(static.items())
    values = tuple(map(plain_scalar, values))
    shape, dtype = result_of(function, tuple(map(_kind, values)), items)
    if out is None:
        out = kind(shape, dtype)
    else:
        _check_out(out, shape, dtype)
        values = tuple(_apart(value, out) for value in values)
    if out.size:
        launch(function.__name__, Work(function, items), [*values, out], style)
    return out


def plain_scalar(value: Any) -> Any:
    """Return a NumPy scalar of a derived class as what it holds, as a library in C takes it."""
    if isinstance(value, np.generic) and type(value).__module__ != "numpy":
        base = next(kind for kind in type(value).__mro__ if kind.__module__ == "numpy")
        held: Any = value
        return np.frombuffer(held, base)[0]
    return value


def _check_out(out: ArrayStorage, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if shape != out.shape:
        raise ValueError(f"the result has shape {shape}, the output {out.shape}")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"cannot cast the result from {dtype} to {out.dtype}")


def _apart(value: Any, out: ArrayStorage) -> Any:
    """Copy an operand that the kernel would overwrite before it has read all of it."""
    if not is_array(value) or is_same_place(value, out) or not may_overlap(value, out):
        return value
    return value.copy()


def change(function: Callable[..., Any], target: ArrayStorage, *values: Any) -> None:
    """Let a kernel run ``function(target, *values)``, which changes the target in place."""
    values = tuple(map(plain_scalar, values))
    for value in values:
        _kind(value)
    if target.size:
        values = tuple(_apart(value, target) for value in values)
        launch(function.__name__, Work(function, in_place=True), [target, *values])


def assign(target: Any, value: Any) -> None:
    target[...] = value


def put_items(target: Any, *key_and_value: Any) -> None:
    *key, value = key_and_value
    target[tuple(key)] = value


def take_items(array: Any, *key: Any) -> Any:
    return array[key]


def copy_into(target: ArrayStorage, value: Any) -> None:
    """Assign; contiguous memory by a copy, as CuPy does, anything else by a kernel."""
    if not is_array(value):
        value = np.asarray(value)
        if value.ndim:
            value = from_host(type(target), value.astype(target.dtype))
    if np.broadcast_shapes(target.shape, value.shape) != target.shape:
        raise ValueError(f"could not broadcast from shape {value.shape} into {target.shape}")
    if not is_array(value):
        change(assign, target, value.astype(target.dtype)[()])
        return
    value = _apart(value, target)
    is_copy = target.dtype == value.dtype and target.shape == value.shape
    if is_copy and is_contiguous(target) and is_contiguous(value):
        if target.size:
            stream = device.current_stream().handle
            device.driver().memcpy_async(target.device_ptr, value.device_ptr, target.nbytes, stream)
    else:
        change(assign, target, value)


def from_host(kind: type[A], host: np.ndarray[Any, Any]) -> A:
    """Copy a NumPy array to the device; in a capture it becomes a constant."""
    result = kind(host.shape, host.dtype)
    if host.nbytes:
        device.send_constant(host.tobytes(), result.device_ptr)
    return result


def is_index(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return any(isinstance(k, (ArrayStorage, list, np.ndarray)) for k in keys)


def index_arrays(kind: type[A], key: Any) -> list[A]:
    """Return index arrays for lists, arrays and masks; a mask on the device has to be read."""
    keys = key if isinstance(key, tuple) else (key,)
    arrays: list[A] = []
    for k in keys:
        if isinstance(k, kind) and k.dtype != bool:
            arrays.append(k)
            continue
        host = k.read("indexing by a mask") if isinstance(k, kind) else np.asarray(k)
        if isinstance(k, slice) or host.dtype.kind not in "bui":
            raise IndexError("index arrays cannot be mixed with slices here")
        arrays += [from_host(kind, i) for i in (host.nonzero() if host.dtype == bool else (host,))]
    return arrays


# -- linear algebra


def _matmul(left: Any, right: Any, workspace: Any, out: Any) -> None:
    product = workspace[: out.nbytes].view(out.dtype).reshape(out.shape)
    product[...] = np.matmul(left, right)
    out[...] = product


def matmul(left: A, right: A) -> A:
    """Multiply matrices, with a workspace that is allocated in stream order, as cuBLAS does."""
    shape, dtype = result_of(np.matmul, (_kind(left), _kind(right)), ())
    kind = type(left)
    out = kind(shape, dtype)
    if not out.size:
        return out
    stream = device.current_stream().handle
    workspace_ptr = device.driver().mem_alloc_async(out.nbytes, stream)
    workspace = kind(out.nbytes, np.uint8, block=device.Block(workspace_ptr, out.nbytes, None))
    launch("matmul", Work(_matmul, in_place=True), [left, right, workspace, out], RAW)
    device.driver().mem_free_async(workspace_ptr, stream)
    return out
