"""CuPy's streams under capture: those that a function switches to become branches.

Input: the capture stream. Output: a context in which ``with stream``, ``stream.use()`` and
``stream.synchronize()`` do the right thing in the capturing thread.
Raises: what CUDA raises when a stream, such as the legacy one, cannot be captured.
Source: CuPy 14, cupy/cuda/stream.pyx; cuStreamWaitEvent on a captured event.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import cupy
from cupy.cuda import runtime

from graphjit._adapters.interface import CaptureHooks
from graphjit._driver.cuda import CudaDriver

_BaseStream: Any = cupy.cuda.Stream.__mro__[1]
_CHANGED = ("__enter__", "__exit__", "use", "synchronize")


class CaptureEvent(cupy.cuda.Event):  # type: ignore[misc]
    """An event in a capture. CuPy asks it whether a staging buffer is free: it always is,
    since constants are uploaded before the copy is recorded.
    """

    streams: CapturedStreams

    @property
    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.streams.order_behind(self)


class CaptureStream(cupy.cuda.Stream):  # type: ignore[misc]
    """The stream under capture."""

    hooks: CaptureHooks
    streams: CapturedStreams

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        raise self.hooks.refuse("it launches a host function, which a graph would not run")

    def record(self, event: Any = None) -> Any:
        if event is None:
            event = CaptureEvent(disable_timing=True)
            event.streams = self.streams
        return super().record(event)


class CapturedStreams:
    """Replaces three methods of CuPy's streams, and one of events, for the time of a capture.

    Work on a stream outside the capture would run at once, on addresses that hold nothing.
    Switching to a stream therefore forks it off the current one; waiting for a stream, which
    the host cannot do now, orders the other streams behind it. ``join`` joins the branches.
    """

    def __init__(self, main: CaptureStream, hooks: CaptureHooks, driver: CudaDriver) -> None:
        self.main = main
        main.hooks, main.streams = hooks, self
        self.hooks = hooks
        self.branches: list[Any] = []
        self.own_forks: list[Any] = []
        """Streams that the function forks by itself, and has to join by itself."""
        self.has_ended, self._mode = True, ""
        self._thread = threading.get_ident()
        self._plain = {name: vars(_BaseStream)[name] for name in _CHANGED}
        self._plain_done = vars(cupy.cuda.Event)["done"]
        self._driver = driver

    def __enter__(self) -> CapturedStreams:
        plain = self._plain

        def enter(stream: Any) -> Any:
            self._fork(stream)
            return plain["__enter__"](stream)

        def leave(stream: Any, *error: Any) -> Any:
            result = plain["__exit__"](stream, *error)
            if not any(error):
                self._leave(stream)
            return result

        def use(stream: Any) -> Any:
            left = cupy.cuda.get_current_stream()
            self._fork(stream)
            used = plain["use"](stream)
            self._leave(left)
            return used

        def synchronize(stream: Any) -> None:
            if self._is_captured(stream):
                self.order_behind(stream.record())
            else:
                plain["synchronize"](stream)

        for name, function in zip(_CHANGED, (enter, leave, use, synchronize), strict=True):
            setattr(_BaseStream, name, function)
        cupy.cuda.Event.done = property(self._is_done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, function in self._plain.items():
            setattr(_BaseStream, name, function)
        cupy.cuda.Event.done = self._plain_done

    def join(self) -> None:
        """Let the capture stream wait for every branch."""
        for branch in self.branches:
            self.main.wait_event(branch.record())

    def begin(self, mode: str) -> None:
        """Begin the capture; branches of one that has just ended go on in it."""
        self._driver.stream_begin_capture(self.main.ptr, mode)
        self.has_ended, self._mode = False, mode
        self.own_forks = []
        for branch in self.branches:
            branch.wait_event(self.main.record())

    def n_nodes(self) -> int:
        """Return how many nodes the graph has so far."""
        return self._driver.stream_count_captured(self.main.ptr)

    def end(self) -> Any:
        """Join the branches and end the capture; return the graph."""
        self.join()
        self.has_ended = True
        return self._driver.stream_end_capture(self.main.ptr)

    def restart(self) -> Any:
        """End the capture and begin another one; return the graph."""
        graph = self.end()
        self.begin(self._mode)
        return graph

    def _is_done(self, event: Any) -> Any:
        """Query an event. CuPy does so before it stages host data, for copies of any thread."""
        if threading.get_ident() != self._thread:
            return self._plain_done.__get__(event)
        with self._driver.relaxed():
            return self._plain_done.__get__(event)

    def _is_captured(self, stream: Any) -> bool:
        return threading.get_ident() == self._thread and runtime.streamIsCapturing(stream.ptr)

    def _fork(self, stream: Any) -> None:
        if stream == self.main or threading.get_ident() != self._thread:
            return
        priority = self._driver.stream_priority
        if priority(stream.ptr) != priority(self.main.ptr):
            self.hooks.keep_priorities()
        if stream in self.branches:
            stream.wait_event(cupy.cuda.get_current_stream().record())
        elif self._is_captured(stream):
            # The user's own fork: named if it is never joined.
            self.hooks.hints.setdefault("forks", []).append(self.hooks.where())
            self.own_forks.append(stream)
        else:
            stream.wait_event(cupy.cuda.get_current_stream().record())
            self.branches.append(stream)

    def _leave(self, stream: Any) -> None:
        """Order what follows behind a branch, as the legacy stream is behind blocking ones."""
        current = cupy.cuda.get_current_stream()
        if stream in self.branches and stream != current and self._is_captured(stream):
            current.wait_event(stream.record())

    def order_behind(self, event: Any) -> None:
        """Order the further work of every stream of the capture behind an event."""
        for stream in (self.main, *self.branches, *self.own_forks):
            if self._is_captured(stream):
                stream.wait_event(event)
