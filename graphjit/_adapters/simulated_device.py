"""The simulated device of the process: memory pool, current stream, kernels over arrays.

Input: arrays as (address, shape, strides), packed into parameters as libraries do: structs
with the address first or behind smaller fields, and padding that nobody wrote.
Output: launches on the current stream.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from graphjit._driver.interface import KernelLaunch
from graphjit._driver.simulated import SimulatedDriver
from graphjit._driver.simulated_graph import Run, SimulatedFunction

_thread = threading.local()
_padding = random.Random(1)


@cache
def driver() -> SimulatedDriver:
    """Return the driver of the process's simulated device."""
    return SimulatedDriver()


class Block:
    """A block of device memory that goes back where it came from when nobody holds it."""

    __slots__ = ("_give_back", "nbytes", "ptr")

    def __init__(self, ptr: int, nbytes: int, give_back: Callable[[int, int], None]) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self.ptr, self.nbytes)


class Pool:
    """Keeps freed blocks and hands out the one freed last: stale addresses show at once."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self._lock = threading.RLock()
        self.used_nbytes = 0

    def allocate(self, nbytes: int) -> Block:
        """Allocate a block, its contents poisoned."""
        rounded = max(-(-nbytes // 512) * 512, 512)
        with self._lock:
            free = self._free.get(rounded)
            ptr = free.pop() if free else driver().mem_alloc(rounded)
            self.used_nbytes += rounded
        driver().memory.view(ptr, rounded)[:] = 0xCB
        return Block(ptr, rounded, self._give_back)

    def _give_back(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self._free.setdefault(nbytes, []).append(ptr)
            self.used_nbytes -= nbytes


pool = Pool()


def allocate(nbytes: int) -> Any:
    """Allocate from the current allocator of this thread."""
    allocator = getattr(_thread, "allocator", None)
    return pool.allocate(nbytes) if allocator is None else allocator(nbytes)


def hooks() -> Any:
    """Return the hooks of this thread's capture, or None."""
    return getattr(_thread, "hooks", None)


@contextlib.contextmanager
def capturing(hooks: Any, allocator: Callable[[int], Any]) -> Iterator[None]:
    """Set the allocator and the hooks of this thread for the time of a capture."""
    _thread.hooks, _thread.allocator = hooks, allocator
    try:
        yield
    finally:
        _thread.hooks = _thread.allocator = None


class Event:
    """A point in the work of a stream."""

    def __init__(self) -> None:
        self.handle = driver().stream_create()  # any handle that nothing else has

    def record(self, stream: Stream | None = None) -> Event:
        """Record the event on a stream, by default the current one."""
        driver().event_record(self.handle, (stream or current_stream()).handle)
        return self


class Stream:
    """A stream; ``with stream:`` makes it current in this thread."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = driver().stream_create() if handle is None else handle

    def __enter__(self) -> Stream:
        _stack().append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _stack().pop()

    def record(self) -> Event:
        """Record a new event."""
        return Event().record(self)

    def wait_event(self, event: Event) -> None:
        """Let the stream's further work wait for an event."""
        driver().stream_wait_event(self.handle, event.handle)

    def synchronize(self) -> None:
        """Wait for the stream's work; refused while it is being captured."""
        driver().stream_synchronize(self.handle)


def _stack() -> list[Stream]:
    if not hasattr(_thread, "streams"):
        _thread.streams = [Stream(0)]
    streams: list[Stream] = _thread.streams
    return streams


def current_stream() -> Stream:
    """Return the current stream of this thread."""
    return _stack()[-1]


# -- kernels over arrays

PLAIN, PACKED = "plain", "packed"


@cache
def _function(
    name: str, body: Callable[..., None], specs: tuple[tuple[Any, int], ...], style: str
) -> SimulatedFunction:
    """Make a kernel for arrays of given dtypes and numbers of dimensions, like a template."""
    sizes = [_struct_size(ndim, style) for _, ndim in specs]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    layout = tuple(zip(offsets, sizes, strict=True))

    def run(context: Run, params: bytes) -> None:
        arrays = [
            _open(context, params, offset, dtype, ndim, style)
            for (offset, _), (dtype, ndim) in zip(layout, specs, strict=True)
        ]
        body(*arrays)

    return SimulatedFunction(name, layout, run)


def _struct_size(ndim: int, style: str) -> int:
    return 8 + 16 * ndim + (8 if style == PACKED else 16)


def pack_array(ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], style: str) -> bytes:
    """Pack one array: address first, or behind two 32-bit numbers; random bytes as padding."""
    numbers = struct.pack(f"<{2 * len(shape)}q", *shape, *strides)
    if style == PACKED:
        return struct.pack("<ii", len(shape), 7) + struct.pack("<Q", ptr) + numbers
    return struct.pack("<Q", ptr) + numbers + _padding.randbytes(16)


def _open(
    context: Run, params: bytes, offset: int, dtype: Any, ndim: int, style: str
) -> np.ndarray[Any, Any]:
    """Unpack one array and open its memory, which traps if it is not allocated."""
    offset += 8 if style == PACKED else 0
    ptr, *numbers = struct.unpack_from(f"<Q{2 * ndim}q", params, offset)
    shape, strides = tuple(numbers[:ndim]), tuple(numbers[ndim:])
    low, high = extent(shape, strides, dtype.itemsize)
    memory = context.memory.view(ptr + low, high - low)
    return np.ndarray(shape, dtype, buffer=memory, offset=-low, strides=strides)


def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the bytes that an array touches, relative to its address."""
    if 0 in shape:
        return 0, 0
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), itemsize + sum(r for r in reach if r > 0)


def launch(name: str, body: Callable[..., None], arrays: list[Any], style: str = PLAIN) -> None:
    """Launch ``body`` over arrays on the current stream; it gets NumPy views of their memory."""
    stream = current_stream().handle
    if hooks() is not None and not driver().stream_is_capturing(stream):
        raise RuntimeError("the current stream is not part of the capture")
    function = _function(name, body, tuple((a.dtype, a.ndim) for a in arrays), style)
    params = b"".join(pack_array(a.device_ptr, a.shape, a.strides, style) for a in arrays)
    settings = KernelLaunch(function, (1, 1, 1), (32, 1, 1), 0, function.param_layout)
    driver().launch_kernel(settings, params, stream)
