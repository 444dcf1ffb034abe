"""Contexts and memory of one CUDA device through cuda.bindings.

Input / Output: addresses and sizes in bytes. Every call is legal while a stream of this
thread is capturing: it is made in relaxed mode, on a stream of its own.
Raises: ``DriverError``.
Source: cuDevicePrimaryCtxRetain, cuMemAlloc, cuMemAddressReserve, cuMemMap,
cuThreadExchangeStreamCaptureMode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver.cuda_check import check
from graphjit.errors import DriverError

CAPTURE_MODE = {
    "global": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    "thread_local": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    "relaxed": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
}
_PAGE_NBYTES = 2 << 20


class CudaMemory:
    """The primary context of a device, its memory, and streams to wait on."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._cu_device = check(cu.cuDeviceGet(device), "cuDeviceGet")
        self._context = check(
            cu.cuDevicePrimaryCtxRetain(self._cu_device), "cuDevicePrimaryCtxRetain"
        )
        self._page: Any = None
        with self._current():
            self._copy_stream = self.stream_create()

    def stream_create(self, *, priority: int = 0) -> int:
        flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        call = "cuStreamCreateWithPriority"
        return int(check(cu.cuStreamCreateWithPriority(flags, priority), call))

    def stream_priority(self, stream: int) -> int:
        return int(check(cu.cuStreamGetPriority(stream), "cuStreamGetPriority"))

    def stream_synchronize(self, stream: int) -> None:
        check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize")

    def mem_address_reserve(self, nbytes: int) -> int:
        with self._current():
            return int(check(cu.cuMemAddressReserve(nbytes, 2 << 20, 0, 0), "cuMemAddressReserve"))

    def mem_alloc(self, nbytes: int) -> int:
        with self.relaxed():
            return int(check(cu.cuMemAlloc(nbytes), "cuMemAlloc"))

    def mem_free(self, ptr: int) -> None:
        with self.relaxed():
            check(cu.cuMemFree(ptr), "cuMemFree")

    def memcpy_htod(self, dst_ptr: int, data: bytes) -> None:
        with self.relaxed():
            check(
                cu.cuMemcpyHtoDAsync(dst_ptr, data, len(data), self._copy_stream),
                "cuMemcpyHtoDAsync",
            )
            self.stream_synchronize(self._copy_stream)

    def memcpy_dtoh(self, src_ptr: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        with self.relaxed():
            check(
                cu.cuMemcpyDtoHAsync(data, src_ptr, nbytes, self._copy_stream),
                "cuMemcpyDtoHAsync",
            )
            self.stream_synchronize(self._copy_stream)
        return bytes(data)

    def mem_map(self, ptr: int, nbytes: int, mapped: set[int]) -> None:
        """Put one shared page behind reserved addresses, over and over.

        Some libraries ask the driver about an address before they use it. ``mapped`` holds the
        pages that have been mapped before, and is added to: stand-ins of arrays that overlap are
        in the same pages.
        """
        with self.relaxed():
            handle = self._stand_in_page(_PAGE_NBYTES)
            access = cu.CUmemAccessDesc()
            access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self.device
            access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            begin = ptr // _PAGE_NBYTES * _PAGE_NBYTES
            for at in range(begin, ptr + max(nbytes, 1), _PAGE_NBYTES):
                if at not in mapped:
                    check(cu.cuMemMap(at, _PAGE_NBYTES, 0, handle, 0), "cuMemMap")
                    mapped.add(at)
                    check(cu.cuMemSetAccess(at, _PAGE_NBYTES, [access], 1), "cuMemSetAccess")

    def mem_unmap(self, mapped: set[int]) -> None:
        """Take the pages away again, once nothing on the device can be using them.

        Work that a library put on a stream of its own, outside of the capture, may still run;
        cuMemUnmap does not wait for it.
        """
        self.wait_for_device()
        with self.relaxed():
            for at in mapped:
                check(cu.cuMemUnmap(at, _PAGE_NBYTES), "cuMemUnmap")

    def wait_for_device(self) -> None:
        """Wait for all work of the device; its errors are not this call's to report.

        cuMemFree waits, and leaves captures of other threads alone, which cuCtxSynchronize
        invalidates.
        """
        with contextlib.suppress(DriverError):
            self.mem_free(self.mem_alloc(1))

    def _stand_in_page(self, nbytes: int) -> Any:
        if self._page is None:
            properties = cu.CUmemAllocationProp()
            properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            properties.location.id = self.device
            self._page = check(cu.cuMemCreate(nbytes, properties, 0), "cuMemCreate")
        return self._page

    def mem_get_address_range(self, ptr: int) -> tuple[int, int] | None:
        error, base, nbytes = cu.cuMemGetAddressRange(ptr)
        return None if error != cu.CUresult.CUDA_SUCCESS else (int(base), int(nbytes))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's primary context current in this thread for a while."""
        check(cu.cuCtxPushCurrent(self._context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            check(cu.cuCtxPopCurrent(), "cuCtxPopCurrent")

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow allocation and loading while this thread captures on another stream."""
        mode = check(
            cu.cuThreadExchangeStreamCaptureMode(CAPTURE_MODE["relaxed"]),
            "cuThreadExchangeStreamCaptureMode",
        )
        try:
            with self._current():
                yield
        finally:
            check(cu.cuThreadExchangeStreamCaptureMode(mode), "cuThreadExchangeStreamCaptureMode")
