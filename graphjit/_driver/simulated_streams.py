"""Streams, events and captures of the simulated device.

Input: calls on streams. Output: a stream under capture collects nodes in a graph; the edges
follow the order within a stream and the events that streams wait for.
Raises: ``DriverError``; what CUDA does not allow during a capture invalidates the capture.

::

    no capture --begin--> active --end--> no capture, graph
                            |                 ^
                            +--a refused call--> invalidated --end--> (901, no graph)

Source: cuStreamBeginCapture, cuStreamEndCapture, cuEventRecord, cuStreamWaitEvent,
cuThreadExchangeStreamCaptureMode.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from graphjit._driver.interface import CAPTURE_MODES
from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_graph import SimulatedGraph, SimulatedNode, SimulatedParams

LEGACY_STREAM = 0
_HIGHEST_PRIORITY = -5


@dataclass(eq=False, slots=True)
class CaptureState:
    """A capture in progress; the streams that were forked into it share it."""

    graph: SimulatedGraph
    origin: int
    mode: str
    thread: int = field(default_factory=threading.get_ident)
    is_invalidated: bool = False
    heads: dict[int, list[SimulatedNode]] = field(default_factory=dict)
    """Stream -> the nodes that its next node depends on."""

    def append(
        self,
        stream: int,
        kind: str,
        params: SimulatedParams | None,
        fields: dict[str, int],
        priority: int = 0,
    ) -> None:
        """Add a node behind everything that the stream waits for."""
        node = self.graph.add(kind, params, **fields)
        node.priority = priority
        for head in self.heads[stream]:
            self.graph.edges[head, node] = None
        self.heads[stream] = [node]

    def has_unjoined_work(self) -> bool:
        """Say whether a stream has work that the origin does not wait for."""
        behind = self.heads[self.origin]
        return any(
            not self.graph.is_behind(node, behind)
            for heads in self.heads.values()
            for node in heads
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an event was recorded on: a point of a capture, or of a stream outside of any."""

    capture: CaptureState | None
    heads: list[SimulatedNode]


class SimulatedStreams:
    """Streams and events by handle, and the captures in progress."""

    def __init__(self) -> None:
        self._handles = itertools.count(1)
        self._streams: dict[int, bool] = {LEGACY_STREAM: True}
        """Stream -> whether it waits for the legacy stream, and the other way round."""
        self._priorities: dict[int, int] = {}
        """Of the streams whose priority is not 0."""
        self._events: dict[int, Recorded | None] = {}
        self._captures: dict[int, CaptureState] = {}
        """Stream -> the capture that it is part of."""
        self._lock = threading.RLock()
        self._thread = threading.local()

    def stream_create(self, *, is_blocking: bool = False, priority: int = 0) -> int:
        """Create a stream; a blocking one is ordered with the legacy stream (cuStreamCreate)."""
        stream = next(self._handles)
        self._streams[stream] = is_blocking
        if priority:
            self._priorities[stream] = max(priority, _HIGHEST_PRIORITY)
        return stream

    def stream_priority(self, stream: int) -> int:
        """Return the priority of a stream (cuStreamGetPriority)."""
        self._check_stream(stream, "cuStreamGetPriority")
        return self._priorities.get(stream, 0)

    def stream_destroy(self, stream: int) -> None:
        self._check_stream(stream, "cuStreamDestroy")
        if stream == LEGACY_STREAM:
            raise failure("cuStreamDestroy", "INVALID_HANDLE", "the legacy stream")
        capture = self._captures.pop(stream, None)
        if capture is not None:
            capture.is_invalidated = True
        del self._streams[stream]
        self._priorities.pop(stream, None)

    def _check_stream(self, stream: int, call: str) -> None:
        if stream not in self._streams:
            raise failure(call, "INVALID_HANDLE", f"stream {stream}")

    def stream_synchronize(self, stream: int) -> None:
        self._refuse_in_host_function("cuStreamSynchronize")
        self._check_stream(stream, "cuStreamSynchronize")
        self._refuse_on_captured(stream, "cuStreamSynchronize")

    def device_synchronize(self) -> None:
        """Wait for everything; refused while anything is captured (cuCtxSynchronize)."""
        self._refuse_in_host_function("cuCtxSynchronize")
        with self._lock:
            captures = set(self._captures.values())
            for capture in captures:
                capture.is_invalidated = True
            if captures:
                raise failure("cuCtxSynchronize", "STREAM_CAPTURE_UNSUPPORTED")

    def _refuse_on_captured(self, stream: int, call: str) -> None:
        capture = self._captures.get(stream)
        if capture is not None:
            capture.is_invalidated = True
            raise failure(call, "STREAM_CAPTURE_UNSUPPORTED")

    def _refuse_in_host_function(self, call: str) -> None:
        """Refuse every call of a thread that runs a host function."""
        if getattr(self._thread, "runs_host_function", False):
            raise failure(call, "NOT_PERMITTED", "in a host function")

    def refuse_unsafe_call(self, call: str) -> None:
        """Refuse a call that this thread must not make: allocation, a copy that waits."""
        self._refuse_in_host_function(call)
        here = threading.get_ident()
        with self._lock:
            broken = {
                c
                for c in self._captures.values()
                if c.mode == "global" or (c.mode == "thread_local" and c.thread == here)
            }
            for capture in broken:
                capture.is_invalidated = True
        if broken:
            raise failure(call, "STREAM_CAPTURE_UNSUPPORTED")

    # -- capture

    def stream_begin_capture(self, stream: int, mode: str) -> None:
        call = "cuStreamBeginCapture"
        self._refuse_in_host_function(call)
        self._check_stream(stream, call)
        if mode not in CAPTURE_MODES:
            raise failure(call, "INVALID_VALUE", mode)
        if stream == LEGACY_STREAM:
            raise failure(call, "STREAM_CAPTURE_UNSUPPORTED", "the legacy stream")
        with self._lock:
            if stream in self._captures:
                raise failure(call, "ILLEGAL_STATE", "the stream is capturing")
            capture = CaptureState(SimulatedGraph(), stream, mode)
            capture.heads[stream] = []
            self._captures[stream] = capture

    def stream_end_capture(self, stream: int) -> SimulatedGraph:
        call = "cuStreamEndCapture"
        self._check_stream(stream, call)
        with self._lock:
            capture = self._captures.get(stream)
            if capture is None:
                raise failure(call, "ILLEGAL_STATE", "the stream is not capturing")
            if capture.origin != stream:
                raise failure(call, "STREAM_CAPTURE_UNMATCHED", "begun on another stream")
            if capture.mode != "relaxed" and capture.thread != threading.get_ident():
                raise failure(call, "STREAM_CAPTURE_WRONG_THREAD")
            self._leave(capture)
        if capture.is_invalidated:
            raise failure(call, "STREAM_CAPTURE_INVALIDATED")
        if capture.has_unjoined_work():
            raise failure(call, "STREAM_CAPTURE_UNJOINED")
        return capture.graph

    def stream_abandon_capture(self, stream: int) -> None:
        with self._lock:
            capture = self._captures.get(stream)
            if capture is not None:
                self._leave(capture)

    def _leave(self, capture: CaptureState) -> None:
        for member in [s for s, c in self._captures.items() if c is capture]:
            del self._captures[member]

    def stream_is_capturing(self, stream: int) -> bool:
        return stream in self._captures

    def stream_count_captured(self, stream: int) -> int:
        self._check_stream(stream, "cuStreamGetCaptureInfo")
        capture = self._captures.get(stream)
        return 0 if capture is None or capture.is_invalidated else len(capture.graph.nodes)

    def _active_capture(self, stream: int, call: str) -> CaptureState | None:
        """Return the capture that work on a stream becomes part of, or None."""
        self._refuse_in_host_function(call)
        self._check_stream(stream, call)
        capture = self._captures.get(stream)
        if capture is not None and capture.is_invalidated:
            raise failure(call, "STREAM_CAPTURE_INVALIDATED")
        if stream == LEGACY_STREAM:
            self._refuse_implicit_dependency(call)
        return capture

    def _refuse_implicit_dependency(self, call: str) -> None:
        """Work on the legacy stream would wait for every blocking stream under capture."""
        with self._lock:
            broken = {c for s, c in self._captures.items() if self._streams[s]}
            for capture in broken:
                capture.is_invalidated = True
        if broken:
            raise failure(call, "STREAM_CAPTURE_IMPLICIT")

    # -- events

    def event_create(self, *, timing: bool = False) -> int:
        """Create an event (cuEventCreate)."""
        event = next(self._handles)
        self._events[event] = None
        return event

    def event_destroy(self, event: int) -> None:
        """Destroy an event (cuEventDestroy)."""
        self._recorded(event, "cuEventDestroy")
        del self._events[event]

    def _recorded(self, event: int, call: str) -> Recorded | None:
        if event not in self._events:
            raise failure(call, "INVALID_HANDLE", f"event {event}")
        return self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        """Note what the stream has done so far (cuEventRecord)."""
        self._recorded(event, "cuEventRecord")
        capture = self._active_capture(stream, "cuEventRecord")
        heads = [] if capture is None else list(capture.heads[stream])
        self._events[event] = Recorded(capture, heads)

    def event_synchronize(self, event: int) -> None:
        """Wait for an event; refused for one recorded in a capture (cuEventSynchronize)."""
        recorded = self._recorded(event, "cuEventSynchronize")
        if recorded is not None and recorded.capture is not None:
            recorded.capture.is_invalidated = True
            raise failure("cuEventSynchronize", "CAPTURED_EVENT")

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Wait for an event; one of a capture takes the stream into it (cuStreamWaitEvent)."""
        call = "cuStreamWaitEvent"
        recorded = self._recorded(event, call)
        mine = self._active_capture(stream, call)
        theirs = None if recorded is None else recorded.capture
        if recorded is None or (theirs is None and mine is None):
            return
        if theirs is None:
            self._refuse_wait(mine, "STREAM_CAPTURE_ISOLATION")
        elif theirs not in self._captures.values():
            self._refuse_wait(mine, "CAPTURED_EVENT")
        elif theirs.is_invalidated:
            raise failure(call, "STREAM_CAPTURE_INVALIDATED")
        elif mine is not None and mine is not theirs:
            theirs.is_invalidated = True
            self._refuse_wait(mine, "STREAM_CAPTURE_MERGE")
        elif stream == LEGACY_STREAM:
            self._refuse_wait(theirs, "STREAM_CAPTURE_IMPLICIT")
        else:
            with self._lock:
                self._captures[stream] = theirs
            heads = theirs.heads.setdefault(stream, [])
            heads += [node for node in recorded.heads if node not in heads]

    def stream_wait_stream(self, stream: int, other: int) -> None:
        """Let a stream wait for the work of another, by an event."""
        event = self.event_create()
        self.event_record(event, other)
        self.stream_wait_event(stream, event)
        self.event_destroy(event)

    @staticmethod
    def _refuse_wait(capture: CaptureState | None, name: str) -> None:
        if capture is not None:
            capture.is_invalidated = True
        raise failure("cuStreamWaitEvent", name)
