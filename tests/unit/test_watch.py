"""Watches see every change of what they read, and snapshots put everything back."""

import collections
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit import _places as places
from graphjit import _watch as watch
from graphjit._watch import Step, Watch
from graphjit.testing import simulated as xp


class Holder:
    limit = 3

    def scale(self, x):
        return x

    @property
    def double(self):
        return 2


def steps_of(holder) -> Watch:
    """Watch an object, a list in it, an array in that, and a number."""
    return Watch(
        [
            Step(-1, places.Held(holder), watch.same_object(holder), "holder", "object"),
            Step(0, places.Attribute("items"), watch.same_length(holder.items), "holder.items"),
            Step(1, places.Item(0), lambda v: isinstance(v, xp.Array), "holder.items[0]", "array"),
            Step(0, places.Attribute("n"), watch.same_value(holder.n, "n"), "holder.n", "value"),
        ]
    )


@pytest.fixture
def holder():
    made = Holder()
    made.items, made.n = [xp.ones(2), 5], 7
    return made


def test_reading_gives_the_arrays_as_they_are_now(holder):
    """An array that was replaced is read; the path of each is known."""
    watched = steps_of(holder)
    assert watched.array_paths() == ["holder.items[0]"]
    for _ in range(2):
        holder.items[0] = xp.zeros(2)
        (array,) = watched.read()
        assert array is holder.items[0]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda h: setattr(h, "n", 8), "holder.n"),
        (lambda h: setattr(h, "n", 7.0), "holder.n"),
        (lambda h: delattr(h, "n"), "holder.n"),
        (lambda h: h.items.append(1), "holder.items"),
        (lambda h: h.items.clear(), "holder.items"),
        (lambda h: setattr(h, "items", (h.items[0], 5)), "holder.items"),
        (lambda h: h.items.__setitem__(0, "text"), "holder.items[0]"),
    ],
)
def test_the_first_change_is_named(holder, change, path):
    """Whatever is not what it was ends the read, and has a path."""
    watched = steps_of(holder)
    assert watched.first_change() is None
    change(holder)
    assert watched.read() is None
    assert watched.first_change() == path


CONTAINERS = {
    "list": lambda: [1, 2, 3],
    "dict": lambda: {"b": 1, "a": 2},
    "set": lambda: {1, 2},
    "deque": lambda: collections.deque([1, 2]),
    "OrderedDict": lambda: collections.OrderedDict(b=1, a=2),
    "defaultdict": lambda: collections.defaultdict(list, b=1),
}


def add_item(container):
    if isinstance(container, dict):
        container["new"] = 9
    elif isinstance(container, set):
        container.add(9)
    else:
        container.append(9)


def remove_item(container):
    container.pop(next(iter(container))) if isinstance(container, dict) else container.pop()


@pytest.mark.parametrize("change", [add_item, remove_item], ids=["add", "remove"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_snapshots_find_and_undo_changes_of_containers(kind, change):
    """Contents, order and identity are as before."""
    container = CONTAINERS[kind]()
    before = (container.copy(), list(container))
    watched = Watch([Step(-1, places.Held(container), lambda v: True, "container")])
    snapshot = watched.snapshot()
    assert snapshot.changes() == []
    change(container)
    assert snapshot.changes() == ["container"]
    snapshot.restore()
    assert (container, list(container)) == before
    assert watched.read() == []
    assert snapshot.changes() == []


def test_snapshots_undo_assignments(holder):
    """Attributes, cells, globals and class attributes get their old values back."""
    cell = types.CellType(1)
    namespace = {"g": 2}
    watched = Watch(
        [
            Step(-1, places.Held(holder), lambda v: True, "holder", "object"),
            Step(0, places.Attribute("n"), watch.same_value(7, "n"), "n", "value"),
            Step(-1, places.Cell(cell), watch.same_value(1, "c"), "c", "value"),
            Step(-1, places.Global(namespace, "g"), watch.same_value(2, "g"), "g", "value"),
            Step(-1, places.ClassAttribute(Holder, "limit"), lambda v: v == 3, "limit", "value"),
        ]
    )
    snapshot = watched.snapshot()
    holder.n, cell.cell_contents, namespace["g"], Holder.limit = 0, 0, 0, 0
    assert snapshot.changes() == ["n", "c", "g", "limit"]
    snapshot.restore()
    assert (holder.n, cell.cell_contents, namespace["g"], Holder.limit) == (7, 1, 2, 3)


def test_an_array_that_was_replaced_is_a_change(holder):
    """An equal array in the place of another: the capture would be on the wrong one."""
    snapshot = steps_of(holder).snapshot()
    holder.items[0] = holder.items[0].copy()
    assert snapshot.changes() == ["holder.items[0]"]


# -- places


def test_places_of_nothing():
    """What is not there reads as MISSING, and a method counts by its function."""
    assert places.Attribute("none").read(Holder()) is places.MISSING
    assert places.Item(5).read([]) is places.MISSING
    assert places.Item("k").read({}) is places.MISSING
    assert places.Cell(types.CellType()).read(None) is places.MISSING
    assert places.Global({}, "g").read(None) is places.MISSING
    assert places.ClassAttribute(Holder, "none").read(None) is places.MISSING
    assert places.ClassAttribute(Holder, "scale").read(None) is Holder.scale
    assert places.ClassAttribute(Holder, "double").read(None) is vars(Holder)["double"].fget
    assert repr(places.MISSING) == "nothing"


def test_absent_names():
    """True as long as the object, or the owner, has none of the names by itself."""
    names = frozenset({"limit", "n"})
    holder = Holder()
    assert places.AbsentNames(names).read(holder) is True
    assert places.AbsentNames(names, Holder).read(None) is False
    holder.n = 1
    assert places.AbsentNames(names).read(holder) is False
    assert places.AbsentNames(frozenset({"n"}), Holder).read(None) is True


# -- checks


CHECKS = {
    "value": (lambda v: watch.same_value(v, "v"), 2, [2], [2.0, True, 3, None]),
    "float": (lambda v: watch.same_value(v, "v"), 0.0, [0.0], [-0.0, 0]),
    "nan": (lambda v: watch.same_value(v, "v"), float("nan"), [float("nan")], [0.0]),
    "array": (watch.same_host_array, np.arange(3), [np.arange(3)],
              [np.arange(4), np.arange(3.0), np.arange(3)[None], [0, 1, 2], np.zeros(3, "i8")]),
    "set": (watch.same_set, {1, 2}, [{2, 1}], [{1}, frozenset({1, 2})]),
    "keys": (watch.same_keys, {"a": 1, "b": 2}, [{"a": 5, "b": 6}],
             [{"b": 1, "a": 2}, {"a": 1}, ["a", "b"], collections.OrderedDict(a=1, b=2)]),
    "length": (watch.same_length, [1, 2], [[3, 4]], [[1], (1, 2), None]),
    "bytes": (watch.same_bytes, bytearray(b"ab"), [bytearray(b"ab")], [b"ab", bytearray(b"ac")]),
    "type": (watch.same_type, Holder(), [Holder()], [Holder, 1]),
    "true": (lambda v: watch.is_true, True, [True], [1, False, None]),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKS)
def test_checks_accept_the_same_and_nothing_else(kind):
    """Each check knows what it was made of from everything else."""
    make, value, same, others = CHECKS[kind]
    check = make(value)
    assert [check(v) for v in [value, *same]] == [True] * (1 + len(same))
    assert [check(v) for v in others] == [False] * len(others)


def test_checks_of_contents_keep_a_copy():
    """A container or an array that is changed in place is another."""
    for make, value, change in (
        (watch.same_host_array, np.arange(3), lambda v: v.__setitem__(0, 9)),
        (watch.same_set, {1}, lambda v: v.add(2)),
        (watch.same_bytes, bytearray(b"a"), lambda v: v.append(1)),
        (watch.same_length, [1], lambda v: v.append(1)),
        (watch.same_keys, {"a": 1}, lambda v: v.update(b=1)),
        (watch.same_items, [1, 2], lambda v: v.__setitem__(0, 9)),
        (watch.same_items, {"a": 1, "b": 2}, lambda v: v.update(b=3)),
        (watch.same_items, {"a": 1}, lambda v: v.update(b=3)),
    ):
        check = make(value)
        assert check(value)
        change(value)
        assert not check(value), make.__name__


def test_an_object_is_the_same_by_identity_only():
    """Equal objects are others, and a dead one is nobody."""
    holder = Holder()
    check = watch.same_object(holder)
    assert check(holder)
    assert not check(Holder())
    del holder
    assert not check(None)


VALUES = st.one_of(st.integers(-3, 3), st.floats(-2, 2), st.booleans(), st.text(max_size=1))


@given(VALUES, VALUES)
def test_values_are_told_apart_by_type_and_bits(left, right):
    """``same_value`` accepts exactly a value of the same type and the same bits."""
    same = type(left) is type(right) and repr(left) == repr(right)
    assert watch.same_value(left, "x")(right) == same
