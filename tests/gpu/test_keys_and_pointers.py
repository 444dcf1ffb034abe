"""Keys and pointers: whatever changes between calls is re-pointed, captured anew, or refused."""

import argparse
import collections
import dataclasses
import types

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, hits, n_entries, normal, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import graphjit
from graphjit import graphed

weight = None
scale = 2.0


def in_place(a, b):
    a += b
    b *= 2
    return a - b


def scaled_by_seven(x):
    return x * 7


# -- addresses


def test_arrays_of_an_eager_producer_are_never_stale():
    """An eager producer hands over a newly allocated array on every call; each is used."""
    fn = graphed(lambda x: cp.sqrt(x * x + 1).sum(axis=0))
    kept = []
    for k in range(20):
        x = normal(40, 30) * (k + 1)
        if k % 3:
            kept.append(x)
        assert agrees(fn, lambda x: cp.sqrt(x * x + 1).sum(axis=0), x)
    assert fn.cache_info()[:2] == (19, 1)


def test_views_of_one_base_that_differ_in_layout():
    """One address with other shapes, strides or dtypes: each has a graph of its own."""
    base = normal(64)
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
    assert len({view.data.ptr for view in views}) == 1
    fn = graphed(lambda x: x + x)
    for _ in range(3):
        for view in views:
            assert agrees(fn, lambda x: x + x, view)
    assert (n_entries(fn), hits(fn)) == (len(views), 2 * len(views))


def test_views_at_many_offsets_of_one_base():
    """f(base[i:i+2]) for many i uses the elements at i, on every call."""
    base = cp.arange(300, dtype=np.float32)
    fn = graphed(lambda x: x * 10)
    for i in range(298):
        assert fn(base[i : i + 2]).tolist() == [10.0 * i, 10.0 * (i + 1)]
    assert hits(fn) > 250


def test_alignment_belongs_to_the_signature():
    """An address aligned to 16 bytes at capture and to 4 later is another signature."""
    base = normal(1 << 12)
    fn = graphed(lambda x: x.sum() + x * 2)
    for start in (0, 4, 1, 64, 2, 32, 3, 8, 16, 0, 1):
        x = base[start : start + 1024]
        assert same_bits(fn(x), x.sum() + x * 2)
    assert n_entries(fn) == 7  # 4, 8, 16, 32, 64, 128 and 256 bytes


def copies(x):
    y = cp.empty_like(x)
    y.data.copy_from_device_async(x.data, x.nbytes)
    z = cp.empty((x.shape[0], 5), x.dtype)
    runtime = cp.cuda.runtime
    runtime.memcpy2DAsync(
        z.data.ptr,
        z.strides[0],
        x.data.ptr,
        x.strides[0],
        5 * x.itemsize,
        x.shape[0],
        runtime.memcpyDeviceToDevice,
        cp.cuda.get_current_stream().ptr,
    )
    return y + 1, z


@pytest.mark.parametrize("patch", ["host", "device"])
def test_the_source_of_a_copy_moves(patch):
    """Copies that are no kernels, in one and two dimensions, read the arrays of the call."""
    fn = graphed(patch=patch)(copies)
    kept = []
    for _ in range(5):
        kept.append(normal(12, 20))
        assert agrees(fn, copies, kept[-1])
    assert fn.cache_entries()[0].nodes["memcpy"] == 2
    assert hits(fn) == 4


def fills(x):
    y = cp.empty_like(x)
    y.data.memset_async(0, y.nbytes)
    x.data.memset_async(1, 8)
    return y + x


@pytest.mark.parametrize("patch", ["host", "device"])
def test_the_target_of_a_fill_moves(patch):
    """Fills write to the arrays of the call, temporaries and arguments alike."""
    fn = graphed(patch=patch)(fills)
    kept = []
    for _ in range(5):
        kept.append(normal(12, 20))
        assert agrees(fn, fills, kept[-1])
    assert fn.cache_entries()[0].nodes["memset"] == 2


def many_places(x, y):
    a = x + y
    b = y + x
    return a + x, b + y, x + x, (x + y)[::2] + x[::2]


@pytest.mark.parametrize("patch", ["host", "device"])
def test_one_array_in_several_kernels(patch):
    """One array reaches several kernels and one kernel is in several nodes: all are patched."""
    fn = graphed(patch=patch)(many_places)
    kept = []
    for _ in range(6):
        kept.append((normal(500), normal(500)))
        assert agrees(fn, many_places, *kept[-1])
    assert hits(fn) == 5


# -- arrays that share memory


@pytest.mark.parametrize("same_first", [True, False])
def test_one_array_twice_and_two_arrays(same_first):
    """f(x, x) after f(a, b) and the reverse: the in-place result is that of eager."""
    fn = graphed(in_place)
    order = [same_first, not same_first] * 3
    for is_same in order:
        x, y = normal(100), normal(100)
        a, b = (x, x) if is_same else (x, y)
        ca, cb = (x.copy(),) * 2 if is_same else (x.copy(), y.copy())
        expected = in_place(ca, cb)
        assert same_bits(expected, fn(a, b))
        assert same_bits((ca, cb), (a, b))
    assert fn.cache_info()[:2] == (4, 2)


shared_in_place = graphed(max_entries=None)(in_place)


@settings(max_examples=60, deadline=None)
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

    n_before = hits(shared_in_place)
    for _ in range(2):
        base = normal(128)
        copied = base.copy()
        expected = in_place(*(view(copied, *v) for v in views))
        got = shared_in_place(*(view(base, *v) for v in views))
        assert same_bits(expected, got)
        assert same_bits(copied, base)
    assert hits(shared_in_place) > n_before


def test_an_argument_that_overlaps_an_implicit_array():
    """An argument may be a view of an array that the function also reaches by itself."""
    held = normal(100)

    def fn(x):
        x += 1
        return held * x.sum()

    graphed_fn = graphed(fn)
    for k in range(4):
        held = normal(100)
        x = held[k * 16 : k * 16 + 16] if k % 2 else normal(16)
        saved = held.copy(), x.copy()
        expected = fn(x)
        held[:], x[:] = saved
        assert same_bits(expected, graphed_fn(x))


# -- values


def test_a_changed_scalar_is_never_frozen():
    """A Python or NumPy scalar that changes, in value or in type, changes the result."""

    def fn(x, s):
        return x * s

    graphed_fn = graphed(fn)
    x = cp.arange(5)
    for s in (2, 3, 2.0, True, 1, 1.0, -0.0, 0.0, np.float32(2), np.int8(2), 2j, float("nan")):
        for _ in range(2):
            assert agrees(graphed_fn, fn, x, s)
    assert (n_entries(graphed_fn), hits(graphed_fn)) == (12, 12)


def test_a_step_counter_and_a_learning_rate():
    """Numbers that differ on every call: every call uses its own."""
    fn = graphed(max_entries=None)(lambda w, step, rate: w - rate / (step + 1))
    for step in range(12):
        rate = 0.1 * 0.5**step
        assert agrees(fn, lambda w, step, rate: w - rate / (step + 1), normal(9), step, rate)


def test_other_static_values():
    """Strings, None, dtypes, slices and ellipses are arguments by value."""

    def fn(x, mode, dtype, part):
        y = x[part] if part is not None else x
        return (cp.sin(y) if mode == "sin" else cp.cos(y)).astype(dtype)

    graphed_fn = graphed(fn)
    for _ in range(2):
        for mode in ("sin", "cos"):
            for dtype in (np.dtype("f4"), np.float64):
                for part in (None, slice(1, 7), slice(None, None, 2)):
                    assert agrees(graphed_fn, fn, normal(10), mode, dtype, part)
    assert hits(graphed_fn) == 12


class Scale:
    """A number with an equality of its own."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Scale) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


def test_objects_with_an_equality_of_their_own():
    """Equal objects share a graph, also when the first one is gone; others do not."""

    def fn(x, s):
        return x * s.value

    graphed_fn = graphed(fn)
    for k in range(8):
        assert agrees(graphed_fn, fn, normal(4), Scale(2.0 + k % 2))
    assert (n_entries(graphed_fn), hits(graphed_fn)) == (2, 6)


class NamedLayer:
    """Equal by name; its array is no part of the name."""

    def __init__(self, name, w):
        self.name = name
        self.w = w

    def __eq__(self, other):
        return isinstance(other, NamedLayer) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    @graphed
    def forward(self, x):
        return x * self.w


def test_equal_objects_with_different_arrays():
    """Of two objects that are equal, each call uses the arrays of its own."""
    first, second = NamedLayer("a", normal(8)), NamedLayer("a", normal(8))
    assert first == second
    for layer in (first, second, first, second):
        x = normal(8)
        assert same_bits(layer.forward(x), x * layer.w)


# -- what is reached without being given


class Model:
    factor = 2.0

    def __init__(self):
        self.w = normal(8, 8)
        self.layers = [normal(8, 8), normal(8, 8)]
        self.biases = {"a": normal(8), "b": normal(8)}
        self.part = types.SimpleNamespace(w=normal(8))
        self.extra = normal(8)

    def plain(self, x):
        for layer in self.layers:
            x = x @ layer
        for key in self.biases:
            x = x + self.biases[key]
        return (x @ self.w) * self.factor + self.part.w

    forward = graphed(plain)


def replace_weight(model):
    model.w = normal(8, 8)


def replace_layer(model):
    model.layers[1] = normal(8, 8)


def replace_list(model):
    model.layers = [normal(8, 8), normal(8, 8)]


def append_layer(model):
    model.layers.append(normal(8, 8))


def replace_dictionary_item(model):
    model.biases["b"] = normal(8)


def remove_dictionary_item(model):
    del model.biases["a"]


def reorder_dictionary(model):
    model.biases = dict(reversed(model.biases.items()))


def replace_part(model):
    model.part = types.SimpleNamespace(w=normal(8))


def replace_array_of_part(model):
    model.part.w = normal(8)


def write_into_weight(model):
    model.w[:] = 3


def shadow_class_attribute(model):
    model.factor = 5.0


def change_dtype(model):
    model.w = normal(8, 8, dtype=np.float64)


@pytest.mark.parametrize(
    "change",
    [
        replace_weight,
        replace_layer,
        replace_list,
        append_layer,
        replace_dictionary_item,
        remove_dictionary_item,
        reorder_dictionary,
        replace_part,
        replace_array_of_part,
        write_into_weight,
        shadow_class_attribute,
        change_dtype,
    ],
    ids=lambda change: change.__name__,
)
def test_a_changed_attribute_is_seen(change):
    """Whatever changes in an object that a method uses is used by the next call."""
    model = Model()
    x = normal(8, 8)
    for _ in range(2):
        assert same_bits(model.forward(x), model.plain(x))
    old = model.w, list(model.layers)  # kept, so that a stale address shows as a wrong number
    change(model)
    for _ in range(2):
        assert same_bits(model.forward(x), model.plain(x))
    assert len(old) == 2


def test_a_replaced_weight_needs_no_new_capture():
    """An array of the same kind in the same attribute is re-pointed like an argument."""
    model = Model()
    fn = graphed(Model.plain)
    for _ in range(5):
        model.w = normal(8, 8)
        model.layers[0] = normal(8, 8)
        assert agrees(fn, Model.plain, model, normal(8, 8))
    assert fn.cache_info()[:2] == (4, 1)
    assert any(path.endswith(".w") for path in fn.cache_entries()[0].implicit)


def test_a_changed_class_attribute_is_seen(monkeypatch):
    """A number that the class gives its instances is read anew."""
    model, x = Model(), normal(8, 8)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(Model, "factor", factor)
        assert same_bits(model.forward(x), model.plain(x))


def test_two_instances_do_not_share():
    """A graphed method uses the arrays of the instance that it is called on."""
    models = [Model(), Model()]
    for _ in range(3):
        for model in models:
            x = normal(8, 8)
            assert same_bits(model.forward(x), model.plain(x))


def test_a_replaced_global_is_seen(monkeypatch):
    """A global array and a global number are read anew at each call."""

    def fn(x):
        return x * weight * scale

    graphed_fn = graphed(fn)
    kept = []
    for k in range(6):
        kept.append(normal(8))
        monkeypatch.setitem(globals(), "weight", kept[-1])
        monkeypatch.setitem(globals(), "scale", 1.0 + k // 3)
        assert agrees(graphed_fn, fn, normal(8))
    assert graphed_fn.cache_info()[:2] == (4, 2)


def test_a_replaced_closure_variable_is_seen():
    """An array, a number and a NumPy array of an enclosing function are read anew."""
    w, factor, table = normal(6), 2, np.arange(6, dtype=np.float32)

    def fn(x):
        return (x + w) * factor + cp.asarray(table)

    graphed_fn = graphed(fn)
    kept = [w]
    for k in range(8):
        w = normal(6)
        kept.append(w)
        factor = 2 + k // 4
        if k == 6:
            table[2] = 50  # in place: the same object
        assert agrees(graphed_fn, fn, normal(6))
    assert graphed_fn.cache_info().misses == 3


def test_a_closure_variable_that_is_freed():
    """A captured function whose closure variable was deleted fails as the plain one does."""
    w = normal(6)

    def fn(x):
        return x + w

    graphed_fn = graphed(fn)

    def forget():
        nonlocal w
        del w

    graphed_fn(normal(6))
    graphed_fn(normal(6))
    forget()
    with pytest.raises(NameError, match="w"):
        graphed_fn(normal(6))


def test_a_helper_that_is_replaced():
    """A function that the function calls may be replaced by another."""
    helper = cp.sin

    def fn(x):
        return helper(x) * 2

    graphed_fn = graphed(fn)
    for _ in range(2):
        assert agrees(graphed_fn, fn, normal(6))

    helper = scaled_by_seven
    for _ in range(2):
        assert agrees(graphed_fn, fn, normal(6))


@pytest.mark.parametrize(
    "holder",
    [
        types.SimpleNamespace(value=2.0),
        argparse.Namespace(value=2.0),
        type("Plain", (), {"value": 2.0})(),
        types.ModuleType("settings_of_a_program"),
    ],
    ids=["SimpleNamespace", "argparse", "class", "module"],
)
def test_a_number_in_an_object_of_any_type(holder):
    """A number in a namespace, a module or an object is read anew at each call."""

    def fn(x):
        return x * holder.value

    graphed_fn = graphed(fn)
    for value in (2.0, 2.0, 3.0, 3.0):
        holder.value = value
        assert agrees(graphed_fn, fn, normal(5))


@pytest.mark.parametrize(
    "holder",
    [
        [1.0] * 3,
        dict.fromkeys(range(3), 1.0),
        [1.0] * 5000,
        dict.fromkeys(range(5000), 1.0),
        collections.deque([1.0] * 3),
        collections.OrderedDict.fromkeys(range(3), 1.0),
        collections.UserList([1.0] * 3),
        np.ones(3),
        bytearray(b"\1\1\1"),
    ],
    ids=lambda holder: f"{type(holder).__name__} of {len(holder)}",
)
def test_a_number_in_a_container_of_any_type(holder):
    """A number in a container is read anew at each call, or the function is refused."""

    def fn(x):
        return x * holder[0]

    graphed_fn = graphed(fn)
    for value in (1, 1, 3, 3):
        holder[0] = value
        try:
            assert agrees(graphed_fn, fn, normal(5))
        except graphjit.GraphjitError:
            return


def test_getattr_with_a_constant_name():
    """An attribute reached by getattr with a constant name, or absent at first, is read anew."""

    class Holder:
        pass

    holder = Holder()

    def fn(x):
        bias = getattr(holder, "bias", None)
        return x if bias is None else x + bias

    graphed_fn = graphed(fn)
    for bias in (None, None, normal(5), normal(5), normal(5), None):
        if bias is not None:
            holder.bias = bias
        elif hasattr(holder, "bias"):
            del holder.bias
        assert agrees(graphed_fn, fn, normal(5))


def test_getattr_with_a_computed_name():
    """An array reached by a computed name is read anew at each call, or refused."""

    class Holder:
        pass

    holder = Holder()
    holder.part = Holder()
    holder.part.w0 = normal(5)

    def fn(x, k):
        return x + getattr(vars(holder)["pa" + "rt"], f"w{k}")

    graphed_fn = graphed(fn)
    kept = []
    for _ in range(4):
        kept.append(holder.part.w0)
        try:
            assert agrees(graphed_fn, fn, normal(5), 0)
        except graphjit.AnalysisError:
            return
        holder.part.w0 = normal(5)


def test_an_array_that_cannot_be_seen_is_refused():
    """An array that no name leads to is found by its address, and the error says so."""
    hidden = iter([normal(5)] * 2)

    def fn(x):
        return x + next(hidden)

    with pytest.raises(graphjit.AnalysisError, match="no argument"):
        graphed(fn)(normal(5))


def test_an_unseen_array_behind_a_watched_one_is_refused():
    """An unseen array that begins where a watched one ends is not taken for a part of it."""
    base = normal(256)
    seen = base[:128]
    hidden = iter([base[128:]] * 2)

    def fn(x):
        return x + seen + next(hidden)

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.AnalysisError, match="no argument"):
        graphed_fn(normal(128))


def test_a_library_object_with_arrays_is_seen():
    """A sparse matrix in a closure is re-pointed when it is replaced."""
    from cupyx.scipy import sparse

    matrix = sparse.random(20, 20, density=0.2, format="csr", dtype=np.float32)

    def fn(x):
        return matrix @ x

    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(20))
        matrix = sparse.random(20, 20, density=0.2, format="csr", dtype=np.float32)


# -- kinds of arrays


@pytest.mark.parametrize(
    "make",
    [
        lambda: cp.empty(0, np.float32),
        lambda: cp.empty((3, 0, 2), np.float32),
        lambda: normal(1)[0],
        lambda: cp.asarray(3.5),
        lambda: normal(30)[::-1],
        lambda: normal(6, 7)[::-2, ::-1],
        lambda: cp.broadcast_to(normal(7), (5, 7)),
        lambda: cp.broadcast_to(normal(1), (4, 3)),
        lambda: cp.asfortranarray(normal(5, 6)),
        lambda: normal(5, 6, 7).transpose(2, 0, 1),
        lambda: normal(9).astype(np.float16),
        lambda: (normal(9) + 1j * normal(9)).astype(np.complex64),
        lambda: (normal(9) + 1j * normal(9)).astype(np.complex128),
        lambda: normal(9) > 0,
        lambda: cp.arange(9, dtype=np.uint8),
        lambda: cp.arange(9, dtype=np.int16)[1::3],
    ],
)
def test_layouts_and_dtypes(make):
    """Zero-size, 0-d, reversed, broadcast, Fortran, complex and small arrays give what eager
    gives, as input, as output and as a view of the input.
    """

    def fn(x):
        return x + x, x[..., None], x.T, cp.ascontiguousarray(x), x.sum()

    graphed_fn = graphed(fn)
    for _ in range(4):
        x = make()
        expected, got = fn(x), graphed_fn(x)
        assert same_bits(expected, got)
        assert [a.strides for a in expected] == [a.strides for a in got]
        assert [a.flags.c_contiguous for a in expected] == [a.flags.c_contiguous for a in got]
        assert got[2].data.ptr == expected[2].data.ptr
    assert hits(graphed_fn) == 3


def test_structured_dtypes():
    """Fields of a structured array are read and written where they are."""
    dtype = np.dtype([("a", "f4"), ("b", "i4")])

    def fn(x):
        x["a"] += 1
        return x["a"] * x["b"], x

    graphed_fn = graphed(fn)
    for _ in range(4):
        host = np.zeros(6, dtype)
        host["a"], host["b"] = np.random.default_rng(1).random(6), np.arange(6)
        product, out = graphed_fn(cp.asarray(host))
        assert same_bits(product, cp.asarray((host["a"] + 1) * host["b"]).astype(product.dtype))
        assert out.get()["a"].tolist() == (host["a"] + 1).tolist()
    assert hits(graphed_fn) == 3


def test_an_implicit_array_without_elements():
    """An empty array in a closure may be used, and a view of it returned."""
    empty = cp.empty(0, np.float32)

    def fn(x):
        return cp.concatenate([x, empty]), empty[:0]

    graphed_fn = graphed(fn)
    for _ in range(3):
        assert agrees(graphed_fn, fn, normal(5))


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
    assert n_entries(graphed_fn) == 2


def test_keywords_positions_and_defaults_share_a_graph():
    """f(x, w), f(x, w=w), f(w=w, x=x) and a default that is spelled out are one signature."""

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
    for _ in range(2):
        a, b, c = normal(4), normal(4), normal(4)
        for args, kwargs in (
            ((a, b, c), {}),
            ((a,), {"m": b, "p": c}),
            ((a,), {"p": c, "m": b}),
            ((a, b), {"m": c}),
        ):
            assert same_bits(fn(*args, **kwargs), graphed_fn(*args, **kwargs))


@dataclasses.dataclass
class State:
    position: cp.ndarray
    velocity: cp.ndarray
    mass: float = 1.0


Pair = collections.namedtuple("Pair", "left right")


def test_nested_containers():
    """Arrays in lists, tuples, dictionaries, named tuples and dataclasses are arguments."""

    def fn(state, pair, nested):
        force = pair.left * state.mass + nested["a"][0][1]
        new = State(state.position + state.velocity, state.velocity + force, state.mass)
        return new, Pair(new.position, [nested["b"], None, 3]), {"x": (pair.right,)}

    graphed_fn = graphed(fn)
    for k in range(4):
        state = State(normal(5), normal(5), 1.0 + k // 2)
        pair = Pair(normal(5), normal(5))
        nested = {"a": [(None, normal(5))], "b": normal(5)}
        expected, got = fn(state, pair, nested), graphed_fn(state, pair, nested)
        assert same_bits(expected, got)
        assert type(got[0]) is State
        assert type(got[1]) is Pair
        assert got[1].right[0] is nested["b"]
        assert got[2]["x"][0] is pair.right
    assert hits(graphed_fn) == 2


def change_dictionary(container, value):
    container["new"] = value
    return value + 1


def change_list(container, value):
    container.append(value)
    return value + 1


def change_dataclass(container, value):
    container.position = value
    return value + 1


@pytest.mark.parametrize(
    ("change", "make"),
    [
        (change_dictionary, dict),
        (change_list, list),
        (change_dataclass, lambda: State(normal(3), normal(3))),
    ],
)
def test_a_change_of_a_container_argument_is_not_lost(change, make):
    """A function that changes a list, dictionary or dataclass that it is given has the effect
    that it has without graphjit, or is refused.
    """

    def fn(container, x):
        return change(container, x * 2)

    graphed_fn = graphed(fn)
    for _ in range(3):
        x, expected, got = normal(3), make(), make()
        fn(expected, x)
        if isinstance(expected, State):
            got.velocity = expected.velocity
        try:
            graphed_fn(got, x)
        except graphjit.CaptureError:
            return
        assert same_bits(expected, got)


def test_static_arguments_are_keyed_by_content():
    """A NumPy array, list or dictionary named in static= is part of the signature by content."""

    def fn(x, table, options):
        return x * cp.asarray(table) + options["shift"][0]

    graphed_fn = graphed(static=("table", "options"))(fn)
    for k in range(8):
        table = np.arange(5.0) + k // 4
        options = {"shift": [k // 2]}
        assert agrees(graphed_fn, fn, normal(5, dtype=np.float64), table, options)
    assert (n_entries(graphed_fn), hits(graphed_fn)) == (4, 4)


def test_a_static_array_that_is_changed_in_place():
    """A NumPy array named in static= that is changed in place is another content."""
    fn = graphed(static="table")(lambda x, table: x * cp.asarray(table))
    table = np.arange(5.0)
    x = normal(5, dtype=np.float64)
    for value in (1.0, 1.0, 7.0, 1.0, 7.0):
        table[3] = value
        assert same_bits(fn(x, table), x * cp.asarray(table))


# -- bad arguments


@pytest.mark.parametrize(
    ("w", "path"), [(np.ones(3), "w"), ({"a": [1, np.ones(3)]}, r"w\['a'\]\[1\]")]
)
def test_numpy_arrays_are_refused_with_their_path(w, path):
    """A NumPy array as an argument is refused before anything runs, and the error says where."""
    ran = []

    def fn(x, w):
        ran.append(1)
        return x

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.SignatureError, match=rf"^{path} is a NumPy array"):
        graphed_fn(normal(3), w)
    assert ran == []
    assert graphed_fn.cache_info().misses == 0


class Unhashable:
    def __eq__(self, other):
        return True


@pytest.mark.parametrize("value", [bytearray(b"x"), {1, 2}, Unhashable()])
def test_unhashable_arguments_are_refused_with_their_path(value):
    """An argument that cannot be compared is refused, with its path and type."""
    fn = graphed(lambda x, settings: x)
    with pytest.raises(graphjit.SignatureError, match=type(value).__name__) as caught:
        fn(normal(3), [0, value])
    assert "settings[1]" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_wrong_arguments_fail_as_python_says():
    """A missing or unknown argument is Python's own TypeError, not graphjit's."""
    fn = graphed(lambda x, y: x + y)
    for call in (lambda: fn(normal(3)), lambda: fn(normal(3), normal(3), z=1)):
        with pytest.raises(TypeError) as caught:
            call()
        assert not isinstance(caught.value, graphjit.GraphjitError)


def test_unknown_static_names_are_refused_at_once():
    """A name in static= that is no parameter is an error when the function is decorated."""
    with pytest.raises(TypeError, match="shif"):
        graphed(static="shif")(lambda x, shift: x)
