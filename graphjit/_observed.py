"""Tell which Python code begins to run in this thread.

Input: a function to call with each code object and its globals, at least once each.
Output: a context; profilers and debuggers of others go on in it.
Raises: what that function raises, in the code that begins.
Source: sys.monitoring (Python 3.12), which costs nothing after the first time that code
runs; sys.setprofile before.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Starts = Callable[[types.CodeType, dict[str, Any]], None]
_monitoring: Any = getattr(sys, "monitoring", None)
_TOOL_NAME = "graphjit"
_TOOL_IDS = (4, 3)
"""Those that Python reserves for nobody."""


@contextmanager
def _by_profile(starts: Starts) -> Iterator[None]:
    before: Any = sys.getprofile()
    goes_on = callable(before)
    known: set[types.CodeType] = set()

    def profile(frame: types.FrameType, event: Any, arg: Any) -> None:
        if event == "call" and frame.f_code not in known:
            known.add(frame.f_code)
            starts(frame.f_code, frame.f_globals)
        if goes_on:
            before(frame, event, arg)

    sys.setprofile(profile)
    try:
        yield
    finally:
        if before is None or goes_on:
            sys.setprofile(before)
        else:
            before.enable()  # cProfile's object: it was installed from C, and cannot be called


class _Monitor:
    """The one registration with ``sys.monitoring``, shared by the threads that observe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observers: dict[int, Starts] = {}
        self._tool_id: int | None = None

    def begin(self, starts: Starts) -> bool:
        """Observe this thread; False if every free tool is taken."""
        with self._lock:
            if self._tool_id is None and not self._take_tool():
                return False
            self._observers[threading.get_ident()] = starts
            assert self._tool_id is not None
            _monitoring.set_events(self._tool_id, _monitoring.events.PY_START)
            _monitoring.restart_events()
        return True

    def end(self) -> None:
        """Observe this thread no longer."""
        with self._lock:
            del self._observers[threading.get_ident()]
            if not self._observers and self._tool_id is not None:
                _monitoring.set_events(self._tool_id, _monitoring.events.NO_EVENTS)
                _monitoring.free_tool_id(self._tool_id)
                self._tool_id = None

    def _take_tool(self) -> bool:
        for tool_id in _TOOL_IDS:
            if _monitoring.get_tool(tool_id) is None:
                _monitoring.use_tool_id(tool_id, _TOOL_NAME)
                _monitoring.register_callback(tool_id, _monitoring.events.PY_START, self._starts)
                self._tool_id = tool_id
                return True
        return False

    def _starts(self, code: types.CodeType, _: int) -> Any:
        starts = self._observers.get(threading.get_ident())
        if starts is not None:
            starts(code, sys._getframe(1).f_globals)
            if len(self._observers) == 1:
                return _monitoring.DISABLE  # nobody else waits for this code
        return None


_monitor = _Monitor()


@contextmanager
def observed(starts: Starts) -> Iterator[None]:
    """Call ``starts`` when code begins to run in this thread."""
    if _monitoring is None or not _monitor.begin(starts):
        with _by_profile(starts):
            yield
        return
    try:
        yield
    finally:
        _monitor.end()
