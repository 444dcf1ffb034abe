"""The simulated device of the process as an array library uses it: memory pool and streams.

Input: sizes in bytes. Output: blocks of memory; the current stream of the thread.
In a capture of graphjit's, memory is given reserved addresses, and streams are forked off.
Raises: ``DriverError``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from graphjit._adapters.interface import CaptureHooks
from graphjit._driver.simulated import SimulatedDriver
from graphjit._driver.simulated_memory import POISON

_ROUND_NBYTES = 512


@cache
def driver() -> SimulatedDriver:
    """Return the driver of the process's simulated device."""
    return SimulatedDriver()


# -- memory


class Block:
    """A block of device memory that goes back where it came from when nobody holds it."""

    __slots__ = ("_give_back", "hooks", "nbytes", "ptr")

    def __init__(
        self,
        ptr: int,
        nbytes: int,
        give_back: Callable[[int], None] | None,
        hooks: CaptureHooks | None = None,
    ) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.hooks = hooks
        """Those of the capture that a stand-in is from."""
        self._give_back = give_back

    def __del__(self) -> None:
        if self._give_back is not None:
            self._give_back(self.ptr)


class Pool:
    """Keeps freed blocks, poisoned, and hands out the one freed last.

    It takes no lock: ``Block.__del__`` may run in the middle of anything, and adding to and
    taking from a list are atomic.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[int]] = {}
        self._allocated: list[int] = []

    def allocate(self, nbytes: int, stream: int) -> Block:
        """Take a block freed on the same stream, or a new one, which is refused in a capture."""
        nbytes = max(-(-nbytes // _ROUND_NBYTES), 1) * _ROUND_NBYTES
        free = self._free.setdefault((stream, nbytes), [])
        try:
            ptr = free.pop()
        except IndexError:
            ptr = driver().user_mem_alloc(nbytes)
            self._allocated.append(nbytes)
        return Block(ptr, nbytes, partial(self._take_back, free, nbytes))

    def _take_back(self, free: list[int], nbytes: int, ptr: int) -> None:
        driver().memory.view(ptr, nbytes)[:] = POISON
        free.append(ptr)

    @property
    def used_nbytes(self) -> int:
        """Bytes that arrays hold now."""
        free = sum(nbytes * len(ptrs) for (_, nbytes), ptrs in list(self._free.items()))
        return self.allocated_nbytes - free

    @property
    def allocated_nbytes(self) -> int:
        """Bytes that the pool has of the device, free blocks included."""
        return sum(self._allocated)


pool = Pool()


def allocate(nbytes: int) -> Block:
    """Allocate from the pool, or from the capture in progress."""
    capture = _thread.capture
    if capture is None:
        return pool.allocate(nbytes, current_stream().handle)
    hooks = capture.hooks
    return Block(hooks.allocate(nbytes), nbytes, hooks.free, hooks)


def capture_hooks() -> CaptureHooks | None:
    """Return the hooks of this thread's capture by graphjit, or None."""
    return None if _thread.capture is None else _thread.capture.hooks


def reading_hooks(block: Block) -> CaptureHooks | None:
    """Return who knows contents that cannot be read now: in a capture, or of a stand-in."""
    hooks = _thread.capture.hooks if _thread.capture is not None else block.hooks
    if hooks is None:
        driver().refuse_unsafe_call("cuMemcpyDtoH")
    return hooks


def send_constant(data: bytes, dst_ptr: int) -> None:
    """Copy host data to the device; in a capture, the graph copies it from a constant."""
    if (capture := _thread.capture) is None:
        driver().user_memcpy_htod(dst_ptr, data)
    else:
        src_ptr = capture.hooks.upload_constant(data)
        driver().memcpy_async(dst_ptr, src_ptr, len(data), current_stream().handle)


# -- streams


class Event:
    """A point in the work of a stream."""

    def __init__(self) -> None:
        self.handle = driver().event_create()

    def record(self, stream: Stream | None = None) -> Event:
        """Record the event on a stream, by default the current one."""
        driver().event_record(self.handle, (stream or current_stream()).handle)
        return self

    def synchronize(self) -> None:
        """Wait for the event; refused in the capture that it was recorded in."""
        driver().event_synchronize(self.handle)


class Stream:
    """A stream; ``with stream:`` makes it current in this thread.

    Parameters
    ----------
    non_blocking : bool
        True creates a stream that is not ordered with the legacy stream.
    priority : int
        Lower numbers are higher.
    """

    def __init__(
        self, *, non_blocking: bool = False, priority: int = 0, handle: int | None = None
    ) -> None:
        if handle is None:
            handle = driver().stream_create(is_blocking=not non_blocking, priority=priority)
        self.handle = handle

    def __enter__(self) -> Stream:
        capture = _thread.capture
        if capture is not None:
            capture.fork(self)
        _thread.streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _thread.streams.pop()
        capture = _thread.capture
        if capture is not None and not any(error):
            capture.leave(self)

    def record(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        return (event or Event()).record(self)

    def wait_event(self, event: Event) -> None:
        """Let the stream's further work wait for an event."""
        driver().stream_wait_event(self.handle, event.handle)

    def synchronize(self) -> None:
        """Wait for the stream; in a capture of graphjit's, order other streams behind it."""
        capture = _thread.capture
        if capture is not None and driver().stream_is_capturing(self.handle):
            capture.order_behind(self)
        else:
            driver().stream_synchronize(self.handle)

    def is_capturing(self) -> bool:
        """Say whether the stream is under capture."""
        return driver().stream_is_capturing(self.handle)


class CapturedStreams:
    """The streams of a capture: switching to a stream makes it a branch of the capture."""

    def __init__(self, hooks: CaptureHooks, main: Stream) -> None:
        self.hooks = hooks
        self.main = main
        self.branches: list[Stream] = []
        self._mode = ""

    def fork(self, stream: Stream) -> None:
        """Fork a stream off the current one, unless it is part of the capture already."""
        if stream is self.main:
            return
        priority = driver().stream_priority
        if priority(stream.handle) != priority(self.main.handle):
            self.hooks.keep_priorities()
        if stream in self.branches:
            stream.wait_event(current_stream().record())
        elif stream.is_capturing():
            # The user's own fork: named if it is never joined.
            self.hooks.hints.setdefault("forks", []).append(self.hooks.where())
        else:
            stream.wait_event(current_stream().record())
            self.branches.append(stream)

    def leave(self, stream: Stream) -> None:
        """Order what follows behind a branch, as the legacy stream is behind blocking ones."""
        if stream in self.branches and current_stream() is not stream:
            current_stream().wait_event(stream.record())

    def order_behind(self, stream: Stream) -> None:
        """Let all other streams of the capture wait for one."""
        event = stream.record()
        for other in (self.main, *self.branches):
            if other is not stream:
                other.wait_event(event)

    def begin(self, mode: str) -> None:
        """Begin the capture; branches of one that has just ended go on in it."""
        driver().stream_begin_capture(self.main.handle, mode)
        self._mode = mode
        for branch in self.branches:
            branch.wait_event(self.main.record())

    def n_nodes(self) -> int:
        """Return how many nodes the graph has so far."""
        return driver().stream_count_captured(self.main.handle)

    def end(self) -> Any:
        """Join the branches and end the capture; return the graph."""
        for branch in self.branches:
            self.main.wait_event(branch.record())
        return driver().stream_end_capture(self.main.handle)

    def restart(self) -> Any:
        """End the capture and begin another one; return the graph."""
        graph = self.end()
        self.begin(self._mode)
        return graph


class _Thread(threading.local):
    """The streams that a thread has entered, and the capture that it is in."""

    def __init__(self) -> None:
        self.streams = [null_stream]
        self.capture: CapturedStreams | None = None


null_stream = Stream(handle=0)
_thread = _Thread()


def current_stream() -> Stream:
    """Return the current stream of this thread."""
    return _thread.streams[-1]


@contextmanager
def capture_on(stream: Stream, hooks: CaptureHooks) -> Iterator[CapturedStreams]:
    """Make a stream current, and let allocations and other streams follow the capture on it."""
    streams = CapturedStreams(hooks, stream)
    entered = list(_thread.streams)
    _thread.streams = [*entered, stream]
    _thread.capture = streams
    try:
        yield streams
    finally:
        _thread.capture = None
        _thread.streams = entered


# -- profilers

time_ranges: list[str] = []
"""What a profiler would have seen: the texts of ranges, in the order in which they began."""


@contextmanager
def time_range(text: str) -> Iterator[None]:
    """Note a range."""
    time_ranges.append(text)
    yield
