"""Which adapter serves a call: found by the arrays that it is given.

Input: leaves. Output: an ``Adapter``.
Raises: ``SignatureError`` when no array library can be used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import wrapt

from graphjit._adapters import cupy_modules
from graphjit._adapters.interface import Adapter
from graphjit.errors import SignatureError

wrapt.register_post_import_hook(cupy_modules.keep_code, cupy_modules.COMPILER)


@cache
def cupy_adapter() -> Adapter:
    """Return the adapter of CuPy."""
    from graphjit._adapters.cupy import CupyAdapter

    return CupyAdapter()


@cache
def simulated_adapter() -> Adapter:
    """Return the adapter of the simulated arrays."""
    from graphjit._adapters.simulated import SimulatedAdapter

    return SimulatedAdapter()


@cache
def _has_device() -> bool:
    """Say whether CuPy has a device: without one there are no arrays of CuPy's."""
    import cupy

    try:
        return bool(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def _loaded() -> list[Adapter]:
    """Adapters of the libraries that the program has imported; others hold no arrays."""
    adapters: list[Adapter] = []
    if "cupy" in sys.modules and _has_device():
        adapters.append(cupy_adapter())
    if "graphjit._adapters.simulated_array" in sys.modules:
        adapters.append(simulated_adapter())
    return adapters


def find(leaves: Iterable[Any]) -> Adapter:
    """Return the adapter of the first array; without one, that of the library in use."""
    loaded = _loaded()
    if len(loaded) == 1:
        return loaded[0]
    for leaf in leaves:
        for adapter in loaded:
            if adapter.is_array(leaf):
                return adapter
    if not loaded:
        raise SignatureError(
            "no array library is in use: pass CuPy arrays, or arrays of graphjit.testing on a "
            "machine without a GPU"
        )
    return loaded[0]


def find_by_name(name: str) -> Adapter | None:
    """Return the adapter of a library, imported now; None if it cannot be used."""
    if name == "simulated":
        return simulated_adapter()
    try:
        return cupy_adapter() if name == "cupy" and _has_device() else None
    except ImportError:
        return None


def find_event(event: Any) -> tuple[Adapter, int]:
    """Return the adapter of an event, and its handle."""
    for adapter in _loaded():
        handle = adapter.event_handle(event)
        if handle is not None:
            return adapter, handle
    raise SignatureError(f"{event!r} is no event of an array library in use")


def is_array(obj: Any) -> bool:
    """Say whether an object is an array of any library in use."""
    return any(adapter.is_array(obj) for adapter in _loaded())
