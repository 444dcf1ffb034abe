"""Outputs: fresh memory, views, inputs; in-place updates once; nothing escapes."""

import array
import collections

import numpy as np
import pytest
from helpers.flow_checks import agrees, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit.testing import simulated as xp

_kept_global = None


def test_an_earlier_result_is_intact(patch):
    """y1 = f(x); y2 = f(x): y1 keeps its numbers and its memory."""

    def fn(x):
        return xp.tanh(x * 1.5).sum(axis=0)

    graphed_fn = graphed(patch=patch)(fn)
    inputs = [normal(5, 4) for _ in range(6)]
    results = [graphed_fn(x) for x in inputs]
    assert len({r.device_ptr for r in results}) == 6
    for x, result in zip(inputs, results, strict=True):
        assert same_bits(result, fn(x))


def test_an_output_that_is_the_input():
    """A returned argument is the very same array, and a view of it shares its memory."""

    def fn(x):
        x *= 2
        return x, x[1:4], x.T[::-1], x.reshape(-1)[5:]

    graphed_fn = graphed(fn)
    for _ in range(4):
        x = normal(5, 6)
        same, *views = graphed_fn(x)
        assert same is x
        for view, expected in zip(views, (x[1:4], x.T[::-1], x.reshape(-1)[5:]), strict=True):
            assert view.device_ptr == expected.device_ptr
            assert (view.shape, view.strides) == (expected.shape, expected.strides)
    assert graphed_fn.cache_info().hits == 3


def test_an_output_that_is_a_view_of_a_temporary():
    """A view keeps offset, strides and base memory of its own; two views share theirs."""

    def fn(x):
        t = x * 3
        return t[2:, ::2], t.T, t[0], t[::-1]

    graphed_fn = graphed(fn)
    results = []
    for _ in range(4):
        x = normal(6, 8)
        a, b, c, d = graphed_fn(x)
        assert same_bits((a, b, c, d), fn(x))
        assert a.device_ptr - b.device_ptr == 2 * 8 * 8
        assert b.device_ptr == c.device_ptr
        assert (a.strides, d.strides) == ((64, 16), (-64, 8))
        results.append(b)
    results[1][...] = 0
    assert float(xp.abs(results[2]).sum()) > 0


def test_the_same_array_twice():
    """One array in two places of the result is one array, or two views of the same memory."""

    def fn(x):
        y = x + 1
        return y, [y]

    graphed_fn = graphed(fn)
    for _ in range(3):
        first, (second,) = graphed_fn(normal(4))
        first[0] = 77
        assert float(second[0]) == 77


@pytest.mark.parametrize(
    "make",
    [
        lambda x: None,
        lambda x: 7,
        lambda x: "text",
        lambda x: (),
        lambda x: [],
        lambda x: {"n": x.size, "a": [x * 2, None, (x + 1,)], "dtype": x.dtype},
        lambda x: (x.shape, x.ndim, np.float32(3)),
        lambda x: [x * 2],
        lambda x: collections.OrderedDict(b=x * 2, a=x),
        lambda x: {"b": x * 2, "a": x + 1},
    ],
)
def test_outputs_that_are_not_arrays(make):
    """None, numbers, text and nested containers come back as the function returns them."""
    fn = graphed(make)
    for _ in range(3):
        x = normal(4)
        expected, got = make(x), fn(x)
        assert type(expected) is type(got)
        assert same_bits(expected, got)
        if isinstance(expected, dict):
            assert list(expected) == list(got)
    assert fn.cache_info().hits == 2


def test_a_returned_container_is_new_on_every_call():
    """A list that was returned may be changed without an effect on later calls."""
    fn = graphed(lambda x: [x, [1, 2]])
    for _ in range(3):
        result = fn(normal(3))
        assert result[1] == [1, 2]
        result[1].append(3)
        result.clear()


def test_a_static_array_that_is_returned():
    """A NumPy array that is an argument by content comes back with that content."""
    fn = graphed(static="table")(lambda x, table: (x + 1, table))
    for k in (1, 1, 2):
        assert fn(normal(3), np.full(2, k))[1].tolist() == [k, k]
    assert fn.cache_info().hits == 1


def test_a_numpy_array_that_is_made_inside_is_refused():
    """It would be frozen; the error names its type."""
    with pytest.raises(graphjit.CaptureError, match="returns a ndarray"):
        graphed(lambda x: (x + 1, np.arange(3)))(normal(3))


def test_an_output_of_an_unknown_type_is_refused():
    """An object that graphjit cannot build anew is refused with its type."""

    class Result:
        def __init__(self, y):
            self.y = y

    with pytest.raises(graphjit.CaptureError, match="Result") as caught:
        graphed(lambda x: Result(x + 1))(normal(3))
    assert caught.value.eager_result.y.shape == (3,)


def test_an_argument_that_is_an_object_may_be_returned():
    """An object that was given comes back as the same object."""

    class Settings:
        pass

    given = Settings()
    fn = graphed(lambda x, s: (x + 1, s))
    for _ in range(3):
        assert fn(normal(3), given)[1] is given


def test_an_implicit_array_may_be_returned():
    """An array of a closure comes back as it is now, and so does a view of it."""
    held = normal(6)
    fn = graphed(lambda x: (held, held[2:4], x))
    for _ in range(3):
        held = normal(6)
        same, view, _ = fn(normal(2))
        assert same is held
        assert view.device_ptr == held.device_ptr + 16
    assert fn.cache_info().hits == 2


def test_an_array_that_nobody_gave_is_no_output():
    """An array that existed before and that no name leads to is refused."""
    hidden = iter([normal(3)] * 2)
    with pytest.raises(graphjit.CaptureError, match="neither made nor was given"):
        graphed(lambda x: next(hidden))(normal(3))


def test_in_place_updates_are_applied_once(patch):
    """An argument that is updated in place is updated once per call, capture included."""

    def fn(counter, x):
        counter += 1
        x[4:] *= 2

    graphed_fn = graphed(patch=patch)(fn)
    counter = xp.zeros(4, "i8")
    for k in range(6):
        x = xp.ones(8)
        assert graphed_fn(counter, x) is None
        assert counter.tolist() == [k + 1] * 4
        assert x.tolist() == [1.0] * 4 + [2.0] * 4
    assert graphed_fn.cache_info().hits == 5


def test_an_implicit_array_is_updated_once():
    """An array in a closure that is updated in place is updated once per call."""
    counter = xp.zeros(3, "i8")

    def fn(x):
        nonlocal counter
        counter += 1
        return x + counter

    graphed_fn = graphed(fn)
    for k in range(5):
        assert graphed_fn(xp.zeros(3, "i8")).tolist() == [k + 1] * 3
    assert counter.tolist() == [5, 5, 5]
    assert graphed_fn.cache_info().hits == 4


# -- what must not be kept


class Holder:
    def __init__(self):
        self.kept = None
        self.count = 0


def assign_attribute(holder, x):
    holder.kept = x * 2
    return holder.kept + 1


def count_calls(holder, x):
    holder.count += 1
    return x + holder.count


@pytest.mark.parametrize(("change", "name"), [(assign_attribute, "kept"), (count_calls, "count")])
@pytest.mark.parametrize("as_argument", [True, False])
def test_assigning_to_an_object_is_refused(change, name, as_argument):
    """Assigning to an attribute is refused by name; the eager call's effect alone stays."""
    holder, expected, x = Holder(), Holder(), normal(4)
    change(expected, x)
    graphed_fn = graphed(change if as_argument else lambda x: change(holder, x))
    with pytest.raises(graphjit.CaptureError, match=name) as caught:
        graphed_fn(*([holder] if as_argument else []), x)
    assert same_bits(holder.kept, expected.kept)
    assert holder.count == expected.count
    assert "eager call of this signature had been completed" in caught.value.__notes__[0]


def keep_more(holder, y):
    holder.more = [*getattr(holder, "more", ()), y]


@pytest.mark.parametrize(
    ("make", "keep", "values"),
    [
        (list, lambda kept, y: kept.append(y), list),
        (dict, lambda kept, y: kept.update({len(kept): y}), lambda kept: list(kept.values())),
        (collections.deque, lambda kept, y: kept.append(y), list),
        (Holder, keep_more, lambda kept: kept.more),
    ],
    ids=["list", "dict", "deque", "new attribute"],
)
def test_keeping_a_temporary_is_refused(make, keep, values):
    """An array that outlives the call is refused; what the eager call kept can be read."""
    kept = make()

    def fn(x):
        y = x * 2
        keep(kept, y)
        return y + 1

    x = normal(4)
    with pytest.raises(graphjit.CaptureError):
        graphed(fn)(x)
    assert same_bits(values(kept), [x * 2])


def test_assigning_a_global_is_refused():
    """A global that the function assigns is refused by name, and put back."""

    def fn(x):
        global _kept_global
        _kept_global = x * 2
        return x

    x = normal(4)
    with pytest.raises(graphjit.CaptureError, match="_kept_global"):
        graphed(fn)(x)
    assert same_bits(_kept_global, x * 2)
    globals()["_kept_global"] = None


def test_nonlocal_counters_are_refused():
    """A counter of an enclosing function is refused by name, and counts the eager call only."""
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    with pytest.raises(graphjit.CaptureError, match="it changes n"):
        graphed(fn)(normal(4))
    assert n == 1


def test_a_refused_function_runs_eagerly_if_asked():
    """With ``on_unsupported="eager"`` it does what it did without graphjit, and is counted."""
    kept = []

    def fn(x):
        kept.append(x * 2)
        return x + len(kept)

    graphed_fn = graphed(on_unsupported="eager")(fn)
    for k in range(4):
        x = normal(3)
        assert same_bits(graphed_fn(x), x + (k + 1))
    assert len(kept) == 4
    info = graphed_fn.cache_info()
    assert (info.current_entries, info.misses, info.eager_calls) == (0, 1, 3)
    assert str(graphed_fn.explain(normal(3))).startswith("runs eagerly: ")


def test_an_array_in_a_reference_cycle_is_no_escape():
    """A temporary that only a dead cycle holds is collected, not refused."""

    def fn(x):
        cycle = {"array": x * 2}
        cycle["self"] = cycle
        return cycle["array"] + 1

    assert agrees(graphed(fn), fn, normal(3))


def count_in_array(kept):
    kept[0] += 1
    return int(kept[0])


def count_in_set(kept):
    kept.add(kept.pop() + 1)
    return next(iter(kept))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: np.zeros(2), count_in_array),
        (lambda: bytearray(2), count_in_array),
        (lambda: array.array("d", [0, 0]), count_in_array),
        (lambda: {0}, count_in_set),
    ],
    ids=["NumPy array", "bytearray", "array", "set"],
)
def test_counters_that_change_in_place_are_refused(make, count):
    """A counter in host memory is refused by name, and counts the eager call only."""
    kept, expected = make(), make()
    count(expected)
    with pytest.raises(graphjit.CaptureError, match="it changes kept"):
        graphed(lambda x: x * count(kept))(normal(4))
    assert list(kept) == list(expected)


def test_a_refusal_leaves_unchanged_containers_alone():
    """A container that the function only reads may be iterated over while it is refused."""
    kept = collections.deque([1.0, 2.0])

    @graphed(on_unsupported="eager")
    def fn(x):
        return x * kept[0] * float(x.sum())

    assert [same_bits(fn(x), fn.eager(x)) for x in map(normal, (4, 5)) for _ in kept] == [True] * 4


class Named:
    """Equal to others of its kind, whatever it holds."""

    def __init__(self):
        self.w = normal(4)

    def __eq__(self, other):
        return isinstance(other, Named)

    def __hash__(self):
        return 1


def test_returning_an_object_that_another_call_replaces_is_refused():
    """An argument that is equal to another and not the same cannot be returned."""
    fn = graphed(lambda named, x: (named, x * named.w))
    with pytest.raises(graphjit.CaptureError, match="returns a Named"):
        fn(Named(), normal(4))
