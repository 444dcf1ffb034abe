"""The memory layout of simulated arrays: shape, strides, views, and reading on the host.

Input: a block of device memory. Output: views share it; nothing here launches a kernel.
Raises: ``HostReadError`` for a read of contents during a capture; what NumPy raises for a
view that does not exist.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from graphjit._adapters import simulated_device as device
from graphjit._driver.simulated_memory import extent

Shape = int | tuple[int, ...]


class ArrayStorage:
    """A piece of device memory, seen as an array.

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

    # As in CuPy, the dictionary of an array is that of a derived class.
    __slots__ = ("__weakref__", "block", "device_ptr", "dtype", "shape", "strides")

    def __init__(
        self,
        shape: Shape,
        dtype: Any = float,
        *,
        block: device.Block | None = None,
        byte_offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.strides = _c_strides(self.shape, self.itemsize) if strides is None else strides
        self.block = device.allocate(self.nbytes) if block is None else block
        self.device_ptr: int = self.block.ptr + byte_offset

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """The transposed view."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    # -- views

    def probe(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array of the same layout, whose contents must not be touched."""
        return as_strided(np.zeros(1, self.dtype), self.shape, self.strides)

    def as_view(self, make: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Self:
        """Return the view that ``make`` takes of an array; nothing looks at contents."""
        probe = self.probe()
        view = make(probe)
        assert isinstance(view, np.ndarray), "NumPy gave a scalar, not a view"
        moved: int = view.__array_interface__["data"][0] - probe.__array_interface__["data"][0]
        byte_offset = self.device_ptr - self.block.ptr + (moved if view.size else 0)
        return type(self)(
            view.shape,
            view.dtype,
            block=self.block,
            byte_offset=byte_offset,
            strides=view.strides,
        )

    def transpose(self, *axes: Any) -> Self:
        """Return a view with permuted axes."""
        return self.as_view(lambda probe: probe.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> Self:
        """Return a view with two axes exchanged."""
        return self.as_view(lambda probe: probe.swapaxes(first, second))

    def squeeze(self, axis: Any = None) -> Self:
        """Return a view without axes of length one."""
        return self.as_view(lambda probe: probe.squeeze(axis))

    def view(self, dtype: Any = None) -> Self:
        """Return a view, of another dtype if one is given."""
        return self.as_view(lambda probe: probe.view() if dtype is None else probe.view(dtype))

    # -- reading on the host

    def get(self) -> np.ndarray[Any, Any]:
        """Copy to the host; refused during a capture."""
        return self.read("graphjit.testing.Array.get()")

    def read(self, call: str) -> np.ndarray[Any, Any]:
        """Copy to the host on behalf of ``call``."""
        hooks = device.reading_hooks(self.block)
        if hooks is not None:
            whole: Any = self
            if not is_contiguous(self):
                whole = whole.copy()
            known = hooks.host_read(call, whole.device_ptr, whole.nbytes)
            return np.frombuffer(bytearray(known), self.dtype).reshape(self.shape)
        memory = device.driver().memory
        return memory.array(self.device_ptr, self.shape, self.dtype, self.strides).copy()

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        return self.read("graphjit.testing.Array.item()").item()

    def tolist(self) -> Any:
        """Return nested lists of Python scalars."""
        return self.read("graphjit.testing.Array.tolist()").tolist()

    def __float__(self) -> float:
        return float(self.read("float()").item())

    def __int__(self) -> int:
        return int(self.read("int()").item())

    def __complex__(self) -> complex:
        return complex(self.read("complex()").item())

    def __bool__(self) -> bool:
        return bool(self.read("bool(), such as `if array:`,"))

    def __index__(self) -> int:
        return operator.index(self.read("operator.index()").item())

    def __repr__(self) -> str:
        return repr(self.read("repr()"))

    def __str__(self) -> str:
        return str(self.read("str()"))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        raise TypeError(
            "an array of the simulated device is not converted to NumPy implicitly; call .get()"
        )


# -- relations of layouts


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(n, 1)
    return tuple(reversed(strides))


def is_contiguous(array: ArrayStorage) -> bool:
    """Say whether an array is one piece of memory in C order."""
    pairs = zip(array.shape, array.strides, _c_strides(array.shape, array.itemsize), strict=True)
    return not array.size or all(n == 1 or stride == c_stride for n, stride, c_stride in pairs)


def _span(array: ArrayStorage) -> tuple[int, int]:
    low, high = extent(array.shape, array.strides, array.itemsize)
    return array.device_ptr + low, array.device_ptr + high


def may_overlap(left: ArrayStorage, right: ArrayStorage) -> bool:
    (a, b), (c, d) = _span(left), _span(right)
    return a < d and c < b


def is_same_place(left: ArrayStorage, right: ArrayStorage) -> bool:
    mine = (left.device_ptr, left.shape, left.strides, left.dtype)
    return mine == (right.device_ptr, right.shape, right.strides, right.dtype)
