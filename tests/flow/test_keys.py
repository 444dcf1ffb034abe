"""What belongs to a signature: layouts, shared memory, values, containers, keywords."""

import collections
import dataclasses
import enum

import numpy as np
import pytest
from helpers.flow_checks import agrees, copy_arrays, normal, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import graphjit
from graphjit import graphed
from graphjit.testing import simulated as xp


def in_place(a, b):
    a += b
    b *= 2
    return a - b


# -- layouts


def test_views_of_one_base_that_differ_in_layout():
    """One address with other shapes, strides or dtypes: each has a graph of its own."""
    base = normal(64, dtype=np.float32)
    views = [
        base,
        base[:32],
        base[::2],
        base.reshape(8, 8),
        base.reshape(8, 8).T,
        base.reshape(4, 16),
        base.view(np.int32),
        base.view(np.float64),
    ]
    assert len({view.device_ptr for view in views}) == 1
    fn = graphed(lambda x: x + x)
    for _ in range(3):
        for view in views:
            assert agrees(fn, lambda x: x + x, view)
    assert fn.cache_info()[:2] == (2 * len(views), len(views))


def test_views_at_many_offsets_of_one_base():
    """``f(base[i:i+2])`` uses the elements at i, on every call."""
    base = xp.arange(300.0)
    fn = graphed(lambda x: x * 10)
    for i in range(298):
        assert fn(base[i : i + 2]).tolist() == [10.0 * i, 10.0 * (i + 1)]
    assert fn.cache_info().hits > 250


def test_alignment_belongs_to_the_signature():
    """An address aligned to 16 bytes at capture and to 4 later is another signature."""
    base = normal(512, dtype=np.float32)
    fn = graphed(lambda x: x * 2)
    for start in (0, 4, 1, 64, 2, 32, 3, 8, 16, 0, 1):
        x = base[start : start + 100]
        assert same_bits(fn(x), x * 2)
    assert fn.cache_info().current_entries == 7  # 4, 8, 16, 32, 64, 128 and 256 bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda: xp.empty(0),
        lambda: xp.empty((3, 0, 2)),
        lambda: normal(1)[0],
        lambda: xp.asarray(3.5),
        lambda: normal(30)[::-1],
        lambda: normal(6, 7)[::-2, ::-1],
        lambda: xp.broadcast_to(normal(7), (5, 7)),
        lambda: xp.broadcast_to(normal(1), (4, 3)),
        lambda: normal(5, 6).T,
        lambda: normal(5, 6, 7).transpose(2, 0, 1),
        lambda: normal(9).astype(np.float16),
        lambda: (normal(9) + 1j * normal(9)).astype(np.complex64),
        lambda: normal(9) > 0,
        lambda: xp.arange(9, dtype=np.int16)[1::3],
    ],
)
def test_layouts_and_dtypes(make):
    """Zero-size, 0-d, reversed, broadcast, transposed, complex and small arrays."""

    def fn(x):
        return x + x, x[..., None], x.T, x.copy(), x.sum()

    graphed_fn = graphed(fn)
    for _ in range(4):
        x = make()
        expected, got = fn(x), graphed_fn(x)
        assert same_bits(expected, got)
        assert [a.strides for a in expected] == [a.strides for a in got]
        assert got[2].device_ptr == expected[2].device_ptr
    assert graphed_fn.cache_info().hits == 3


def test_structured_dtypes():
    """Records are moved as they are."""
    dtype = np.dtype([("a", "f4"), ("b", "i8")])

    def fn(x):
        return x[::-1].copy(), x[:2]

    graphed_fn = graphed(fn)
    for k in range(4):
        host = np.zeros(6, dtype)
        host["a"], host["b"] = np.arange(6) + k, k
        assert agrees(graphed_fn, fn, xp.asarray(host))
    assert graphed_fn.cache_info().hits == 3


# -- shared memory


@pytest.mark.parametrize("same_first", [True, False])
def test_one_array_twice_and_two_arrays(same_first):
    """f(x, x) after f(a, b) and the reverse: each is captured by itself."""
    fn = graphed(in_place)
    for is_same in [same_first, not same_first] * 3:
        x, y = normal(100), normal(100)
        a, b = (x, x) if is_same else (x, y)
        ca, cb = (x.copy(),) * 2 if is_same else (x.copy(), y.copy())
        assert same_bits(in_place(ca, cb), fn(a, b))
        assert same_bits((ca, cb), (a, b))
    assert fn.cache_info()[:2] == (4, 2)


@settings(max_examples=40, deadline=None)
@given(
    views=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 3), st.sampled_from([1, 2, -1])),
        min_size=2,
        max_size=2,
    )
)
def test_overlapping_views(views):
    """Two views of one base, overlapping in any way, are changed as eager changes them."""

    def view(of, start, more, step):
        return of[start + more : start + more + 60][::step][:30]

    fn = graphed(in_place)
    for _ in range(2):
        base = normal(128)
        copied = base.copy()
        expected = in_place(*(view(copied, *v) for v in views))
        assert same_bits(expected, fn(*(view(base, *v) for v in views)))
        assert same_bits(copied, base)
    assert fn.cache_info().hits == 1


def test_an_argument_that_overlaps_an_implicit_array():
    """An argument may be a view of an array that the function also reaches by itself."""
    held = normal(100)

    def fn(x):
        x += 1
        return held * x.sum()

    graphed_fn = graphed(fn)
    for k in range(6):
        held = normal(100)
        x = held[k * 16 : k * 16 + 16] if k % 2 else normal(16)
        saved = held.copy(), x.copy()
        expected = fn(x)
        held[...], x[...] = saved
        assert same_bits(expected, graphed_fn(x))


def test_neighbours_are_not_shared():
    """Two halves of one base are no aliases: they are re-pointed apart."""
    fn = graphed(in_place)
    base = normal(256)
    fn(base[:128], base[128:])
    assert agrees(fn, in_place, normal(128), normal(128))
    assert fn.cache_info().hits == 1


# -- values


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_a_changed_scalar_is_never_frozen():
    """A Python or NumPy scalar that changes, in value or in type, changes the result."""

    def fn(x, s):
        return x * s

    graphed_fn = graphed(fn)
    x = xp.arange(5)
    for s in (2, 3, 2.0, True, 1, 1.0, -0.0, 0.0, np.float32(2), np.int8(2), 2j, float("nan")):
        for _ in range(2):
            assert agrees(graphed_fn, fn, x, s)
    assert graphed_fn.cache_info()[:2] == (12, 12)


def test_other_static_values():
    """Strings, None, enums, dtypes and slices are arguments by value."""

    def fn(x, mode, dtype, part, colour):
        y = x[part] if part is not None else x
        y = y * 2 if colour is Colour.RED else y
        return (xp.sin(y) if mode == "sin" else xp.cos(y)).astype(dtype)

    graphed_fn = graphed(fn)
    for _ in range(2):
        for mode in ("sin", "cos"):
            for dtype in (np.dtype("f4"), np.float64):
                for part in (None, slice(1, 7), slice(None, None, 2)):
                    for colour in Colour:
                        assert agrees(graphed_fn, fn, normal(10), mode, dtype, part, colour)
    assert graphed_fn.cache_info().hits == 24


def test_a_zero_d_array_may_change_without_a_capture():
    """A learning rate as a 0-d array is data, not a part of the signature."""
    fn = graphed(lambda w, rate: w - rate * 2)
    for k in range(5):
        assert agrees(fn, lambda w, rate: w - rate * 2, normal(4), xp.asarray(0.1 * k))
    assert fn.cache_info()[:2] == (4, 1)


class NamedLayer:
    """Equal by name; its array is no part of the name."""

    def __init__(self, name, w):
        self.name = name
        self.w = w

    def __eq__(self, other):
        return isinstance(other, NamedLayer) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


def test_equal_objects_with_different_arrays():
    """Of two objects that are equal, each call uses the arrays of its own."""
    fn = graphed(lambda layer, x: x * layer.w)
    first, second = NamedLayer("a", normal(8)), NamedLayer("a", normal(8))
    for layer in (first, second, first, second):
        x = normal(8)
        assert same_bits(fn(layer, x), x * layer.w)


# -- containers and keywords


def test_dictionaries_in_another_order():
    """The same arrays under the same keys in another order: the right result either way."""

    def fn(d):
        out = 0
        for k, key in enumerate(d):
            out = out + d[key] * (k + 1)
        return out

    graphed_fn = graphed(fn)
    for _ in range(3):
        a, b = normal(5), normal(5)
        for d in ({"a": a, "b": b}, {"b": b, "a": a}):
            assert agrees(graphed_fn, fn, d)
    assert graphed_fn.cache_info().current_entries == 2


def test_keywords_positions_and_defaults_share_a_graph():
    """``f(x, w)``, ``f(w=w, x=x)`` and a default that is spelled out are one signature."""

    def fn(x, w, shift=1.0, *, power=2):
        return (x * w + shift) ** power

    graphed_fn = graphed(fn)
    for call in (
        lambda f, x, w: f(x, w),
        lambda f, x, w: f(x, w=w),
        lambda f, x, w: f(w=w, x=x),
        lambda f, x, w: f(x, w, 1.0),
        lambda f, x, w: f(x, shift=1.0, power=2, w=w),
    ):
        x, w = normal(6), normal(6)
        assert same_bits(call(fn, x, w), call(graphed_fn, x, w))
    assert graphed_fn.cache_info()[:2] == (4, 1)
    x, w = normal(6), normal(6)
    assert same_bits(fn(x, w, power=3), graphed_fn(x, w, power=3))


def test_variable_arguments():
    """*args and **kwargs hold arrays like any other container."""

    def fn(*arrays, **named):
        out = sum(arrays)
        for key, value in named.items():
            out = out * value if key.startswith("m") else out + value
        return out

    graphed_fn = graphed(fn)
    for _ in range(3):
        a, b, c = normal(4), normal(4), normal(4)
        for args, kwargs in (
            ((a, b, c), {}),
            ((a,), {"m": b, "p": c}),
            ((a,), {"p": c, "m": b}),
            ((a, b), {"m": c}),
        ):
            assert same_bits(fn(*args, **kwargs), graphed_fn(*args, **kwargs))
    assert graphed_fn.cache_info()[:2] == (8, 4)


@dataclasses.dataclass
class State:
    position: xp.Array
    velocity: xp.Array
    mass: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: xp.Array
    name: str = "w"


Pair = collections.namedtuple("Pair", "left right")


def test_nested_containers():
    """Arrays in lists, tuples, dictionaries, named tuples and dataclasses are arguments."""

    def fn(state, pair, nested, frozen):
        force = pair.left * state.mass + nested["a"][0][1] * frozen.w
        new = State(state.position + state.velocity, state.velocity + force, state.mass)
        return new, Pair(new.position, [nested["b"], None, 3]), {"x": (pair.right,)}

    graphed_fn = graphed(fn)
    for k in range(4):
        state = State(normal(5), normal(5), 1.0 + k // 2)
        pair = Pair(normal(5), normal(5))
        nested = {"a": [(None, normal(5))], "b": normal(5)}
        frozen = Frozen(normal(5))
        expected, got = (f(state, pair, nested, frozen) for f in (fn, graphed_fn))
        assert same_bits(expected, got)
        assert (type(got[0]), type(got[1])) == (State, Pair)
        assert got[1].right[0] is nested["b"]
        assert got[2]["x"][0] is pair.right
    assert graphed_fn.cache_info().hits == 2


def test_none_and_empty_containers():
    """None, (), [] and {} are told apart."""

    def fn(x, more):
        return x + 1 if more is None else x + len(more) * (2 if isinstance(more, list) else 3)

    graphed_fn = graphed(fn)
    for _ in range(2):
        for more in (None, (), [], {}, [None], (None,)):
            assert agrees(graphed_fn, fn, normal(3), more)
    assert graphed_fn.cache_info()[:2] == (6, 6)


def change_dictionary(container, value):
    container["new"] = value


def change_list(container, value):
    container.append(value)


def change_dataclass(container, value):
    container.position = value


@pytest.mark.parametrize(
    ("change", "make"),
    [
        (change_dictionary, dict),
        (change_list, list),
        (change_dataclass, lambda: State(normal(3), normal(3))),
    ],
)
def test_a_change_of_a_container_argument_is_refused(change, make):
    """A function that changes a list, dictionary or dataclass that it is given is refused."""

    def fn(container, x):
        change(container, x * 2)
        return x

    with pytest.raises(graphjit.CaptureError, match="it changes a container"):
        graphed(fn)(make(), normal(3))


# -- static=


def test_static_arguments_are_keyed_by_content():
    """A NumPy array, list or dictionary named in ``static`` is part of the signature."""

    def fn(x, table, options):
        return x * xp.asarray(table) + options["shift"][0]

    graphed_fn = graphed(static=("table", "options"))(fn)
    for k in range(8):
        table = np.arange(5.0) + k // 4
        assert agrees(graphed_fn, fn, normal(5), table, {"shift": [k // 2]})
    assert graphed_fn.cache_info()[:2] == (4, 4)


def test_a_static_array_that_is_changed_in_place():
    """A NumPy array named in ``static`` that is changed in place is another content."""
    fn = graphed(static="table")(lambda x, table: x * xp.asarray(table))
    table, x = np.arange(5.0), normal(5)
    for value in (1.0, 1.0, 7.0, 1.0, 7.0):
        table[3] = value
        assert same_bits(fn(x, table), x * xp.asarray(table))
    assert fn.cache_info()[:2] == (3, 2)


# -- bad arguments


@pytest.mark.parametrize(
    ("w", "path"), [(np.ones(3), "w"), ({"a": [1, np.ones(3)]}, r"w\['a'\]\[1\]")]
)
def test_numpy_arrays_are_refused_with_their_path(w, path):
    """A NumPy array is refused before anything runs, and the error says where it is."""
    ran = []

    def fn(x, w):
        ran.append(1)
        return x

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.SignatureError, match=rf"^{path} is a NumPy array float64 \(3,\)"):
        graphed_fn(normal(3), w)
    assert ran == []
    assert graphed_fn.cache_info().misses == 0


class Unhashable:
    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    "value", [bytearray(b"x"), {1, 2}, Unhashable()], ids=lambda v: str(type(v))
)
def test_unhashable_arguments_are_refused_with_their_path(value):
    """An argument that cannot be compared is refused, with its path and type."""
    fn = graphed(lambda x, settings: x)
    with pytest.raises(graphjit.SignatureError, match=type(value).__name__) as caught:
        fn(normal(3), [0, value])
    assert "settings[1]" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_stand_ins_are_refused():
    """An array that escaped from a capture holds no memory, and is no argument."""
    escaped = []
    fn = graphed(lambda x: (escaped.append(x), x + 1)[1])
    with pytest.raises(graphjit.CaptureError):
        fn(normal(3))
    with graphjit.capture(inputs={"x": normal(3)}) as block:
        stand_in = block.inputs["x"]
        block.outputs = stand_in + 1
    other = graphed(lambda x: x * 2)
    with pytest.raises(graphjit.SignatureError, match="stand-in"):
        other(stand_in)
    assert other.cache_info().misses == 0
    with pytest.raises(graphjit.CaptureError, match="stand-in"):
        stand_in.get()
    block.close()


def test_copies_of_helpers_are_apart():
    """The helper that compares copies arrays in containers, not only at the top."""
    x = normal(3)
    copied = copy_arrays({"a": [x, (x, 1)]})
    assert copied["a"][0].device_ptr != x.device_ptr
    assert same_bits(copied, {"a": [x, (x, 1)]})


def test_an_array_given_twice_is_one_object():
    """Code that asks whether two arguments are one object decides as in the eager call."""

    def fn(x, y):
        return x * 10 if x is y else x + y

    graphed_fn = graphed(fn)
    for _ in range(3):
        x = normal(4)
        assert same_bits(graphed_fn(x, x), x * 10)
        assert same_bits(graphed_fn(x, x[:]), x + x)
        y = normal(4)
        assert same_bits(graphed_fn(x, y), x + y)
    assert graphed_fn.cache_info()[:2] == (6, 3)


def test_equal_keys_of_different_types_are_told_apart():
    """A dictionary with the key 2.0 is another signature than one with the key 2."""

    def plain(x, held):
        for k in held:
            x = x * k + held[k]
        return x

    fn = graphed(plain)
    for kind in (int, int, float, int, float):
        x, y = normal(4).astype(np.int64), normal(4).astype(np.int64)
        assert agrees(fn, plain, x, {kind(2): y})
    assert fn.cache_info().misses == 2


class Scaled(xp.Array):
    """An array with a number of its own."""

    factor = 1.0


def scaled(factor):
    array = Scaled((4,), np.float64)
    array[...] = normal(4)
    array.factor = factor
    return array


@pytest.mark.parametrize("is_argument", [True, False])
def test_attributes_of_an_array_of_a_derived_class(is_argument):
    """A number that an array carries belongs to the signature, or is read on every call."""

    def plain(x, y):
        return x * y * x.factor

    for_closure = []
    fn = graphed(plain if is_argument else lambda y: plain(for_closure[0], y))
    for factor in (2.0, 2.0, 3.0, 3.0):
        x, y = scaled(factor), normal(4)
        for_closure[:] = [x]
        assert same_bits(fn(*([x] if is_argument else []), y), plain(x, y))
    assert fn.cache_info().hits == 2


def is_same(a, b):
    """Depend on whether containers are one object, at any depth."""
    x = a["w"][0] * 2
    if a is b:
        x = x + 1
    if a["w"] is b["w"]:
        x = x + 10
    if a["deep"][0] is b["deep"][0]:
        x = x + 100
    return x, [a["deep"][0] is a["w"]]


def test_containers_that_are_one_object():
    """``a is b`` is in a graph what it is in the eager call; each pattern has its graph."""

    def make(pattern):
        w, deep = [normal(2)], [normal(2)]
        a = {"w": w, "deep": (deep,)}
        b = {
            "same": a,
            "alike": {"w": [normal(2)], "deep": ([normal(2)],)},
            "list": {"w": w, "deep": ([normal(2)],)},
            "deep": {"w": [normal(2)], "deep": (deep,)},
            "crossed": {"w": deep, "deep": (w,)},
        }[pattern]
        return a, b

    fn = graphed(is_same)
    patterns = ("same", "alike", "list", "deep", "crossed")
    for _ in range(3):
        for pattern in patterns:
            a, b = make(pattern)
            expected = is_same(a, b)
            got = fn(a, b)
            assert same_bits(expected, got)
    assert fn.cache_info()[:2] == (2 * len(patterns), len(patterns))


def test_a_container_given_twice_that_is_changed():
    """Changing it is refused by name, and nothing of the caller's is changed by the capture."""

    @graphed
    def fn(a, b):
        a.append(1)
        return b[0] * len(b)

    given = [normal(2)]
    with pytest.raises(graphjit.CaptureError, match="changes a container"):
        fn(given, given)
    assert len(given) == 2  # the eager call did that
