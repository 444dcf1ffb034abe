"""What a captured function does with the host, on the GPU: calls, page-locked memory, events."""

import threading
import time

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, normal, same_bits
from helpers.processes import run_python

import graphjit
from graphjit import HostCallbackError, PinnedArray, graphed, host_callback


@graphed
def inner(x, log):
    host_callback(log, "inner", x[::2])
    return x * 2


def logged(x, w, log):
    y = x @ w
    host_callback(log, "y", {"y": y, "n": 3})
    y += 1
    z = inner(y, log)
    side = cp.cuda.Stream(non_blocking=True)
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        host_callback(log, "side", z.T)
        v = z - 1
    side.synchronize()
    return v


@pytest.mark.parametrize("patch", ["host", "device"])
def test_every_launch_calls(patch):
    """The functions are given copies of the contents at their places."""
    seen = []

    def log(name, values):
        values = values["y"] if isinstance(values, dict) else values
        seen.append((name, values.tobytes()))

    call = graphed(patch=patch)(logged)
    for _ in range(6):
        x, w = normal(5, 5), normal(5, 5)
        assert agrees(call, logged, x, w, log)
        cp.cuda.Device().synchronize()
        assert len(seen) == 6
        assert sorted(seen[:3]) == sorted(seen[3:])
        assert [name for name, _ in seen[3:]][:2] == ["y", "inner"]
        seen.clear()
    assert call.cache_info()[:2] == (5, 1)
    assert call.cache_entries()[0].nodes["host"] == 3


def test_the_caller_goes_on():
    """A launch does not wait for a function, nor do other threads; waiting lets it run."""
    order, is_released, may_run = [], [], threading.Event()

    def slow(x):
        is_released.append(may_run.wait(60))
        order.append(float(x[0]))

    @graphed
    def fn(x):
        host_callback(slow, x)
        return x + 1

    def waited(x):
        fn(x)
        cp.cuda.get_current_stream().synchronize()

    may_run.set()
    fn(normal(3))
    order.clear()
    may_run.clear()
    results = [fn(cp.full(3, k, "f4")) for k in range(3)]
    assert order == []
    may_run.set()
    graphjit.synchronize()
    assert order == [0, 1, 2]
    assert all(is_released)
    assert [float(r[0]) for r in results] == [1, 2, 3]
    threads = [threading.Thread(target=waited, args=(cp.full(3, k, "f4"),)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(order[3:]) == [0, 1, 2]


def test_launches_pile_up_behind_a_function():
    """A full queue blocks the caller without the GIL, which the function needs."""
    done = threading.Event()

    @graphed
    def slow(x):
        host_callback(lambda _: (time.sleep(0.5), done.set()), x)
        return x + 1

    @graphed
    def quick(x):
        return x * 2

    @graphed
    def of_library(x):
        return cp.fft.fft(x)

    @graphed
    def of_library_too(x):
        return cp.fft.fft(x) + 1

    x = normal(64)
    for fn in (slow, quick, of_library, of_library_too):
        for _ in range(3):
            fn(x)
    cp.cuda.Device().synchronize()
    done.clear()
    slow(x)
    for _ in range(3000):
        quick(x)
        of_library(x)
    assert done.wait(30)
    cp.cuda.Device().synchronize()


def test_eviction_while_a_function_is_to_be_called():
    """The launch is carried out to its end; destroying the graph waits for it."""
    seen = []

    def slow(x):
        time.sleep(0.1)
        seen.append(x.copy())

    @graphed
    def fn(x):
        host_callback(slow, x)
        return x + 1

    x = normal(3)
    fn(x)
    fn(x)
    fn.cache_clear()
    assert len(seen) == 2
    assert same_bits(cp.asarray(seen[1]), x)


def test_exceptions_are_reported_later():
    """What a function raises comes at the next synchronisation point."""

    def check(x):
        if x[0] < 0:
            raise ValueError("negative")

    @graphed
    def fn(x):
        host_callback(check, x)
        return x * 2

    bad = cp.full(3, -1.0)
    fn(-bad)
    assert same_bits(fn(bad), bad * 2)
    with pytest.raises(HostCallbackError, match="negative") as caught:
        graphjit.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    graphjit.synchronize()


AT_EXIT = """
import time
import cupy as cp
from graphjit import graphed, host_callback

@graphed
def fn(x):
    host_callback(lambda a: (time.sleep(0.3), print("called", float(a[0]), flush=True)), x)
    return x + 1

fn(cp.full(3, 1.0))
fn(cp.full(3, 2.0))
"""


def test_the_end_of_the_process():
    """A launch in flight is carried out, and the process ends."""
    done = run_python("-c", AT_EXIT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["called 1.0", "called 2.0"]


def test_pinned_memory():
    """Copies in both directions are made by every launch."""
    given, out = PinnedArray((4, 3), "f4"), PinnedArray((3, 4), "f4")

    def fn(x):
        y = x * given.to_device()
        out.copy_from(y.T)
        return y + 1

    call = graphed(fn)
    for _ in range(4):
        given.host[...] = np.random.default_rng().standard_normal((4, 3))
        x = normal(4, 3)
        expected = fn(x)
        cp.cuda.Device().synchronize()
        wanted = out.host.copy()
        out.host[...] = np.nan
        assert same_bits(call(x), expected)
        graphjit.synchronize()
        assert out.host.tobytes() == wanted.tobytes()
    assert call.cache_info()[:2] == (3, 1)


@pytest.mark.parametrize("direction", ["to the device", "to the host"])
def test_host_memory_that_nobody_vouches_for(direction):
    """A copy that a program records by itself is refused: a library may recycle such a block."""
    pinned = cp.cuda.alloc_pinned_memory(64)
    ptr, runtime = int(pinned.ptr), cp.cuda.runtime

    def fn(x):
        y, stream = cp.empty_like(x), cp.cuda.get_current_stream().ptr
        if direction == "to the device":
            runtime.memcpyAsync(y.data.ptr, ptr, 64, runtime.memcpyHostToDevice, stream)
        else:
            runtime.memcpyAsync(ptr, x.data.ptr, 64, runtime.memcpyDeviceToHost, stream)
        return x + 1

    with pytest.raises(graphjit.UnsupportedNodeError, match=r"host memory; use .*PinnedArray"):
        graphed(fn)(normal(16))


def test_events():
    """An event recorded by a graph is waited for and timed outside, one of outside inside."""
    start, end, ready = cp.cuda.Event(), cp.cuda.Event(), cp.cuda.Event(disable_timing=True)
    side = cp.cuda.Stream(non_blocking=True)
    out = PinnedArray(3, "f4")

    @graphed
    def fn(x):
        graphjit.wait_event(ready)
        graphjit.record_event(start)
        for _ in range(50):
            x = x * 2 - x
        graphjit.record_event(end)
        return x

    for _ in range(4):
        ready.record(side)
        x = normal(1 << 20)
        got = fn(x)
        side.wait_event(end)
        with side:
            out.copy_from(got[:3])
        end.synchronize()
        assert cp.cuda.get_elapsed_time(start, end) > 0.01
        side.synchronize()
        assert out.host.tobytes() == got[:3].get().tobytes()
    assert fn.cache_info()[:2] == (3, 1)
    assert fn.cache_entries()[0].nodes["event"] == 3
