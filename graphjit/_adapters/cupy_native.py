"""CuPy for the compiled hit: offsets of fields, addresses of functions.

Input: a device. Output: a ``NativeLibrary``, or None if this CuPy is not laid out as expected.
Source: CuPy 14, ``__pyx_capi__`` of cupy_backends.cuda.stream.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import cupy

from graphjit._adapters.cupy_layout import find_layout
from graphjit._driver.cuda import cuda_driver
from graphjit._hit import NativeLibrary


@cache
def native_library(device: int) -> Any:
    """Return what compiled hits on a device need, made at the first call."""
    layout, entry_points = find_layout(), cuda_driver(device).entry_points()
    if layout is None or entry_points is None or not _current_stream_function():
        return None
    return NativeLibrary(
        entry_points,
        layout,
        cupy.ndarray,
        cupy.cuda.alloc,
        _current_stream_function(),
        cupy.ndarray.__mro__[1].view,
    )


@cache
def _current_stream_function() -> int:
    """Return the address of CuPy's C function for the current stream; 0 if it is another."""
    from cupy_backends.cuda import stream

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        return get(stream.__pyx_capi__["get_current_stream_ptr"], b"intptr_t (void)") or 0
    except (AttributeError, KeyError, ValueError):
        return 0
