"""What a graph and the host do together: page-locked memory, host functions, events.

Input / Output: as ``_driver/interface.py``.
Raises: ``DriverError``.
Source: cuMemHostAlloc, cuLaunchHostFunc, cuGraphAddHostNode, cuEventRecordWithFlags.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cu

from graphjit._driver import host_functions
from graphjit._driver.cuda_check import check, driver_error, entry_point
from graphjit._driver.cuda_memory import CudaMemory
from graphjit._driver.host_functions import owned_bytes

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL


def _call(number: int) -> None:
    """Call a function; a thread of the driver's does this, and holds the GIL meanwhile."""
    host_functions.call(number)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_call)
_CALL = ctypes.cast(_callback, ctypes.c_void_p).value or 0


@cache
def _launch_host_func() -> Callable[..., int]:
    """Return the driver's function: that of cuda.bindings calls one of its own in between."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return kind(entry_point("cuLaunchHostFunc", 10000))


def number_of(handle: int) -> int | None:
    """Return the number of the function that a host node calls; None if it is none of these."""
    params = check(cu.cuGraphHostNodeGetParams(handle), "cuGraphHostNodeGetParams")
    return int(params.userData) if int(params.fn) == _CALL else None


class CudaHost(CudaMemory):
    """Page-locked memory, host functions and events of one device."""

    # -- page-locked memory

    def host_alloc(self, nbytes: int) -> int:
        with self.relaxed():
            return int(check(cu.cuMemHostAlloc(max(nbytes, 1), _PORTABLE), "cuMemHostAlloc"))

    def host_free(self, ptr: int) -> None:
        self.wait_for_device()
        with self.relaxed():
            check(cu.cuMemFreeHost(ptr), "cuMemFreeHost")

    def host_view(self, ptr: int, nbytes: int, owner: object) -> npt.NDArray[np.uint8]:
        return owned_bytes(ptr, nbytes, owner)

    # -- host functions

    def launch_host_function(self, number: int, stream: int) -> None:
        status = _launch_host_func()(stream, _CALL, number)
        if status:
            raise driver_error("cuLaunchHostFunc", status)

    def graph_add_host_node(self, graph: int, number: int) -> int:
        params = cu.CUDA_HOST_NODE_PARAMS()
        params.fn, params.userData = _CALL, number
        return int(check(cu.cuGraphAddHostNode(graph, None, 0, params), "cuGraphAddHostNode"))

    # -- events

    def event_create(self, *, timing: bool = False) -> int:
        flags = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        with self.relaxed():
            return int(check(cu.cuEventCreate(0 if timing else flags), "cuEventCreate"))

    def event_elapsed_us(self, begin: int, end: int) -> float:
        return 1000 * float(check(cu.cuEventElapsedTime(begin, end), "cuEventElapsedTime"))

    def event_destroy(self, event: int) -> None:
        with self.relaxed():
            check(cu.cuEventDestroy(event), "cuEventDestroy")

    def event_record(self, event: int, stream: int) -> None:
        check(cu.cuEventRecord(event, stream), "cuEventRecord")

    def stream_wait_event(self, stream: int, event: int) -> None:
        check(cu.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")

    def event_record_external(self, event: int, stream: int) -> None:
        flags = _EXTERNAL if self._is_capturing(stream) else 0
        check(cu.cuEventRecordWithFlags(event, stream, flags), "cuEventRecordWithFlags")

    def stream_wait_event_external(self, stream: int, event: int) -> None:
        flags = _EXTERNAL if self._is_capturing(stream) else 0
        check(cu.cuStreamWaitEvent(stream, event, flags), "cuStreamWaitEvent")

    def graph_add_event_node(self, graph: int, event: int, *, is_record: bool) -> int:
        add: Any = cu.cuGraphAddEventRecordNode if is_record else cu.cuGraphAddEventWaitNode
        return int(check(add(graph, None, 0, event), add.__name__))

    def _is_capturing(self, stream: int) -> bool:
        status = check(cu.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
        return bool(status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
