"""Keys of values: equal exactly when graphjit may treat two values as the same."""

import copy
import enum
import gc
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit._adapters.interface import ArraySpec
from graphjit._signature import (
    IdentityKey,
    Signature,
    array_text,
    is_kept_by_identity,
    static_key,
)
from graphjit.errors import SignatureError


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Word:
    """Equal to others of the same text, in the user's own opinion."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return isinstance(other, Word) and self.text == other.text

    def __hash__(self):
        return hash(self.text)


DIFFERENT = [
    None, False, True, 0, 1, 2, 0.0, -0.0, 1.0, float("inf"), float("nan"), 1j, -0j, "1", "", b"1",
    np.float32(1), np.float64(1), np.int8(1), np.int64(1), np.True_, np.float16("nan"),
    slice(None), slice(1), slice(1.0), slice(0, 1), slice(None, None, 2), Level.LOW, Level.HIGH,
    np.dtype("f4"), np.dtype("i4"), np.float32, int, len, Ellipsis, range(2), range(3),
    Word("a"), Word("b"), frozenset({1}), frozenset(),
]  # fmt: skip


def test_values_that_differ_have_different_keys():
    """True, 1 and 1.0 differ, and so do 0.0 and -0.0, and a type and its instances."""
    keys = [static_key(value, "x") for value in DIFFERENT]
    equal = [
        (DIFFERENT[i], DIFFERENT[j])
        for i, j in itertools.combinations(range(len(keys)), 2)
        if keys[i] == keys[j]
    ]
    assert equal == []
    assert len(set(keys)) == len(keys)


def test_a_value_has_one_key():
    """The key of the same value is the same, NaN included."""
    for value in DIFFERENT:
        keys = static_key(value, "x"), static_key(copy.copy(value), "y")
        if not is_kept_by_identity(type(value)):
            assert keys[0] == keys[1], value
            assert hash(keys[0]) == hash(keys[1]), value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def exact(value):
    """Return a text that is equal exactly for the same content, types and order included."""
    if isinstance(value, float):
        return f"float {np.float64(value).tobytes().hex()}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} [{', '.join(map(exact, value))}]"
    if isinstance(value, dict):
        return f"dict [{', '.join(f'{k!r}: {exact(v)}' for k, v in value.items())}]"
    return f"{type(value).__name__} {value!r}"


@given(PLAIN, PLAIN)
def test_content_keys_are_equal_exactly_for_equal_content(left, right):
    """Containers of plain data: keys agree with a comparison by type, value and order."""
    keys = [static_key(value, "x", by_content=True) for value in (left, right)]
    assert (keys[0] == keys[1]) == (exact(left) == exact(right))
    assert len({*keys}) in (1, 2)


def test_content_keys_of_arrays_and_sets():
    """NumPy arrays count by shape, dtype and bytes; sets by members."""

    def key(value):
        return static_key(value, "x", by_content=True)

    array = np.arange(6.0)
    assert key(array) == key(array.copy())
    others = [array.reshape(2, 3), array.astype("f4"), array + 1, array[::-1], [*array]]
    assert all(key(other) != key(array) for other in others)
    assert key({1, 2}) == key({2, 1}) != key(frozenset({1, 2}))


@pytest.mark.parametrize(
    ("value", "by_content", "path"),
    [
        (np.ones(3), False, "x is a NumPy array float64 (3,)"),
        (bytearray(b"1"), False, "x is of type bytearray"),
        ({1}, False, "x is of type set"),
        ({"a": [0, bytearray(b"1")]}, True, "x['a'][1] is of type bytearray"),
        (slice(0, bytearray()), False, "x is of type bytearray"),
    ],
)
def test_values_without_a_key_are_refused_with_their_path(value, by_content, path):
    """The message begins with the path, and says what to do."""
    with pytest.raises(SignatureError) as caught:
        static_key(value, "x", by_content=by_content)
    assert str(caught.value).startswith(path)
    assert "@graphed(static=...)" in str(caught.value)


class Plain:
    pass


def test_objects_count_by_what_python_knows_of_their_equality():
    """By identity without an equality of their own, else by that; what they hold is watched."""
    assert static_key(Plain(), "x") != static_key(Plain(), "x")
    assert static_key(Word("a"), "x") == static_key(Word("a"), "x")
    assert is_kept_by_identity(Plain)
    assert not is_kept_by_identity(Word)


def test_identity_keys_do_not_keep_objects_alive():
    """A key of an object that is gone equals no key, not even of an object in its place."""
    plain = Plain()
    key = IdentityKey(plain)
    assert key == IdentityKey(plain)
    assert key.get() is plain
    del plain
    gc.collect()
    assert key.get() is None
    assert key != IdentityKey(Plain())
    assert repr(key) == "an object that is gone"


def test_objects_that_cannot_be_referred_to_weakly_are_kept():
    """A key of such an object stays valid."""
    value = object()
    key = IdentityKey(value)
    assert key.get() is value
    assert key != IdentityKey(object())


# -- differences


ONE = "x: float32 (8,) strides (4,) aligned to 256 on device 0"


def signature(**changes) -> Signature:
    """Describe a call with one array and one number."""
    values = {
        "arrays": {"x": ("float32", (8,), (4,), 256, 0)},
        "static": {"s": (int, 2)},
        "structure": "(*, *)",
        "aliasing": {},
        "implicit": {},
    }
    return Signature(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        (
            {"arrays": {"x": ("float32", (4,), (4,), 256, 0)}},
            ["x: now float32 (4,)" + ONE[len("x: float32 (8,)") :] + ", before" + ONE[len("x:") :]],
        ),
        ({"static": {"s": (int, 3)}}, ["s: now 3, before 2"]),
        ({"static": {}}, ["s: now absent, before 2"]),
        ({"static": {"s": (int, 2), "t": (str, "a")}}, ["t: now 'a', before absent"]),
        ({"aliasing": {"y": "x + 8 bytes"}}, ["y: now x + 8 bytes, before absent"]),
        ({"structure": "[*, *]"}, ["structure: now [*, *], before (*, *)"]),
    ],
    ids=["equal", "shape", "value", "gone", "new", "shared", "structure"],
)
def test_differences_are_named_by_path(changes, lines):
    """One line for each path: what is there now, what was there before."""
    assert signature().difference(signature(**changes)) == lines


@given(st.sampled_from([1, 1.0, True]), st.sampled_from([1, 1.0, True]))
def test_a_difference_of_type_alone_can_be_seen(before, now):
    """1, 1.0 and True are told apart in the text."""
    lines = signature(static={"s": static_key(before, "s")}).difference(
        signature(static={"s": static_key(now, "s")})
    )
    if type(before) is type(now):
        assert lines == []
    else:
        ((_, text),) = [line.split(": now ") for line in lines]
        assert text.split(", before ")[0] != text.split(", before ")[1]


def test_a_signature_reads_like_a_call():
    """Paths with dtype, shape and the rest; a call without arguments says so."""
    assert str(signature()) == f"{ONE}, s = 2"
    assert str(signature(arrays={}, static={})) == "no arguments"
    spec = ArraySpec(object, (8, 4), np.dtype("f4"), (16, 4), 0, 0, 128)
    assert array_text(spec) == "float32 (8, 4)"
