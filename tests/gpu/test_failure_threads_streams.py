"""Failure, threads and streams: a capture that fails leaves no trace, and nobody disturbs it."""

import collections
import gc
import itertools
import threading
import warnings

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import (
    agrees,
    check_libraries,
    copy_arrays,
    hits,
    in_threads,
    n_entries,
    normal,
    same_bits,
)
from helpers.processes import run_python

import graphjit
from graphjit import graphed

runtime = cp.cuda.runtime


def chain(x):
    for _ in range(20):
        x = cp.tanh(x * 1.5 + 0.25)
    return x


def is_second(numbers):
    """Say whether this is the second run of the function: the capture, after the eager call."""
    return next(numbers) == 1


def result_or_refusal(graphed_fn, *arguments):
    """Return what a call gives and None, or its eager result and the error that refused it."""
    try:
        return graphed_fn(*arguments), None
    except graphjit.GraphjitError as error:
        return error.eager_result, error


# -- failure


class OwnError(Exception):
    pass


def test_an_exception_in_the_eager_call():
    """What the function raises comes out, nothing is cached, and the next call works."""

    def fn(x, fails):
        y = x * 2
        if fails:
            raise OwnError("mine")
        return y

    graphed_fn = graphed(fn)
    for _ in range(50):
        with pytest.raises(OwnError, match="mine"):
            graphed_fn(normal(5), True)
    assert n_entries(graphed_fn) == 0
    for _ in range(3):
        assert agrees(graphed_fn, fn, normal(5), False)
    assert hits(graphed_fn) == 2


def test_an_exception_during_capture_fifty_times(pool):
    """The function's own exception comes out of a capture; memory and streams are as before."""

    def attempt():
        numbers = itertools.count()

        def fn(x):
            y = chain(x) + cp.asarray(np.ones(1000, np.float32))
            if is_second(numbers):
                raise OwnError("mine")
            return y

        graphed_fn = graphed(fn)
        with pytest.raises(OwnError, match="mine") as caught:
            graphed_fn(x)
        assert caught.value.__cause__ is None
        assert n_entries(graphed_fn) == 0

    x = normal(1000)
    for _ in range(3):
        attempt()
    gc.collect()
    used, free = pool.used_bytes(), runtime.memGetInfo()[0]
    for _ in range(50):
        attempt()
    gc.collect()
    assert pool.used_bytes() == used
    assert free - runtime.memGetInfo()[0] < 4 << 20
    fn = graphed(chain)
    for _ in range(3):
        assert agrees(fn, chain, normal(10))
    check_libraries()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled):
    """Whether a capture succeeds or fails, automatic collection is on or off as before."""
    if not enabled:
        gc.disable()
    try:
        graphed(chain)(normal(4))
        assert gc.isenabled() == enabled
        with pytest.raises(graphjit.HostReadError):
            graphed(lambda x: float(x.sum()))(normal(4))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_garbage_with_graphs_during_a_capture():
    """Graphs in reference cycles, and graphs deleted in the middle, do not break a capture."""
    threshold = gc.get_threshold()
    # Behind a name that is no identifier: what the function names, it must not change.
    doomed = globals()["doomed graphs"] = collections.deque()

    def make_garbage():
        old = graphed(lambda x: x + cp.asarray(np.ones(4, np.float32)))
        old(normal(4))
        cycle = [old]
        cycle.append(cycle)
        doomed.append(graphed(chain))
        doomed[-1](normal(4))

    numbers = itertools.count()

    def fn(x):
        y = chain(x)
        if is_second(numbers):
            globals()["doomed graphs"].clear()
        junk = [[] for _ in range(500)]
        return y + len(junk)

    for _ in range(4):
        make_garbage()
    gc.set_threshold(1, 1, 1)
    try:
        graphed_fn = graphed(fn)
        inputs = [normal(6) for _ in range(3)]
        results = [graphed_fn(x) for x in inputs]
    finally:
        gc.set_threshold(*threshold)
    assert all(same_bits(r, chain(x) + 500) for r, x in zip(results, inputs, strict=True))
    assert hits(graphed_fn) == 2


def query_stream(x):
    done = cp.cuda.get_current_stream().done
    return x * 2 + (0 * done)


def synchronize_stream(x):
    y = x * 2
    cp.cuda.get_current_stream().synchronize()
    return y + 1


def synchronize_device(x):
    y = x * 2
    cp.cuda.Device().synchronize()
    return y + 1


def synchronize_event(x):
    y = x * 2
    event = cp.cuda.get_current_stream().record()
    event.synchronize()
    return y + 1


def use_null_stream(x):
    y = x * 2
    cp.cuda.get_current_stream().synchronize()
    with cp.cuda.Stream.null:
        z = y + 1
    cp.cuda.Stream.null.synchronize()
    return z * 2


def allocate_behind_the_pool(x):
    ptr = runtime.malloc(1024)
    runtime.free(ptr)
    return x + 1


def host_callback(x):
    cp.cuda.get_current_stream().launch_host_func(lambda _: None, None)
    return x + 1


DISTURBING = [
    query_stream,
    synchronize_stream,
    synchronize_device,
    synchronize_event,
    use_null_stream,
    allocate_behind_the_pool,
    host_callback,
]


@pytest.mark.parametrize("fn", DISTURBING, ids=lambda fn: fn.__name__)
def test_code_that_disturbs_a_capture(fn):
    """Code that waits, queries or allocates is a graph that is right, or refused with its line;
    all works afterwards.
    """
    graphed_fn = graphed(fn)
    for _ in range(3):
        x = normal(100)
        got, refusal = result_or_refusal(graphed_fn, x)
        assert same_bits(got, fn(x))
        # A node has no line: what is refused because of a node names the node.
        if refusal and not isinstance(refusal, graphjit.UnsupportedNodeError):
            assert __file__ in str(refusal)
    check_libraries()


@pytest.mark.parametrize("fn", DISTURBING, ids=lambda fn: fn.__name__)
def test_code_that_disturbs_a_capture_runs_eagerly_on_request(fn):
    """With on_unsupported="eager" such code gives what it gives."""
    graphed_fn = graphed(on_unsupported="eager")(fn)
    for _ in range(4):
        x = normal(100)
        assert same_bits(fn(x), graphed_fn(x))
    info = graphed_fn.cache_info()
    assert info.hits + info.eager_calls == 3


@pytest.mark.parametrize("fails", ["once", "always"])
def test_another_thread_invalidates_the_capture(fails):
    """A capture that another thread invalidates is repeated or given up; the result is right."""
    numbers = itertools.count()

    def disturb(stream):
        try:
            runtime.streamQuery(stream)
        except runtime.CUDARuntimeError:
            pass  # it says that the stream is capturing; that is the point

    def fn(x):
        y = x * 2
        if fails == "always" or next(numbers) == 1:
            stream = cp.cuda.get_current_stream().ptr
            thread = threading.Thread(target=disturb, args=(stream,))
            thread.start()
            thread.join()
        return y + 1

    graphed_fn = graphed(on_unsupported="eager")(fn)
    for _ in range(4):
        x = normal(50)
        assert same_bits(graphed_fn(x), x * 2 + 1)
    check_libraries()


# -- threads


def test_other_threads_work_during_captures():
    """Captures succeed while other threads allocate, copy, launch and wait."""
    stop = threading.Event()

    def disturb(_):
        with cp.cuda.Stream(non_blocking=True) as stream:
            while not stop.is_set():
                a = cp.asarray(np.arange(1000.0))
                b = (a * 2).get()
                assert b[-1] == 1998
                cp.get_default_memory_pool().free_all_blocks()
                stream.synchronize()

    def capture(_):
        try:
            for k in range(30):
                fn = graphed(lambda x, k=k: chain(x) + cp.asarray(np.full(64, k, np.float32)))
                for _ in range(2):
                    x = normal(64)
                    assert same_bits(fn(x), chain(x) + k)
                assert hits(fn) == 1
        finally:
            stop.set()

    in_threads(4, lambda k: capture(k) if k == 0 else disturb(k))


def test_thirty_two_threads_call_one_function():
    """32 threads that call one function at once get their own results, from one capture."""
    fn = graphed(chain)

    def work(k):
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(20):
                x = cp.full(1000 + k % 2, k, np.float32)
                got, wanted = fn(x), chain(x)
                stream.synchronize()
                assert same_bits(got, wanted)

    in_threads(32, work)
    info = fn.cache_info()
    assert (info.misses, info.current_entries) == (2, 2)
    assert info.hits == 32 * 20 - 2


def test_threads_that_evict_each_others_graphs():
    """An entry that one thread evicts while another launches it still gives the right result."""
    fn = graphed(max_entries=2)(lambda x: x * 2 + 1)

    def work(k):
        with cp.cuda.Stream(non_blocking=True) as stream:
            for step in range(40):
                x = cp.full(10 + (k + step) % 4, k, np.float32)
                got = fn(x)
                stream.synchronize()
                assert got.tolist() == [2.0 * k + 1] * x.size

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", graphjit.CacheGrowthWarning)
        in_threads(8, work)


def test_a_cache_that_is_cleared_while_it_is_used():
    """cache_clear from another thread is never an error for a call."""
    fn = graphed(chain)
    stop = threading.Event()

    def work(k):
        if k == 0:
            while not stop.is_set():
                fn.cache_clear()
                stop.wait(0.001)
            return
        try:
            with cp.cuda.Stream(non_blocking=True) as stream:
                for _ in range(100):
                    x = cp.full(100, k, np.float32)
                    got = fn(x)
                    stream.synchronize()
                    assert same_bits(got, chain(x))
        finally:
            stop.set()

    in_threads(4, work)


def test_two_functions_captured_at_once():
    """Captures in several threads take turns, and each is right."""

    def work(k):
        with cp.cuda.Stream(non_blocking=True):
            fn = graphed(lambda x: cp.fft.fft(chain(x) * k))
            for _ in range(4):
                x = normal(64)
                assert same_bits(fn(x), cp.fft.fft(chain(x) * k))
            assert hits(fn) == 3

    in_threads(8, work)


# -- streams


def slow(x):
    for _ in range(50):
        x = cp.sin(x) * 1.01
    return x


def test_one_signature_on_two_streams_at_once():
    """One entry launched on two streams, one after the other without waiting: both right."""
    fn = graphed(slow)
    inputs = [normal(1 << 20) for _ in range(8)]
    expected = [slow(x) for x in inputs]
    fn(inputs[0])
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    cp.cuda.Device().synchronize()
    results = []
    for k, x in enumerate(inputs):
        with streams[k % 2]:
            results.append(fn(x))
    for stream in streams:
        stream.synchronize()
    assert same_bits(expected, results)
    assert hits(fn) == 8


def test_launches_are_ordered_by_the_callers_stream():
    """Work that was queued before a call is done before it, and later work comes after it."""
    fn = graphed(lambda x: x + 1)
    with cp.cuda.Stream(non_blocking=True) as stream:
        x = cp.zeros(1 << 20, np.float32)
        fn(x)
        for k in range(20):
            x[...] = slow(x * 0) + k
            y = fn(x)
            x[...] = -1
            stream.synchronize()
            assert float(y.min()) == float(y.max()) == k + 1


side = None


@pytest.fixture
def side_stream(monkeypatch):
    monkeypatch.setitem(globals(), "side", cp.cuda.Stream(non_blocking=True))
    yield side
    side.synchronize()


def forked_and_joined(x, y):
    main = cp.cuda.get_current_stream()
    side.wait_event(main.record())
    with side:
        b = slow(y)
    a = x * 2
    main.wait_event(side.record())
    return a + b


def forked_by_synchronising(x, y):
    cp.cuda.get_current_stream().synchronize()
    with side:
        b = slow(y)
        b += 1
    side.synchronize()
    return x + b


def forked_with_a_stream_of_its_own(x, y):
    main = cp.cuda.get_current_stream()
    own = cp.cuda.Stream(non_blocking=True)
    own.wait_event(main.record())
    with own:
        b = cp.sqrt(abs(y)) * 3
    main.wait_event(own.record())
    return x - b


def forked_twice(x, y):
    main = cp.cuda.get_current_stream()
    total = x
    for k in range(2):
        side.wait_event(main.record())
        with side:
            b = y * (k + 2)
        main.wait_event(side.record())
        total = total + b
    return total


outside_event = None


def with_events_of_the_caller(x, y):
    main = cp.cuda.get_current_stream()
    main.record(outside_event)
    side.wait_event(outside_event)
    with side:
        b = y * 5
        side.record(outside_event)
    main.wait_event(outside_event)
    return x + b


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize(
    "fn",
    [
        forked_and_joined,
        forked_by_synchronising,
        forked_twice,
        with_events_of_the_caller,
    ],
    ids=lambda fn: fn.__name__,
)
def test_work_on_two_streams(fn, patch, side_stream, monkeypatch):
    """Work that is forked to another stream and joined is a graph with branches."""
    monkeypatch.setitem(globals(), "outside_event", cp.cuda.Event(disable_timing=True))
    graphed_fn = graphed(patch=patch)(fn)
    kept = []
    for _ in range(5):
        kept.append((normal(3000), normal(3000)))
        cp.cuda.Device().synchronize()
        assert agrees(graphed_fn, fn, *kept[-1])
    assert hits(graphed_fn) == 4


def test_a_stream_made_inside_the_function():
    """A stream that lives only inside the function is a branch, or is refused with its line."""
    graphed_fn = graphed(forked_with_a_stream_of_its_own)
    for _ in range(3):
        x, y = normal(100), normal(100)
        got, refusal = result_or_refusal(graphed_fn, x, y)
        assert same_bits(got, forked_with_a_stream_of_its_own(x, y))
        assert refusal is None or __file__ in str(refusal)
    check_libraries()


def test_a_fork_that_is_not_joined(side_stream):
    """Forked work that is not joined is refused, and the error names the line of the fork."""

    def fn(x, y):
        side.wait_event(cp.cuda.get_current_stream().record())
        with side:  # the fork
            b = y * 2
        del b
        return x * 2

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.CaptureInvalidatedError, match="with side:  # the fork"):
        graphed_fn(normal(10), normal(10))
    assert n_entries(graphed_fn) == 0
    check_libraries()
    with side_stream:
        assert float(cp.ones(3).sum()) == 3


def test_another_stream_without_a_fork(side_stream):
    """Work on another stream that was never forked is part of the graph, or is refused."""

    def fn(x):
        cp.cuda.get_current_stream().synchronize()
        side.use()
        try:
            y = x * 3
        finally:
            cp.cuda.Stream.null.use()
        side.synchronize()
        return y

    graphed_fn = graphed(fn)
    for _ in range(3):
        x = normal(10)
        got, refusal = result_or_refusal(graphed_fn, x)
        assert same_bits(got, x * 3)
        assert refusal is None or __file__ in str(refusal)


_LEAVING = """
import cupy as cp
from graphjit import GraphjitError, graphed

side = cp.cuda.Stream(non_blocking=True)

def fn(x):
    cp.cuda.get_current_stream().synchronize()
    cp.cuda.runtime.memsetAsync(x.data.ptr, 0, x.nbytes, side.ptr)
    side.synchronize()
    return x + 1

graphed_fn = graphed(fn)
for _ in range(3):
    x = cp.full(10, 5, cp.float32)
    try:
        got = graphed_fn(x)
    except GraphjitError as error:
        got = error.eager_result
    assert got.tolist() == [1.0] * 10, got
"""


def test_library_work_that_leaves_the_capture():
    """Work that is queued on a stream outside the capture is not lost: right, or refused. In a
    process of its own, since the work may hit addresses that hold nothing.
    """
    done = run_python("-c", _LEAVING)
    assert done.returncode == 0, done.stderr


def test_a_function_that_launches_nothing():
    """A function without GPU work is served from the cache and returns what it returns."""
    for fn in (lambda x: x, lambda x: None, lambda x: x[1:], lambda x: x.shape):
        graphed_fn = graphed(fn)
        for _ in range(3):
            assert agrees(graphed_fn, fn, normal(6))
        assert hits(graphed_fn) == 2
        (entry,) = graphed_fn.cache_entries()
        assert sum(entry.nodes.values()) == 0


# -- captures inside captures


def test_a_graphed_function_inside_another():
    """An inner graphed function becomes part of the outer graph; called alone it has its own."""
    inner = graphed(lambda x: chain(x) * 2)

    @graphed
    def outer(x):
        return inner(x + 1) + inner(x)

    def plain(x):
        return chain(x + 1) * 2 + chain(x) * 2

    for _ in range(4):
        x = normal(20)
        assert same_bits(outer(x), plain(x))
        assert same_bits(inner(x), chain(x) * 2)
    assert hits(outer) == 3


def test_an_inner_function_that_depends_on_an_array_of_its_own():
    """What an inner graphed function reaches is seen by the outer one."""

    class Layer:
        def __init__(self):
            self.w = normal(6)

        @graphed
        def forward(self, x):
            return x * self.w

    layers = [Layer(), Layer()]

    @graphed
    def network(x):
        for layer in layers:
            x = layer.forward(x)
        return x

    for _ in range(4):
        x = normal(6)
        assert same_bits(network(x), x * layers[0].w * layers[1].w)
        layers[1].w = normal(6)
    assert hits(network) >= 2


def test_the_callers_stream_is_capturing():
    """In a capture of the caller's own, the function becomes part of that graph."""
    fn = graphed(lambda x, out: cp.multiply(x, 3, out=out))
    x, out = normal(50), cp.zeros(50, np.float32)
    fn(x, out)
    out[:] = 0
    n_hits = hits(fn)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        fn(x, out)
        graph = stream.end_capture()
        assert not float(out.any())
        graph.launch()
        stream.synchronize()
    assert same_bits(out, x * 3)
    assert hits(fn) == n_hits


def test_arguments_stay_alive_until_the_launch_is_done():
    """An argument that is deleted right after the call is not overwritten before it is read."""
    fn = graphed(slow)
    fn(normal(1 << 20))
    with cp.cuda.Stream(non_blocking=True) as stream:
        for _ in range(10):
            x = normal(1 << 20)
            expected = slow(x)
            got = fn(x)
            del x
            junk = [cp.full(1 << 20, cp.nan, np.float32) for _ in range(3)]
            stream.synchronize()
            assert same_bits(expected, got)
            del junk


def test_copies_of_arguments_are_made_where_they_are_needed():
    """The helper that copies arguments gives arrays of their own; the tests rely on it."""
    x = normal(5)
    (copied,) = copy_arrays((x,))
    assert copied.data.ptr != x.data.ptr
    assert same_bits(copied, x)


def test_waiting_for_an_event_orders_the_branches():
    """A wait for an event of the first stream orders work on a stream that was forked before."""
    side = cp.cuda.Stream(non_blocking=True)

    def fn(x):
        with side:
            a = x * 2
        b = x
        for _ in range(30):
            b = b * 1.01 + 0.5
        cp.cuda.get_current_stream().record().synchronize()
        with side:
            c = a + b
        side.synchronize()
        return c

    graphed_fn = graphed(fn)
    for _ in range(6):
        x = normal(1 << 20)
        cp.cuda.Device().synchronize()
        wanted = fn(x)
        cp.cuda.Device().synchronize()
        assert same_bits(graphed_fn(x), wanted)
    assert hits(graphed_fn) == 5


@pytest.mark.parametrize("switches", ["with", "use"])
def test_work_on_a_blocking_stream_is_ordered_with_the_legacy_stream(switches):
    """Without events, too: what stands before and behind a switch to a stream keeps its order."""
    blocking = cp.cuda.Stream()

    def plain(x):
        main = cp.cuda.get_current_stream()
        for _ in range(2):
            if switches == "with":
                with blocking:
                    y = chain(x)
            else:
                blocking.use()
                y = chain(x)
                main.use()
            x += y
        return y * x

    graphed_fn = graphed(plain)
    for _ in range(4):
        assert agrees(graphed_fn, plain, normal(1 << 20))
    assert hits(graphed_fn) == 3
