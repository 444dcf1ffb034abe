"""Which line of the user's recorded which node of a capture.

After each line the nodes are counted: those that have come are the line's. Lines of the library,
and of graphjit, count as the user's line that called them.

Input: the stream under capture, a function to call. Output: the line of the n-th node.
Raises: what the function raises. The tracer of a debugger, or of a tool that measures
coverage, does not see the call, and is in place again behind it.
Source: sys.settrace; cuStreamGetCaptureInfo, cuGraphGetNodes.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any

from graphjit._adapters.interface import CapturedStream
from graphjit._source import describe_line, is_users, users_frame

Line = tuple[CodeType, int]


class NodeLines:
    """The lines that recorded the nodes of one capture."""

    def __init__(self, stream: CapturedStream, library_modules: frozenset[str]) -> None:
        self._stream = stream
        self._library_modules = library_modules
        self._begins: list[tuple[int, Line | None]] = [(0, None)]
        """(nodes that there were when a line began, the line), in this order."""
        self._n_in_pieces = 0
        """Nodes of the pieces that are complete."""
        self._n_captured: int | None = None
        """At the end; None if the tracer was taken away before."""
        self._is_open = True

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and note which line records what."""
        before, trace = sys.gettrace(), self._trace
        self._begin(users_frame(sys._getframe(), self._library_modules))
        sys.settrace(trace)
        try:
            return function(*args, **kwargs)
        finally:
            self._is_open = False
            if sys.gettrace() is trace:  # else somebody goes on with a tracer of their own
                sys.settrace(before)
                self._n_captured = self._count()

    def end_piece(self) -> None:
        """Note that a piece of the capture is complete; the next one begins."""
        self._n_in_pieces = self._count()

    def drop(self) -> None:
        """Forget the nodes so far: they are not kept."""
        self._n_in_pieces = 0
        self._begins = [(0, self._begins[-1][1])]

    def line_of(self, n_before: int, n_captured: int) -> str:
        """Return the line of the node with so many before it; nothing if it is not certain."""
        if n_captured != self._n_captured:
            return ""  # a graph that a library has put in is counted as one node
        found = bisect_right(self._begins, n_before, key=itemgetter(0)) - 1
        line = self._begins[found][1]
        return describe_line(line[0].co_filename, line[1], line[0].co_qualname) if line else ""

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Serve as Python's tracer; in a generator perhaps longer than the call."""
        if not self._is_open or not is_users(frame, self._library_modules):
            return None
        is_left = event == "return"
        self._begin(users_frame(frame.f_back, self._library_modules) if is_left else frame)
        return self._trace

    def _begin(self, frame: FrameType | None) -> None:
        """Note that the line of a frame goes on from here."""
        n = self._count()
        if self._begins[-1][0] == n:
            self._begins.pop()
        self._begins.append((n, None if frame is None else (frame.f_code, frame.f_lineno)))

    def _count(self) -> int:
        return self._n_in_pieces + self._stream.n_nodes()
