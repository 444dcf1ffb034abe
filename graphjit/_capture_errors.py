"""What the library or the driver said about a capture, in graphjit's words.

Input: an exception, or a captured graph. Output: the exception to raise.
Raises: ``UnsupportedNodeError`` for a graph that cannot be rebuilt.
Source: CUDA_ERROR_STREAM_CAPTURE_*.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from graphjit._adapters.interface import Adapter
from graphjit._nodes import CapturedGraph, EventNode, KernelNode, UnsupportedNode
from graphjit._source import traceback_line, user_line
from graphjit.errors import (
    CaptureError,
    CaptureInvalidatedError,
    DriverError,
    GraphjitError,
    UnsupportedNodeError,
)

_UNJOINED = 904  # CUDA_ERROR_STREAM_CAPTURE_UNJOINED
_CAPTURE_CODES = range(900, 910)  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and its family

HOST_READ = (
    "{call} reads the contents of a device array on the host while {function} is captured, "
    "at {where}. A graph launch cannot wait for a value and then decide. Keep the value on "
    "the device (cupy.where instead of `if`, a 0-d array instead of float()), move the read "
    "out of the function, or use @graphed(on_unsupported='split'){on_a_function}, which makes a "
    "graph of each part, or 'eager' to run it uncaptured."
)

READ_IN_BODY = (
    "{call} reads the contents of a device array on the host in a branch or a loop of "
    "graphjit.control while {function} is captured, at {where}. How often that is done is decided "
    "on the device: keep the value there (cupy.where, a 0-d array), or read it behind the loop."
)

RECURSION = (
    "the graphed function {name} calls itself, and a graph cannot be a child of itself; call "
    "{name}.__wrapped__, which becomes part of the graph that it is called in"
)

_MOVE_OUT = (
    "Move the call that made it out of the function, or use @graphed(on_unsupported='eager')."
)
_LEAVE_OUT = "Leave out the call that made it."
_IN_A_FUNCTION = "In a function with @graphed, which can be run again, the line is found."


class CaptureRetryError(Exception):
    """The adapter has learned from a failed attempt and asks for another; never seen by users."""


Capture = Any
"""``_capture.Capture``, which is refused."""


def explain(error: Exception, function: str, adapter: Adapter, hints: dict[str, Any]) -> Exception:
    """Turn what the library or the driver said about the capture into graphjit's words."""
    where = traceback_line(error.__traceback__, adapter.library_modules)
    if isinstance(error, DriverError) and error.code == _UNJOINED:
        forks = "; ".join(hints.get("forks", ())) or "an unknown line"
        return CaptureInvalidatedError(
            f"{function} forks work to another stream and does not join it ({error}). "
            f"Work on other streams: {forks}. Let the first stream wait for an event recorded "
            f"on the other one before the function returns."
        )
    if isinstance(error, DriverError) and error.code in _CAPTURE_CODES:
        return CaptureInvalidatedError(
            f"the capture of {function} was invalidated ({error}), at {where}. A call "
            f"that CUDA does not allow during capture was made: a synchronisation, a query, an "
            f"allocation behind the array library's back, or work on the legacy default stream."
        )
    if isinstance(error, GraphjitError):
        return error
    reason = adapter.explain_failure(error)
    if reason is None:
        return error
    return CaptureError(
        f"{function} cannot be captured: {reason}, at {where}. Move that call out of "
        f"the function, or use @graphed(on_unsupported='eager') to run it uncaptured."
    )


class RefusedNode(NamedTuple):
    """A node that graphjit cannot rebuild."""

    position: int
    type_name: str
    reason: str
    n_before: int
    """Nodes that were captured before it; conditional nodes, and child graphs, are not."""
    n_captured: int


def refuse_unsupported(graph: CapturedGraph, capture: Capture, events: Set[int | None]) -> None:
    """Refuse a graph with a node that graphjit cannot rebuild.

    An event that is none of ``events`` may be destroyed before the graph is.
    """
    for index, node in enumerate(graph.nodes):
        if isinstance(node, UnsupportedNode):
            what, reason = node.type_name, node.reason
        elif isinstance(node, EventNode) and node.event not in events:
            what = f"CU_GRAPH_NODE_TYPE_{'EVENT_RECORD' if node.is_record else 'WAIT_EVENT'}"
            reason = "nobody vouches for its event; use graphjit.record_event and wait_event"
        else:
            continue
        is_captured = [other.handle is not None for other in graph.nodes]
        refused = RefusedNode(index, what, reason, sum(is_captured[:index]), sum(is_captured))
        error = UnsupportedNodeError(_unsupported(graph, capture, refused))
        error._refused = refused
        raise error
    if capture.lines is not None:
        raise CaptureError(f"{capture.function} does not do the same each time")


def _unsupported(graph: CapturedGraph, capture: Capture, node: RefusedNode) -> str:
    """Say what is wrong with a node, and what is known of where it was recorded."""
    where, cure = "", _LEAVE_OUT if capture.is_block else _MOVE_OUT
    if capture.lines is not None:
        line = capture.lines.line_of(node.n_before, node.n_captured)
        where = f", recorded at {line}" if line else ""
    elif capture.is_block:
        before = graph.nodes[: node.position]
        names = [other.name for other in before if isinstance(other, KernelNode)]
        behind = f"behind the kernel {names[-1]}, " if names else ""
        where = f", recorded {behind}in the code of {user_line(capture.adapter.library_modules)}"
        cure = f"{_LEAVE_OUT} {_IN_A_FUNCTION}"
    return (
        f"{capture.function} cannot be captured: node {node.position} is a {node.type_name} and "
        f"{node.reason}{where}. {cure}"
    )
