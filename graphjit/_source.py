"""Where in the user's code something happened: file, line and text, for messages.

Input: a traceback or the current stack, and the modules that are not the user's.
Output: one short line of text.
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType, TracebackType

_OWN = frozenset({"graphjit", "wrapt", "optree", "contextlib", "functools"})


def is_users(frame: FrameType, library_modules: frozenset[str]) -> bool:
    """Say whether a frame is the user's own."""
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top not in _OWN and top not in library_modules


def users_frame(frame: FrameType | None, library_modules: frozenset[str]) -> FrameType | None:
    """Return the innermost frame that is the user's own: this one, or one around it."""
    while frame is not None and not is_users(frame, library_modules):
        frame = frame.f_back
    return frame


def describe_frame(frame: FrameType) -> str:
    """Return ``file:line, in function: text``."""
    return describe_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def describe_line(filename: str, lineno: int, function: str) -> str:
    """Return ``file:line, in function: text``."""
    text = linecache.getline(filename, lineno).strip()
    return f"{filename}:{lineno}, in {function}" + (f": {text}" if text else "")


def user_line(library_modules: frozenset[str]) -> str:
    """Return the innermost line of the current stack that is the user's own."""
    frame = users_frame(sys._getframe(1), library_modules)
    return "an unknown line" if frame is None else describe_frame(frame)


def library_call(library_modules: frozenset[str]) -> str:
    """Return the library function that the user's line called, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    called = ""
    while frame is not None and not is_users(frame, library_modules):
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top in library_modules:
            called = f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return called


def traceback_line(trace: TracebackType | None, library_modules: frozenset[str]) -> str:
    """Return the innermost line of a traceback that is the user's own."""
    found = "an unknown line"
    while trace is not None:
        if is_users(trace.tb_frame, library_modules):
            code = trace.tb_frame.f_code
            found = describe_line(code.co_filename, trace.tb_lineno, code.co_qualname)
        trace = trace.tb_next
    return found


def caller_depth() -> int:
    """Return the ``stacklevel`` with which a warning of our caller names the user's line."""
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None and not is_users(frame, frozenset()):
        frame, depth = frame.f_back, depth + 1
    return depth
