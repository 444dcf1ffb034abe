"""The array of the simulated device: operators, methods and indexing.

Input / Output: arrays and scalars; results equal NumPy's bit for bit.
Raises: what NumPy raises for the same shapes and dtypes; ``HostReadError`` for a read of
contents during a capture.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphjit._adapters.simulated_compute import (
    assign,
    change,
    compute,
    copy_into,
    index_arrays,
    is_index,
    matmul,
    put_items,
    take_items,
)
from graphjit._adapters.simulated_launch import PACKED, is_operand
from graphjit._adapters.simulated_storage import ArrayStorage

_Operator = Callable[[Any, Any], "Array"]


def _operators(function: Callable[..., Any]) -> tuple[_Operator, _Operator, _Operator]:
    """Return an operator, its reflected and its in-place form."""
    return (
        lambda a, b: compute(Array, function, a, b),
        lambda a, b: compute(Array, function, b, a),
        lambda a, b: compute(Array, function, a, b, out=a),
    )


def _comparison(function: Callable[..., Any]) -> _Operator:
    def method(a: Array, b: Any) -> Array:
        # Anything else is compared by Python, which finds it unequal.
        return compute(Array, function, a, b) if is_operand(b) else NotImplemented

    return method


def _reduction(function: Callable[..., Any]) -> Callable[..., Array]:
    def method(array: Array, axis: Any = None, *, keepdims: bool = False) -> Array:
        return compute(Array, function, array, style=PACKED, axis=axis, keepdims=keepdims)

    method.__doc__ = f"Reduce as ``numpy.{function.__name__}``."
    return method


class Array(ArrayStorage):
    """An array on the simulated device.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
    block : Block, optional
        Memory; allocated if left out.
    byte_offset : int
        From the start of the block to the first element.
    strides : tuple of int, optional
        In bytes; C order if left out.
    """

    __module__ = "graphjit.testing"
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # compared elementwise, as NumPy's

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    # -- copies and indexing

    def reshape(self, *shape: Any) -> Array:
        """Return a view of another shape, or a copy where the layout allows no view."""
        wanted = shape[0] if len(shape) == 1 else shape
        try:
            return self.as_view(lambda probe: np.reshape(probe, wanted, copy=False))
        except ValueError:
            return self.copy().as_view(lambda probe: np.reshape(probe, wanted, copy=False))

    def ravel(self) -> Array:
        """Return a one-dimensional view, or a copy where the layout allows no view."""
        return self.reshape(-1)

    def copy(self, order: str = "C") -> Array:
        """Return a copy in C order, or with ``order="K"`` in the order of this array."""
        strides = None if order == "C" else np.empty_like(self.probe()).strides
        result = Array(self.shape, self.dtype, strides=strides)
        copy_into(result, self)
        return result

    def astype(self, dtype: Any) -> Array:
        """Return a copy of another dtype."""
        result = Array(self.shape, dtype)
        copy_into(result, self)
        return result

    def fill(self, value: Any) -> None:
        """Set every element to a scalar."""
        change(assign, self, value)

    def __getitem__(self, key: Any) -> Array:
        if is_index(key):
            return compute(Array, take_items, self, *index_arrays(Array, key), style=PACKED)
        keys = key if isinstance(key, tuple) else (key,)
        if not any(k is Ellipsis for k in keys):
            keys = (*keys, Ellipsis)  # a 0-d array where NumPy would give a scalar
        return self.as_view(lambda probe: probe[keys])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, Array) and key.dtype == bool:
            change(put_items, self, key, value)
        elif is_index(key):
            change(put_items, self, *index_arrays(Array, key), value)
        else:
            copy_into(self[key], value)

    # -- operators and reductions

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # NumPy turns its scalars into 0-d arrays on the way here.
        values = [v[()] if isinstance(v, np.ndarray) and not v.ndim else v for v in inputs]
        if method != "__call__" or kwargs or not all(map(is_operand, values)):
            return NotImplemented
        return compute(Array, ufunc, *values)

    __add__, __radd__, __iadd__ = _operators(operator.add)
    __sub__, __rsub__, __isub__ = _operators(operator.sub)
    __mul__, __rmul__, __imul__ = _operators(operator.mul)
    __truediv__, __rtruediv__, __itruediv__ = _operators(operator.truediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators(operator.floordiv)
    __mod__, __rmod__, __imod__ = _operators(operator.mod)
    __pow__, __rpow__, __ipow__ = _operators(operator.pow)
    __and__, __rand__, __iand__ = _operators(operator.and_)
    __or__, __ror__, __ior__ = _operators(operator.or_)
    __xor__, __rxor__, __ixor__ = _operators(operator.xor)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__ = _comparison(operator.eq)  # type: ignore[assignment]
    __ne__ = _comparison(operator.ne)  # type: ignore[assignment]
    sum, prod, mean = _reduction(np.sum), _reduction(np.prod), _reduction(np.mean)
    max, min, var = _reduction(np.max), _reduction(np.min), _reduction(np.var)
    any, all = _reduction(np.any), _reduction(np.all)
    argmax, argmin = _reduction(np.argmax), _reduction(np.argmin)

    def __neg__(self) -> Array:
        return compute(Array, operator.neg, self)

    def __abs__(self) -> Array:
        return compute(Array, np.absolute, self)

    def __invert__(self) -> Array:
        return compute(Array, operator.invert, self)

    def __matmul__(self, other: Array) -> Array:
        return matmul(self, other)
