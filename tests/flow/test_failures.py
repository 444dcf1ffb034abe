"""Errors, threads and streams: the first error comes out, and nothing is broken or lost."""

import concurrent.futures
import gc
import itertools
import weakref

import pytest
from helpers.flow_checks import agrees, counted, held_on_device, in_threads, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit._adapters import simulated_device as device
from graphjit.testing import SimulatedDriver
from graphjit.testing import simulated as xp


class MarkedError(Exception):
    pass


# -- exceptions


def test_an_exception_in_the_eager_call_is_the_users_own():
    """Nothing is captured, cached or wrapped."""

    def fn(x):
        raise MarkedError(x.shape)

    graphed_fn = graphed(fn)
    with pytest.raises(MarkedError) as caught:
        graphed_fn(normal(3))
    assert not hasattr(caught.value, "__notes__")
    assert graphed_fn.cache_info().current_entries == 0


def test_fifty_exceptions_under_capture():
    """No leak, nothing cached, and the next capture on the same stream works."""
    runs = itertools.count()

    def fn(x):
        y = xp.asarray([1.0, 2.0, 3.0]) + x
        if next(runs) % 2:
            raise MarkedError("under capture")
        return y

    graphed_fn = graphed(fn)
    with pytest.raises(MarkedError):
        graphed_fn(normal(3))
    gc.collect()
    before = held_on_device()
    for _ in range(49):
        with pytest.raises(MarkedError, match="under capture"):
            graphed_fn(normal(3))
    gc.collect()
    assert held_on_device() == before
    assert graphed_fn.cache_info().current_entries == 0
    assert agrees(graphed(lambda x: x * 2), lambda x: x * 2, normal(3))


def test_an_interrupt_under_capture():
    """KeyboardInterrupt, too, leaves the stream usable and the collector on."""
    runs = itertools.count()

    def fn(x):
        if next(runs) == 1:
            raise KeyboardInterrupt
        return x + 1

    graphed_fn = graphed(fn)
    with pytest.raises(KeyboardInterrupt):
        graphed_fn(normal(3))
    assert gc.isenabled()
    assert agrees(graphed_fn, lambda x: x + 1, normal(3))
    assert graphed_fn.cache_info().current_entries == 1


def test_out_of_memory_leaves_the_cache_intact(monkeypatch):
    """A call that the device has no room for fails; the next one is a hit again."""
    fn = graphed(lambda x: xp.broadcast_to(x, (1000, 1000)) + 1)
    x = normal(1000)
    fn(x)
    fn(x)
    memory = device.driver().memory
    held = xp.empty((1000, 1000))  # takes the free block of the last result
    with monkeypatch.context() as patched:
        patched.setattr(memory, "capacity", memory.live_nbytes + 1000)
        with pytest.raises(graphjit.DriverError, match="OUT_OF_MEMORY"):
            fn(x)
    assert fn.cache_info().current_entries == 1
    assert same_bits(fn(x), xp.broadcast_to(x, (1000, 1000)) + 1)
    assert held.size == 1_000_000


def test_out_of_memory_while_capturing(monkeypatch):
    """A constant that finds no room: nothing is kept, and the next call captures."""
    memory = device.driver().memory
    runs = itertools.count()

    def fn(x):
        if next(runs) == 1:
            monkeypatch.setattr(memory, "capacity", memory.live_nbytes)
        return x + xp.asarray([1.0, 2.0, 3.0])

    graphed_fn = graphed(fn)
    capacity = memory.capacity
    with pytest.raises(graphjit.DriverError, match="OUT_OF_MEMORY"):
        graphed_fn(normal(3))
    monkeypatch.setattr(memory, "capacity", capacity)
    assert graphed_fn.cache_info().current_entries == 0
    assert agrees(graphed_fn, lambda x: x + xp.asarray([1.0, 2.0, 3.0]), normal(3))


def test_a_failed_driver_call_at_instantiation(monkeypatch):
    """Whatever fails while the graph is built: nothing is left, and the next call captures."""
    driver = device.driver()
    fn = graphed(patch="device")(lambda x: x + xp.asarray([1.0, 2.0, 3.0]))
    for name in (
        "graph_create",
        "graph_add_kernel_node",
        "graph_add_dependencies",
        "graph_node_make_device_updatable",
        "graph_instantiate",
        "graph_upload",
    ):
        gc.collect()
        before = held_on_device()
        with monkeypatch.context() as patched:

            def fail(*_, name=name, **__):
                raise graphjit.DriverError(name, "CUDA_ERROR_UNKNOWN", 999)

            patched.setattr(driver, name, fail)
            with pytest.raises(graphjit.DriverError, match=name):
                fn(normal(3))
        gc.collect()
        assert held_on_device() == before, name
    assert agrees(fn, lambda x: x + xp.asarray([1.0, 2.0, 3.0]), normal(3))


def test_a_failed_patch_is_repeated(monkeypatch, patch):
    """After a patch that failed half way, the next call writes every address again."""

    def fn(x, y):
        return x + 1, y * 2, x - y

    graphed_fn = graphed(patch=patch)(fn)
    held = [(normal(3), normal(3)) for _ in range(3)]
    graphed_fn(*held[0])
    graphed_fn(*held[0])
    driver, calls = device.driver(), itertools.count()
    set_params = driver.graph_exec_kernel_node_set_params

    def fail_second(*args):
        if next(calls) == (1 if patch == "host" else 0):
            raise graphjit.DriverError("cuGraphExecKernelNodeSetParams", "CUDA_ERROR_UNKNOWN", 999)
        set_params(*args)

    monkeypatch.setattr(driver, "graph_exec_kernel_node_set_params", fail_second)
    with pytest.raises(graphjit.DriverError, match="SetParams"):
        graphed_fn(*held[1])
    for x, y in (held[0], held[1], held[2]):
        assert agrees(graphed_fn, fn, x, y)


def test_an_illegal_address_in_a_launch():
    """A kernel that runs past its array is CUDA's error; the next call works."""

    @xp.kernel(params=["pointer", "pointer"])
    def write(memory, out_ptr, n_ptr):
        n = int(memory.array(n_ptr, (), "i8"))
        memory.array(out_ptr, (n,), "f8")[...] = 1

    def fn(x, n):
        write(x, n)
        return x

    graphed_fn = graphed(fn)
    graphed_fn(xp.zeros(4), xp.asarray(4))
    with pytest.raises(graphjit.DriverError, match="ILLEGAL_ADDRESS"):
        graphed_fn(xp.zeros(4), xp.asarray(4000))
    assert graphed_fn(xp.zeros(4), xp.asarray(3)).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert graphed_fn.cache_info()[:2] == (2, 1)


# -- threads


def test_thirty_two_threads_call_one_function(patch):
    """Each gets its own result; one capture is made."""
    fn = graphed(patch=patch)(lambda x, y: (x * y + xp.sin(x)).sum(axis=0))

    def work(k):
        for _ in range(10):
            x, y = xp.full((3, 4), float(k)), xp.full((3, 4), 2.0)
            assert same_bits(fn(x, y), (x * y + xp.sin(x)).sum(axis=0))

    in_threads(32, work)
    assert fn.cache_info()[:2] == (319, 1)


def test_threads_capture_different_functions_at_once():
    """Captures of several threads, and eager work beside them, do not disturb each other."""
    functions = [graphed(lambda x, k=k: xp.sin(x * k) + xp.asarray([k, k + 1.0])) for k in range(8)]

    def work(k):
        if k >= 8:
            for _ in range(30):
                assert float((xp.ones(5) + k).sum()) == 5 * (k + 1)
            return
        for _ in range(5):
            x = xp.full(2, float(k))
            assert same_bits(functions[k](x), functions[k].eager(x))

    in_threads(12, work)


def test_a_thread_evicts_while_others_launch():
    """Clearing the cache while other threads call never breaks a call."""
    fn = graphed(lambda x: x * 2 + 1)

    def work(k):
        for _ in range(20):
            if k == 0:
                fn.cache_clear()
            x = xp.full(3, float(k))
            assert same_bits(fn(x), x * 2 + 1)

    in_threads(6, work)


# -- nesting and foreign captures


def test_graphed_functions_inside_each_other():
    """The inner function becomes part of the outer graph: one launch."""
    inner = graphed(lambda x: xp.sin(x) * 2)

    def fn(x):
        return inner(x) + inner(x + 1)

    outer = graphed(fn)
    for _ in range(4):
        assert agrees(outer, fn, normal(4))
    x = normal(4)
    assert counted("graph_launches", lambda: outer(x)) == 1
    assert outer.cache_info()[:2] == (4, 1)


def test_a_caller_that_captures_already():
    """On a stream under capture the function is inlined; its own cache is not touched."""
    fn = graphed(lambda x: x * 2)
    x = normal(4)
    fn(x)
    driver, stream = device.driver(), xp.Stream(non_blocking=True)
    before = fn.cache_info()
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = fn(block.inputs["x"])
    assert same_bits(block.launch(x=x), x * 2)
    out = xp.empty(4)
    driver.stream_begin_capture(stream.handle, "relaxed")
    with stream:
        fn_out = fn(x)
        xp.copyto(out, fn_out)
    graph = driver.stream_end_capture(stream.handle)
    assert fn.cache_info() == before
    graph_exec = driver.graph_instantiate(graph)
    driver.graph_launch(graph_exec, stream.handle)
    assert same_bits(out, x * 2)
    driver.graph_exec_destroy(graph_exec)
    driver.graph_destroy(graph)
    block.close()


# -- streams


def test_fork_and_join():
    """Work on a side stream that is joined by an event is a branch of the graph."""
    side = xp.Stream(non_blocking=True)

    def fn(x):
        side.wait_event(xp.current_stream().record())
        with side:
            y = x * 2
        z = x + 1
        xp.current_stream().wait_event(side.record())
        return y + z

    graphed_fn = graphed(fn)
    for _ in range(5):
        assert agrees(graphed_fn, fn, normal(4))
    assert graphed_fn.cache_info().hits == 4


def test_a_fork_that_is_not_joined_is_named():
    """The error says which line forks, and the stream works afterwards."""
    side = xp.Stream(non_blocking=True)

    def fn(x):
        side.wait_event(xp.current_stream().record())
        with side:  # forks here
            x * 2
        return x + 1

    with pytest.raises(graphjit.CaptureInvalidatedError, match="does not join it") as caught:
        graphed(fn)(normal(4))
    assert "# forks here" in str(caught.value)
    assert agrees(graphed(lambda x: x * 2), lambda x: x * 2, normal(4))


def test_a_stream_outside_of_the_capture_is_refused():
    """Waiting for an event of before is not allowed in a graph."""
    side = xp.Stream(non_blocking=True)

    def fn(x):
        event = side.record() if not side.is_capturing() else None
        xp.current_stream().wait_event(event)
        return x + 1

    with pytest.raises(graphjit.CaptureInvalidatedError, match="STREAM_CAPTURE_ISOLATION"):
        graphed(fn)(normal(4))


@pytest.mark.parametrize(
    "call", [xp.synchronize, lambda: xp.Event().record().synchronize()], ids=["device", "event"]
)
def test_synchronising_is_refused_by_line(call):
    """A wait of the host invalidates the capture: the error names CUDA's reason and the line."""

    def fn(x):
        y = x + 1
        call()  # waits here
        return y

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.CaptureInvalidatedError, match="CAPTURE") as caught:
        graphed_fn(normal(4))
    assert "# waits here" in str(caught.value) or "test_failures.py" in str(caught.value)
    assert graphed_fn.cache_info().current_entries == 0


def test_a_swallowed_synchronisation_is_refused():
    """A function that catches the driver's error does not get a broken graph cached."""

    def fn(x):
        y = x + 1
        try:
            xp.synchronize()
        except graphjit.DriverError:
            pass
        return y * 2

    with pytest.raises(graphjit.CaptureInvalidatedError):
        graphed(fn)(normal(4))


# -- the garbage collector


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled):
    """On or off before, it is on or off after a call, refused or not."""
    good = graphed(lambda x: x + 1)
    refused = graphed(on_unsupported="eager")(lambda x: x + float(x.sum()))
    try:
        if not enabled:
            gc.disable()
        for fn in (good, refused):
            fn(normal(3))
            assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_old_graphs_in_cycles_are_collected_during_a_capture():
    """A graphed function in a dead cycle that dies during a capture frees its graphs."""
    others, gc.callbacks[:] = gc.callbacks[:], []  # other people's code would run in the function
    fn = graphed(lambda x: x + 1)
    fn(normal(3))
    cycle = {"fn": fn}
    cycle["self"] = cycle
    gone = weakref.ref(fn)
    del fn, cycle

    def collects(x):
        gc.collect()
        return x * 2

    try:
        assert agrees(graphed(collects), collects, normal(3))
    finally:
        gc.callbacks[:] = others
    assert gone() is None


def test_a_function_that_starts_threads_is_refused():
    """Threads of a captured function would work on stand-ins: they are not started."""

    def plain(x):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            left, right = pool.map(lambda k: x * k, (2.0, 3.0))
        return left + right

    with pytest.raises(graphjit.CaptureError, match="starts a thread"):
        graphed(plain)(normal(4))
    fn = graphed(on_unsupported="eager")(plain)
    for _ in range(3):
        assert agrees(fn, plain, normal(4))
    assert fn.cache_info().eager_calls == 2


def test_work_on_another_stream_is_ordered_as_by_the_legacy_stream():
    """Without events, too: what stands before and behind a ``with stream`` keeps its order."""
    side = xp.Stream()

    def plain(x):
        with side:
            y = x * 2
        x += y
        with side:
            y += x
        return y * x

    fn = graphed(plain)
    for _ in range(4):
        assert agrees(fn, plain, normal(6))
    assert fn.cache_info().hits == 3


def test_a_finaliser_that_calls_in_the_middle_of_a_launch(monkeypatch):
    """The inner call runs eagerly: it neither hangs nor disturbs the launch that it interrupts."""
    x, y = xp.asarray(normal(4)), xp.asarray(normal(4))
    fn = graphed(lambda a: a * 2 + 1)
    fn(x)
    inner = []
    launch = SimulatedDriver.graph_launch

    def interrupted(self, graph_exec, stream):
        if not inner:
            inner.append(fn(y))
        launch(self, graph_exec, stream)

    monkeypatch.setattr(SimulatedDriver, "graph_launch", interrupted)
    assert same_bits(fn(x), x * 2 + 1)
    assert same_bits(inner[0], y * 2 + 1)


def test_notes_of_refusals_are_bounded():
    """A number that changes at every call does not fill the memory with refusals."""
    fn = graphed(on_unsupported="eager")(lambda x, n: float(x.sum()) + n)
    x = xp.asarray(normal(2))
    cache = fn._self_state.cache
    for n in range(4100):
        cache.refuse(("key", n), "reads")
    assert len(cache._refused) == 4096
    assert fn(x, 1) == float(x.sum()) + 1


@graphed(dynamic="s")
def scaled(x, s):
    return x * (s + 1)  # a derived number: refused by itself


def test_the_refusal_of_an_inner_function_has_no_result_for_the_outer_one():
    """What the inner function returned must not be taken for the outer one's result."""

    @graphed(on_unsupported="eager")
    def outer(x):
        if float(x.sum()) < 1e9:
            x = x * 2
        return scaled(x, 2.0) + 1

    x = normal(3)
    with pytest.raises(graphjit.DynamicScalarError) as caught:
        scaled(x, 2.0)
    assert same_bits(caught.value.eager_result, x * 3.0)
    assert same_bits(outer(x), x * 2 * 3.0 + 1)  # the inner function was a plain one
    with pytest.raises(graphjit.DynamicScalarError) as caught:
        outer(x)
    assert caught.value.eager_result is None
    assert any("eager call of" in note and "outer" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("options", [{"verify": True}, {"verify": True, "on_unsupported": "split"}])
def test_verification_compares_with_the_plain_function(options):
    """Graphed functions that the verified one calls run as plain ones, as in its capture."""

    @graphed(**options)
    def outer(x):
        return scaled(x, 2.0) + 1

    for _ in range(3):
        assert agrees(outer, lambda x: x * 3.0 + 1, normal(3))
    assert outer.cache_info()[:2] == (2, 1)
