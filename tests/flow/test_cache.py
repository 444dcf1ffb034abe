"""The cache: eviction, clearing, freeing, and what inspection says of it."""

import gc
import io
import weakref

import numpy as np
import pytest
from helpers.flow_checks import held_on_device, normal, same_bits
from rich.console import Console

import graphjit
from graphjit import graphed, inspection
from graphjit._adapters import simulated_device as device
from graphjit.testing import count_captures
from graphjit.testing import simulated as xp


def test_the_entry_used_longest_ago_is_evicted():
    """With room for two, the third signature takes the place of the one used least recently."""
    fn = graphed(max_entries=2)(lambda x: x + 1)
    a, b, c = (normal(n) for n in (1, 2, 3))
    fn(a)
    fn(b)
    fn(a)
    with pytest.warns(graphjit.CacheGrowthWarning, match="captured 2 times"):
        fn(c)
    assert (bool(fn.explain(a)), bool(fn.explain(b)), bool(fn.explain(c))) == (True, False, True)
    assert fn.cache_info() == (1, 3, 2, 2, 1, 0)


def test_a_growing_cache_warns_once_at_the_users_line():
    """A thousand numbers: bounded, right, and one warning that names this file."""
    fn = graphed(max_entries=4)(lambda x, s: x * s)
    x = normal(2)

    def call_with_many_numbers():
        for k in range(200):
            assert same_bits(fn(x, k), x * k)

    n_before = held_on_device().graph_execs
    with pytest.warns(graphjit.CacheGrowthWarning) as caught:
        call_with_many_numbers()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "Python scalar" in str(caught[0].message)
    info = fn.cache_info()
    assert (info.current_entries, info.evictions, info.misses) == (4, 196, 200)
    assert count_captures(fn) == 200
    assert held_on_device().graph_execs == n_before + 4


def test_an_unbounded_cache():
    """With ``max_entries=None`` nothing is evicted."""
    fn = graphed(max_entries=None)(lambda x, s: x * s)
    for k in range(150):
        fn(normal(2), k)
    assert fn.cache_info().current_entries == 150
    assert fn.cache_info().max_entries is None


def test_clearing_frees_everything():
    """Graphs, constants and patch tables go at once, and counts start anew."""
    before = held_on_device()
    fn = graphed(patch="device")(lambda x: x + xp.asarray([1.0, 2.0]))
    x = normal(2)
    with_argument = held_on_device()
    fn(x)
    fn(x)
    assert held_on_device().graph_execs == before.graph_execs + 1
    assert held_on_device().other_nbytes > before.other_nbytes
    fn.cache_clear()
    assert held_on_device() == with_argument
    assert fn.cache_info() == (0, 0, 128, 0, 0, 0)
    assert same_bits(fn(x), x + xp.asarray([1.0, 2.0]))


@pytest.mark.parametrize("outputs", ["fresh", "static"])
def test_a_deleted_function_frees_everything(outputs):
    """Without a collection: the last reference takes graphs, tables and constants with it."""
    before = held_on_device()
    fn = graphed(outputs=outputs)(lambda x: x + xp.asarray([1.0, 2.0]))
    fn(normal(2))
    fn(normal(2))
    del fn
    gc.collect()
    assert held_on_device() == before


def test_a_function_that_its_own_arguments_hold_is_freed():
    """A model that holds the graphed function that uses the model: a dead cycle frees all."""
    before = held_on_device()

    def make():
        class Model:
            def __init__(self):
                self.w = normal(3)

            @graphed
            def method(self, x):
                return x * self.w

        model = Model()
        model.step = graphed(lambda x: x + model.w)
        for _ in range(2):
            model.step(normal(3))
            model.method(normal(3))
        return weakref.ref(model), weakref.ref(Model)

    refs = make()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert held_on_device() == before


def test_results_outlive_the_function():
    """Arrays that were returned are the caller's."""
    fn = graphed(lambda x: x + 1)
    x = normal(3)
    fn(x)
    y = fn(x)
    del fn
    gc.collect()
    assert same_bits(y, x + 1)


# -- explain


def test_explain_names_what_differs():
    """Each kind of difference is named by path, with now and before; nothing is run."""
    fn = graphed(lambda x, s=2, d=None: x * s)
    x = xp.zeros((4, 2))
    assert str(fn.explain(x)) == "miss: nothing has been captured yet"
    fn(x)
    assert str(fn.explain(x)) == "hit"
    assert fn.explain(xp.ones((4, 2)))
    for call, expected in (
        (((xp.zeros((3, 2)),), {}), "x: now float64 (3, 2) strides"),
        (((x.astype("f4"),), {}), "before float64 (4, 2)"),
        (((x.T.copy().T,), {}), "strides (8, 32)"),
        (((x,), {"s": 3}), "s: now 3, before 2"),
        (((x,), {"s": 2.0}), "s: now"),
        (((x,), {"d": {"k": x}}), "d['k']"),
    ):
        found = fn.explain(*call[0], **call[1])
        assert not found
        assert expected in str(found)
        assert str(found).startswith("miss: ")
    assert fn.cache_info()[:2] == (0, 1)


def test_explain_names_shared_memory_and_what_is_reached():
    """Aliasing, and a value that the function reaches, are named too."""
    factor = 2
    fn = graphed(lambda a, b: (a + b) * factor)
    a, b = normal(3), normal(3)
    fn(a, b)
    assert "b: now a + 0 bytes, before absent" in str(fn.explain(a, a))
    factor = 3
    assert "factor: is not what it was" in str(fn.explain(a, b))


def test_explain_chooses_the_closest_entry():
    """Of several entries, the one with the fewest differences is compared."""
    fn = graphed(lambda x, s, t: x)
    fn(normal(2), 1, 1)
    fn(normal(3), 5, 5)
    found = fn.explain(normal(3), 5, 6)
    assert found.differences == ("t: now 6, before 5",)
    assert "float64 (3,)" in str(found.closest)


# -- entries, tables, the process


def test_entries_say_what_they_hold():
    """Counts, nodes by kind, sizes, times and the signature."""

    def fn(x):
        y = (x @ x.T) + xp.zeros(3)
        z = y.copy()
        return z * xp.asarray([1.0, 2.0, 3.0])

    graphed_fn = graphed(patch="device")(fn)
    for _ in range(3):
        graphed_fn(normal(3, 3))
    (entry,) = graphed_fn.cache_entries()
    assert (entry.hits, entry.launches, entry.patch_kind) == (2, 2, "device")
    assert entry.nodes["kernel"] == 3
    assert entry.nodes["memcpy"] == 2
    assert (entry.nodes["memset"], entry.nodes["mem_alloc"], entry.nodes["mem_free"]) == (1, 1, 1)
    assert (entry.output_nbytes, entry.constant_nbytes, entry.external_nbytes) == (72, 24, 0)
    assert entry.table_nbytes == 24 * entry.relocations
    assert entry.scratch_nbytes % 512 == 0
    assert entry.scratch_nbytes > 0
    assert min(entry.capture_us, entry.instantiate_us) > 0
    assert str(entry.signature) == ("x: float64 (3, 3) strides (24, 8) aligned to 256 on device 0")
    assert "3 kernel" in str(entry)
    assert "device patch; 2 hits" in str(entry)


def test_entries_are_listed_by_use():
    """The entry used last comes first."""
    fn = graphed(lambda x: x + 1)
    for n in (1, 2, 3, 1):
        fn(normal(n))
    shapes = [entry.signature.arrays["x"][1] for entry in fn.cache_entries()]
    assert shapes == [(1,), (3,), (2,)]


def test_the_table_shows_every_entry():
    """The rich table has a row an entry."""
    fn = graphed(lambda x: x + 1)
    for n in (1, 2):
        fn(normal(n))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(inspection.table(fn.cache_entries()))
    text = console.export_text()
    assert "graphjit cache entries" in text
    assert "float64 (1,)" in text
    assert "float64 (2,)" in text


def test_caches_of_the_process():
    """Every graphed function is listed by module and name, until it is gone."""
    fn = graphed(lambda x: x + 1)
    fn(normal(2))
    name = next(n for n in graphjit.caches() if "test_caches_of_the_process" in n)
    assert name.startswith(__name__)
    assert graphjit.caches()[name] == fn.cache_info()
    del fn
    gc.collect()
    assert name not in graphjit.caches()


def test_repr_counts():
    """The representation names the function and its counts."""
    fn = graphed(lambda x: x + 1)
    for _ in range(3):
        fn(np_free())
    assert repr(fn).endswith("<lambda>: 1 entries, 2 hits, 1 misses>")


def np_free():
    return xp.asarray(np.ones(3))


def test_nothing_is_held_between_calls_but_what_is_listed():
    """Constants and patch tables of all entries are all that the device holds."""
    before = held_on_device()
    fn = graphed(patch="device")(lambda x: xp.sort(x)[[0, 1]] + xp.asarray([1.0, 2.0]))
    for n in (3, 4, 5):
        fn(normal(n))
    gc.collect()
    held = held_on_device()
    listed = sum(e.constant_nbytes + e.table_nbytes for e in fn.cache_entries())
    assert held.other_nbytes - before.other_nbytes == listed
    assert held.array_nbytes == before.array_nbytes
    assert device.driver().counts["live_graph_execs"] == before.graph_execs + 3
