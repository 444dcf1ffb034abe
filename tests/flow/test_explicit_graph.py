"""Graphs put together by hand: nodes in the order that they are given, and no other."""

import gc
import operator
import random

import pytest
from helpers.flow_checks import counted, held_on_device, normal, same_bits

import graphjit
from graphjit import Graph, graphed
from graphjit._adapters import simulated_device as device
from graphjit.control import cond
from graphjit.testing import simulated as xp


def diamond(x, y):
    a = x + y
    b = xp.sin(a)
    c = a * a
    return b - c, a


def make_diamond(**options):
    graph = Graph(inputs={"x": normal(5), "y": normal(5)}, **options)
    a = graph.add(lambda x, y: x + y, graph.inputs["x"], graph.inputs["y"])
    b = graph.add(xp.sin, a.result)
    c = graph.add(lambda v: v * v, a.result)
    d = graph.add(lambda v, w: v - w, b.result, c.result)
    graph.outputs = d.result, a.result
    return graph, (a, b, c, d)


def test_a_diamond(patch):
    """A -> B, A -> C, B + C -> D, on other arrays at every launch."""
    graph, (a, b, c, d) = make_diamond(patch=patch)
    assert [node.after for node in (a, b, c, d)] == [set(), {a}, {a}, {b, c}]
    for _ in range(6):
        x, y = normal(5), normal(5)
        assert same_bits(graph.launch(x=x, y=y), diamond(x, y))
    nodes = graph.info().graph.nodes
    top = [n for n in nodes if n.inside is None]
    assert [n.kind for n in top] == ["child_graph"] * 4
    assert [n.depends_on for n in top] == [(), (0,), (0,), (1, 2)]
    assert top[1].name.startswith("sin")
    assert counted("graph_launches", lambda: graph.launch(x=normal(5), y=normal(5))) == 1
    assert "called by" in graphjit.inspection.to_dot(graph.info().graph)


def test_results_are_kept_apart():
    """Results of a launch stay what they are at the next; static ones do not."""
    graph, _ = make_diamond()
    x, y = normal(5), normal(5)
    first = graph.launch(x=x, y=y)
    graph.launch(x=normal(5), y=normal(5))
    assert same_bits(first, diamond(x, y))
    static, _ = make_diamond(outputs="static")
    one = static.launch(x=x, y=y)
    copy = one[0].copy()
    two = static.launch(x=y, y=normal(5))
    assert two[0].device_ptr == one[0].device_ptr
    assert same_bits(one[0], two[0])
    assert not same_bits(one[0], copy)


def test_random_graphs():
    """Any order that the dependencies allow gives the results of the program's."""
    rng = random.Random(5)
    for _ in range(12):
        graph = Graph(inputs={"x": normal(3, 3), "y": normal(3, 3)})
        values, plan = [graph.inputs["x"], graph.inputs["y"]], []
        steps = [xp.add, xp.matmul, lambda a, b: xp.sin(a) * b, lambda a, b: a.T - b.sum()]
        for _ in range(rng.randrange(2, 12)):
            step, i, j = rng.choice(steps), *rng.choices(range(len(values)), k=2)
            values.append(graph.add(step, values[i], values[j]).result)
            plan.append((step, i, j))
        graph.outputs = values[2:]
        for _ in range(3):
            x, y = normal(3, 3), normal(3, 3)
            expected = [x, y]
            for step, i, j in plan:
                expected.append(step(expected[i], expected[j]))
            assert same_bits(graph.launch(x=x, y=y), expected[2:])


def test_after_orders_what_shares_memory():
    """Work in place is ordered by hand; without that it is refused, with names."""

    def double(v):
        v *= 2

    def make(is_ordered):
        graph = Graph(inputs={"x": normal(4)})
        a = graph.add(double, graph.inputs["x"])
        b = graph.add(lambda v: v + 1, graph.inputs["x"], after=[a] if is_ordered else ())
        graph.outputs = b.result
        return graph

    graph = make(True)
    for _ in range(8):
        x = normal(4)
        before = x.copy()
        assert same_bits(graph.launch(x=x), before * 2 + 1)
        assert same_bits(x, before * 2)
    with pytest.raises(
        graphjit.CaptureError, match=r"double \(0\) and .*lambda> \(1\) use .*input x"
    ):
        make(False).launch(x=normal(4))


def test_memory_that_is_seen_otherwise():
    """A node that finds another one's result by itself has to wait for it, too."""

    def make(after):
        graph = Graph(inputs={"x": normal(4)})
        a = graph.add(lambda v: v + 1, graph.inputs["x"])
        b = graph.add(lambda v: a.result * v, graph.inputs["x"], after=[a] if after else ())
        graph.outputs = b.result
        return graph

    x = normal(4)
    assert same_bits(make(True).launch(x=x), (x + 1) * x)
    with pytest.raises(graphjit.CaptureError, match=r"which the node .* asked for"):
        make(False).launch(x=x)


def test_nodes_of_all_kinds():
    """Graphed functions, control flow, host functions and page-locked memory."""
    seen = []
    factor = graphjit.PinnedArray((), like=normal(1))
    factor.host[...] = 3

    @graphed
    def inner(v):
        return xp.sin(v)

    graph = Graph(inputs={"x": normal(4)})
    a = graph.add(lambda v: inner(v) + 1, graph.inputs["x"])
    b = graph.add(lambda v: cond(v.sum() > 0, lambda: v * 2, lambda: -v), a.result)
    c = graph.add(lambda v: v * factor.to_device() + xp.asarray([1.0, 2, 3, 4]), a.result)
    graph.add(lambda v: graphjit.host_callback(lambda h: seen.append(h), v), c.result)
    graph.outputs = [b.result, c.result]
    for _ in range(5):
        x = normal(4)
        s = xp.sin(x) + 1
        expected = [s * 2 if float(s.sum()) > 0 else -s, s * 3.0 + xp.asarray([1.0, 2, 3, 4])]
        got = graph.launch(x=x)
        assert same_bits(got, expected)
        assert seen.pop().tobytes() == expected[1].get().tobytes()
    del graph
    inner.cache_clear()


def test_a_node_that_fails_is_none():
    """The graph goes on as if it had not been tried."""
    graph = Graph(inputs={"x": normal(3)})
    a = graph.add(lambda v: v + xp.asarray([1.0, 2.0, 3.0]), graph.inputs["x"])

    def fail(v):
        v * xp.asarray([5.0, 6.0, 7.0])
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        graph.add(fail, a.result)
    with pytest.raises(graphjit.HostReadError):
        graph.add(lambda v: float(v.sum()), a.result)
    b = graph.add(lambda v: v * 2, a.result)
    graph.outputs = b.result
    x = normal(3)
    assert same_bits(graph.launch(x=x), (x + xp.asarray([1.0, 2.0, 3.0])) * 2)


def test_misuse():
    """Nodes of other graphs, nodes too late, wrong arrays, closed graphs."""
    graph, (a, *_) = make_diamond()
    other, _ = make_diamond()
    with pytest.raises(graphjit.SignatureError, match="no node of this graph"):
        other.add(lambda: None, after=a)
    graph.launch(x=normal(5), y=normal(5))
    with pytest.raises(graphjit.CaptureError, match="until it is launched"):
        graph.add(lambda: None)
    with pytest.raises(graphjit.SignatureError, match=r"\(6,\)"):
        graph.launch(x=normal(6), y=normal(5))
    with pytest.raises(graphjit.CaptureError, match="what it returns was set before"):
        graph.outputs = normal(3)
    with pytest.raises(graphjit.CaptureError, match="the graph is complete"):
        _ = graph.inputs["x"]
    graph.close()
    other.close()
    with pytest.raises(graphjit.CaptureError, match="has been closed"):
        graph.add(lambda: None)
    for closed in (graph, other):
        with pytest.raises(graphjit.CaptureError, match="has been closed"):
            closed.launch(x=normal(5), y=normal(5))
    with pytest.raises(ValueError, match=r"Graph\(patch='gpu'\)"):
        Graph(inputs={"x": normal(3)}, patch="gpu")


def test_nodes_and_results_are_told_apart():
    """Whatever takes one refuses the other by name, and arrays of other graphs."""
    graph, (a, *_) = make_diamond()
    with pytest.raises(graphjit.SignatureError, match="`after` takes nodes, not a Array"):
        graph.add(lambda: None, after=[a.result])
    with pytest.raises(graphjit.SignatureError, match="is a node; give its `result`"):
        graph.add(xp.sin, a)
    other, (b, *_) = make_diamond()
    with pytest.raises(graphjit.SignatureError, match="belongs to another graph"):
        graph.add(xp.sin, b.result)
    graph.outputs = {"a": a}
    with pytest.raises(graphjit.SignatureError, match="is a node; give its `result`"):
        graph.launch(x=normal(5), y=normal(5))
    graph.outputs = a.result
    graph.launch(x=normal(5), y=normal(5))
    graph.close()
    other.close()


def test_stand_ins_are_not_read():
    """Reading one is refused, and the next node is not refused for it."""
    graph = Graph(inputs={"x": normal(3)})
    with pytest.raises(graphjit.CaptureError, match="holds no memory and cannot be used outside"):
        print(graph.inputs["x"])
    graph.outputs = graph.add(xp.sin, graph.inputs["x"]).result
    x = normal(3)
    assert same_bits(graph.launch(x=x), xp.sin(x))
    graph.close()


@pytest.mark.parametrize("second", [operator.imul, operator.add])
def test_races_in_arrays_that_are_no_inputs(second):
    """One writes to an array that is used in place, and another uses it in no order: refused."""
    weights = normal(4)

    def add_to(v):
        xp.add(weights, v, out=weights)

    graph = Graph(inputs={"x": normal(4)})
    a = graph.add(add_to, graph.inputs["x"])
    graph.add(lambda v: second(weights, v), graph.inputs["x"])
    with pytest.raises(graphjit.CaptureError, match=r"use the same memory, at 0x"):
        graph.launch(x=normal(4))
    graph.close()
    graph = Graph(inputs={"x": normal(4)})
    a = graph.add(add_to, graph.inputs["x"])
    graph.add(lambda v: second(weights, v), graph.inputs["x"], after=a)
    graph.launch(x=normal(4))
    graph.close()


def test_nothing_is_left():
    """A graph that is closed, or never launched, holds nothing."""
    gc.collect()
    before = held_on_device()
    graph, _ = make_diamond()
    graph.launch(x=normal(5), y=normal(5))
    graph.close()
    never, nodes = make_diamond()
    del never, nodes, graph
    gc.collect()
    assert held_on_device() == before
    assert device.current_stream() is device.null_stream


def test_a_graph_without_nodes():
    """It gives back what it was given."""
    graph = Graph(inputs={"x": normal(3)})
    graph.outputs = graph.inputs["x"]
    x = normal(3)
    assert graph.launch(x=x) is x
