"""A function that reads results on the host, as a tree of graphs.

Each segment is the graph of what lies between two reads; what a launch leaves to be read chooses
the next one. A segment that is not there yet is captured, and the call goes on with it.

Memory that outlives a segment ("carried") gets a block of its own for the rest of the call.
Regions are known by their number, in the order in which the function asks for memory: that is
the same in every capture along the same reads.

Input: a call and its arrays. Output: what the function returns.
Raises: ``CaptureError`` in the middle of a call, when a segment cannot be captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphjit._adapters.interface import Memory
from graphjit._arguments import Call
from graphjit._containers import plain_tuple
from graphjit._hit import MISS
from graphjit._outputs import OutputPlan
from graphjit._regions import Region, Regions
from graphjit._relocation import Target
from graphjit._replay import KnownRead, OpenRead
from graphjit.errors import AnalysisError, CaptureError

Entry = Any
"""``_entry.CacheEntry``, which holds one of these."""
MAX_SEGMENTS = 64
"""Graphs of one signature; a function that needs more of them runs eagerly from then on."""
_PARTLY_DONE = (
    "The call had been carried out up to the read at {where}; arrays that the function changes in "
    "place may have been changed. Calls of this signature run eagerly from now on."
)
_RUN_EAGERLY = (
    "Nothing had been changed by then. The call was run eagerly instead, and its result is in "
    "`error.eager_result`; calls of this signature run eagerly from now on."
)


@dataclass(slots=True)
class Segment:
    """What one graph of the tree needs and leaves behind; regions by their number."""

    carried: tuple[int, ...]
    """From the segments before."""
    fresh: tuple[int, ...]
    """Asked for in this one, and used after it."""
    end: OpenRead | None
    outputs: OutputPlan | None
    """Of a last segment."""
    returned: tuple[int, ...]
    """The regions of ``outputs``."""
    layout: OutputPlan
    """Blocks of memory that are no scratch: the carried ones, then the fresh ones."""
    source: Target | None = None
    """Where the bytes to read are."""
    changes_arguments: bool = True
    """False if nothing that outlives the call can be changed by the launch."""
    entry: Entry = None
    children: dict[bytes, Segment] = field(default_factory=dict)

    def note(self, source: Target, changes_arguments: bool) -> None:
        """Note what the analysis of the graph has found."""
        self.source, self.changes_arguments = source, changes_arguments


def plan_segment(
    regions: Regions,
    known: Sequence[KnownRead],
    carried: Sequence[int],
    end: OpenRead | None,
    outputs: OutputPlan | None,
) -> Segment:
    """Say which memory a segment is given, and which outlives it."""
    number = {id(region): i for i, region in enumerate(regions.regions)}
    first = len(known[-1].sizes) if known else 0
    kept: Sequence[Region] = end.alive if end is not None else outputs.regions if outputs else ()
    own = [region for region in kept if region.argument is None]
    fresh = [number[id(region)] for region in own if number[id(region)] >= first]
    blocks = tuple(regions.regions[i] for i in (*carried, *fresh))
    return Segment(
        carried=tuple(carried),
        fresh=tuple(fresh),
        end=end,
        outputs=outputs,
        returned=tuple(number[id(region)] for region in outputs.regions) if outputs else (),
        layout=OutputPlan((), plain_tuple(0), blocks),
    )


CaptureNext = Callable[[Call, list[Any], Sequence[KnownRead], Sequence[int]], Segment]
"""Call, its implicit arrays, what has been read, the carried regions -> the next segment."""


class SegmentTree:
    """All segments of one signature. Several threads may run through it at once."""

    def __init__(self, root: Segment, capture_next: CaptureNext) -> None:
        self.root = root
        self.n_segments = 1
        self.n_codes = 0
        """Code objects of the user that had run when the first segment was captured."""
        self.n_reads = 0
        self.failure = ""
        """Why calls of this signature should run eagerly from now on."""
        self._capture_next = capture_next
        self._lock = threading.RLock()
        self._n_running = 0
        self._is_closed = False

    def run(self, call: Call, arrays: list[Any], eager: Callable[[], Any] | None = None) -> Any:
        """Launch segment after segment; ``MISS`` if the tree has been closed before.

        If the call cannot go on, and has changed nothing yet, ``eager`` runs it instead.
        """
        with self._running() as is_open:
            if not is_open:
                return MISS
            done: list[Segment] = []
            try:
                return self._run(call, arrays, done)
            except (CaptureError, AnalysisError) as error:
                self.failure = str(error)
                if eager is None or any(segment.changes_arguments for segment in done):
                    where = done[-1].end.where if done[-1].end else "its end"
                    error.add_note(_PARTLY_DONE.format(where=where))
                else:
                    error.eager_result = eager()
                    error.add_note(_RUN_EAGERLY)
                raise

    def _run(self, call: Call, arrays: list[Any], done: list[Segment]) -> Any:
        segment, known, blocks = self.root, [], dict[int, Memory]()
        while True:
            launched = segment.entry.launch_on(arrays, [blocks[i] for i in segment.carried])
            if launched is None:
                if not done:
                    return MISS  # a finaliser, in the middle of a launch by the same thread
                raise CaptureError("a finaliser calls the function amid its own launch")
            done.append(segment)
            memories, slots = launched
            first = len(segment.carried)
            blocks |= zip(segment.fresh, memories[first : first + len(segment.fresh)], strict=True)
            if segment.end is None:
                assert segment.outputs is not None
                returned = [blocks[i] for i in segment.returned]
                return segment.outputs.build(call.adapter, returned, arrays)
            known.append(KnownRead(self._read(call, segment, slots), segment.end.sizes))
            segment = self._next(call, arrays, segment, known, sorted(blocks))

    def _read(self, call: Call, segment: Segment, slots: list[int]) -> bytes:
        """Wait for the launch and copy what the function reads."""
        assert segment.end is not None
        assert segment.source is not None
        driver = call.adapter.driver()
        driver.stream_synchronize(call.adapter.current_stream())
        self.n_reads += 1
        ptr = slots[segment.source.slot] + segment.source.delta
        return driver.memcpy_dtoh(ptr, segment.end.nbytes)

    def _next(
        self,
        call: Call,
        arrays: list[Any],
        segment: Segment,
        known: list[KnownRead],
        carried: list[int],
    ) -> Segment:
        """Return the segment that follows what was read; capture it if it is new."""
        found = segment.children.get(known[-1].data)
        if found is not None:
            return found
        with self._lock:
            found = segment.children.get(known[-1].data)
            if found is None:
                implicit = arrays[len(call.arrays) :]
                found = self._capture_next(call, implicit, known, carried)
                segment.children[known[-1].data] = found
                self.n_segments += 1
                if self.n_segments >= MAX_SEGMENTS:
                    self.failure = (
                        f"its reads on the host have given {self.n_segments} different graphs, "
                        f"the most that are kept for one signature"
                    )
            return found

    @contextmanager
    def _running(self) -> Iterator[bool]:
        """Keep the graphs alive while a call goes through them."""
        with self._lock:
            is_open = not self._is_closed
            self._n_running += is_open
        try:
            yield is_open
        finally:
            with self._lock:
                self._n_running -= is_open
                is_last = self._is_closed and not self._n_running
            if is_last:
                self._close_all()

    def close(self) -> None:
        """Free all graphs, once no call is in the middle of them."""
        with self._lock:
            self._is_closed = True
            if self._n_running:
                return
        self._close_all()

    def _close_all(self) -> None:
        segments = [self.root]
        for segment in segments:
            segments += segment.children.values()
            if segment.entry is not None:
                segment.entry.close_graph()
        self.root.children.clear()

    def segments(self) -> list[Segment]:
        """List the segments, the first one first."""
        found = [self.root]
        for segment in found:
            found += list(segment.children.values())
        return found
