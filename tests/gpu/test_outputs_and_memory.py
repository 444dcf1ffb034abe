"""Outputs and memory: results stay what they were, and nothing is held between calls."""

import collections
import gc
import warnings

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, hits, n_entries, normal, poison_free_memory, same_bits

import graphjit
from graphjit import graphed

MIB = 1 << 20
_counted = None


def settle():
    """Let go of garbage and wait for the device."""
    gc.collect()
    cp.cuda.Device().synchronize()


def used_bytes():
    """Return the bytes that live arrays take from CuPy's pool."""
    settle()
    return cp.get_default_memory_pool().used_bytes()


def free_device_bytes():
    """Return what the device has left, with nothing cached by CuPy."""
    settle()
    cp.get_default_memory_pool().free_all_blocks()
    return cp.cuda.runtime.memGetInfo()[0]


def chain(x):
    for _ in range(10):
        x = cp.tanh(x * 1.5 + 0.25)
    return x.sum(axis=0)


def mlp(x, w):
    for _ in range(8):
        x = cp.tanh(x @ w * 0.05) + x
    return x


# -- results


def test_an_earlier_result_is_intact():
    """y1 = f(x); y2 = f(x): y1 keeps its numbers and its memory."""
    fn = graphed(chain)
    inputs = [normal(50, 40) for _ in range(6)]
    results, copies = [], []
    for x in inputs:
        results.append(fn(x))
        copies.append(results[-1].get())
    assert len({r.data.ptr for r in results}) == 6
    for x, result, copied in zip(inputs, results, copies, strict=True):
        assert result.get().tobytes() == copied.tobytes()
        assert same_bits(result, chain(x))


def test_a_loop_that_feeds_back():
    """A loop state = step(state) of 100 iterations, then again from another state."""

    def step(state):
        return {"x": state["x"] + 0.1 * state["v"], "v": state["v"] * 0.99 - 0.1 * state["x"]}

    fn = graphed(step)
    for _ in range(2):
        state = expected = {"x": normal(100), "v": normal(100)}
        for _ in range(100):
            state, expected = fn(state), step(expected)
        assert same_bits(state, expected)
    assert hits(fn) >= 190


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
            assert view.data.ptr == expected.data.ptr
            assert (view.shape, view.strides) == (expected.shape, expected.strides)
    assert hits(graphed_fn) == 3


def test_an_output_that_is_a_view_of_a_temporary():
    """A view keeps offset, strides and base memory of its own; two views share theirs."""

    def fn(x):
        t = x * 3
        return t[2:, ::2], t.T, t[0]

    graphed_fn = graphed(fn)
    results = []
    for _ in range(4):
        x = normal(6, 8)
        a, b, c = graphed_fn(x)
        assert same_bits((a, b, c), fn(x))
        assert a.data.ptr - b.data.ptr == 2 * 8 * 4
        assert b.data.ptr == c.data.ptr
        assert a.strides == (32, 8)
        results.append(b)
    results[1][:] = 0
    assert float(abs(results[2]).sum()) > 0


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
    assert hits(fn) == 2


def test_a_returned_container_is_new_on_every_call():
    """A list that was returned may be changed without an effect on later calls."""
    fn = graphed(lambda x: [x, [1, 2]])
    for _ in range(3):
        result = fn(normal(3))
        assert result[1] == [1, 2]
        result[1].append(3)
        result.clear()


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

    settings = Settings()
    fn = graphed(lambda x, s: (x + 1, s))
    for _ in range(3):
        assert fn(normal(3), settings)[1] is settings


@pytest.mark.parametrize("patch", ["host", "device"])
def test_in_place_updates_are_applied_once(patch):
    """An argument that is updated in place is updated once per call, capture included."""

    def fn(counter, x):
        counter += 1
        x[counter.size :] *= 2

    graphed_fn = graphed(patch=patch)(fn)
    counter = cp.zeros(4, np.int64)
    for k in range(6):
        x = cp.ones(8, np.float32)
        assert graphed_fn(counter, x) is None
        assert counter.tolist() == [k + 1] * 4
        assert x.tolist() == [1.0] * 4 + [2.0] * 4
    assert hits(graphed_fn) == 5


def test_an_implicit_array_is_updated_once():
    """An array in a closure that is updated in place is updated once per call."""
    counter = cp.zeros(3, np.int64)

    def fn(x):
        nonlocal counter
        counter += 1
        return x + counter

    graphed_fn = graphed(fn)
    for k in range(5):
        assert graphed_fn(cp.zeros(3, np.int64)).tolist() == [k + 1] * 3
    assert counter.tolist() == [5, 5, 5]


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
def test_assigning_to_an_object_is_refused(change, name):
    """Assigning to an attribute is refused by name; the eager call's effect alone stays."""
    holder, expected, x = Holder(), Holder(), normal(4)
    change(expected, x)
    with pytest.raises(graphjit.CaptureError, match=name):
        graphed(lambda x: change(holder, x))(x)
    assert same_bits(holder.kept, expected.kept)
    assert holder.count == expected.count


@pytest.mark.parametrize(
    ("make", "keep"),
    [
        (list, lambda kept, y: kept.append(y)),
        (dict, lambda kept, y: kept.update({len(kept): y})),
        (collections.deque, lambda kept, y: kept.append(y)),
        (Holder, lambda kept, y: setattr(kept, "more", [*getattr(kept, "more", ()), y])),
    ],
    ids=["list", "dict", "deque", "new attribute"],
)
def test_keeping_a_temporary_is_refused(make, keep):
    """An array that outlives the call, wherever it is kept, is refused; what the eager call
    kept can be read.
    """
    kept = make()

    def fn(x):
        y = x * 2
        keep(kept, y)
        return y + 1

    x = normal(4)
    with pytest.raises(graphjit.CaptureError):
        graphed(fn)(x)
    values = (
        kept.more if isinstance(kept, Holder) else list(getattr(kept, "values", lambda: kept)())
    )
    assert any(same_bits(value, x * 2) for value in values)


def test_counting_in_a_global_is_refused(monkeypatch):
    """A global that the function assigns to is put back to what the eager call left."""

    def fn(x):
        global _counted
        _counted = (_counted or 0) + 1
        return x + _counted

    monkeypatch.setitem(globals(), "_counted", None)
    with pytest.raises(graphjit.CaptureError, match="_counted"):
        graphed(fn)(normal(3))
    assert _counted == 1


def test_a_temporary_is_handed_to_nobody():
    """Temporaries of a cached graph alias no array that was allocated before or after."""
    fn = graphed(mlp)
    x, w = normal(64, 64), normal(64, 64)
    fn(x, w)
    others = [cp.full((64, 64), k, np.float32) for k in range(40)]
    expected = mlp(x, w)
    results = [fn(x, w) for _ in range(10)]
    more = [cp.full((64, 64), -k, np.float32) for k in range(40)]
    results += [fn(x, w) for _ in range(10)]
    assert all(same_bits(r, expected) for r in results)
    assert all(bool((a == k).all()) for k, a in enumerate(others))
    assert all(bool((a == -k).all()) for k, a in enumerate(more))


# -- how much is held


def test_three_large_temporaries_cost_one():
    """Three temporaries of 1 GiB, used one after another, need about 1 GiB of scratch."""

    def fn(x):
        total = x
        for k in range(3):
            large = cp.full(1 << 28, k, np.float32)
            total = total + large[-1] + large.max()
            del large
        return total

    graphed_fn = graphed(fn)
    for _ in range(2):
        assert graphed_fn(cp.ones(3, np.float32)).tolist() == [7.0] * 3
    (entry,) = graphed_fn.cache_entries()
    assert 1 << 30 <= entry.scratch_nbytes < (1 << 30) + 16 * MIB
    cp.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("patch", ["host", "device"])
def test_a_cached_graph_holds_no_memory(pool, patch):
    """Between calls, the pool has lent nothing for a graph: no scratch, no outputs."""
    x = normal(300, 300)
    chain(x)
    before = used_bytes()
    fn = graphed(patch=patch)(chain)
    for _ in range(4):
        fn(x)
    assert used_bytes() == before
    (entry,) = fn.cache_entries()
    assert entry.scratch_nbytes > 0
    assert entry.constant_nbytes == entry.external_nbytes == 0


@pytest.mark.parametrize("patch", ["host", "device"])
def test_ten_thousand_calls(pool, patch):
    """10,000 calls leave the memory of the pool, the device and the host as it was."""
    fn = graphed(patch=patch)(mlp)
    arrays = [normal(64, 64) for _ in range(4)]
    for k in range(100):
        fn(arrays[k % 2], arrays[2 + k % 2])
    used, free = used_bytes(), free_device_bytes()
    n_objects = len(gc.get_objects())
    for k in range(10_000):
        fn(arrays[k % 2], arrays[2 + k % 2])
    assert used_bytes() == used
    assert abs(free_device_bytes() - free) < 4 * MIB
    assert len(gc.get_objects()) < n_objects + 500
    assert hits(fn) == 10_099
    assert same_bits(fn(arrays[0], arrays[2]), mlp(arrays[0], arrays[2]))


def test_a_deleted_function_frees_everything(pool):
    """Graphed functions that are made, used and deleted leave nothing behind."""
    table = np.arange(1 << 18, dtype=np.float64)  # a constant of 2 MiB in each entry

    def use():
        fn = graphed(lambda x: (x + cp.asarray(table)).sum())
        fn(x)
        fn(x)
        assert fn.cache_entries()[0].constant_nbytes >= table.nbytes

    x = normal(1 << 18, dtype=np.float64)
    for _ in range(5):
        use()
    used, free = used_bytes(), free_device_bytes()
    for _ in range(50):
        use()
    assert used_bytes() == used
    assert free - free_device_bytes() < 20 * MIB  # fifty constants would be 100 MiB


def test_clearing_the_cache_frees_constants(pool):
    """cache_clear gives constants back and leaves a function that works."""
    table = np.arange(1 << 22, dtype=np.float64)

    def fn(x):
        return x + cp.asarray(table)

    graphed_fn = graphed(fn)
    x = normal(1 << 22, dtype=np.float64)
    graphed_fn(x)
    free = free_device_bytes()
    graphed_fn.cache_clear()
    assert free_device_bytes() - free >= table.nbytes
    assert graphed_fn.cache_info()[:4] == (0, 0, 128, 0)
    assert agrees(graphed_fn, fn, x)
    assert agrees(graphed_fn, fn, x)


@pytest.mark.slow
def test_a_thousand_shapes(pool):
    """1,000 shapes: a bounded cache, one warning at the caller's line, the right results."""
    fn = graphed(max_entries=20)(lambda x: (x * 2).sum())
    free = free_device_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 1001):
            x = cp.ones(n, np.float32)
            assert float(fn(x)) == 2 * n
    (warning,) = [w for w in caught if issubclass(w.category, graphjit.CacheGrowthWarning)]
    assert warning.filename == __file__
    info = fn.cache_info()
    assert (info.current_entries, info.evictions, info.misses) == (20, 980, 1000)
    assert free - free_device_bytes() < 64 * MIB


def test_the_entry_used_longest_ago_is_evicted():
    """With max_entries=2 a third signature evicts the one that was used longest ago."""
    fn = graphed(max_entries=2)(lambda x: x + 1)
    a, b, c = normal(1), normal(2), normal(3)
    fn(a)
    fn(b)
    fn(a)
    with pytest.warns(graphjit.CacheGrowthWarning, match="max_entries"):
        fn(c)
    assert fn.explain(a).hit
    assert not fn.explain(b).hit
    assert same_bits(fn(a), a + 1)
    assert n_entries(fn) == 2


def test_memory_comes_from_the_callers_allocator():
    """Outputs and scratch are taken from the allocator that is current at the call."""
    fn = graphed(chain)
    x = normal(100, 100)
    fn(x)
    own = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(own.malloc):
        y = fn(x)
    assert own.used_bytes() == 512  # 100 floats, rounded up; the scratch went back
    assert own.total_bytes() >= 512 + fn.cache_entries()[0].scratch_nbytes
    assert same_bits(y, chain(x))


def test_running_out_of_memory_leaves_the_cache_intact():
    """A call that gets no memory raises CuPy's error, launches nothing, and loses nothing."""

    def fn(x):
        x += 1
        return cp.concatenate([x, x * 2, x * 3])

    graphed_fn = graphed(fn)
    n = 1 << 18
    graphed_fn(cp.zeros(n, np.float32))
    x = cp.zeros(n, np.float32)
    small = cp.cuda.MemoryPool()
    small.set_limit(size=3 * n * 4 + 4096)  # enough for the output, not for the scratch
    with cp.cuda.using_allocator(small.malloc), pytest.raises(cp.cuda.memory.OutOfMemoryError):
        graphed_fn(x)
    settle()
    assert float(x.max()) == 0
    assert small.used_bytes() == 0
    assert n_entries(graphed_fn) == 1
    poison_free_memory()
    assert float(graphed_fn(x)[-1]) == 3
    assert same_bits(x, cp.ones(n, np.float32))


def test_running_out_of_memory_in_the_first_call():
    """An eager call that gets no memory caches nothing, and the next call works."""
    fn = graphed(lambda x: cp.concatenate([x, x, x * 3]))
    x = normal(1 << 18)
    small = cp.cuda.MemoryPool()
    small.set_limit(size=1 << 16)
    with cp.cuda.using_allocator(small.malloc), pytest.raises(cp.cuda.memory.OutOfMemoryError):
        fn(x)
    assert n_entries(fn) == 0
    for _ in range(3):
        assert agrees(fn, lambda x: cp.concatenate([x, x, x * 3]), x)
    assert hits(fn) == 2


def test_a_capture_needs_no_memory():
    """A function is captured although the pool could not hold its temporaries once more."""
    own = cp.cuda.MemoryPool()
    n = 1 << 20
    with cp.cuda.using_allocator(own.malloc):
        x = cp.ones(n, np.float32)
        chain(x)
        own.set_limit(size=own.total_bytes() + MIB)
        fn = graphed(lambda x: (x * 2 + 1).sum())
        for _ in range(3):
            assert float(fn(x)) == 3 * n
    assert hits(fn) == 2
