"""The simulated arrays as graphjit sees them.

Input / Output: as ``_adapters/interface.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from graphjit._adapters import simulated_device as device
from graphjit._adapters.interface import ArraySpec, CaptureHooks, Memory
from graphjit._adapters.simulated_array import Array
from graphjit._driver.simulated import SimulatedDriver
from graphjit.errors import DriverError


class StandInBlock(device.Block):
    """A block at a reserved address."""

    __slots__ = ("hooks",)

    def __init__(self, ptr: int, nbytes: int, hooks: CaptureHooks, *, is_temporary: bool) -> None:
        super().__init__(ptr, nbytes, lambda p, _: hooks.free(p) if is_temporary else None)
        self.hooks = hooks


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
        low, high = device.extent(array.shape, array.strides, array.dtype.itemsize)
        return ArraySpec(type(array), array.shape, array.dtype, array.strides, 0, low, high)

    def key(self, array: Any) -> tuple[Any, ...]:
        return (array.shape, array.dtype, array.strides, 0, type(array))

    def device_ptr(self, array: Any) -> int:
        return int(array.device_ptr)

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> int:
        return device.current_stream().handle

    def is_capturing(self) -> bool:
        return device.driver().stream_is_capturing(self.current_stream())

    def allocate(self, nbytes: int) -> Memory:
        block = device.allocate(nbytes)
        return Memory(block.ptr, block)

    def native_library(self) -> Any:
        return None

    def make_array(self, spec: ArraySpec, memory: Memory, byte_offset: int) -> Any:
        return _array(spec, memory.owner, byte_offset)

    def make_template(self, spec: ArraySpec) -> Any:
        return None

    def view_of(self, base: Any, spec: ArraySpec, byte_offset: int) -> Any:
        return _array(spec, base.block, base.device_ptr - base.block.ptr + byte_offset)

    def stand_in(self, spec: ArraySpec, ptr: int, hooks: CaptureHooks) -> Any:
        nbytes = spec.high - spec.low
        block = StandInBlock(ptr + spec.low, nbytes, hooks, is_temporary=False)
        return _array(spec, block, -spec.low)

    @contextmanager
    def capturing(self, hooks: CaptureHooks, mode: str) -> Iterator[Callable[[], Any]]:
        driver = self.driver()
        stream = device.Stream()

        def allocate(nbytes: int) -> StandInBlock:
            return StandInBlock(hooks.allocate(nbytes), nbytes, hooks, is_temporary=True)

        with stream, device.capturing(hooks, allocate):
            driver.stream_begin_capture(stream.handle, mode)
            try:
                yield lambda: driver.stream_end_capture(stream.handle)
            finally:
                driver.stream_abandon_capture(stream.handle)
        driver.stream_destroy(stream.handle)

    def adjust(self, error: BaseException, hooks: CaptureHooks) -> bool:
        return False

    def recover(self, error: BaseException) -> None:
        pass

    def explain_failure(self, error: BaseException) -> str | None:
        if isinstance(error, RuntimeError) and "not part of the capture" in str(error):
            return f"it works on a stream that was not forked off its own ({error})"
        return None if not isinstance(error, DriverError) else str(error)

    def memory_owners(self, ptrs: Iterable[int]) -> dict[int, tuple[Any, str, bool]]:
        import gc

        found: dict[int, tuple[Any, str, bool]] = {}
        arrays = [obj for obj in gc.get_objects() if isinstance(obj, Array)]
        for ptr in ptrs:
            for array in arrays:
                spec = self.spec(array)
                if array.device_ptr + spec.low <= ptr < array.device_ptr + spec.high:
                    found[ptr] = (array, f"an array {array.dtype} {array.shape}", True)
        return found

    def holders(self, ptr: int) -> str:
        return "a variable that outlives the call"

    def equal_bits(self, left: Any, right: Any) -> bool:
        same = left.shape == right.shape and left.dtype == right.dtype
        return bool(same and left.get().tobytes() == right.get().tobytes())

    def copy(self, array: Any) -> Any:
        return array.copy()

    def assign(self, dst: Any, src: Any) -> None:
        dst[...] = src


def _array(spec: ArraySpec, block: Any, byte_offset: int) -> Any:
    return spec.array_type(
        spec.shape, spec.dtype, block=block, byte_offset=byte_offset, strides=spec.strides
    )
