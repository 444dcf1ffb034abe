"""Arguments are taken apart and put together again, whatever form they come in."""

import collections
import fractions
import functools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit._arguments import ArgumentReader
from graphjit._containers import flatten, plain_tuple, unflatten
from graphjit.errors import SignatureError
from graphjit.testing import simulated as xp


class Point(NamedTuple):
    x: object
    y: object


class Opaque:
    pass


def read(fn, *args, static=(), **kwargs):
    """Take one call of a function apart."""
    return ArgumentReader(fn, static).read(args, kwargs)


def make_leaf(kind):
    """Return an array or a plain value."""
    return {"array": xp.ones(2), "number": 3, "text": "a", "none": None, "float": 0.5}[kind]


LEAVES = st.sampled_from(["array", "number", "text", "none", "float"]).map(make_leaf)
TREES_OF_ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)
# With an array in it, which says what library the call is for.
TREES = st.tuples(st.builds(xp.ones, st.just(1)), TREES_OF_ANYTHING)


def arrays_of(value):
    """List the arrays in nested containers, in order."""
    if isinstance(value, xp.Array):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [a for v in value for a in arrays_of(v)] if isinstance(value, (list, tuple)) else []


@given(TREES, TREES)
def test_calls_are_rebuilt_with_other_arrays(first, second):
    """Containers keep type and order; arrays are replaced, values are not."""

    def fn(a, b):
        pass

    call = read(fn, first, second)
    assert [id(a) for a in call.arrays] == [id(a) for a in arrays_of([first, second])]
    assert call.array_ptrs == [a.device_ptr for a in call.arrays]
    replacements = [xp.zeros(2) for _ in call.arrays]
    args, kwargs = call.rebuild(replacements)
    assert kwargs == {}
    assert [id(a) for a in arrays_of(args)] == [id(a) for a in replacements]
    back, _ = call.rebuild(call.arrays)
    assert repr_of(back) == repr_of((first, second))


def repr_of(value):
    """Describe a value with the identity of its arrays."""
    if isinstance(value, xp.Array):
        return id(value)
    if isinstance(value, dict):
        return dict, [(k, repr_of(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [repr_of(v) for v in value]
    return type(value), value


@given(TREES, TREES_OF_ANYTHING)
def test_keys_are_equal_for_equal_calls(first, second):
    """Keyword, positional and default forms of one call have one key, other calls another."""

    def fn(a, b=None):
        pass

    key = read(fn, first, second).key
    assert key == read(fn, first, b=second).key == read(fn, b=second, a=first).key
    assert hash(key) == hash(read(fn, b=second, a=first).key)
    assert (read(fn, first).key == key) == (second is None)
    assert read(fn, [first], second).key != key


def test_plain_calls_are_read_without_a_tree():
    """Positional arrays, numbers and objects: what the compiled hit can read, with the same key."""

    def fn(a, b, c):
        pass

    x, opaque = xp.ones(2), Opaque()
    plain = read(fn, x, 2.5, opaque)
    assert plain.key == read(fn, x, c=opaque, b=2.5).key
    assert plain.key != read(fn, x, 2.5, Opaque()).key


@pytest.mark.parametrize(
    ("argument", "is_plain"),
    [
        (2.5, True),
        ([xp.ones(2), (1, "a")], True),
        ({"w": {"b": xp.ones(2)}, 3: None}, True),
        (np.float32(2), True),
        (1 + 2j, True),
        (Opaque(), True),
        (collections.OrderedDict(w=1), False),
        (collections.namedtuple("Pair", "a b")(1, 2), False),
        ([collections.deque([1])], False),
        (np.datetime64(3, "s"), False),
        (fractions.Fraction(1, 2), False),
        (slice(1, 2), False),
    ],
)
def test_what_the_compiled_hit_can_read(argument, is_plain):
    """Numbers, text, and objects by identity, in lists, tuples and dictionaries."""
    reader = ArgumentReader(lambda x: x, ())
    assert reader.is_plain(reader.read((argument,), {})) == is_plain
    assert not ArgumentReader(lambda x: x, ("x",)).is_plain(reader.read((argument,), {}))


def test_paths_are_what_the_user_would_write():
    """Parameters by name, items by key, variable arguments by index."""

    def fn(a, *rest, option=None, **more):
        pass

    reader = ArgumentReader(fn, ())
    x = xp.ones(1)
    call = reader.read(({"w": [x, 1]}, 7, [x]), {"option": (x,), "extra": 2})
    paths = reader.paths(call)
    expected = ["a['w'][0]", "a['w'][1]", "rest[0]", "rest[1][0]", "option[0]", "extra"]
    assert paths == expected


def test_functions_without_a_signature():
    """A builtin that Python cannot describe is called with what it is given."""
    reader = ArgumentReader(functools.partial(print), ())
    assert reader.read((xp.ones(1), 2), {}).leaves[1] == 2
    call = ArgumentReader(max, ()).read((xp.ones(1), 2), {})
    assert len(call.arrays) == 1


def test_static_arguments_are_one_leaf():
    """A list named in ``static`` is keyed by content, and given to the function as it is."""

    def fn(x, table, more=None):
        pass

    x, table = xp.ones(1), [1, np.arange(3)]
    call = read(fn, x, table, static=("table",))
    assert call.static_index == {1}
    assert call.rebuild([x])[0][1] is table
    key = call.key
    assert read(fn, x, [1, np.arange(3)], static=("table",)).key == key
    assert read(fn, x, [1, np.arange(4)], static=("table",)).key != key
    assert read(fn, x, table=table, static=("table",)).key == key


def test_static_variable_arguments():
    """``static`` covers all of ``*args``, and no keyword behind it."""

    def fn(x, *tables, option=None):
        pass

    x = xp.ones(1)
    first = read(fn, x, [1], [2], static=("tables",)).key
    assert first == read(fn, x, [1], [2], static=("tables",)).key
    assert first != read(fn, x, [1], [3], static=("tables",)).key


def test_objects_are_listed_with_their_place():
    """Arguments that are neither arrays nor plain values, nor static, are walked later."""

    def fn(x, model, table):
        pass

    reader = ArgumentReader(fn, ("table",))
    model = Opaque()
    call = reader.read((xp.ones(1), [model, 3], {"a": 1}), {})
    assert reader.objects(call) == [("model[0]", 1, model)]


def test_unhashable_leaves_are_refused_with_their_path():
    """The path is that of the argument, however deep."""

    def fn(x, settings):
        pass

    with pytest.raises(SignatureError, match=r"^settings\['a'\]\[1\] is of type bytearray"):
        read(fn, xp.ones(1), {"a": [1, bytearray()]})


def test_descriptions_name_what_is_shared():
    """A view of another argument is described as that argument and a distance in bytes."""

    def fn(x, y, s):
        pass

    x = xp.ones(8)
    reader = ArgumentReader(fn, ())
    call = reader.read((x, x[2:], 3), {})
    described = reader.describe(call, [call.adapter.spec(a) for a in call.arrays])
    assert described.aliasing == {"y": "x + 16 bytes"}
    assert described.static == {"s": (int, 3)}
    assert list(described.arrays) == ["x", "y"]


@given(TREES)
def test_containers_come_back_as_they_were(value):
    """Flattening and unflattening keeps types, order and None."""
    leaves, tree = flatten(value, lambda v: isinstance(v, xp.Array))
    assert repr_of(unflatten(tree, leaves)) == repr_of(value)


def test_plain_tuples_are_recognised():
    """The tree of a tuple of leaves is that of any other such tuple, and of nothing else."""
    tree = flatten((1, 2), lambda _: False)[1]
    assert tree == plain_tuple(2) != plain_tuple(3)
    assert tree != flatten([1, 2], lambda _: False)[1]
