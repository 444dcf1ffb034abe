"""Memory that several graphs work in: their launches take turns.

A plan or a handle of a library has memory of its own, and graphs that were captured with the
same one work in the same memory; so does a graph with another one in it that calls the host.
The driver lets launches of one graph exec wait for each other,
but launches of two on different streams may run at once. From the second graph on, each launch
waits for the last one of any of them.

Input: an executable and the externals of its graph. Output: events, in ``Executable.turns``.
Raises: ``DriverError``, ``CaptureError``; then the executable takes no part in anything.
Source: cuEventCreate, cuStreamWaitEvent, cuEventRecord.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from functools import partial

from graphjit._driver import host_functions
from graphjit._driver.interface import Driver
from graphjit._executable import Executable
from graphjit._externals import External
from graphjit.errors import CaptureError

_INTERRUPTED = (
    "a signal handler or a finaliser interrupts the launch of a graph, and captures another one "
    "that works in the same memory of a library. Make its first call before."
)
_lock = threading.RLock()  # a finaliser may capture in the middle of it
_memories: weakref.WeakValueDictionary[tuple[int, int], LibraryMemory] = (
    weakref.WeakValueDictionary()
)
"""(driver, address) -> the memory that graphs work in."""


class LibraryMemory:
    """One piece of memory of a library, and the graphs that work in it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self._event = 0
        """Recorded behind the last launch; none before there is a second graph."""

    def add(self, executable: Executable) -> None:
        """Let the launches of a graph take turns with those of the others."""
        if executable in self._executables:
            return
        others = [e for e in self._executables if e.graph_exec is not None]
        if any(other.lock.is_held_here() for other in others):
            raise CaptureError(_INTERRUPTED)
        if others and not self._event:
            self._event = self._driver.event_create()
            destroy = partial(host_functions.later, self._driver.event_destroy, self._event)
            weakref.finalize(self, destroy).atexit = False
            for other in others:
                other.take_turns(self._event)
            self._driver.wait_for_device()  # for launches that have left no event behind
        if self._event:
            executable.take_turns(self._event)
        self._executables.add(executable)
        executable.library_memory.append(self)


def take_turns(executable: Executable, externals: Iterable[External]) -> None:
    """Let the launches of a graph wait for others that work in the same memory of a library."""
    driver = executable.driver
    for ptr in sorted({e.device_ptr for e in externals if e.is_shared}):
        with _lock:
            memory = _memories.get((id(driver), ptr))
            if memory is None:
                memory = _memories[id(driver), ptr] = LibraryMemory(driver)
            memory.add(executable)
