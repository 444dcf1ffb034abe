"""Captured graphs that are launched in a capture, on the GPU."""

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, check_libraries, normal, poison_free_memory, same_bits

import graphjit
from graphjit import Graph, graphed
from graphjit.control import cond, fori_loop

TABLE = np.arange(1.0, 7, dtype=np.float32)
SCALE = cp.RawKernel(
    r"""extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * a;
    }""",
    "scale",
)


def scaled(x, a):
    y = cp.empty_like(x)
    SCALE((1,), (64,), (x, y, np.float32(a), x.size))
    return y


def fan(x, w, k=1.0):
    """Ufuncs, a raw kernel, a product, a reduction."""
    a = x + np.float32(k)
    b = scaled(cp.sin(a), 0.5)
    c = w @ a
    return b - c / abs(c).max(), a


def make_graph(k=1.0):
    graph = Graph(inputs={"x": normal(6, 6), "w": normal(6, 6)})
    a = graph.add(lambda x: x + np.float32(k), graph.inputs["x"])
    b = graph.add(lambda a: scaled(cp.sin(a), 0.5), a.result)
    c = graph.add(lambda a, w: w @ a, a.result, graph.inputs["w"])
    d = graph.add(lambda b, c: b - c / abs(c).max(), b.result, c.result)
    graph.outputs = d.result, a.result
    return graph


def make_block(k=1.0):
    with graphjit.capture(inputs={"x": normal(6, 6), "w": normal(6, 6)}) as block:
        block.outputs = fan(block.inputs["x"], block.inputs["w"], k)
    return block


@pytest.fixture(params=["host", "device"])
def patch(request):
    return request.param


@pytest.fixture(params=["graph", "block"])
def inner(request):
    fan(normal(6, 6), normal(6, 6))  # compiles the kernels
    made = {"graph": make_graph, "block": make_block}[request.param]()
    yield made
    made.close()


def test_in_a_graphed_function(inner, patch):
    """Two launches in a function, on poisoned memory, with work in place behind them."""

    def eager(x, w, y, run=fan):
        first, a = run(x * 2, w)
        second, _ = run(first, w)
        y += a
        return second + 1, first

    outer = graphed(patch=patch)(
        lambda x, w, y: eager(x, w, y, lambda x, w: inner.launch(x=x, w=w))
    )
    for _ in range(6):
        assert agrees(outer, eager, normal(6, 6), normal(6, 6), normal(6, 6))
    assert outer.cache_info()[:2] == (5, 1)
    check_libraries()


def test_the_inner_graph_is_closed(inner, patch):
    """What the graph around it needs of it lives on; its own launches go on beside it."""
    outer = graphed(patch=patch)(lambda x, w: inner.launch(x=x, w=w)[0] * 2)
    for _ in range(3):
        x, w = normal(6, 6), normal(6, 6)
        assert same_bits(outer(x, w), fan(x, w)[0] * 2)
        assert same_bits(inner.launch(x=x, w=w), fan(x, w))
    inner.close()
    cp.get_default_memory_pool().free_all_blocks()
    poison_free_memory()
    for _ in range(3):
        x, w = normal(6, 6), normal(6, 6)
        assert same_bits(outer(x, w), fan(x, w)[0] * 2)
    assert outer.cache_info().hits == 5


def test_in_a_block_and_in_a_graph(inner):
    """A graph in a graph, in a block."""
    graph = Graph(inputs={"x": normal(6, 6), "w": normal(6, 6)})
    a = graph.add(inner.launch, x=graph.inputs["x"], w=graph.inputs["w"])
    b = graph.add(lambda v: v * 3, graph.inputs["x"])
    graph.outputs = graph.add(cp.subtract, a.result[0], b.result).result
    with graphjit.capture(inputs={"x": normal(6, 6), "w": normal(6, 6)}) as block:
        block.outputs = graph.launch(x=block.inputs["x"] + 1, w=block.inputs["w"])
    for _ in range(4):
        x, w = normal(6, 6), normal(6, 6)
        poison_free_memory()
        assert same_bits(graph.launch(x=x, w=w), fan(x, w)[0] - x * 3)
        assert same_bits(block.launch(x=x, w=w), fan(x + 1, w)[0] - (x + 1) * 3)
    block.close()
    graph.close()


def test_a_loaded_graph(tmp_path, patch):
    """Its code travels along, and lives as long as any graph that has kernels of it."""

    def fn(x, k):
        return scaled(x, k) + cp.asarray(TABLE)

    call = graphed(fn)
    call(normal(6), 2.0)
    call.export(tmp_path / "fn.graph", normal(6), 2.0)
    loaded = graphjit.load(tmp_path / "fn.graph")
    outer = graphed(patch=patch)(lambda x: loaded.launch(x=x + 1) * 2)
    outer(normal(6))
    loaded.close()
    for _ in range(4):
        x = normal(6)
        assert same_bits(outer(x), fn(x + 1, 2.0) * 2)
    outer.cache_clear()


def test_random_numbers():
    """A launch inside draws what the eager sequence draws at its place."""
    rng, other = (
        (cp.random.default_rng(5), cp.random.RandomState(5)),
        (
            cp.random.default_rng(5),
            cp.random.RandomState(5),
        ),
    )

    def draw(rng, x):
        return x + rng[0].random(6, dtype=np.float32), rng[1].standard_normal(4)

    draw((cp.random.default_rng(1), cp.random.RandomState(1)), normal(6))
    with graphjit.capture(inputs={"x": normal(6)}) as block:
        block.outputs = draw(rng, block.inputs["x"])

    def around(rng, x, run):
        first = rng[1].random_sample(3)
        return first, run(x), rng[0].standard_normal(2), run(x * 2)

    outer = graphed(lambda x: around(rng, x, lambda v: block.launch(x=v)))
    for _ in range(4):
        x = normal(6)
        assert same_bits(outer(x), around(other, x, lambda v: draw(other, v)))
    assert outer.cache_info().hits == 3
    block.close()


def test_host_functions_on_two_streams():
    """The inner graph and the one around it share page-locked memory, and take turns."""
    seen, expected = [], []
    inner = Graph(inputs={"x": normal(1000)})
    inner.add(lambda v: graphjit.host_callback(lambda h: seen.append(h), v), inner.inputs["x"])
    inner.outputs = inner.add(lambda v: v * 2, inner.inputs["x"]).result
    outer = graphed(lambda x: inner.launch(x=x + 1))
    outer(normal(1000))
    cp.cuda.Device().synchronize()
    seen.clear()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    for _ in range(30):
        x = normal(1000)
        cp.cuda.Device().synchronize()
        with streams[0]:
            inner.launch(x=x)
        with streams[1]:
            outer(x)
        expected += [x.get().tobytes(), (x + 1).get().tobytes()]
    cp.cuda.Device().synchronize()
    graphjit.synchronize()
    assert sorted(h.tobytes() for h in seen) == sorted(expected)
    inner.close()


@pytest.mark.conditional
def test_in_branches_and_loops(inner, patch):
    """A body may launch a graph."""

    def flow(run):
        def fn(x, w, n):
            y = cond(x.sum() > 0, lambda: run(x, w)[0], lambda: x * 2)
            return fori_loop(0, n, lambda i, v: run(v * np.float32(0.1), w)[1], y)

        return fn

    outer = graphed(patch=patch)(flow(lambda x, w: inner.launch(x=x, w=w)))
    for n in (0, 1, 3):
        for sign in (-1, 1):
            x = abs(normal(6, 6)) * np.float32(sign)
            assert agrees(outer, flow(fan), x, normal(6, 6), cp.asarray(n))
    assert outer.cache_info().misses == 1
