"""The cache by itself: order of use, eviction, refusals, counts."""

import itertools
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit._arguments import Call
from graphjit._cache import Cache
from graphjit._hit import HitCounts
from graphjit.errors import CacheGrowthWarning


class Entry:
    """An entry that serves calls whose one leaf it was made for."""

    def __init__(self, leaf):
        self.leaf = leaf
        self.counts = HitCounts()
        self.is_open = True

    def match(self, call):
        return [self.leaf] if call.leaves == [self.leaf] else None

    def close(self):
        assert self.is_open
        self.is_open = False


def call(key, leaf=0) -> Call:
    """Make a call of a key."""
    return Call(None, key, [leaf], None, [], [], [])


def test_entries_of_one_key_are_told_apart():
    """Several entries share a key; the one that matches serves the call."""
    cache = Cache("fn", None)
    first, second = Entry(1), Entry(2)
    cache.insert("key", first)
    cache.insert("key", second)
    assert cache.find(call("key", 1)) == (first, [1])
    assert cache.find(call("key", 2)) == (second, [2])
    assert cache.find(call("key", 3)) is None
    assert cache.find(call("other", 1)) is None
    cache.clear()
    assert not first.is_open
    assert not second.is_open


@given(
    st.integers(1, 4), st.lists(st.tuples(st.sampled_from("ki"), st.integers(0, 6)), max_size=40)
)
def test_what_is_kept_is_what_was_used_last(max_entries, uses):
    """Against a plain list in the order of use."""
    cache = Cache("fn", max_entries)
    model: list[int] = []
    hits = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheGrowthWarning)
        for _, key in uses:
            found = cache.find(call(key, key))
            assert (found is not None) == (key in model)
            if found is not None:
                cache.count_hit(found[0])
                hits += 1
                model.remove(key)
            else:
                cache.misses += 1
                cache.insert(key, Entry(key))
            model = [*model, key][-max_entries:]
    info = cache.info()
    assert [entry.leaf for entry in cache.entries()] == model[::-1]
    assert info.hits == hits
    assert info.current_entries == len(model)
    assert info.misses - info.evictions == len(model)


def test_hits_of_evicted_entries_still_count():
    """An entry that goes leaves its hits in the counts, and is closed."""
    cache = Cache("fn", 1)
    old = Entry(0)
    cache.insert("a", old)
    for _ in range(3):
        cache.count_hit(old)
    with pytest.warns(CacheGrowthWarning, match="fn has been captured 1 times"):
        cache.insert("b", Entry(0))
    assert not old.is_open
    assert cache.info()[:5] == (3, 0, 1, 1, 1)


def test_one_warning_until_cleared():
    """A growing cache warns once; after clearing it may warn again."""
    cache = Cache("fn", 1)
    keys = itertools.count()

    def grow():
        for _ in range(3):
            cache.insert(next(keys), Entry(0))

    with pytest.warns(CacheGrowthWarning) as caught:
        grow()
    assert len(caught) == 1
    cache.clear()
    with pytest.warns(CacheGrowthWarning):
        grow()


def test_refusals_are_remembered_until_cleared():
    """A key that runs eagerly has a reason."""
    cache = Cache("fn", None)
    cache.refuse("key", "it reads")
    assert cache.refusal("key") == "it reads"
    assert cache.refusal("other") is None
    cache.clear()
    assert cache.refusal("key") is None


def test_warm_ups_are_counted_by_key():
    """Each key has its own count, which an entry ends."""
    cache = Cache("fn", None)
    assert [cache.count_warmup(key) for key in "aab"] == [1, 2, 1]
    cache.insert("a", Entry(0))
    assert cache.count_warmup("a") == 1
