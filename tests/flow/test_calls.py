"""One call: how often the function runs, what is patched, what is launched, what comes back."""

import copy
import cProfile
import itertools
import pickle

import numpy as np
import pytest
from helpers.flow_checks import agrees, counted, held_on_device, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit._adapters import simulated_device as device
from graphjit.testing import simulated as xp


def chain(x, y):
    z = x * y + xp.sin(x)
    z = z - z.sum(axis=0)
    z = xp.maximum(z, y) * 2
    z[1:] = z[:-1]
    return z.T, xp.zeros(3) + z[0, 0]


def test_the_function_runs_twice_for_the_first_call_and_never_after_it():
    """Eagerly for the result, under capture for the graph; later calls run no Python of it."""
    runs = itertools.count()

    def fn(x):
        next(runs)
        return x + 1

    graphed_fn = graphed(fn)
    for _ in range(5):
        x = normal(4)
        assert same_bits(graphed_fn(x), x + 1)
    assert next(runs) == 2
    assert graphed_fn.cache_info()[:2] == (4, 1)


def test_a_hit_is_one_launch(patch):
    """A hit launches one graph and no kernel by itself."""
    graphed_fn = graphed(patch=patch)(chain)
    arrays = [(normal(4, 5), normal(4, 5)) for _ in range(4)]
    graphed_fn(*arrays[0])
    for x, y in arrays[1:]:
        assert counted("graph_launches", lambda x=x, y=y: graphed_fn(x, y)) == 1
        assert counted("kernel_launches", lambda x=x, y=y: graphed_fn(x, y)) == 0


def test_new_addresses_are_hits(patch):
    """Arrays anywhere give what eager gives."""
    graphed_fn = graphed(patch=patch)(chain)
    kept = []
    for _ in range(6):
        kept.append((normal(4, 5), normal(4, 5)))
        assert agrees(graphed_fn, chain, *kept[-1])
    (entry,) = graphed_fn.cache_entries()
    assert (entry.hits, entry.launches, entry.patch_kind) == (5, 5, patch)


def test_a_device_patch_is_one_driver_call_and_a_host_patch_one_a_node():
    """Re-pointing costs one call from the device, and one a touched node from the host."""
    by_device, by_host = graphed(patch="device")(chain), graphed(patch="host")(chain)
    held = [(normal(4, 5), normal(4, 5)) for _ in range(2)]
    for fn in (by_device, by_host):
        fn(*held[0])
    assert counted("set_params", lambda: by_device(*held[1])) == 1
    assert counted("set_params", lambda: by_host(*held[1])) > 5


def test_the_patch_is_chosen_by_cost():
    """Few nodes are patched from the host, many from the device."""

    def long(x):
        for _ in range(10):
            x = x + 1
        return x

    few, many = graphed(lambda x: x + 1), graphed(long)
    few(normal(3))
    many(normal(3))
    assert few.cache_entries()[0].patch_kind == "host"
    assert many.cache_entries()[0].patch_kind == "device"


def test_unchanged_addresses_are_not_patched_again(patch):
    """A launch at the addresses of the last one writes no parameters."""

    def add_one(x):
        x += 1

    fn = graphed(patch=patch)(add_one)
    x = xp.zeros(3)
    fn(x)
    fn(x)
    assert counted("set_params", lambda: [fn(x) for _ in range(3)]) == 0
    assert x.tolist() == [5.0] * 3
    y = xp.zeros(3)
    fn(y)
    (entry,) = fn.cache_entries()
    assert (entry.patches, entry.launches) == (2, 5)


def test_a_graph_without_addresses_needs_no_patch():
    """A function that launches nothing returns what it returned, and has no patch."""
    fn = graphed(lambda x: x)
    x = normal(3)
    assert [fn(x) is x for _ in range(3)] == [True] * 3
    (entry,) = fn.cache_entries()
    assert (entry.patch_kind, entry.nodes, entry.relocations) == ("none", {}, 0)


def test_a_driver_without_device_patch(monkeypatch):
    """Many nodes are patched from the host where the driver cannot do it otherwise."""
    monkeypatch.setattr(device.driver(), "device_patch", False)
    fn = graphed(chain)
    kept = []
    for _ in range(4):
        kept.append((normal(4, 5), normal(4, 5)))
        assert agrees(fn, chain, *kept[-1])
    assert fn.cache_entries()[0].patch_kind == "host"


def test_what_needs_the_device_patch_is_refused_without_it(monkeypatch):
    """A table of addresses, or the wish for the device patch: an error that says what lacks."""
    monkeypatch.setattr(device.driver(), "device_patch", False)
    with pytest.raises(graphjit.PatchError, match="no device-updatable nodes"):
        graphed(patch="device")(lambda x: x + 1)(normal(3))
    with pytest.raises(graphjit.PatchError, match="no device-updatable nodes"):
        graphed(lambda x: xp.concatenate([x + i for i in range(9)]))(normal(3))


def test_no_array_memory_between_calls():
    """A cached graph holds no memory of arrays; a call leaves none."""
    fn = graphed(chain)
    for _ in range(3):
        fn(normal(40, 50), normal(40, 50))
    before = held_on_device().array_nbytes
    for _ in range(3):
        fn(normal(40, 50), normal(40, 50))
    assert held_on_device().array_nbytes == before
    x, y = normal(40, 50), normal(40, 50)
    with_arguments = held_on_device().array_nbytes
    out = fn(x, y)
    assert held_on_device().array_nbytes > with_arguments
    del out
    assert held_on_device().array_nbytes == with_arguments


def test_a_thousand_calls_take_no_memory():
    """After a thousand calls the device holds what it held after ten."""

    def run(n):
        for _ in range(n):
            fn(normal(8), 2.0)

    fn = graphed(lambda x, s: xp.sin(x) * s)
    run(10)
    before = held_on_device(), device.pool.allocated_nbytes
    run(1000)
    assert (held_on_device(), device.pool.allocated_nbytes) == before


def test_temporaries_used_one_after_another_share_scratch():
    """Three large temporaries that are used in turn cost the memory of about one."""

    def fn(x):
        total = xp.zeros(())
        for k in range(3):
            large = xp.broadcast_to(x, (1000, 100)) + k
            total = total + large.sum()
            del large
        return total

    graphed_fn = graphed(fn)
    assert agrees(graphed_fn, fn, normal(100))
    assert agrees(graphed_fn, fn, normal(100))
    (entry,) = graphed_fn.cache_entries()
    assert 800_000 <= entry.scratch_nbytes < 900_000


def test_the_callers_stream_is_used():
    """The graph is launched, and its memory allocated, on the stream that is current."""
    fn = graphed(lambda x: x * 2)
    x = normal(4)
    fn(x)
    with xp.Stream():
        assert same_bits(fn(x), x * 2)
    assert fn.cache_info().hits == 1


def test_every_way_of_calling():
    """Functions, methods, static and class methods, lambdas, partials and callables."""
    import functools

    class Model:
        factor = 3.0

        def __init__(self):
            self.w = normal(4)

        @graphed
        def method(self, x):
            return x * self.w * self.factor

        @graphed
        @staticmethod
        def static(x):
            return x + 1

        @graphed
        @classmethod
        def of_class(cls, x):
            return x * cls.factor

    class Callable:
        def __init__(self):
            self.w = normal(4)

        def __call__(self, x):
            return x - self.w

    model, other, called = Model(), Model(), Callable()
    partial = graphed(functools.partial(lambda a, x: x * a, 2.0))
    graphed_callable = graphed(called)
    for _ in range(3):
        x = normal(4)
        for m in (model, other):
            assert same_bits(m.method(x), x * m.w * 3.0)
        assert same_bits(Model.static(x), x + 1)
        assert same_bits(model.static(x), x + 1)
        assert same_bits(Model.of_class(x), x * 3.0)
        assert same_bits(partial(x), x * 2.0)
        assert same_bits(graphed_callable(x), x - called.w)
    for fn in (partial, graphed_callable):
        assert fn.cache_info()[:2] == (2, 1)
    assert Model.method.cache_info()[:2] == (4, 2)


def test_a_graphed_function_looks_like_the_function():
    """Name, docstring and signature are those of the function."""
    import inspect

    @graphed
    def scale(x, factor=2.0):
        """Scale."""
        return x * factor

    assert (scale.__name__, scale.__doc__) == ("scale", "Scale.")
    assert list(inspect.signature(scale).parameters) == ["x", "factor"]
    assert repr(scale).endswith("scale: 0 entries, 0 hits, 0 misses>")
    with pytest.raises(graphjit.GraphjitError, match="graphed already"):
        graphed(scale)


def test_eager_calls_are_counted():
    """``fn.eager`` runs the plain function and captures nothing."""
    fn = graphed(lambda x: x + 1)
    x = normal(3)
    assert same_bits(fn.eager(x), x + 1)
    info = fn.cache_info()
    assert (info.eager_calls, info.current_entries, info.misses) == (1, 0, 0)


def test_warm_up_calls():
    """With ``warmup=3`` the first three calls run eagerly, and the third is captured."""
    runs = itertools.count()

    def fn(x):
        next(runs)
        return x * 3

    graphed_fn = graphed(warmup=3)(fn)
    for _ in range(6):
        x = normal(3)
        assert same_bits(graphed_fn(x), x * 3)
    assert next(runs) == 4
    assert graphed_fn.cache_info()[:2] == (3, 3)


def test_static_outputs():
    """With ``outputs="static"`` every hit writes to the same memory."""
    fn = graphed(outputs="static")(lambda x: x + 1)
    fn(normal(3))
    first = fn(xp.zeros(3))
    assert first.tolist() == [1.0] * 3
    second = fn(xp.ones(3))
    assert second.device_ptr == first.device_ptr
    assert first.tolist() == [2.0] * 3
    fn.cache_clear()


def test_a_static_result_fed_back():
    """A call on its own static result writes elsewhere: two entries take turns, no bit is lost."""

    def step(x):
        y = xp.zeros(6)
        y[1:] = x[:-1]
        return y + x.sum()

    call = graphed(outputs="static")(step)
    state = expected = normal(6)
    for _ in range(12):
        state, expected = call(state), step(expected)
        assert same_bits(state, expected)
    info = call.cache_info()
    assert (info.misses, info.hits, info.current_entries) == (2, 10, 2)


def test_verify_accepts_what_is_right():
    """A function that depends on its arguments alone passes, in place or not."""

    def fn(x, y):
        x += y
        return x * y, x

    graphed_fn = graphed(verify=True)(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(4), normal(4))
    assert graphed_fn.cache_info().hits == 3


def test_verify_catches_hidden_state():
    """A number from an iterator is frozen by the capture; ``verify`` says which output differs."""
    numbers = itertools.count(1)
    fn = graphed(verify=True)(lambda x: (x, x * next(numbers)))
    fn(normal(3))
    with pytest.raises(graphjit.VerificationError, match="output 1 of the graph differs"):
        fn(normal(3))


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (lambda n: [n], "output 1"),
        (lambda n: [1] * n, "the number of outputs"),
        (lambda n: [2.0 if n == 2 else xp.zeros(1)], "output 1"),
    ],
    ids=["number", "count", "kind"],
)
def test_verification_compares_what_is_no_array(returned, what):
    """Another number in the result than the eager call returns, or another count of them."""
    calls = itertools.count()

    @graphed(verify=True)
    def fn(x):
        return [x + 1, *returned(next(calls))]  # what an iterator yields is not seen

    fn(normal(2))
    with pytest.raises(graphjit.VerificationError, match=what):
        fn(normal(2))


def test_loops_that_feed_back(patch):
    """A state that is fed back a hundred times, then again from another state."""

    def step(state):
        return {"x": state["x"] + 0.1 * state["v"], "v": state["v"] * 0.99 - 0.1 * state["x"]}

    fn = graphed(patch=patch)(step)
    for _ in range(2):
        state = expected = {"x": normal(10), "v": normal(10)}
        for _ in range(100):
            state, expected = fn(state), step(expected)
        assert same_bits(state, expected)
    assert fn.cache_info()[:2] == (199, 1)


def test_more_slots_than_one_patch_kernel_carries():
    """A thousand arrays are re-pointed by several patch nodes."""

    def total(arrays):
        out = xp.zeros(2)
        for array in arrays:
            out = out + array
        return out

    fn = graphed(total)
    kept = []
    for _ in range(3):
        kept.append([normal(2) for _ in range(1000)])
        assert agrees(fn, total, kept[-1])
    assert fn.cache_info().hits == 2
    assert counted("set_params", lambda: fn(kept[0])) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_unsupported": "ignore"}, "on_unsupported='ignore'.*raise, eager"),
        ({"outputs": "old"}, "outputs='old'.*fresh, static"),
        ({"patch": "both"}, "patch='both'.*auto, host, device"),
        ({"warmup": 0}, "warmup=0"),
        ({"max_entries": 0}, "max_entries=0"),
    ],
)
def test_bad_options_are_refused_at_once(options, text):
    """An option that does not exist is refused when the function is decorated."""
    with pytest.raises(ValueError, match=text):
        graphed(**options)(lambda x: x)


def test_unknown_static_names_are_refused_at_once():
    """A name in ``static=`` that is no parameter is an error when the function is decorated."""
    with pytest.raises(TypeError, match="shif"):
        graphed(static="shif")(lambda x, shift: x)


def test_wrong_arguments_fail_as_python_says():
    """A missing or unknown argument is Python's own TypeError."""
    fn = graphed(lambda x, y: x + y)
    for call in (lambda: fn(normal(3)), lambda: fn(normal(3), normal(3), z=1)):
        with pytest.raises(TypeError) as caught:
            call()
        assert not isinstance(caught.value, graphjit.GraphjitError)


def test_structs_and_tables_are_patched(patch):
    """Addresses in padded structs, behind small fields and in tables of addresses."""

    def fn(x):
        y = (x[:, ::-1] * 2 + xp.sin(x)) @ x.T
        y[1:] = y[:-1]
        return y, y.sum(axis=1, keepdims=True), y[[2, 0]], xp.sort(x, axis=0).T

    graphed_fn = graphed(patch=patch)(fn)
    kept = []
    for _ in range(5):
        kept.append(xp.asarray(np.random.default_rng(len(kept)).random((3, 4))))
        assert agrees(graphed_fn, fn, kept[-1])
    assert graphed_fn.cache_info().hits == 4


def test_under_a_profiler():
    """A function that is profiled is captured all the same, and the profiler goes on."""
    fn = graphed(lambda x: helper_of_profiled(x) + 1)
    profile = cProfile.Profile()
    x = xp.ones(3)
    profile.enable()
    results = [fn(x).tolist() for _ in range(3)]
    after_the_calls(results)
    profile.disable()
    assert results == [[3.0] * 3] * 3
    names = {entry.code.co_name for entry in profile.getstats() if hasattr(entry.code, "co_name")}
    assert "after_the_calls" in names


def helper_of_profiled(x):
    return x * 2


def after_the_calls(results):
    return len(results)


@graphed
def module_level(x):
    return x * 2 + 1


def test_copies_and_pickles_are_the_function_itself():
    """A graphed function is copied and pickled as a function is: by what it is called."""
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy({"step": module_level})["step"] is module_level
    assert pickle.dumps(module_level)


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
def test_functions_that_run_in_pieces_are_refused(kind):
    """Decorating a generator or a coroutine function is an error that says why."""

    def generator(x):
        yield x

    async def coroutine(x):
        return x

    with pytest.raises(TypeError, match=f"a {kind} function"):
        graphed({"generator": generator, "coroutine": coroutine}[kind])
