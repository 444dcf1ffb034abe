"""Graphs put together by hand, on the GPU."""

import contextlib
import statistics

import cupy as cp
import pytest
from helpers.gpu_checks import normal, same_bits

import graphjit
from graphjit import Graph

SPIN = cp.RawKernel(
    """extern "C" __global__ void spin(float* x, long long cycles) {
        long long begin = clock64();
        while (clock64() - begin < cycles) {}
        x[0] += 1;
    }""",
    "spin",
)


@pytest.mark.parametrize("patch", ["host", "device"])
def test_a_diamond(patch):
    """A -> B, A -> C, B + C -> D, with libraries in the branches."""

    def both(x, w):
        a = x + 1
        return cp.sort(a @ w, axis=0) - cp.fft.fft(a).real.astype(a.dtype), a

    graph = Graph(inputs={"x": normal(8, 8), "w": normal(8, 8)}, patch=patch)
    a = graph.add(lambda x: x + 1, graph.inputs["x"])
    b = graph.add(lambda a, w: a @ w, a.result, graph.inputs["w"])
    c = graph.add(lambda a: cp.fft.fft(a).real.astype(a.dtype), a.result)
    d = graph.add(lambda b, c: cp.sort(b, axis=0) - c, b.result, c.result)
    graph.outputs = d.result, a.result
    for _ in range(6):
        x, w = normal(8, 8), normal(8, 8)
        assert same_bits(graph.launch(x=x, w=w), both(x, w))


def test_branches_run_at_the_same_time():
    """Two branches take as long as one of them; in an order they take as long as both."""

    def make(is_ordered):
        graph = Graph(inputs={"x": cp.zeros(1, "f4"), "y": cp.zeros(1, "f4")})
        a = graph.add(lambda v: SPIN((1,), (1,), (v, 2_000_000)), graph.inputs["x"])
        after = [a] if is_ordered else ()
        graph.add(lambda v: SPIN((1,), (1,), (v, 2_000_000)), graph.inputs["y"], after=after)
        return graph

    def seconds(graph):
        times = []
        for _ in range(15):
            x, y = cp.zeros(1, "f4"), cp.zeros(1, "f4")
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            graph.launch(x=x, y=y)
            end.record()
            end.synchronize()
            assert float(x[0]) == float(y[0]) == 1
            times.append(cp.cuda.get_elapsed_time(begin, end))
        return statistics.median(times)

    ratio = seconds(make(True)) / seconds(make(False))
    assert ratio > 1.7


def test_library_memory_in_two_branches_is_refused_or_apart():
    """Two products may run at once only if their workspaces are apart; the results are right."""
    graph = Graph(inputs={"x": normal(64, 64), "y": normal(64, 64)})
    b = graph.add(lambda v: v @ v, graph.inputs["x"])
    c = graph.add(lambda v: v @ v, graph.inputs["y"])
    graph.outputs = b.result, c.result
    x, y = normal(64, 64), normal(64, 64)
    with contextlib.suppress(graphjit.CaptureError):
        graph.launch(x=x, y=y)
        for _ in range(10):
            x, y = normal(64, 64), normal(64, 64)
            assert same_bits(graph.launch(x=x, y=y), (x @ x, y @ y))
