"""A second attempt to capture a function, which names the line of a node that is refused.

Nothing is known of a node's line when the graph is read, and to follow the lines of every
capture would make it slow. So a function whose graph is refused is captured once more.

Input: what captures a function. Output: what that returns.
Raises: what it raises. To ``UnsupportedNodeError`` the line is added, if the second attempt
fails by the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from graphjit._capture import current_capture
from graphjit._node_lines import NodeLines
from graphjit.errors import UnsupportedNodeError

P = ParamSpec("P")
R = TypeVar("R")


def naming_the_line(
    attempt: Callable[Concatenate[Callable[..., Any], P], R],
    fn: Callable[..., Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Capture a function by ``attempt(fn, ...)``; once more if a node is refused."""
    try:
        return attempt(fn, *args, **kwargs)
    except UnsupportedNodeError as error:
        try:
            attempt(partial(_call_by_lines, fn), *args, **kwargs)
        except UnsupportedNodeError as second:
            if second._refused == error._refused:
                error.args = second.args
        except Exception:  # noqa: BLE001 - the first error is the one to be told
            pass
        raise


def _call_by_lines(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function under capture and note which line records what."""
    capture = current_capture()
    capture.lines = NodeLines(capture.stream, capture.adapter.library_modules)
    return capture.lines.call(fn, *args, **kwargs)
