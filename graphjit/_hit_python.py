"""The hit in plain Python: nothing is served here, ``State.run`` does it all.

Stands in for ``_hit_cython`` where that is not built, or with ``GRAPHJIT_PURE_PYTHON=1``; the
whole test suite runs on both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()


class Clock:
    """Orders the uses of a function's entries."""

    __slots__ = ("tick",)

    def __init__(self) -> None:
        self.tick = 0


_RLock: Any = type(threading.RLock())


class Lock(_RLock):  # type: ignore[misc]
    """A lock whose holder can know that it is: who holds it must not ask for it again."""

    def is_held_here(self) -> bool:
        """Say whether this thread holds the lock."""
        return bool(self._is_owned())  # as threading.Condition asks


TURNS = Lock()
"""Held while launches that take turns are queued."""


class HitCounts:
    """Counts of one entry, and the addresses that its graph points at now."""

    __slots__ = ("_slots", "hits", "last_time", "last_use", "launches", "patches")

    def __init__(self) -> None:
        self.hits = self.patches = self.launches = self.last_use = 0
        self.last_time = int(time.time())
        self._slots: list[int] | None = None

    def points_at(self, slots: Sequence[int]) -> bool:
        """Say whether the graph points at these addresses already."""
        return self._slots == slots

    def set_slots(self, slots: Sequence[int] | None) -> None:
        """Note what the graph points at; None while it is being changed."""
        self._slots = None if slots is None else list(slots)


class FastHits:
    """Serves no call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def clear(self) -> None:
        """Do nothing: there is nothing to forget."""

    def drop_closed(self) -> None:
        """Do nothing: there is nothing to forget."""

    def bind_with(self, bind: Any, n_positional: int, dynamic: Sequence[int] = ()) -> None:
        """Do nothing: nothing is bound here."""

    def add(self, lib: Any, args: tuple[Any, ...], kwargs: dict[str, Any], plan: Any) -> Any:
        """Return False: the entry is served by ``State.run``."""
        return False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Return MISS."""
        return MISS


def call_graphed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a graphed function: the ``__call__`` of ``GraphedFunction``."""
    return self._self_state.run(args, kwargs)


def set_call_slot(cls: type) -> None:
    """Do nothing: ``__call__`` is found by its name."""


def pause_hits(change: int) -> None:
    """Do nothing: no call is served natively."""


def NativeLibrary(*_: Any) -> None:  # noqa: N802 - the class of the compiled twin
    """Return None: there is no native library."""
