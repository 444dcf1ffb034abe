"""Run a function under stream capture on stand-in arrays.

Input: the function, its arguments with stand-ins in the places of the arrays.
Output: ``Captured``: the graph as plain data, the regions, the constants, what was returned.
Raises: the user's own exception; ``HostReadError``, ``CaptureInvalidatedError`` or
``CaptureError`` for what CUDA or the array library refuse. Whatever happens, the stream has
left capture, the garbage collector is as it was, and the constants are freed.
Source: cuStreamBeginCapture, cuStreamEndCapture.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphjit._adapters.interface import Adapter, CapturedStream, HostGenerator
from graphjit._capture_errors import (
    HOST_READ,
    READ_IN_BODY,
    RECURSION,
    CaptureRetryError,
    explain,
    refuse_unsupported,
)
from graphjit._children import Calls, nest
from graphjit._draws import Draws
from graphjit._driver.interface import CUDA_WITH_FLOW_IN_CHILDREN, Driver
from graphjit._flow import Flow, assemble
from graphjit._node_lines import NodeLines
from graphjit._nodes import CapturedGraph
from graphjit._regions import Regions, reserved_range
from graphjit._replay import Replay, SegmentEnd
from graphjit._source import library_call, user_line
from graphjit.errors import CaptureError, HostReadError

# One capture at a time: CuPy's guards and the garbage collector belong to the process.
_capture_lock = threading.RLock()
_active = threading.local()


@dataclass(slots=True)
class Constant:
    """Host data that the function sent to the device; uploaded once, owned by the entry."""

    device_ptr: int
    data: bytes


@dataclass(slots=True)
class Capture:
    """The capture in progress, as the adapter's hooks see it."""

    adapter: Adapter
    driver: Driver
    function: str
    regions: Regions
    hints: dict[str, Any] = field(default_factory=dict)
    constants: list[Constant] = field(default_factory=list)
    draws: Draws = field(default_factory=Draws)
    failure: Exception | None = None
    is_open: bool = True
    replay: Replay | None = None  # if the function may be split at its reads
    stream: CapturedStream | None = None
    flow: Flow = field(default_factory=Flow)
    calls: Calls = field(default_factory=Calls)
    kept: list[Any] = field(default_factory=list)
    """What has to live as long as the graph."""
    host_memory: list[Any] = field(default_factory=list)  # page-locked
    in_place: set[int] = field(default_factory=set)
    """Addresses of arrays that graphs use where they are, which are launched in it."""
    owners: list[Any] = field(default_factory=list)
    is_block: bool = False  # or a node of an explicit graph, which have no such options
    is_final: bool = False
    use_node_priority: bool = False  # streams of different priorities are used
    has_scalars: bool = False
    lines: NodeLines | None = None
    """Of an attempt that is never kept."""

    def allocate(self, nbytes: int) -> int:
        return self.regions.place(nbytes).ptr

    def free(self, ptr: int) -> None:
        if self.is_open:
            self.regions.free(ptr)

    def upload_constant(self, data: bytes) -> int:
        device_ptr = self.driver.mem_alloc(max(len(data), 1))
        self.constants.append(Constant(device_ptr, data))
        self.driver.memcpy_htod(device_ptr, data)
        return device_ptr

    def host_read(self, call: str, ptr: int, nbytes: int) -> bytes:
        if getattr(_active, "capture", None) is not self:
            raise CaptureError(
                f"this array is a stand-in from the capture of {self.function}: it holds no "
                f"memory and cannot be used outside of it, at {self.where()}"
            )
        call = library_call(self.adapter.library_modules) or call
        if self.replay is not None and not self.flow.is_in_body:
            known: bytes = self.replay.read(self, call, ptr, nbytes)
            return known
        text = READ_IN_BODY if self.flow.is_in_body else HOST_READ
        self.failure = HostReadError(
            text.format(
                call=call,
                function=self.function,
                where=self.where(),
                on_a_function=" on a function that does it" * self.is_block,
            )
        )
        raise self.failure

    def refuse(self, what: str) -> Exception:
        self.failure = CaptureError(
            f"{self.function} cannot be captured: {what}, at {self.where()}. Move that call out "
            f"of the function, or use @graphed(on_unsupported='eager') to run it uncaptured."
        )
        return self.failure

    def where(self) -> str:
        return user_line(self.adapter.library_modules)

    def fill_before_launch(
        self, generator: HostGenerator, call: Callable[[int], None], ptr: int
    ) -> None:
        self._refuse_draws_in_bodies()
        region = self.regions.find(ptr) if self.owns(ptr) else None
        if region is None or region.argument is not None:
            raise self.refuse("it lets a random generator fill memory that it did not make")
        region.born = 0  # written before the graph begins: no other memory may share the place
        self.draws.add_fill(generator, call, ptr)

    def seed_before_launch(self, generator: HostGenerator, n: int) -> int:
        self._refuse_draws_in_bodies()
        region = self.regions.place(1)
        self.regions.free(region.ptr)
        self.draws.add_seed(generator, n, region.ptr)
        return region.ptr

    def _refuse_draws_in_bodies(self) -> None:
        if self.flow.is_in_body:
            raise self.refuse(
                "it draws random numbers from a generator whose state is on the host in a branch "
                "or a loop of graphjit.control, and how often is decided on the device"
            )

    def cut(self) -> None:
        """Let control flow stand between what has been captured and what follows."""
        self.flow.add_piece(self.restart())

    def restart(self) -> Any:
        """End the piece that is being captured, and begin another; return the graph."""
        assert self.stream is not None
        if self.lines is not None:
            self.lines.end_piece()
        return self.stream.restart()

    @contextmanager
    def calling(self, function: Any, name: str) -> Iterator[None]:
        """Note what is recorded in a call of a graphed function."""
        if self.calls.is_open(function):
            raise self.refuse(RECURSION.format(name=name))
        with self.calls.note(function, name, self.position):
            yield

    def position(self) -> tuple[int, int]:
        """Return how many pieces are complete, and the nodes of the present one."""
        assert self.stream is not None
        return self.flow.n_pieces, self.stream.n_nodes()

    def drop_pieces(self) -> None:
        """Let go of what has been captured so far: it is part of an earlier segment."""
        self.flow.drop(self.driver)
        self.free_constants()
        self.calls.drop()
        if self.lines is not None:
            self.lines.drop()

    def keep_priorities(self) -> None:
        self.use_node_priority = True

    def owns(self, ptr: int) -> bool:
        return self.regions.range.holds(ptr)

    def owned(self) -> list[tuple[int, int]]:
        return [(region.ptr, region.nbytes) for region in self.regions.live()]

    def free_constants(self) -> None:
        """Give the constants back; used when no entry takes them over."""
        while self.constants:
            self.driver.mem_free(self.constants.pop().device_ptr)


@dataclass(slots=True)
class Captured:
    """A capture and what it gave. The driver's graph lives as long as nodes are copied from it."""

    capture: Capture
    result: Any = None
    graph_handle: Any = None
    graph: CapturedGraph = field(default_factory=lambda: CapturedGraph((), ()))

    def close(self) -> None:
        """Destroy the driver's graph; stand-ins that live on are nobody's business any more."""
        self.capture.is_open = False
        if self.graph_handle is not None:
            self.capture.driver.graph_destroy(self.graph_handle)
            self.graph_handle = None
        self.capture.flow.drop(self.capture.driver)
        self.capture.kept.clear()  # the entry has what it needs
        self.capture.host_memory.clear()


def is_capturing_here() -> bool:
    """Say whether this thread is inside a capture of graphjit's."""
    return getattr(_active, "capture", None) is not None


def current_capture() -> Any:
    """Return the capture that this thread is inside."""
    return _active.capture


def refuse_new_thread() -> None:
    """Refuse that the captured function starts a thread: it would work on stand-ins."""
    raise current_capture().refuse("it starts a thread, whose work is not part of the capture")


@contextmanager
def _exclusive(capture: Capture) -> Iterator[None]:
    """Hold the capture lock and the garbage collector: a finaliser may call CUDA."""
    with _capture_lock:
        was_enabled = gc.isenabled()
        gc.disable()
        _active.capture = capture
        try:
            yield
        finally:
            _active.capture = None
            if was_enabled:
                gc.enable()


def new_capture(
    adapter: Adapter, function: str, hints: dict[str, Any], *, is_block: bool = False
) -> Capture:
    """Prepare a capture: nothing is reserved or begun before the first region."""
    driver = adapter.driver()
    regions = Regions(reserved_range(driver))
    return Capture(adapter, driver, function, regions, hints, is_block=is_block)


@contextmanager
def capturing(capture: Capture, mode: str, *, flat: bool = False) -> Iterator[Captured]:
    """Capture the code of a ``with`` statement and read the graph.

    The code sets ``result``; after the statement ``graph`` holds the nodes. With ``flat`` the
    calls of graphed functions become no child graphs.
    """
    captured = Captured(capture)
    try:
        with _exclusive(capture):
            yield from _captured_by_stream(captured, mode)
            graph, begins = assemble(capture.driver, capture.flow, captured.graph_handle)
            calls = capture.calls.within(begins)
            flow = capture.driver.version() >= CUDA_WITH_FLOW_IN_CHILDREN
            captured.graph = graph if flat else nest(graph, calls, flow=flow)
        events = {capture.adapter.event_handle(item) for item in capture.kept}
        refuse_unsupported(captured.graph, capture, events)
    except BaseException:
        captured.close()
        capture.free_constants()
        raise


def _captured_by_stream(captured: Captured, mode: str) -> Iterator[Captured]:
    capture = captured.capture
    try:
        with capture.adapter.capturing(capture, mode) as capture.stream:
            try:
                yield captured
            except SegmentEnd as end:
                end.__traceback__ = None  # its frames hold the entry that is being made
            if capture.failure is not None:
                raise capture.failure  # the function caught it; its value was never read
            graph = capture.stream.end()
            replay = capture.replay
            captured.graph_handle = replay.finish(capture, graph) if replay else graph
    except Exception as error:
        capture.adapter.recover(error)
        if capture.failure is None and capture.adapter.adjust(error, capture):
            raise CaptureRetryError from error
        raised = capture.failure or explain(error, capture.function, capture.adapter, capture.hints)
        if raised is error:
            raise
        raise raised from error
