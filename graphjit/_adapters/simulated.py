"""The simulated arrays as graphjit sees them.

Input / Output: as ``_adapters/interface.py``.
Raises: ``DriverError`` when the stream cannot be captured.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.interface import ArraySpec, CaptureHooks, Memory
from graphjit._adapters.live_objects import live_objects
from graphjit._adapters.simulated_array import Array, asarray
from graphjit._adapters.simulated_launch import unwritten_bytes
from graphjit._driver.simulated import SimulatedDriver
from graphjit._driver.simulated_memory import extent
from graphjit._nodes import KernelNode
from graphjit.errors import ExportError


class SimulatedAdapter:
    """Simulated arrays, streams and allocators."""

    name = "simulated"
    array_types: tuple[type, ...] = (Array,)
    library_modules = frozenset({"numpy"})

    def driver(self) -> SimulatedDriver:
        return device.driver()

    def is_array(self, obj: Any) -> bool:
        return isinstance(obj, Array)

    def spec(self, array: Any) -> ArraySpec:
        low, high = extent(array.shape, array.strides, array.itemsize)
        return ArraySpec(type(array), array.shape, array.dtype, array.strides, 0, low, high)

    def key(self, array: Any) -> tuple[Any, ...]:
        return (array.shape, array.dtype, array.strides, 0, type(array))

    def device_ptr(self, array: Any) -> int:
        return array.device_ptr  # type: ignore[no-any-return]

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> int:
        return device.current_stream().handle

    def is_capturing(self) -> bool:
        return device.current_stream().is_capturing()

    def allocate(self, nbytes: int) -> Memory:
        block = device.allocate(nbytes)
        return Memory(block.ptr, block)

    def native_library(self) -> Any:
        return None  # compiled hits call a driver by address, and this one has none

    def make_array(self, spec: ArraySpec, memory: Memory, byte_offset: int) -> Any:
        return _array(spec, memory.owner, byte_offset)

    def scalar_array(self, value: Any) -> Any:
        return asarray(value)

    def make_template(self, spec: ArraySpec) -> Any:
        return _array(spec, device.Block(0, 0, None), 0)

    def view_of(self, base: Any, spec: ArraySpec, byte_offset: int) -> Any:
        return _array(spec, base.block, base.device_ptr - base.block.ptr + byte_offset)

    def stand_in(self, spec: ArraySpec, ptr: int, hooks: CaptureHooks) -> Any:
        block = device.Block(ptr + spec.low, spec.high - spec.low, None, hooks)
        return _array(spec, block, -spec.low)

    @contextmanager
    def capturing(self, hooks: CaptureHooks, mode: str) -> Iterator[device.CapturedStreams]:
        driver = self.driver()
        priority = driver.stream_priority(self.current_stream())
        stream = device.Stream(non_blocking=True, priority=priority)
        try:
            with device.capture_on(stream, hooks) as streams:
                streams.begin(mode)
                try:
                    yield streams
                finally:
                    driver.stream_abandon_capture(stream.handle)
        finally:
            driver.stream_destroy(stream.handle)

    def adjust(self, error: BaseException, hooks: CaptureHooks) -> bool:
        return False

    def libraries_in_use(self, modules: frozenset[str]) -> list[Any]:
        return []

    def recover(self, error: BaseException) -> None:
        pass

    def explain_failure(self, error: BaseException) -> str | None:
        return None  # everything that is refused is a DriverError, which explains itself

    def memory_owners(self, ptrs: Iterable[int]) -> dict[int, tuple[Any, str, bool]]:
        owners: dict[int, tuple[Any, str, bool]] = {}
        wanted = list(ptrs)
        for array in _live_arrays():
            spec = self.spec(array)
            for ptr in wanted:
                if array.device_ptr + spec.low <= ptr < array.device_ptr + spec.high:
                    owners[ptr] = (array, f"an array {array.dtype} {array.shape}", True)
        return owners

    def holders(self, ptr: int) -> str:
        arrays = [a for a in _live_arrays() if a.block.ptr <= ptr < a.block.ptr + a.block.nbytes]
        names = {name for array in arrays for name in _names_of(array, arrays)}
        return " or ".join(sorted(names)[:3]) or "a variable that outlives the call"

    def read_only_params(self, nodes: Sequence[KernelNode]) -> list[int]:
        return [node.function.n_inputs for node in nodes]

    def unwritten_bytes(
        self, node: KernelNode, *, is_certain: bool = False
    ) -> Iterable[tuple[int, int]]:
        return unwritten_bytes(node.function)

    def equal_bits(self, left: Any, right: Any) -> bool:
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(left.get().tobytes() == right.get().tobytes())

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        contents: np.ndarray[Any, Any] = array.get()
        return contents

    def event_handle(self, event: Any) -> int | None:
        return event.handle if isinstance(event, device.Event) else None

    def time_range(self, text: str) -> AbstractContextManager[object]:
        return device.time_range(text)

    def copy(self, array: Any) -> Any:
        return array.copy(order="K")

    def assign(self, dst: Any, src: Any) -> None:
        dst[...] = src

    def kernel_code(self, node: KernelNode) -> bytes:
        try:
            return pickle.dumps(node.function)
        except Exception as error:
            raise ExportError(
                f"it is a Python function that cannot be pickled ({error}); write "
                f"`launch = xp.kernel(function)` with a function of a module instead of a decorator"
            ) from error


def _array(spec: ArraySpec, block: device.Block, byte_offset: int) -> Any:
    return spec.array_type(
        spec.shape, spec.dtype, block=block, byte_offset=byte_offset, strides=spec.strides
    )


def _live_arrays() -> list[Any]:
    return live_objects(Array)


def _names_of(array: Any, ignored: list[Any]) -> Iterator[str]:
    """Name what refers to an array: the key of a dictionary, an attribute, a container."""
    for holder in gc.get_referrers(array):
        if isinstance(holder, dict):
            yield from (f"{key!r}" for key, value in holder.items() if value is array)
        elif isinstance(holder, (list, tuple)) and holder is not ignored:
            yield f"a {type(holder).__name__} of {len(holder)} items"
