"""What a captured function does with the host: calls, page-locked memory, events."""

import contextlib
import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from helpers.flow_checks import agrees, counted, held_on_device, normal, same_bits
from helpers.processes import run_python

import graphjit
from graphjit import HostCallbackError, PinnedArray, graphed, host_callback
from graphjit._adapters import simulated_device as device
from graphjit._driver import host_functions
from graphjit.control import cond
from graphjit.testing import simulated as xp


class Log:
    """What host functions were given."""

    def __init__(self):
        self.calls = []

    def __call__(self, *args):
        self.calls.append(args)


def take(log):
    """Return what has been logged, and forget it."""
    calls, log.calls = log.calls, []
    return calls


# -- host functions


def test_every_launch_calls(patch):
    """The function is given copies of the contents at its place, in containers as they were."""
    log = Log()

    def fn(x, y):
        z = x + y
        host_callback(log, "first", {"z": z, "n": [3, z[::-1]]})
        z *= 2
        host_callback(log, z[1:, ::2], None)
        return z - x

    call = graphed(patch=patch)(fn)
    for _ in range(4):
        x, y = normal(3, 4), normal(3, 4)
        got = call(x, y)
        z = (x + y).get()
        first, second = take(log)
        assert first[0] == "first"
        assert first[1]["z"].tobytes() == z.tobytes()
        assert first[1]["n"][0] == 3
        assert np.array_equal(first[1]["n"][1], z[::-1])
        assert first[1]["n"][1].flags.c_contiguous  # as in an eager call
        assert np.array_equal(second[0], (z * 2)[1:, ::2])
        assert second[1] is None
        assert same_bits(got, (x + y) * 2 - x)
    assert call.cache_info()[:2] == (3, 1)
    assert call.cache_entries()[0].nodes["host"] == 2
    kept = first[1]["z"]
    call(normal(3, 4), normal(3, 4))
    assert kept.tobytes() == z.tobytes()  # a copy, not the memory of the graph


def test_arrays_without_elements():
    """They are given, too."""
    log = Log()

    @graphed
    def fn(x):
        host_callback(log, x)
        return x + 1

    for _ in range(3):
        fn(normal(0, 3))
        assert [a.shape for (a,) in take(log)] == [(0, 3)]


def test_exceptions_are_reported_later():
    """What a function raises comes at the next synchronisation point, or at the next call."""

    def check(x):
        if x[0] < 0:
            raise ValueError("negative")

    @graphed
    def fn(x):
        host_callback(check, x)
        return x * 2

    good, bad = normal(3) * 0 + 1, normal(3) * 0 - 1
    fn(good)
    with pytest.raises(ValueError, match="negative"):
        fn.eager(bad)
    assert same_bits(fn(bad), bad * 2)
    with pytest.raises(HostCallbackError, match=r"check, called by .*fn at .*test_host") as caught:
        graphjit.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    graphjit.synchronize()
    fn(bad)
    fn_hits = fn.cache_info().hits
    with pytest.raises(HostCallbackError, match="negative"):
        fn(good)
    assert same_bits(fn(good), good * 2)
    assert fn.cache_info().hits == fn_hits + 1  # the call that reported was none
    graphjit.synchronize()


def test_several_exceptions():
    """The oldest comes first, and says how many follow."""

    def later(n):
        if n in raising:
            raise ValueError(n)

    raising = set()

    @graphed
    def fn(x):
        for n in range(3):
            host_callback(later, n)
        return x + 1

    fn(normal(3))
    raising.update((0, 2))
    fn(normal(3))
    with pytest.raises(HostCallbackError, match="ValueError") as caught:
        graphjit.synchronize()
    assert "1 more" in caught.value.__notes__[0]
    with pytest.raises(HostCallbackError, match="ValueError"):
        graphjit.synchronize()
    graphjit.synchronize()


def test_where_there_can_be_no_call():
    """Bodies of control flow, dynamic scalars and foreign captures are refused by name."""
    log = Log()

    def in_body(x):
        return cond(x.sum() > 0, lambda: host_callback(log, x) or x, lambda: x)

    with pytest.raises(graphjit.CaptureError, match="allows no host nodes there"):
        graphed(in_body)(normal(3))

    def with_scalar(x, a):
        host_callback(log, a)
        return x * a

    with pytest.raises(graphjit.CaptureError, match="dynamic scalars"):
        graphed(dynamic=("a",))(with_scalar)(normal(3), 2.0)
    stream = xp.Stream(non_blocking=True)
    with stream:
        device.driver().stream_begin_capture(stream.handle, "relaxed")
        with pytest.raises(graphjit.CaptureError, match="a host function cannot be part"):
            host_callback(log, normal)
        device.driver().stream_abandon_capture(stream.handle)


def test_calls_in_child_graphs_and_segments():
    """Functions called inside, and parts of a split function, call the host, too."""
    log = Log()

    @graphed
    def inner(x):
        host_callback(log, "inner", x)
        return x * 2

    def fn(x):
        y = inner(x) + 1
        if float(y.sum()) > 0:
            host_callback(log, "positive", y)
        return inner(y)

    call = graphed(on_unsupported="split")(fn)
    for sign in (1, 1, -9, -9, 1):
        x = abs(normal(3)) * sign
        log.calls.clear()
        expected = fn(x)
        wanted = take(log)
        assert same_bits(call(x), expected)
        got = take(log)
        assert [a[0] for a in got] == [a[0] for a in wanted]
        for a, b in zip(got, wanted, strict=True):
            assert a[1].tobytes() == b[1].tobytes()


def test_optimize_keeps_the_order():
    """A call waits for the work before it and is waited for, although other work is not."""
    seen = []

    def fn(x, y):
        x += 1
        host_callback(lambda a: seen.append(a.sum()), x)
        x *= 0
        y += 2
        return x + y

    call = graphed(optimize=True)(fn)
    for _ in range(10):
        x, y = normal(4), normal(4)
        wanted = (x + 1).get().sum()
        call(x, y)
        assert seen.pop() == wanted
    assert not seen


def test_nothing_is_left_after_a_launch():
    """What a launch calls is kept until it has been called, and goes with the graph."""

    class Thing:
        pass

    def make(**options):
        thing = Thing()

        @graphed(**options)
        def fn(x):
            host_callback(lambda h: thing, x)
            host_callback(lambda h: fn, x)  # a cycle
            return x * float(x.sum()) if options else x * 2

        for _ in range(3):
            fn(normal(3))
        return weakref.ref(thing)

    for options in ({}, {"on_unsupported": "split"}):
        thing = make(**options)
        assert host_functions.n_armed() == 0
        gc.collect()
        assert thing() is None


def test_a_launch_that_fails_calls_nothing(monkeypatch):
    """The function is not kept for it."""

    @graphed
    def fn(x):
        host_callback(len, x)
        return x * 2

    fn(normal(3))

    def fail(*_):
        raise graphjit.DriverError("cuGraphLaunch", "CUDA_ERROR_OUT_OF_MEMORY", 2)

    with monkeypatch.context() as patched:
        patched.setattr(device.driver(), "graph_launch", fail)
        with pytest.raises(graphjit.DriverError):
            fn(normal(3))
    assert host_functions.n_armed() == 0
    fn(normal(3))


def test_what_computes_and_is_called_is_watched():
    """A function, an object or an array that is also used for the result never gets stale."""
    factor = 2.0

    def helper(x):
        return x * factor

    def change(value):
        nonlocal factor
        factor = value

    class Model:
        def __init__(self):
            self.scale, self.w = 2.0, normal(3)

        def __call__(self, h):
            pass

        def apply(self, x):
            return x * self.scale + model.w

    model = Model()

    def fn(x):
        y = helper(x)
        host_callback(helper, y)
        host_callback(model, y)
        return model.apply(y)

    call = graphed(fn)
    for k in range(4):
        for _ in range(2):
            assert agrees(call, fn, normal(3))
        change(k + 0.5)
        assert agrees(call, fn, normal(3))
        model.scale = k
        assert agrees(call, fn, normal(3))
        model.w = normal(3)
        assert agrees(call, fn, normal(3))


def _discard_failures():
    """Let the next test begin without any."""
    for _ in range(200):
        with contextlib.suppress(HostCallbackError):
            graphjit.synchronize()
            return


def test_failures_in_a_later_part_of_a_split_function():
    """They are reported at the next call, too; the first ones are kept if there are too many."""
    raising = False

    class OddError(Exception):
        def __repr__(self):
            raise RuntimeError

    def fail(n):
        if raising:
            raise OddError if n == 0 else ValueError(n)

    @graphed(on_unsupported="split")
    def fn(x):
        y = x * float(x.sum())
        for n in range(150):
            host_callback(fail, n)
        return y + 1

    x = normal(3)
    fn(x)
    fn(x)
    raising = True
    fn(x)
    raising = False
    with pytest.raises(HostCallbackError, match="raised OddError"):
        fn(x)
    with pytest.raises(HostCallbackError, match=r"ValueError\(1\)"):
        graphjit.synchronize()
    _discard_failures()


def test_a_split_call_is_not_made_twice():
    """What a part has called on the host is not called again by an eager call in its place."""
    seen = []

    def note(h):
        seen.append(h)

    def fn(x):
        host_callback(note, x)
        if float(x.sum()) > 0:
            return x * 2
        return xp.asarray(x.get() + 1) if fails else x * 3

    fails = False
    call = graphed(on_unsupported="split")(fn)
    for _ in range(2):
        call(xp.ones(3))
    seen.clear()
    fails = True
    with contextlib.suppress(graphjit.GraphjitError):
        call(-xp.ones(3))
    assert len(seen) == 1


# -- page-locked memory


def test_pinned_memory_is_read_by_every_launch(patch):
    """What the host has written is copied to the device by each launch anew."""
    settings = PinnedArray((2, 3), "f8", like=normal(1))

    def fn(x):
        return x * settings.to_device() + 1

    call = graphed(patch=patch)(fn)
    for _ in range(4):
        settings.host[...] = np.random.default_rng().standard_normal((2, 3))
        assert agrees(call, fn, normal(2, 3))
    assert call.cache_info()[:2] == (3, 1)
    assert "page-locked" in str(call.cache_entries()[0].externals)


def test_results_in_pinned_memory():
    """Copies to the host, from arrays of any layout, and back into others."""
    out, back = (PinnedArray((3, 2), "f8", like=normal(1)) for _ in range(2))

    def fn(x, y):
        out.copy_from(x.T * 2)
        back.copy_from(x.T)
        back.copy_to(y)
        return y + 1

    call = graphed(fn)
    for _ in range(4):
        x, y = normal(2, 3), normal(2, 6)[:, ::2].T
        expected = fn(x.copy(), y.copy())
        wanted = out.host.copy(), back.host.copy()
        out.host[...] = back.host[...] = np.nan
        assert same_bits(call(x, y), expected)
        assert out.host.tobytes() == wanted[0].tobytes()
        assert back.host.tobytes() == wanted[1].tobytes()


def test_another_pinned_array_is_another_signature():
    """A graph is for the memory that it was captured with; as arguments, too."""
    a, b = (PinnedArray(3, like=normal(1)) for _ in range(2))

    @graphed
    def fn(pinned, x):
        return pinned.to_device() + x

    for pinned, value in ((a, 1), (b, 2), (a, 3), (b, 4)):
        pinned.host[...] = value
        x = normal(3)
        assert same_bits(fn(pinned, x), x + value)
    assert fn.cache_info()[:2] == (2, 2)


def test_misuse_of_pinned_arrays():
    """Other shapes and dtypes are named; the host cannot look during a capture."""
    pinned = PinnedArray((2,), "i4", like=normal(1))
    with pytest.raises(graphjit.SignatureError, match=r"float64 \(2,\).*int32 \(2,\)"):
        pinned.copy_from(normal(2))
    with pytest.raises(graphjit.SignatureError, match="ndarray is no array"):
        pinned.copy_to(np.zeros(2, "i4"))

    @graphed
    def fn(x):
        return x + float(pinned.host[0])

    with pytest.raises(graphjit.CaptureError, match=r"uses PinnedArray\.host"):
        fn(normal(2))


def test_pinned_memory_lives_as_long_as_the_graph():
    """The graph keeps it, and gives it back."""
    before = held_on_device().other_nbytes

    def make():
        pinned = PinnedArray(10_000, like=normal(1))
        pinned.host[...] = 5

        @graphed
        def fn(x, keep=pinned):
            return x + keep.to_device()[:3]

        fn(normal(3))
        fn.__wrapped__.__defaults__ = (pinned,)
        return fn

    fn = make()
    x = normal(3)
    assert same_bits(fn(x), x + 5)
    del fn, x
    gc.collect()
    assert held_on_device().other_nbytes == before


def test_views_keep_the_memory():
    """An array of the host outlives the ``PinnedArray``; that cannot be copied or pickled."""
    pinned = PinnedArray((2, 3), like=normal(1))
    pinned.host[...] = 4
    row = pinned.host[1]
    for function in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="memory of this process"):
            function(pinned)
    del pinned
    gc.collect()
    normal(2, 3)
    assert row.tolist() == [4, 4, 4]
    del row


def test_pinned_memory_in_bodies():
    """A branch may copy."""
    out = PinnedArray(3, like=normal(1))

    def branch(x):
        out.copy_from(x)
        return x * 2

    def fn(x):
        return cond(x.sum() > 0, lambda: branch(x), lambda: x)

    call = graphed(fn)
    for sign in (1, -1, 1):
        x = abs(normal(3)) * sign
        out.host[...] = 0
        assert same_bits(call(x), x * 2 if sign > 0 else x)
        assert out.host.tobytes() == (x.get().tobytes() if sign > 0 else bytes(24))


# -- events


def test_events():
    """Nodes that record and wait, at every launch; the graph keeps the event."""

    def fn(x, before, after):
        graphjit.wait_event(before)
        y = x * 2
        graphjit.record_event(after)
        return y + 1

    call = graphed(fn)
    before, after = xp.Event().record(), xp.Event()
    for _ in range(3):
        assert agrees(call, fn, normal(3), before, after)
    (entry,) = call.cache_entries()
    assert entry.nodes["event"] == 2
    assert [n.name for n in entry.graph.nodes if n.kind == "event"] == ["wait", "record"]
    assert counted("graph_launches", lambda: call(normal(3), before, after)) == 1


def test_events_where_there_can_be_none():
    """In bodies, and things that are no events."""
    event = xp.Event()

    def body(x):
        graphjit.record_event(event)
        return x * 2

    def fn(x):
        return cond(x.sum() > 0, lambda: body(x), lambda: x)

    with pytest.raises(graphjit.CaptureError, match="no event nodes there"):
        graphed(fn)(normal(3))
    with pytest.raises(graphjit.SignatureError, match="is no event"):
        graphjit.wait_event(3)


def test_a_host_function_may_use_no_device():
    """It runs in another thread, and what it asks of the device is refused there, as by CUDA."""
    x = normal(3)
    threads = []

    def ask(h, what):
        threads.append(threading.current_thread())
        {"nothing": lambda: None, "launch": lambda: x + 1, "read": x.get, "wait": xp.synchronize}[
            what
        ]()

    for what in ("nothing", "launch", "read", "wait"):

        @graphed
        def fn(y, what=what):
            host_callback(ask, y, what)
            return y * 2

        fn(normal(3))
        fn(normal(3))
        assert (threads[-1] is threading.main_thread()) is False
        if what == "nothing":
            graphjit.synchronize()
        else:
            with pytest.raises(HostCallbackError, match="CUDA_ERROR_NOT_PERMITTED"):
                graphjit.synchronize()


def test_events_that_nobody_vouches_for():
    """One that a program records by the driver itself may be destroyed before the graph."""
    event = xp.Event()

    def fn(x):
        driver, stream = device.driver(), device.current_stream().handle
        driver.event_record_external(event.handle, stream)
        return x * 2

    with pytest.raises(graphjit.UnsupportedNodeError, match=r"EVENT_RECORD.*record_event"):
        graphed(fn)(normal(3))


def test_what_nobody_was_told_is_printed_at_the_end():
    """An exception in a function that the last launch calls does not get lost."""
    done = run_python(
        "-c",
        "from graphjit import graphed, host_callback\n"
        "from graphjit.testing import simulated as xp\n"
        "def fail(x):\n"
        "    if x[0] > 1: raise ValueError('too large')\n"
        "@graphed\n"
        "def fn(x):\n"
        "    host_callback(fail, x)\n"
        "    return x + 1\n"
        "fn(xp.ones(3))\n"
        "fn(xp.ones(3) * 2)\n",
    )
    assert "HostCallbackError: fail, called by a graph of fn" in done.stderr
    assert "ValueError: too large" in done.stderr


def test_a_function_that_is_an_argument():
    """What it reaches is its own business, as that of any other function of the host."""
    seen = []

    def log(values):
        seen.append(values.tobytes())

    def fn(x, log):
        host_callback(log, x)
        return x + 1

    call = graphed(fn)
    for _ in range(4):
        x = normal(3)
        call(x, log)
        graphjit.synchronize()
        assert seen.pop() == x.get().tobytes()
    assert call.cache_info()[:2] == (3, 1)
