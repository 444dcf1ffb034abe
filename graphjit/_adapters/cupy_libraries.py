"""What the libraries behind CuPy own, and a captured graph goes on using.

A cuFFT plan takes its kernels along when it leaves CuPy's cache. The handles of cuSOLVER, cuBLAS
and others own memory that their kernels work on; CuPy has handles for each thread, and lets
go of them when the thread ends.

Input: the modules of CuPy that ran. Output: objects to keep as long as a graph.
Source: CuPy 14, cupy/cuda/device.pyx (``_get_handle``), cupy/cuda/cufft.pyx.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any

import cupy

from graphjit._adapters.live_objects import live_objects

_HANDLES = "_handles"
"""How the names end under which CuPy keeps the handles of a thread, by device."""
_MARK = "_device_stack"
"""A name that the same state has as soon as a device was entered in the thread."""


def libraries_in_use(modules: frozenset[str]) -> list[Any]:
    """Return what must outlive a graph that was captured in this thread."""
    kept = library_handles(_thread_states())
    if any(name.startswith(("cupy.fft", "cupyx.scipy.fft")) for name in modules):
        kept += cufft_plans()
    return kept


@cache
def _thread_states() -> list[threading.local]:
    """Find the thread-local state of CuPy's devices, which has no name in Python."""
    with cupy.cuda.Device():
        return [state for state in live_objects(threading.local) if _MARK in vars(state)]


def library_handles(states: Iterable[threading.local]) -> list[Any]:
    """Return the handles of this thread."""
    return [
        handle
        for state in states
        for name, by_device in vars(state).items()
        if name.endswith(_HANDLES) and isinstance(by_device, dict)
        for handle in by_device.values()
    ]


def cufft_plans() -> list[Any]:
    """Return the plans of cuFFT, whose module is loaded lazily."""
    module = sys.modules.get("cupy.cuda.cufft")
    kinds = [module.Plan1d, module.PlanNd] if module else []
    return [plan for kind in kinds for plan in live_objects(kind)]
