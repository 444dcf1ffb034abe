"""CuPy under capture: the stream, the allocator and the pointers that a function meets.

Input: the hooks of a capture. Output: CuPy objects that keep the capture sound: memory at
reserved addresses, host data turned into constants, host reads turned into errors.
Raises: ``HostReadError`` through the hooks.
Source: CuPy 14, cupy/cuda/memory.pyx (its ``cpdef`` methods can be overridden) and
cupy/cuda/stream.pyx.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
from cupy.cuda import memory as cupy_memory

from graphjit._adapters.interface import CaptureHooks


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
            cupy.cuda.runtime.memcpyAsync(
                self.ptr,
                source_ptr,
                size,
                cupy.cuda.runtime.memcpyDeviceToDevice,
                cupy.cuda.get_current_stream().ptr,
            )

    def copy_from_device(self, src: Any, size: int) -> None:
        self.copy_from_device_async(src, size)

    def memset(self, value: int, size: int) -> None:
        self.memset_async(value, size)

    def copy_to_host(self, mem: Any, size: int) -> None:
        raise self.hooks.host_read("cupy.ndarray.get")

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        raise self.hooks.host_read("cupy.ndarray.get")


class CaptureEvent(cupy.cuda.Event):  # type: ignore[misc]
    """An event in a capture. CuPy asks it whether a staging buffer is free: it always is,
    since constants are uploaded before the copy is recorded."""

    @property
    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class CaptureStream(cupy.cuda.Stream):  # type: ignore[misc]
    """The stream under capture. Waiting for it is allowed: what follows is ordered anyway."""

    def synchronize(self) -> None:
        pass

    def record(self, event: Any = None) -> Any:
        return super().record(CaptureEvent(disable_timing=True) if event is None else event)


def allocator(device: int, hooks: CaptureHooks) -> Any:
    """Return a CuPy allocator that hands out reserved addresses."""

    def allocate(nbytes: int) -> StandInPointer:
        memory = StandInMemory(hooks.allocate(nbytes), nbytes, device, hooks, True)
        return StandInPointer(memory, 0)

    return allocate


def stand_in_pointer(ptr: int, nbytes: int, device: int, hooks: CaptureHooks) -> StandInPointer:
    """Return a pointer for a stand-in of an argument."""
    return StandInPointer(StandInMemory(ptr, nbytes, device, hooks, False), 0)
