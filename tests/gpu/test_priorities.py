"""Streams of different priorities, on the GPU: a graph keeps the priority of each of its nodes."""

import statistics

import cupy as cp
import pytest
from helpers.gpu_checks import agrees, normal, same_bits
from helpers.priorities import priorities_of

import graphjit
from graphjit import graphed

SPIN = cp.RawKernel(
    """extern "C" __global__ void spin(float* x, long long cycles) {
        long long begin = clock64();
        while (clock64() - begin < cycles) {}
        if (threadIdx.x == 0 && blockIdx.x == 0) x[0] += 1;
    }""",
    "spin",
)


def forked(x, high):
    high.wait_event(cp.cuda.get_current_stream().record())
    with high:
        y = cp.sin(x)
    z = cp.cos(x)
    high.synchronize()
    return y + z


@pytest.mark.parametrize("patch", ["host", "device"])
def test_a_branch_keeps_its_priority(patch, tmp_path):
    """Its kernels have it, the others that of the caller's stream; in a file, too."""
    high = cp.cuda.Stream(non_blocking=True, priority=-3)
    call = graphed(patch=patch)(lambda x: forked(x, high))
    for _ in range(4):
        assert agrees(call, lambda x: forked(x, high), normal(100))
    assert priorities_of(call) == (True, [-3, 0, 0])
    x = normal(100)
    call.export(tmp_path / "graph", x)
    loaded = graphjit.load(tmp_path / "graph")
    assert same_bits(loaded.launch(x=x), forked(x, high))
    loaded.close()


def test_one_priority_is_that_of_the_launch():
    """Where all streams have the priority of the caller's, a launch goes by its own stream."""
    high = cp.cuda.Stream(non_blocking=True, priority=-2)
    call = graphed(lambda x: forked(x, high))
    with cp.cuda.Stream(non_blocking=True, priority=-2):
        for _ in range(3):
            call(normal(5))
    assert priorities_of(call) == (False, [-2, -2, -2])


def test_work_of_high_priority_overtakes():
    """A short kernel of high priority is done before the queue of a long one beside it."""
    high = cp.cuda.Stream(non_blocking=True, priority=-5)
    n_processors = cp.cuda.Device().attributes["MultiProcessorCount"]
    late, soon, end = (cp.cuda.Event() for _ in range(3))

    def both(x, y, stream):
        stream.wait_event(cp.cuda.get_current_stream().record())
        SPIN((n_processors * 40,), (1024,), (x, 200_000))
        with stream:
            SPIN((1,), (32,), (y, 20_000))
            SPIN((n_processors,), (1024,), (y, 20_000))
            graphjit.record_event(soon)
        graphjit.record_event(late)
        cp.cuda.get_current_stream().wait_event(stream.record())

    def lead(stream):
        call = graphed(lambda x, y: both(x, y, stream))
        times = []
        for _ in range(12):
            call(cp.zeros(1, "f4"), cp.zeros(1, "f4"))
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(soon, late))
        return statistics.median(times[2:])

    plain = lead(cp.cuda.Stream(non_blocking=True))
    assert lead(high) > max(2 * plain, 0.5)
