"""A graphed function that another one calls is a child graph of it."""

import pytest
from helpers.flow_checks import agrees, counted, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, fori_loop
from graphjit.testing import simulated as xp

W = normal(3, 3)


@graphed
def scaled(x, factor=2.0):
    return xp.sin(x) * factor + x.sum()


@graphed
def two_steps(x):
    return scaled(scaled(x), factor=0.5) - x


def outer(x, y):
    z = two_steps(x) + y
    y += scaled(y)
    return z, scaled(z) * 2


@pytest.fixture(autouse=True)
def let_go():
    """The functions outlive the test, but what they have captured need not."""
    yield
    scaled.cache_clear()
    two_steps.cache_clear()


def children(fn):
    """Return (name, number of the child graph around it, if it is in one) of each child graph."""
    (entry,) = fn.cache_entries()
    nodes = [n for n in entry.graph.nodes if n.kind == "child_graph"]
    at = {node.index: i for i, node in enumerate(nodes)}
    return [(n.name, None if n.inside is None else at.get(n.inside[0])) for n in nodes]


def test_calls_are_child_graphs(patch):
    """Each call is one, with the calls in it inside; all are pointed at the outer call's arrays."""
    call = graphed(patch=patch)(outer)
    for _ in range(4):
        assert agrees(call, outer, normal(5), normal(5))
    assert call.cache_info()[:2] == (3, 1)
    assert children(call) == [
        ("two_steps", None),
        ("scaled", 0),
        ("scaled", 0),
        ("scaled", None),
        ("scaled", None),
    ]
    assert call.cache_entries()[0].nodes["child_graph"] == 5


def test_one_launch_for_all():
    """A call with calls inside is one launch."""
    call = graphed(outer)
    call(normal(3), normal(3))
    assert counted("graph_launches", lambda: call(normal(3), normal(3))) == 1


def test_a_call_on_a_forked_stream():
    """Work on another stream goes on beside a child graph, and is joined as it was."""
    side = xp.Stream(non_blocking=True)

    def fn(x, y):
        with side:
            z = scaled(y)
        w = x * 3
        side.synchronize()
        return z + w

    call = graphed(fn)
    for _ in range(8):
        assert agrees(call, fn, normal(4), normal(4))
    assert children(call) == [("scaled", None)]


@pytest.mark.parametrize("version", [13000, 12040])
def test_control_flow_and_calls(version, monkeypatch):
    """Calls in bodies are child graphs; so are calls with control flow where the driver can."""
    monkeypatch.setattr(device.driver(), "cuda_version", version)

    @graphed
    def chosen(x):
        return cond(x.sum() > 0, lambda: scaled(x), lambda: x @ W)

    def fn(x):
        return fori_loop(0, 3, lambda i, c: chosen(c) / 4 + i, x) + chosen(x)

    call = graphed(fn)
    for _ in range(6):
        assert agrees(call, fn, normal(3))
    found = children(call)
    assert [name.split(".")[-1] for name, _ in found] == (
        ["chosen", "scaled"] * 2 if version >= 13000 else ["scaled"] * 2
    )


def test_calls_that_launch_nothing_or_fail():
    """They leave no child graph."""

    @graphed
    def nothing(x):
        return x

    @graphed
    def fails(x):
        y = x + 1
        raise ValueError(y.shape)

    def fn(x):
        try:
            fails(x)
        except ValueError:
            x = nothing(x) * 3
        return x

    call = graphed(fn)
    for _ in range(2):
        assert agrees(call, fn, normal(4))
    assert children(call) == []


def test_split_functions_and_calls():
    """A call that a read on the host cuts in two is none; calls between reads are."""

    @graphed(on_unsupported="split")
    def total(x):
        return float(scaled(x).sum())

    def fn(x):
        y = scaled(x)
        if total(y) > 0:
            y = scaled(y, factor=3.0)
        return scaled(y)

    call = graphed(on_unsupported="split")(fn)
    for sign in (1, -1):
        x = normal(3) * 0 + sign
        for _ in range(2):
            assert agrees(call, fn, x)
    graphs = call.cache_entries()[0].graphs
    names = [[n.name for n in g.nodes if n.kind == "child_graph"] for g in graphs]
    assert names == [["scaled", "scaled"], ["scaled", "scaled"], ["scaled"]]


def test_optimize_makes_no_child_graphs():
    """Their borders are dependencies that ``optimize`` is there to drop."""
    call = graphed(optimize=True)(outer)
    for _ in range(3):
        assert agrees(call, outer, normal(5), normal(5))
    assert children(call) == []


def test_recursion_is_refused():
    """A function that calls itself is told how it can."""

    @graphed
    def tree(x, depth):
        return x if depth == 0 else tree(x * 2, depth - 1)

    x = normal(3)
    with pytest.raises(graphjit.CaptureError, match=r"tree calls itself.*__wrapped__") as caught:
        tree(x, 2)
    assert same_bits(caught.value.eager_result, x * 4)

    @graphed
    def plain_tree(x, depth):
        return x if depth == 0 else plain_tree.__wrapped__(x * 2, depth - 1)

    for _ in range(3):
        assert agrees(plain_tree, plain_tree.__wrapped__, normal(3), 2)


def test_capture_blocks():
    """A function that a block calls is a child graph of the block's."""
    with graphjit.capture(inputs={"x": normal(3)}) as block:
        block.outputs = scaled(block.inputs["x"])
    x = normal(3)
    assert same_bits(block.launch(x=x), scaled.__wrapped__(x))
    assert block.info().nodes["child_graph"] == 1


def test_drawing():
    """A child graph is a frame with the name of the function."""
    call = graphed(outer)
    call(normal(3), normal(3))
    dot = graphjit.inspection.to_dot(call.cache_entries()[0].graph)
    assert "two_steps, called by" in dot
    assert "call of scaled" in dot
