"""Where CuPy's array objects keep their fields: found by looking, not by knowing.

A compiled hit reads the address, shape and strides of an array straight from the object;
through Python attributes each costs as much as a tenth of the whole hit. The offsets are
searched in objects made for the purpose with values that occur nowhere else, and checked on
a second set; if anything is found twice or not at all, hits take the Python path.

Input: nothing. Output: ``Layout`` with offsets in bytes, or None.
Source: CuPy 14, cupy/_core/core.pxd and cupy/cuda/memory.pxd.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import cupy
import numpy as np

_DEVICE = 0x5A5A_1234


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of fields within ``cupy.ndarray`` and ``cupy.cuda.MemoryPointer`` objects."""

    shape: int
    """A C++ vector: pointers to its begin and end."""
    strides: int
    dtype: int
    data: int
    base: int
    ptr: int
    device_id: int


@cache
def find_layout() -> Layout | None:
    """Find the offsets; None if this version of CuPy keeps its fields in another way."""
    try:
        first = _search((3, 5, 7), (4000, 800, 16), 0x7E12_3456_7000)
        second = _search((2, 9, 4, 6), (90000, 9000, 900, 24), 0x7E65_4321_9000)
    except LookupError:
        return None
    return first if first == second else None


def _search(shape: tuple[int, ...], strides: tuple[int, ...], ptr: int) -> Layout:
    memory = cupy.cuda.UnownedMemory(ptr, 1 << 24, None, device_id=_DEVICE)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    array = cupy.ndarray(shape, np.float64, memptr=pointer, strides=strides)
    view = cupy.ndarray.view(array)
    fields, pointer_fields = _words(array), _words(pointer)
    return Layout(
        shape=_vector(fields, shape),
        strides=_vector(fields, strides),
        dtype=_only(fields, id(array.dtype)),
        data=_only(fields, id(pointer)),
        base=_only(_words(view), id(array)),
        ptr=_only(pointer_fields, ptr),
        device_id=_only_int32(pointer, _DEVICE),
    )


def _words(obj: Any) -> list[int]:
    n = type(obj).__basicsize__ // 8
    return list((ctypes.c_uint64 * n).from_address(id(obj)))


def _only(words: list[int], value: int) -> int:
    found = [8 * i for i, word in enumerate(words) if word == value and i >= 2]
    if len(found) != 1:
        raise LookupError
    return found[0]


def _only_int32(obj: Any, value: int) -> int:
    n = type(obj).__basicsize__ // 4
    values = list((ctypes.c_int32 * n).from_address(id(obj)))
    found = [4 * i for i, v in enumerate(values) if v == value and i >= 4]
    if len(found) != 1:
        raise LookupError
    return found[0]


def _vector(words: list[int], values: tuple[int, ...]) -> int:
    """Find a C++ vector of 64-bit integers by what it holds."""
    found = []
    for i in range(2, len(words) - 2):
        begin, end, capacity = words[i : i + 3]
        looks_right = end - begin == 8 * len(values) and end <= capacity < end + 4096
        if looks_right and begin > 4096 and begin % 8 == 0:
            held = tuple((ctypes.c_int64 * len(values)).from_address(begin))
            if held == values:
                found.append(8 * i)
    if len(found) != 1:
        raise LookupError
    return found[0]
