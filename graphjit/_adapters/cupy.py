"""CuPy as graphjit sees it.

Input / Output: as ``_adapters/interface.py``.
Raises: ``GraphjitError`` when no CUDA device can be used.
Source: CuPy 13 or later; 14 for library calls under capture.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from graphjit._adapters import cupy_guards
from graphjit._adapters.cupy_capture import (
    Allocator,
    adjust,
    stand_in_pointer,
    with_memory_behind,
)
from graphjit._adapters.cupy_kernels import (
    is_elementwise,
    kernel_code,
    read_only_params,
    unwritten_bytes,
)
from graphjit._adapters.cupy_libraries import cufft_plans, libraries_in_use
from graphjit._adapters.cupy_native import native_library
from graphjit._adapters.cupy_random import recorded
from graphjit._adapters.cupy_sparse import register_sparse
from graphjit._adapters.cupy_streams import CapturedStreams, CaptureStream
from graphjit._adapters.interface import ArraySpec, CaptureHooks, Memory
from graphjit._adapters.live_objects import live_objects
from graphjit._driver.cuda import CudaDriver, cuda_driver, has_drivers
from graphjit._hit import pause_hits
from graphjit._nodes import KernelNode
from graphjit.errors import GraphjitError, HostReadError

_SPELLED = {
    "cublas": "cuBLAS",
    "curand": "cuRAND",
    "cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
}
_FORKED = (
    "this process was forked from one that had used CUDA, and a CUDA context does not survive a "
    "fork (CUDA_ERROR_NOT_INITIALIZED). Start processes with the method 'spawn' or 'forkserver' of "
    "multiprocessing; graphed functions are captured anew in them."
)
_thread = threading.local()
_forked_with_cuda = False


def _note_fork() -> None:
    global _forked_with_cuda
    if has_drivers():
        _forked_with_cuda = True
        pause_hits(1)  # for good: nothing can be launched here


os.register_at_fork(after_in_child=_note_fork)


class CupyAdapter:
    """CuPy arrays, streams and allocators."""

    name = "cupy"
    array_types: tuple[type, ...] = (cupy.ndarray,)
    library_modules = frozenset(
        {"cupy", "cupyx", "cupy_backends", "numpy", "scipy", "fastrlock", "cuda"}
    )

    def __init__(self) -> None:
        register_sparse()

    def driver(self) -> CudaDriver:
        self._ensure_context()
        return cuda_driver(runtime.getDevice())

    @staticmethod
    def _ensure_context() -> None:
        """Make the primary context current in a thread that has made no CUDA call yet."""
        if not getattr(_thread, "is_ready", False):
            runtime.setDevice(runtime.getDevice())
            _thread.is_ready = True

    def is_array(self, obj: Any) -> bool:
        return isinstance(obj, cupy.ndarray)

    def spec(self, array: Any) -> ArraySpec:
        low = high = 0
        if array.size:
            low = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s < 0)
            high = array.itemsize + sum(
                (n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s > 0
            )
        return ArraySpec(
            type(array), array.shape, array.dtype, array.strides, array.data.device_id, low, high
        )

    def key(self, array: Any) -> tuple[Any, ...]:
        return (array.shape, array.dtype, array.strides, array.data.device_id, type(array))

    def device_ptr(self, array: Any) -> int:
        return array.data.ptr  # type: ignore[no-any-return]

    def current_device(self) -> int:
        if _forked_with_cuda:
            raise GraphjitError(_FORKED)
        return int(runtime.getDevice())

    def current_stream(self) -> int:
        self._ensure_context()
        return int(cupy.cuda.get_current_stream().ptr)

    def is_capturing(self) -> bool:
        return bool(runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr))

    def allocate(self, nbytes: int) -> Memory:
        pointer = cupy.cuda.alloc(nbytes)
        return Memory(pointer.ptr, pointer)

    def native_library(self) -> Any:
        return native_library(self.current_device())

    def make_array(self, spec: ArraySpec, memory: Memory, byte_offset: int) -> Any:
        return _array(spec, memory.owner + byte_offset)

    def scalar_array(self, value: Any) -> Any:
        return cupy.asarray(value)

    def make_template(self, spec: ArraySpec) -> Any:
        nothing = cupy.cuda.UnownedMemory(512, 0, None, device_id=spec.device)
        return _array(spec, cupy.cuda.MemoryPointer(nothing, 0))

    def view_of(self, base: Any, spec: ArraySpec, byte_offset: int) -> Any:
        return _array(spec, base.data + byte_offset)

    def stand_in(self, spec: ArraySpec, ptr: int, hooks: CaptureHooks) -> Any:
        pointer = stand_in_pointer(ptr + spec.low, spec.high - spec.low, spec.device, hooks)
        return _array(spec, pointer + -spec.low)

    @contextmanager
    def capturing(self, hooks: CaptureHooks, mode: str) -> Iterator[CapturedStreams]:
        driver = self.driver()
        stream = CaptureStream(
            non_blocking=True, priority=driver.stream_priority(self.current_stream())
        )
        _release_staging_buffers(driver)
        with (
            stream,
            CapturedStreams(stream, hooks, driver) as streams,
            cupy.cuda.using_allocator(Allocator(self.current_device(), hooks, driver)),
            cupy_guards.lifted(),
            recorded(hooks),
            with_memory_behind(hooks, driver),
        ):
            streams.begin(mode)
            try:
                yield streams
            finally:
                if not streams.has_ended:
                    driver.stream_abandon_capture(stream.ptr)

    def recover(self, error: BaseException) -> None:
        """Take a failure out of cuSOLVER and cuRAND: their next call would fail for it, too."""
        loaded = sys.modules
        for _ in range(2):
            if type(error).__name__ == "CUSOLVERError":
                with contextlib.suppress(RuntimeError):
                    cupy.linalg.eigh(cupy.eye(2, dtype=cupy.float32))
            if "cupy_backends.cuda.libs.curand" in loaded and not isinstance(error, HostReadError):
                with contextlib.suppress(RuntimeError):
                    cupy.random.RandomState(0).random_sample(1)

    def libraries_in_use(self, modules: frozenset[str]) -> list[Any]:
        return libraries_in_use(modules)

    def adjust(self, error: BaseException, hooks: CaptureHooks) -> bool:
        return adjust(error, hooks.hints)

    def explain_failure(self, error: BaseException) -> str | None:
        text = f"{type(error).__name__}: {error}"
        if "D2H transfers are disallowed" in text:
            return f"CuPy refuses to read device memory on the host ({text})"
        for library in cupy_guards.MODULES:
            if f"calling {_SPELLED[library]} API during stream capture" in text:
                why = "" if library in cupy_guards.LIFTED else f" {cupy_guards.NOT_LIFTED}"
                return f"CuPy refuses {_SPELLED[library]} during capture{why} ({text})"
        # The same call has just succeeded outside of a capture: the library objects to that.
        if type(error).__module__.startswith(("cupy_backends.", "cupy.cuda.")) or (
            "the current stream is capturing" in text or "cudaError" in text
        ):
            return f"CUDA or a library of it refuses a call during capture ({text})"
        return None

    def memory_owners(self, ptrs: Iterable[int]) -> dict[int, tuple[Any, str, bool]]:
        owners: dict[int, tuple[Any, str, bool]] = {}
        wanted = list(ptrs)
        for obj in [*live_objects(cupy.ndarray), *cufft_plans()]:
            if isinstance(obj, cupy.ndarray):
                spec = self.spec(obj)
                begin, end = obj.data.ptr + spec.low, obj.data.ptr + spec.high
                found = (obj, f"an array {obj.dtype} {obj.shape}", True)
            else:
                area = getattr(obj, "work_area", None)
                if not isinstance(area, cupy.cuda.MemoryPointer) or area.mem.size == 0:
                    continue
                begin, end = area.ptr, area.ptr + area.mem.size
                found = (obj, "the work area of a cuFFT plan", False)
            for ptr in wanted:
                if begin <= ptr < end and not owners.get(ptr, (0, 0, False))[2]:
                    owners[ptr] = found
        return owners

    def holders(self, ptr: int) -> str:
        arrays = [
            obj
            for obj in live_objects(cupy.ndarray)
            if obj.data.mem.ptr <= ptr < obj.data.mem.ptr + max(obj.data.mem.size, 1)
        ]
        names = {name for array in arrays for name in _names_of(array, arrays)}
        return " or ".join(sorted(names)[:3]) or "a library's cache"

    def read_only_params(self, nodes: Sequence[KernelNode]) -> list[int]:
        return read_only_params(nodes)

    def unwritten_bytes(
        self, node: KernelNode, *, is_certain: bool = False
    ) -> Iterable[tuple[int, int]]:
        return unwritten_bytes(node) if not is_certain or is_elementwise(node) else ()

    def equal_bits(self, left: Any, right: Any) -> bool:
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(left.get().tobytes() == right.get().tobytes())

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        contents: np.ndarray[Any, Any] = array.get()
        return contents

    def event_handle(self, event: Any) -> int | None:
        return int(event.ptr) if isinstance(event, cupy.cuda.Event) else None

    def time_range(self, text: str) -> AbstractContextManager[object]:
        from cupyx.profiler import time_range  # only with GRAPHJIT_NVTX

        return time_range(text)  # type: ignore[no-any-return]

    def copy(self, array: Any) -> Any:
        return array.copy(order="K")

    def assign(self, dst: Any, src: Any) -> None:
        dst[...] = src

    def kernel_code(self, node: KernelNode) -> bytes:
        return kernel_code(self.driver(), node)


def _release_staging_buffers(driver: CudaDriver) -> None:
    """Let CuPy forget host copies in flight: it would query their events during the capture."""
    driver.wait_for_device()
    cupy.cuda.alloc_pinned_memory(1)


def _array(spec: ArraySpec, pointer: Any) -> Any:
    array = cupy.ndarray(spec.shape, spec.dtype, memptr=pointer, strides=spec.strides)
    return array if spec.array_type is cupy.ndarray else array.view(type=spec.array_type)


def _names_of(array: Any, ignored: list[Any]) -> Iterator[str]:
    """Name what refers to an array: the key of a dictionary, the type of a container."""
    for holder in gc.get_referrers(array):
        if holder is ignored or isinstance(holder, type(_names_of.__code__)):
            continue
        if isinstance(holder, dict):
            yield from (f"{key!r}" for key, value in holder.items() if value is array)
        elif isinstance(holder, (list, tuple)):
            yield f"a {type(holder).__name__} of {len(holder)} items"
        elif hasattr(holder, "__dict__") and not isinstance(holder, cupy.ndarray):
            for key, value in vars(holder).items():
                if value is array:
                    yield f"{type(holder).__qualname__}.{key}"
