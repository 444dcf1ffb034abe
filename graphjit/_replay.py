"""Reads of a function on the host, in a capture that goes through them.

The function runs under capture from its beginning. At a read whose contents are known from
the launches before, the capture ends and another begins, so that only what follows is kept; at
the first one that is not known, the segment ends, and the function with it.

Input: the known contents, read by read. Output: where the segment ends.
Raises: ``CaptureError`` for a function that does not do the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphjit._regions import Region

Capture = Any
"""``_capture.Capture``, which holds one of these."""
MAX_READ_NBYTES = 1 << 12
_CHANGES = "it does not do the same each time: other reads, or other memory, than before"
_LARGE = (
    "{call} reads {nbytes} bytes on the host, more than the {most} by which the next graph is "
    "chosen"
)
_LATER = "it launches work after a read on the host that was broken off, in a `finally` or `except`"


class SegmentEnd(BaseException):
    """Unwinds the function at the read that ends a segment."""


@dataclass(frozen=True, slots=True)
class KnownRead:
    """A read that a launch has made: its contents, and what the function had asked for by then."""

    data: bytes
    sizes: tuple[int, ...]
    """Bytes of each region."""


@dataclass(frozen=True, slots=True)
class OpenRead:
    """The read at which a segment ends."""

    ptr: int
    nbytes: int
    alive: tuple[Region, ...]
    """Memory in use at this point."""
    sizes: tuple[int, ...]
    """Bytes of each region that there is."""
    where: str


class Replay:
    """The reads of one run of a function."""

    def __init__(self, known: Sequence[KnownRead], carried: Sequence[int]) -> None:
        self.known = known
        self.carried = carried
        """Numbers of the regions that outlive the segments before."""
        self.n_done = 0
        self.end: OpenRead | None = None
        self._graph: Any = None
        self._n_items = 0

    @property
    def is_split(self) -> bool:
        """Say whether the function reads on the host at all."""
        return self.end is not None or bool(self.known)

    def read(self, capture: Capture, call: str, ptr: int, nbytes: int) -> bytes:
        """Return the contents of a read, or end the segment."""
        if self.end is not None:
            raise SegmentEnd  # somebody has caught the first one
        if nbytes > MAX_READ_NBYTES:
            raise capture.refuse(_LARGE.format(call=call, nbytes=nbytes, most=MAX_READ_NBYTES))
        if not capture.owns(ptr):
            raise capture.refuse(f"{call} reads an array on the host that is no argument")
        graph = capture.restart()
        sizes = tuple(region.nbytes for region in capture.regions.regions)
        if self.n_done == len(self.known):
            alive = tuple(r for r in capture.regions.regions if r.freed is None)
            self.end = OpenRead(ptr, nbytes, alive, sizes, capture.where())
            self._graph, self._n_items = graph, len(capture.flow.items)
            raise SegmentEnd
        capture.driver.graph_destroy(graph)
        capture.drop_pieces()
        known = self.known[self.n_done]
        self.n_done += 1
        if (known.sizes, len(known.data)) != (sizes, nbytes):
            raise capture.refuse(_CHANGES)
        return known.data

    def finish(self, capture: Capture, graph: Any) -> Any:
        """Return the graph of the segment; ``graph`` is what was captured after the last read."""
        if self.n_done < len(self.known):
            capture.driver.graph_destroy(graph)
            raise capture.refuse(_CHANGES)
        if self.end is None:
            return graph
        rest = capture.driver.graph_read(graph)
        capture.driver.graph_destroy(graph)
        if rest.nodes or len(capture.flow.items) != self._n_items:
            capture.driver.graph_destroy(self._graph)
            raise capture.refuse(_LATER)
        return self._graph
