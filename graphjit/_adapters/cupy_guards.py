"""Lift CuPy's refusal of library calls during capture, for graphjit's own captures only.

CuPy refuses cuBLAS, cuSOLVER, cuSPARSE and cuRAND while the current stream is capturing,
although CUDA allows most of it. Each of its four extension modules asks a C function,
``streamIsCapturing``, through a pointer that it imported once. The refusal of cuRAND stays:
it keeps a part of its generators' state on the host, see ``cupy_random``. During a capture
of graphjit's that pointer leads to a function that answers "no" in the capturing thread,
where every stream that captures is a branch of the capture, and asks CuPy's own function in
every other; afterwards it is put back.

Output: a context in which the guards are lifted.
Raises: nothing; a module in which the pointer is not found exactly once keeps its guard, and
``missing()`` says so.
Source: CuPy 14, cupy_backends/cuda/libs/{cublas,curand,cusolver,cusparse}.pyx.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import wrapt

MODULES = ("cublas", "curand", "cusolver", "cusparse")
LIFTED = ("cublas", "cusolver", "cusparse")
NOT_LIFTED = (
    "because the host keeps part of the generator's state, which a graph would freeze; draw by "
    "the functions of cupy.random or by a cupy.random.RandomState"
)
_PACKAGE = "cupy_backends.cuda.libs."
_SIGNATURE = b"int (intptr_t, int __pyx_skip_dispatch)"
_Guard = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t, ctypes.c_int)

_capturing = threading.local()


@cache
def _original() -> int:
    """Return the address of CuPy's ``streamIsCapturing``; 0 if its signature has changed."""
    from cupy_backends.cuda.api import runtime

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = getattr(runtime, "__pyx_capi__", {}).get("streamIsCapturing")
    if capsule is None:
        return 0
    try:
        return get(capsule, _SIGNATURE) or 0
    except ValueError:
        return 0


@cache
def _replacement() -> tuple[Any, int]:
    ask_cupy = _Guard(_original())

    def is_capturing(stream: int, skip_dispatch: int) -> int:
        if getattr(_capturing, "here", False):
            return 0
        return int(ask_cupy(stream, skip_dispatch))

    function = _Guard(is_capturing)
    return function, ctypes.cast(function, ctypes.c_void_p).value or 0


def _writable_segments(path: Path) -> list[tuple[int, int]]:
    """Return the mapped data of a shared library: its own pages and the zero pages behind them."""
    segments: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        begin, end = (int(x, 16) for x in fields[0].split("-"))
        own = len(fields) >= 6 and fields[5] == str(path)
        behind = len(fields) < 6 and bool(segments) and begin == segments[-1][1]
        if "w" in fields[1] and (own or behind):
            segments.append((begin, end))
    return segments


@cache
def _slot(name: str) -> int:
    """Find the address of a module's pointer; 0 if there is not exactly one."""
    module = sys.modules[_PACKAGE + name]
    wanted = struct.pack("<Q", _original())
    found: list[int] = []
    for begin, end in _writable_segments(Path(module.__file__ or "").resolve()):
        data = ctypes.string_at(begin, end - begin)
        at = data.find(wanted)
        while at >= 0:
            if at % 8 == 0:
                found.append(begin + at)
            at = data.find(wanted, at + 1)
    return found[0] if len(found) == 1 else 0


def _slots() -> list[int]:
    """Find the pointers of the modules that are loaded: CuPy loads them at their first use."""
    if not _original() or not Path("/proc/self/maps").exists():
        return []
    found = (_slot(name) for name in LIFTED if _PACKAGE + name in sys.modules)
    return [slot for slot in found if slot]


def missing() -> tuple[str, ...]:
    """Return the libraries whose guard cannot be lifted with this version of CuPy."""
    if not _original():
        return LIFTED
    return tuple(name for name in LIFTED if not (_is_loaded(name) and _slot(name)))


def _is_loaded(name: str) -> bool:
    try:
        importlib.import_module(_PACKAGE + name)
    except ImportError:  # the CUDA library is not installed
        return False
    return True


_lifted: list[int] = []
"""The pointers that lead to the replacement now."""


def _lift(slot: int) -> None:
    ctypes.c_uint64.from_address(slot).value = _replacement()[1]
    _lifted.append(slot)


def _lift_as_loaded(module: Any) -> None:
    """Lift the guard of a module that is loaded by what is being captured."""
    if getattr(_capturing, "here", False) and _original():
        slot = _slot(module.__name__.removeprefix(_PACKAGE))
        if slot and slot not in _lifted:
            _lift(slot)


for _name in LIFTED:
    wrapt.register_post_import_hook(_lift_as_loaded, _PACKAGE + _name)


@contextmanager
def lifted() -> Iterator[None]:
    """Lift the guards in this thread."""
    _capturing.here = True
    for slot in _slots():
        _lift(slot)
    try:
        yield
    finally:
        while _lifted:
            ctypes.c_uint64.from_address(_lifted.pop()).value = _original()
        _capturing.here = False
