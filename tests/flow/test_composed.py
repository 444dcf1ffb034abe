"""Captured graphs that are launched in a capture: each launch is a child graph there."""

import gc
import threading

import numpy as np
import pytest
from helpers.flow_checks import agrees, counted, held_on_device, normal, same_bits

import graphjit
from graphjit import CaptureError, Graph, SignatureError, graphed
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, fori_loop
from graphjit.testing import simulated as xp

TABLE = np.arange(1.0, 6)


def fan(x, k=1.0):
    """What the graphs below do, without a graph."""
    a = x + k
    return xp.sin(a) - (a * a + xp.asarray(TABLE)), a


def make_graph(k=1.0, **options):
    """A -> B, A -> C, B + C -> D."""
    graph = Graph(inputs={"x": normal(5)}, **options)
    a = graph.add(lambda x: x + k, graph.inputs["x"])
    b = graph.add(xp.sin, a.result)
    c = graph.add(lambda v: v * v + xp.asarray(TABLE), a.result)
    d = graph.add(lambda v, w: v - w, b.result, c.result)
    graph.outputs = d.result, a.result
    return graph


def make_block(k=1.0, **options):
    with graphjit.capture(inputs={"x": normal(5)}, **options) as block:
        block.outputs = fan(block.inputs["x"], k)
    return block


@pytest.fixture
def make_loaded(tmp_path):
    def make(k=1.0):
        call = graphed(fan)
        call(normal(5), k)
        call.export(tmp_path / f"{k}.graph", normal(5), k)
        call.cache_clear()
        return graphjit.load(tmp_path / f"{k}.graph")

    return make


@pytest.fixture(params=["graph", "block", "loaded"])
def make(request, make_loaded):
    """Make a launcher that does what ``fan`` does."""
    return {"graph": make_graph, "block": make_block, "loaded": make_loaded}[request.param]


def test_in_a_graphed_function(make, patch):
    """Two launches in a function: two child graphs, pointed at the arrays of the outer call."""
    inner = make()

    @graphed(patch=patch)
    def outer(x, y):
        first, a = inner.launch(x=x * 2)
        second, _ = inner.launch(x=first)
        y += a
        return second + 1, first

    def eager(x, y):
        first, a = fan(x * 2)
        y += a
        return fan(first)[0] + 1, first

    for _ in range(6):
        assert agrees(outer, eager, normal(5), normal(5))
    assert outer.cache_info()[:2] == (5, 1)
    (entry,) = outer.cache_entries()
    top = [n for n in entry.graph.nodes if n.inside is None and n.kind == "child_graph"]
    assert len(top) == 2
    assert counted("graph_launches", lambda: outer(normal(5), normal(5))) == 1
    outer.cache_clear()
    inner.close()


def test_in_a_block_and_in_a_graph(make):
    """A graph in a graph, in a graph; dependencies inside stay what they are."""
    inner = make()
    graph = Graph(inputs={"x": normal(5)})
    a = graph.add(inner.launch, x=graph.inputs["x"])
    b = graph.add(lambda v: v * 3, graph.inputs["x"])
    c = graph.add(lambda v, w: v - w, a.result[0], b.result)
    graph.outputs = c.result
    assert a.name == f"{type(inner).__name__}.launch (0)"
    with graphjit.capture(inputs={"x": normal(5)}) as block:
        block.outputs = graph.launch(x=block.inputs["x"] + 1)
    for _ in range(4):
        x = normal(5)
        assert same_bits(graph.launch(x=x), fan(x)[0] - x * 3)
        assert same_bits(block.launch(x=x), fan(x + 1)[0] - (x + 1) * 3)
    for launcher in (block, graph, inner):
        launcher.close()


def test_what_it_was_is_kept(make):
    """The graph around it needs the inner one no more: closed, evicted, collected."""
    gc.collect()
    before = held_on_device()
    inner = make()

    @graphed
    def outer(x):
        return inner.launch(x=x)

    x = normal(5)
    outer(x)
    expected = fan(x)
    inner.close()
    gc.collect()
    assert same_bits(outer(x), expected)
    assert outer.cache_info().hits == 1
    outer.cache_clear()
    inner = x = expected = None
    gc.collect()
    assert held_on_device() == before


def test_another_graph_by_the_same_name(make):
    """A name that is bound to another graph is noticed."""
    inner = [make(1.0), make(2.0)]
    holder = {"now": inner[0]}

    @graphed
    def outer(x):
        return holder["now"].launch(x=x)

    for k in (1.0, 2.0, 1.0, 2.0):
        holder["now"] = inner[int(k) - 1]
        for _ in range(3):
            assert agrees(outer, lambda x, k=k: fan(x, k), normal(5))
    outer.cache_clear()
    inner[0].close(), inner[1].close()


def test_in_branches_and_loops(make, patch):
    """A body may launch a graph."""
    inner = make()

    def flow(run):
        def fn(x, n):
            y = cond(x.sum() > 0, lambda: run(x)[0], lambda: x * 2)
            return fori_loop(0, n, lambda i, v: run(v * 0.1)[1], y)

        return fn

    outer, eager = graphed(patch=patch)(flow(lambda v: inner.launch(x=v))), flow(fan)
    for n in (0, 1, 3, 2):
        for sign in (-1, 1):
            assert agrees(outer, eager, abs(normal(5)) * sign, xp.asarray(n))
    assert outer.cache_info().misses == 1
    outer.cache_clear()
    inner.close()


@pytest.mark.parametrize("options", [{"optimize": True}, {"verify": True}, {"outputs": "static"}])
def test_options_of_the_function_around_it(make, options):
    """Whatever the function around it is, the results are those of eager calls."""
    inner = make()

    def eager(x, y):
        first, a = fan(x)
        z = y * 2 + y
        return first + z, a - y

    @graphed(**options)
    def outer(x, y):
        first, a = inner.launch(x=x)
        z = y * 2 + y
        return first + z, a - y

    for _ in range(5):
        assert agrees(outer, eager, normal(5), normal(5))
    outer.cache_clear()
    inner.close()


def test_a_function_that_is_split(make):
    """Reads on the host before and behind a launch."""
    inner = make()

    def eager(x, run=fan):
        y, a = run(x)
        if float(a.sum()) > 5:
            return run(y)[0]
        return run(a)[1] * 2

    @graphed(on_unsupported="split")
    def outer(x):
        return eager(x, lambda v: inner.launch(x=v))

    for _ in range(12):
        assert agrees(outer, eager, xp.asarray(np.round(normal(5).get())))
    assert outer.cache_info().eager_calls == 0
    outer.cache_clear()
    inner.close()


@pytest.mark.parametrize("make_static", [make_graph, make_block])
def test_static_outputs_are_fresh_inside(make_static):
    """Memory that a graph of its own writes its results to is not that of the graph around it."""
    inner = make_static(outputs="static")

    @graphed
    def outer(x):
        return inner.launch(x=x)

    outer(normal(5))
    own = inner.outputs
    copies = [array.copy() for array in own]
    for _ in range(3):
        assert agrees(outer, fan, normal(5))
    assert inner.outputs is own
    assert same_bits(list(own), copies)
    outer.cache_clear()
    inner.close()


def draw(generator, x):
    """Numbers by the library, which fills memory, and by kernels with seeds."""
    a = generator.uniform(x.shape)
    b = generator.seeded(7)
    return x + a * generator.seeded(x.shape), b, generator.uniform(4)


@pytest.mark.parametrize("is_graph", [True, False])
def test_random_numbers(is_graph):
    """A launch inside draws what the eager sequence draws at this place, launch after launch."""
    generator, other = xp.Generator(3), xp.Generator(3)
    if is_graph:
        inner = Graph(inputs={"x": normal(5)})
        inner.outputs = inner.add(lambda x: draw(generator, x), inner.inputs["x"]).result
    else:
        with graphjit.capture(inputs={"x": normal(5)}) as inner:
            inner.outputs = draw(generator, inner.inputs["x"])

    def around(generator, x, run):
        first = generator.uniform(3)
        second = run(x)
        return first, second, generator.seeded(2), run(x * 2)

    outer = graphed(lambda x: around(generator, x, lambda v: inner.launch(x=v)))
    for _ in range(5):
        x = normal(5)
        expected = around(other, x, lambda v: draw(other, v))
        assert same_bits(outer(x), expected)
    assert outer.cache_info().hits == 4
    with pytest.raises(CaptureError, match="in a branch or a loop"):
        graphed(lambda x: cond(x.sum() > 0, lambda: inner.launch(x=x)[0], lambda: x))(abs(x))
    del outer
    inner.close()


def test_host_functions_and_page_locked_memory():
    """The inner graph and the one around it call the function with their own numbers."""
    seen = []
    factor = graphjit.PinnedArray((), like=normal(1))
    factor.host[...] = 3
    inner = Graph(inputs={"x": normal(4)})
    a = inner.add(lambda v: v * factor.to_device(), inner.inputs["x"])
    inner.add(lambda v: graphjit.host_callback(lambda h: seen.append(h), v), a.result)
    inner.outputs = a.result

    @graphed
    def outer(x):
        return inner.launch(x=x + 1)

    for _ in range(4):
        x = normal(4)
        assert same_bits(inner.launch(x=x), x * 3.0)
        assert seen.pop().tobytes() == (x * 3.0).get().tobytes()
        assert same_bits(outer(x), (x + 1) * 3.0)
        assert seen.pop().tobytes() == ((x + 1) * 3.0).get().tobytes()
    assert not seen
    graphed_body = graphed(lambda x: cond(x.sum() > 0, lambda: inner.launch(x=x), lambda: x))
    with pytest.raises(CaptureError, match="no such nodes there"):
        graphed_body(abs(normal(4)))
    outer.cache_clear()
    inner.close()


def test_arrays_that_are_used_in_place(make_loaded):
    """A graph may use arrays that are no inputs; so may the function that launches it."""
    weights = normal(5)
    inner = Graph(inputs={"x": normal(5)})
    inner.outputs = inner.add(lambda x: x * weights, inner.inputs["x"]).result

    @graphed
    def outer(x):
        return inner.launch(x=x) + 1

    for _ in range(4):
        x = normal(5)
        assert same_bits(outer(x), x * weights + 1)
        weights += 1
    outer.cache_clear()
    inner.close()


def test_results_that_are_inputs():
    """Views and the inputs themselves are those of the outer call."""
    with graphjit.capture(inputs={"x": normal(6), "y": normal(6)}) as inner:
        inner.inputs["y"] += inner.inputs["x"]
        inner.outputs = inner.inputs["y"], inner.inputs["x"][::2], [inner.inputs["x"] * 2]

    def eager(x, y):
        y += x
        return y, x[::2], [x * 2]

    @graphed
    def outer(x, y):
        return inner.launch(x=x, y=y)

    for _ in range(4):
        x, y = normal(6), normal(6)
        assert agrees(outer, eager, x, y)
        got = outer(x, y)
        assert got[0] is y
        assert got[1].device_ptr == x.device_ptr
    inner.close()


def test_dynamic_numbers(tmp_path):
    """Those of a loaded graph are fixed when it is launched inside; that they change is refused."""

    @graphed(dynamic="k")
    def scaled(x, k):
        return x * k

    scaled(normal(5), 2.0)
    scaled.export(tmp_path / "scaled.graph", normal(5), 2.0)
    scaled.cache_clear()
    inner = graphjit.load(tmp_path / "scaled.graph")
    outer = graphed(lambda x, k: inner.launch(x=x, k=k) + 1)
    for k in (2.0, 3.5, 2.0, -1.0):
        assert agrees(outer, lambda x, k: x * k + 1, normal(5), k)
    with pytest.raises(graphjit.DynamicScalarError, match="k"):
        graphed(lambda x, k: inner.launch(x=x, k=k) + 1, dynamic="k")(normal(5), 2.0)
    outer.cache_clear()
    inner.close()


def test_misuse(make):
    """Other arrays, graphs in themselves, old outputs, graphs that are closed."""
    inner = make()
    with pytest.raises(SignatureError, match=r"\(6,\)"):
        graphed(lambda x: inner.launch(x=x))(normal(6))
    inner.launch(x=normal(5))
    with pytest.raises(CaptureError, match="reads `outputs` of"):
        graphed(lambda x: (inner.launch(x=x), inner.outputs)[1])(normal(5))
    own = Graph(inputs={"x": normal(5)})
    with pytest.raises(CaptureError, match="the graph that it is a node of"):
        own.add(own.launch, x=own.inputs["x"])
    static = make_graph(outputs="static")
    with pytest.raises(CaptureError, match="the first launch of a graph with static outputs"):
        own.add(static.launch, x=own.inputs["x"])
    own.outputs = own.add(inner.launch, x=own.inputs["x"]).result
    x = normal(5)
    assert same_bits(own.launch(x=x), fan(x))
    inner.close()
    other = Graph(inputs={"x": normal(5)})
    with pytest.raises(CaptureError, match="has been closed"):
        other.add(inner.launch, x=other.inputs["x"])
    own.close(), static.close(), other.close()
    assert device.current_stream() is device.null_stream


def test_a_graph_is_made_elsewhere():
    """Inside a capture nodes are not added, and blocks not made; the message says what to do."""

    def adds(x):
        graph = Graph(inputs={"x": x})
        graph.add(xp.sin, graph.inputs["x"])
        return x

    with pytest.raises(CaptureError, match="make it before, and launch it here"):
        graphed(adds)(normal(3))


def test_launches_from_threads(make):
    """The inner graph and the one around it, from several threads at once."""
    inner = make()
    outer = graphed(lambda x: inner.launch(x=x)[0] * 2)
    x = normal(5)
    outer(x)
    wrong = []

    def work():
        for _ in range(30):
            x = normal(5)
            if not (same_bits(inner.launch(x=x), fan(x)) and same_bits(outer(x), fan(x)[0] * 2)):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    outer.cache_clear()
    inner.close()


def test_a_graph_as_an_argument(make):
    """Each graph has an entry of its own, also one that is in an object or a container."""
    one, two = make(1.0), make(2.0)

    class Model:
        def __init__(self, graph):
            self.graph = graph

    plain = graphed(lambda graph, x: graph.launch(x=x))
    held = graphed(lambda model, x: model.graph.launch(x=x))
    listed = graphed(lambda graphs, x: graphs["g"].launch(x=x))
    model = Model(one)
    for _ in range(3):
        for k, graph in ((1.0, one), (2.0, two)):
            x, model.graph = normal(5), graph
            assert same_bits(plain(graph, x), fan(x, k))
            assert same_bits(held(model, x), fan(x, k))
            assert same_bits(held(Model(graph), x), fan(x, k))
            assert same_bits(listed({"g": graph}, x), fan(x, k))
    for launcher in (one, two, plain, held, listed):
        getattr(launcher, "close", getattr(launcher, "cache_clear", None))()
