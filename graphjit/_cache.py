"""Signature -> cache entries: look-up, insertion, eviction, counts.

Input: the key of a call. Output: the entry that serves it, with the call's arrays.
One key may have several entries, which differ in implicit arguments and in aliasing.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Hashable
from typing import Any, NamedTuple

from graphjit._arguments import Call
from graphjit._entry import CacheEntry
from graphjit._hit import Clock, FastHits
from graphjit._source import caller_depth
from graphjit.errors import CacheGrowthWarning

_GROWTH = (
    "{function} has been captured {n} times and its cache of {n} entries is full: entries are "
    "evicted and captured again. Usually a number that changes on every call is passed as a "
    "Python scalar; name it in @graphed(dynamic=...), pass it as a 0-d array, or raise "
    "max_entries. `{function}.explain(...)` names the argument that changes."
)


class CacheInfo(NamedTuple):
    """Counts of one graphed function, as ``functools.lru_cache`` reports them."""

    hits: int
    misses: int
    max_entries: int | None
    current_entries: int
    evictions: int
    eager_calls: int
    """Calls that ran the function uncaptured because the user asked for it."""


_MAX_NOTED = 4096


class Cache:
    """The entries of one graphed function. Safe to use from several threads."""

    def __init__(self, function: str, max_entries: int | None) -> None:
        self.function = function
        self.max_entries = max_entries
        self.lock = threading.RLock()
        self._buckets: dict[Hashable, list[CacheEntry]] = {}
        self._refused: dict[Hashable, str] = {}
        self._warmups: dict[Hashable, int] = {}
        self._n_entries = 0
        self._has_warned = False
        self.clock = Clock()
        self.fast = FastHits(self.clock)
        self._hits_of_gone = 0
        self.misses = 0
        self.evictions = 0
        self.eager_calls = 0

    def __del__(self) -> None:
        # No weakref.finalize: it would keep the watches, and by them what holds the function.
        if not sys.is_finalizing():  # the driver frees everything by itself then
            self.clear()

    def find(self, call: Call) -> tuple[CacheEntry, list[Any]] | None:
        """Return the entry that serves a call and the call's arrays."""
        for entry in self._buckets.get(call.key, ()):
            arrays = entry.match(call)
            if arrays is not None:
                return entry, arrays
        return None

    def count_hit(self, entry: CacheEntry) -> None:
        """Note a hit; the order of use decides what is evicted."""
        self.clock.tick += 1
        counts = entry.counts
        counts.hits += 1
        counts.last_use = self.clock.tick
        counts.last_time = int(time.time())

    def insert(self, key: Hashable, entry: CacheEntry) -> None:
        """Add an entry; the one used longest ago makes room."""
        with self.lock:
            self.clock.tick += 1
            entry.counts.last_use = self.clock.tick
            self._buckets[key] = [entry, *self._buckets.get(key, ())]
            self._warmups.pop(key, None)
            self._n_entries += 1
            if self.max_entries is not None and self._n_entries > self.max_entries:
                self._evict()

    def discard(self, key: Hashable, entry: CacheEntry) -> None:
        """Remove an entry that is no good any more, unless somebody has removed it before."""
        with self.lock:
            if entry in self._buckets.get(key, ()):
                self._remove(key, entry)

    def _evict(self) -> None:
        oldest = min(
            (
                (entry.counts.last_use, key, entry)
                for key, bucket in self._buckets.items()
                for entry in bucket
            ),
            key=lambda item: item[0],
        )
        _, key, entry = oldest
        self._remove(key, entry)
        self.evictions += 1
        if not self._has_warned:
            self._has_warned = True
            text = _GROWTH.format(function=self.function, n=self.max_entries)
            warnings.warn(text, CacheGrowthWarning, stacklevel=caller_depth())

    def _remove(self, key: Hashable, entry: CacheEntry) -> None:
        bucket = [e for e in self._buckets[key] if e is not entry]
        if bucket:
            self._buckets[key] = bucket
        else:
            del self._buckets[key]
        self._n_entries -= 1
        self._hits_of_gone += entry.counts.hits
        entry.close()
        self.fast.drop_closed()

    def count_warmup(self, key: Hashable) -> int:
        """Count an eager call before the capture; return how many there were."""
        n = self._warmups[key] = self._warmups.pop(key, 0) + 1
        _forget_oldest(self._warmups)
        return n

    def refuse(self, key: Hashable, reason: str) -> None:
        """Remember that the calls of a key run eagerly."""
        with self.lock:
            self._refused[key] = reason
            _forget_oldest(self._refused)

    def refusal(self, key: Hashable) -> str | None:
        """Return why the calls of a key run eagerly, or None."""
        return self._refused.get(key)

    def entries(self) -> list[CacheEntry]:
        """Return the entries, the one used last first."""
        with self.lock:
            found = [entry for bucket in self._buckets.values() for entry in bucket]
        return sorted(found, key=lambda entry: -entry.counts.last_use)

    def clear(self) -> None:
        """Free every entry and reset the counts."""
        with self.lock:
            for key, bucket in list(self._buckets.items()):
                for entry in list(bucket):
                    self._remove(key, entry)
            self._refused.clear()
            self._warmups.clear()
            self.fast.clear()
            self._hits_of_gone = self.misses = self.evictions = self.eager_calls = 0
            self._has_warned = False

    def info(self) -> CacheInfo:
        """Return the counts."""
        return CacheInfo(
            self._hits_of_gone + sum(entry.counts.hits for entry in self.entries()),
            self.misses,
            self.max_entries,
            self._n_entries,
            self.evictions,
            self.eager_calls,
        )


def _forget_oldest(noted: dict[Hashable, Any]) -> None:
    """Keep notes of signatures without a graph from growing with every new number."""
    if len(noted) > _MAX_NOTED:
        noted.pop(next(iter(noted)), None)
