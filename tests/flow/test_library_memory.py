"""Graphs that work in one memory of a library: their launches take turns on all streams."""

import gc
import threading

import pytest
from helpers.flow_checks import agrees, in_threads, normal

import graphjit
from graphjit import graphed
from graphjit._adapters import simulated_device as device
from graphjit.testing import simulated as xp


@pytest.fixture
def work_area():
    """Memory of a library, of which no array is known."""
    driver = device.driver()
    ptr = driver.mem_alloc(64)
    driver.memcpy_htod(ptr, bytes(64))
    yield ptr
    gc.collect()
    driver.mem_free(ptr)


@xp.kernel(params=["pointer", "pointer", "uint64", "int64"])
def through_area(memory, out_ptr, x_ptr, area_ptr, n):
    """Compute by way of the work area."""
    area = memory.array(area_ptr, (n,), "float64")
    area[...] = memory.array(x_ptr, (n,), "float64")
    memory.array(out_ptr, (n,), "float64")[...] = area * 2


def make(area, offset):
    @graphed
    def fn(x):
        out = xp.empty(x.shape)
        through_area(out, x, area, 4)
        return out + offset

    return fn


class Calls:
    """The calls that launches make of the driver, in their order."""

    def __init__(self, monkeypatch):
        self.seen = []
        for name in ("graph_launch", "stream_wait_event", "event_record"):
            original = getattr(device.driver(), name)
            monkeypatch.setattr(device.driver(), name, self.noting(name, original))

    def noting(self, name, original):
        def call(*args):
            self.seen.append((name, *map(int, args if name != "graph_launch" else args[1:])))
            return original(*args)

        return call

    def of(self, fn, x, stream):
        with stream:
            fn(x)
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def test_one_graph_needs_no_events(calls, work_area):
    """The driver orders the launches of one graph exec by itself."""
    fn = make(work_area, 1)
    fn(normal(4))
    (entry,) = fn.cache_entries()
    assert [(e.device_ptr, e.holder) for e in entry.externals] == [(work_area, "a library")]
    stream = xp.Stream()
    assert calls.of(fn, normal(4), stream) == [("graph_launch", stream.handle)]


def test_two_graphs_take_turns(calls, work_area):
    """Each launch of either waits for the last launch of any, and notes its own."""
    first, second = make(work_area, 1), make(work_area, 2)
    first(normal(4))
    second(normal(4))
    streams = xp.Stream(), xp.Stream()
    events = set()
    for fn in (first, second, first):
        for stream in streams:
            wait, launch, record = calls.of(fn, normal(4), stream)
            assert wait[0] == "stream_wait_event"
            assert record[0] == "event_record"
            assert launch == ("graph_launch", stream.handle)
            assert (wait[1], record[2]) == (stream.handle, stream.handle)
            events |= {wait[2], record[1]}
    assert len(events) == 1


def test_others_are_left_alone(calls, work_area):
    """Graphs that work in other memory, or in none, do not wait."""
    first, second = make(work_area, 1), make(work_area, 2)
    plain = graphed(lambda x: x * 3)
    driver = device.driver()
    other_area = driver.mem_alloc(64)
    other = make(other_area, 3)
    for fn in (first, second, plain, other):
        fn(normal(4))
    for fn in (plain, other):
        assert [name for name, *_ in calls.of(fn, normal(4), xp.Stream())] == ["graph_launch"]
    other.cache_clear()
    gc.collect()
    driver.mem_free(other_area)


def test_arrays_of_a_block_are_the_users(calls, work_area):
    """What blocks share by arrays is ordered by who launches them, as in eager code."""
    w = normal(3)
    blocks = []
    for _ in range(2):
        with graphjit.capture(inputs={"x": normal(3)}) as block:
            block.outputs = block.inputs["x"] * w
        blocks.append(block)
    for block in blocks:
        seen = calls.of(lambda x, block=block: block.launch(x=x), normal(3), xp.Stream())
        assert [name for name, *_ in seen] == ["graph_launch"]
        block.close()


def test_results_are_right(work_area):
    """Threads that call several such functions get what the eager calls give."""
    fns = [make(work_area, k) for k in range(4)]
    for fn in fns:
        fn(normal(4))

    def work(k):
        with xp.Stream():
            for _ in range(20):
                assert agrees(fns[k], lambda x: x * 2 + k, normal(4))

    in_threads(4, work)


def test_events_go_with_the_graphs(work_area):
    """Nothing is kept of memory in which no graph works any more."""
    streams = device.driver()
    n_events = len(streams._events)
    fns = [make(work_area, k) for k in range(3)]
    for fn in fns:
        fn(normal(4))
    assert len(streams._events) == n_events + 1
    fns[0].cache_clear()
    assert agrees(fns[1], lambda x: x * 2 + 1, normal(4))
    del fns, fn
    gc.collect()
    assert len(streams._events) == n_events


def test_a_failure_leaves_nothing(monkeypatch, work_area):
    """If there is no event to be had, the second function has no entry, and the first works."""
    first, second = make(work_area, 1), make(work_area, 2)
    first(normal(4))

    def no_event():
        raise graphjit.DriverError("cuEventCreate", "CUDA_ERROR_OUT_OF_MEMORY", 2)

    monkeypatch.setattr(device.driver(), "event_create", no_event)
    with pytest.raises(graphjit.DriverError, match="cuEventCreate"):
        second(normal(4))
    assert second.cache_info().current_entries == 0
    monkeypatch.undo()
    assert agrees(first, lambda x: x * 2 + 1, normal(4))
    second(normal(4))
    assert agrees(second, lambda x: x * 2 + 2, normal(4))


def test_a_second_graph_appears_while_the_first_is_launched(work_area):
    """Registering waits for launches in progress, and those after it take turns."""
    first = make(work_area, 1)
    first(normal(4))
    stop = threading.Event()

    def work(k):
        if k:
            for offset in range(10):
                second = make(work_area, offset)
                second(normal(4))
                assert agrees(second, lambda x, offset=offset: x * 2 + offset, normal(4))
            stop.set()
        else:
            while not stop.is_set():
                assert agrees(first, lambda x: x * 2 + 1, normal(4))

    in_threads(2, work)
