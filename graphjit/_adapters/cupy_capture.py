"""CuPy under capture: the allocator and the pointers that a function meets.

Input: the hooks of a capture. Output: CuPy objects that keep the capture sound: memory at
reserved addresses, host data turned into constants, host reads turned into errors.
Raises: ``HostReadError`` through the hooks.
Source: CuPy 14, cupy/cuda/memory.pyx (its ``cpdef`` methods can be overridden).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
from cupy.cuda import memory as cupy_memory
from cupy.cuda import runtime

from graphjit._adapters.interface import CaptureHooks
from graphjit._driver.cuda import CudaDriver

_DISTURBED = (
    "StreamCaptureUnsupported",
    "StreamCaptureInvalidated",
    "STREAM_CAPTURE_UNSUPPORTED",
    "STREAM_CAPTURE_INVALIDATED",
)
_MAX_DISTURBED = 8


class StandInMemory(cupy_memory.BaseMemory):  # type: ignore[misc]
    """Memory that does not exist: an address in the reserved range."""

    def __init__(self, ptr: int, nbytes: int, device: int, hooks: CaptureHooks, is_temporary: bool):
        self.ptr = ptr
        self.size = nbytes
        self.device_id = device
        self.hooks = hooks
        self.is_temporary = is_temporary

    def __del__(self) -> None:
        if self.is_temporary:
            self.hooks.free(self.ptr)


class StandInPointer(cupy_memory.MemoryPointer):  # type: ignore[misc]
    """A pointer into memory that does not exist; CuPy copies to and from the host through it."""

    @property
    def hooks(self) -> CaptureHooks:
        return self.mem.hooks  # type: ignore[no-any-return]

    def __add__(self, offset: int) -> StandInPointer:
        return StandInPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> StandInPointer:
        return self + -offset

    def copy_from_host(self, mem: Any, size: int) -> None:
        self._copy_constant(mem, size)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy_constant(mem, size)

    def _copy_constant(self, mem: Any, size: int) -> None:
        """Upload the host data now; the graph copies it from there on every launch.

        A copy, not the constant itself: the function may write to what it made of it.
        """
        if size:
            host_ptr = mem if isinstance(mem, int) else mem.value
            source_ptr = self.hooks.upload_constant(ctypes.string_at(host_ptr, size))
            runtime.memcpyAsync(
                self.ptr,
                source_ptr,
                size,
                runtime.memcpyDeviceToDevice,
                cupy.cuda.get_current_stream().ptr,
            )

    def copy_from_device(self, src: Any, size: int) -> None:
        self.copy_from_device_async(src, size)

    def memset(self, value: int, size: int) -> None:
        self.memset_async(value, size)

    def copy_to_host(self, mem: Any, size: int) -> None:
        known = self.hooks.host_read("cupy.ndarray.get", self.ptr, size)
        ctypes.memmove(mem if isinstance(mem, int) else mem.value, known, size)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self.copy_to_host(mem, size)


class Allocator:
    """A CuPy allocator that hands out reserved addresses.

    CuPy takes a plain ``MemoryPointer``, and nothing derived from it, for the workspace of a
    reduction in two passes; nothing tells that request from others, so that a capture that
    fails for this reason is repeated with plain pointers for that size.
    """

    def __init__(self, device: int, hooks: CaptureHooks, driver: CudaDriver) -> None:
        self.device = device
        self.hooks = hooks
        self.driver = driver
        self._last = hooks.hints["last"] = [-1, -1]
        """Number and bytes of the last request, for ``adjust``."""
        self._plain, self._rich = hooks.hints.get("plain", ()), hooks.hints.get("rich", ())

    def __call__(self, nbytes: int) -> Any:
        self._last[0] = call = self._last[0] + 1
        self._last[1] = nbytes
        ptr = self.hooks.allocate(nbytes)
        if (mapped := self.hooks.hints.get("mapped")) is not None:
            self.driver.mem_map(ptr, nbytes, mapped)
        memory = StandInMemory(ptr, nbytes, self.device, self.hooks, True)
        is_plain = nbytes in self._plain and call not in self._rich
        return (cupy_memory.MemoryPointer if is_plain else StandInPointer)(memory, 0)


@contextmanager
def with_memory_behind(hooks: CaptureHooks, driver: CudaDriver) -> Iterator[None]:
    """Put a page behind the reserved addresses, for libraries that look what is there.

    Copies between arrays and stand-ins are such calls. An attempt goes without, so that work
    outside of the capture faults; one that fails for it is repeated, if it can be.
    """
    if not (hooks.is_final or hooks.hints.get("backed")):
        yield
        return
    hooks.hints["mapped"] = mapped = set[int]()
    try:
        for ptr, nbytes in hooks.owned():
            driver.mem_map(ptr, nbytes, mapped)
        yield
    finally:
        del hooks.hints["mapped"]
        driver.mem_unmap(mapped)


def adjust(error: BaseException, hints: dict[str, Any]) -> bool:
    """Learn what the next attempt has to do otherwise; False if nothing comes to mind."""
    text = str(error)
    call, nbytes = hints.get("last", (-1, -1))
    if isinstance(error, AssertionError) and StandInPointer.__name__ in text:
        return _learn(hints, "plain", nbytes)
    if "H2D transfers are disallowed" in text:
        return _learn(hints, "rich", call)
    if "cudaErrorInvalidValue" in text and "backed" not in hints:
        hints["backed"] = True
        return True
    if any(name in text for name in _DISTURBED):
        # Another thread's host copies may have made CuPy query an event in this one.
        hints["disturbed"] = hints.get("disturbed", 0) + 1
        return threading.active_count() > 1 and hints["disturbed"] <= _MAX_DISTURBED
    return False


def _learn(hints: dict[str, Any], kind: str, value: int) -> bool:
    known = hints.setdefault(kind, set())
    is_new = value not in known
    known.add(value)
    return is_new


def stand_in_pointer(ptr: int, nbytes: int, device: int, hooks: CaptureHooks) -> StandInPointer:
    """Return a pointer for a stand-in of an argument."""
    return StandInPointer(StandInMemory(ptr, nbytes, device, hooks, False), 0)
