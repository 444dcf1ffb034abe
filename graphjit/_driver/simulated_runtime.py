"""What programs and array libraries call on the simulated device, graphjit's own calls apart.

Input: kernels, copies, fills and allocations on a stream. Output: they run at once, or become
nodes if the stream is capturing.
Raises: ``DriverError``: what waits or allocates is refused during a capture, as on CUDA.
Source: cuLaunchKernel, cuMemcpyAsync, cuMemsetD8Async, cuMemAllocAsync, cuMemAlloc, cuMemcpy.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from graphjit._driver.interface import KernelLaunch
from graphjit._driver.simulated_graph import SimulatedParams
from graphjit._driver.simulated_kernels import Run, copy_box, fill_rows
from graphjit._driver.simulated_memory import SimulatedMemory
from graphjit._driver.simulated_streams import CaptureState, SimulatedStreams


class SimulatedRuntime(SimulatedStreams):
    """Work on streams.

    Parameters
    ----------
    capacity : int
        Size of the device's memory in bytes.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.memory = SimulatedMemory(capacity)
        self.counts: Counter[str] = Counter()

    # -- in stream order; recorded by a stream under capture

    def launch_kernel(self, launch: KernelLaunch, params: bytes, stream: int) -> None:
        """Launch one kernel (cuLaunchKernel)."""
        capture = self._active_capture(stream, "cuLaunchKernel")
        owned = SimulatedParams(launch, params)
        self.counts["kernel_launches"] += 1
        if capture is not None:
            capture.append(stream, "kernel", owned, {}, self.stream_priority(stream))
            return
        with self._lock:
            launch.function.body(Run(self.memory), bytes(owned.buffer))

    def memcpy_async(self, dst_ptr: int, src_ptr: int, nbytes: int, stream: int) -> None:
        """Copy on the device (cuMemcpyAsync)."""
        fields = {"dst_ptr": dst_ptr, "src_ptr": src_ptr, "width": nbytes}
        capture = self._active_capture(stream, "cuMemcpyAsync")
        if capture is not None:
            capture.append(stream, "memcpy", None, fields)
        else:
            copy_box(self.memory, **fields)

    def memset_async(self, dst_ptr: int, value: int, nbytes: int, stream: int) -> None:
        """Fill bytes (cuMemsetD8Async)."""
        fields = {"dst_ptr": dst_ptr, "value": value, "element_size": 1}
        fields |= {"width": nbytes, "height": 1, "pitch": nbytes}
        capture = self._active_capture(stream, "cuMemsetD8Async")
        if capture is not None:
            capture.append(stream, "memset", None, fields)
        else:
            fill_rows(self.memory, **fields)

    def mem_alloc_async(self, nbytes: int, stream: int) -> int:
        """Allocate in stream order (cuMemAllocAsync)."""
        capture = self._active_capture(stream, "cuMemAllocAsync")
        if capture is None:
            return self.memory.allocate(nbytes)
        ptr = self._reusable(capture, stream, nbytes) or self.memory.reserve(nbytes)
        capture.append(stream, "mem_alloc", None, {"device_ptr": ptr, "nbytes": nbytes})
        return ptr

    def mem_free_async(self, ptr: int, stream: int) -> None:
        """Free in stream order (cuMemFreeAsync)."""
        capture = self._active_capture(stream, "cuMemFreeAsync")
        if capture is None:
            self.memory.free(ptr)
        else:
            capture.append(stream, "mem_free", None, {"device_ptr": ptr})

    @staticmethod
    def _reusable(capture: CaptureState, stream: int, nbytes: int) -> int:
        """Find an address that an earlier node of the stream's past has freed; CUDA does so too."""
        sizes: dict[int, int] = {}
        for node in capture.graph.nodes:
            if node.kind == "mem_alloc":
                sizes[node.fields["device_ptr"]] = node.fields["nbytes"]
        last = {
            n.fields["device_ptr"]: n
            for n in capture.graph.nodes
            if n.kind in ("mem_alloc", "mem_free")
        }
        for ptr, node in reversed(last.items()):
            is_free = node.kind == "mem_free" and sizes.get(ptr) == nbytes
            if is_free and capture.graph.is_behind(node, capture.heads[stream]):
                return ptr
        return 0

    # -- at once; refused during a capture

    def user_mem_alloc(self, nbytes: int) -> int:
        """Allocate (cuMemAlloc)."""
        self.refuse_unsafe_call("cuMemAlloc")
        return self.memory.allocate(nbytes)

    def user_mem_free(self, ptr: int) -> None:
        """Free (cuMemFree)."""
        self.refuse_unsafe_call("cuMemFree")
        self.memory.free(ptr)

    def user_memcpy_htod(self, dst_ptr: int, data: bytes) -> None:
        """Copy to the device and wait (cuMemcpyHtoD)."""
        self.refuse_unsafe_call("cuMemcpyHtoD")
        self._write(dst_ptr, data)

    def user_memcpy_dtoh(self, src_ptr: int, nbytes: int) -> bytes:
        """Copy from the device and wait (cuMemcpyDtoH)."""
        self.refuse_unsafe_call("cuMemcpyDtoH")
        return self.memory.view(src_ptr, nbytes).tobytes()

    def _write(self, dst_ptr: int, data: bytes) -> None:
        self.memory.view(dst_ptr, len(data))[:] = np.frombuffer(data, np.uint8)
