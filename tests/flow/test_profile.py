"""The times of the nodes of a graph, which is run on the arrays of a call and changes nothing."""

import json
import time

import pytest
from helpers.flow_checks import agrees, copy_arrays, counted, normal, same_bits

import graphjit
from graphjit import graphed, host_callback
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, while_loop
from graphjit.testing import simulated as xp

STATE = [normal(4)]


@graphed
def inner(x):
    return xp.sin(x) * 2


@pytest.fixture(autouse=True)
def let_go():
    """The function outlives the test, but what it has captured need not."""
    yield
    inner.cache_clear()


def work(x, y):
    x += y
    STATE[0] += 1
    z = inner(x) + STATE[0]
    z = cond(z.sum() > 0, lambda: z * 2, lambda: inner(z))
    return while_loop(lambda c: abs(c).max() > 1, lambda c: c / 2, z), x[::2]


def test_nothing_changes(patch):
    """Arguments and what the function reaches hold what they held; the cache is as it was."""
    call = graphed(patch=patch)(work)
    x, y = normal(4), normal(4)
    call(x, y)
    before = copy_arrays((x, y, STATE[0]))
    info = call.cache_info()
    profile = call.profile(x, y)
    assert same_bits((x, y, STATE[0]), before)
    assert call.cache_info()[:2] == (info.hits, info.misses)
    assert counted("live_graph_execs", lambda: call.profile(x, y)) == 0
    assert profile.n_launches >= 10
    assert all(t.duration_us >= 0 for t in profile.times)


def test_every_node_has_a_time_but_those_in_bodies():
    """Nodes of the graph and of child graphs; a conditional node with all that its bodies do."""
    call = graphed(work)
    x, y = normal(4), normal(4)
    call(x, y)
    (entry,) = call.cache_entries()
    nodes = entry.graph.nodes
    kinds = {n.index: n.kind for n in nodes}

    def in_body(node):
        return node.inside is not None and (
            kinds[node.inside[0]] == "conditional" or in_body(nodes[node.inside[0]])
        )

    profile = entry.profile(x, y)
    timed = [n for n in nodes if not in_body(n)]
    assert [(t.node.index, t.node.kind, t.node.name, t.node.inside) for t in profile.times] == [
        (n.index, n.kind, n.name, n.inside) for n in timed
    ]
    begins = [t.begin_us for t in profile.times]
    assert begins == sorted(begins)
    assert begins[0] == 0
    for t in profile.times:
        if t.node.inside is not None:
            (around,) = (o for o in profile.times if o.node.index == t.node.inside[0])
            assert around.begin_us <= t.begin_us
            assert t.begin_us + t.duration_us <= around.begin_us + around.duration_us + 1e-6


def test_the_time_is_that_of_the_node(monkeypatch):
    """A kernel that takes long is the longest."""

    def fn(x):
        return xp.sqrt(abs(x)) + 1

    call = graphed(fn)
    x = normal(4)
    call(x)
    (slow,) = [n for n in call.cache_entries()[0].graph.nodes if "sqrt" in n.name]
    from graphjit._driver import simulated_exec

    plain = simulated_exec.SimulatedGraphExec._execute

    def execute(self, node, *more):
        if node.kind == "kernel" and "sqrt" in node.params.launch.function.name:
            time.sleep(0.002)
        plain(self, node, *more)

    monkeypatch.setattr(simulated_exec.SimulatedGraphExec, "_execute", execute)
    profile = call.profile(x)
    longest = max(profile.times, key=lambda t: t.duration_us)
    assert longest.node.index == slow.index
    assert 2000 <= longest.duration_us <= profile.total_us


def test_dynamic_scalars_and_static_outputs():
    """Numbers of the call are used; static outputs of the function are not written to."""
    call = graphed(dynamic=("a",), outputs="static")(lambda x, a: x * a)
    x = normal(3)
    call(x, 2.0)
    result = call(x, 2.0)
    call.profile(normal(3), 3.0)
    assert same_bits(result, x * 2.0)


def test_the_same_array_twice():
    """Arrays that share memory are put back, too."""

    def fn(x, y):
        x *= 2
        y += 1
        return x + y

    call = graphed(fn)
    x = normal(6)
    call(x, x)
    call(x[1:], x[:-1])
    before = x.copy()
    call.profile(x, x)
    call.profile(x[1:], x[:-1])
    assert same_bits(x, before)


def test_host_functions_are_not_called():
    """They are left out."""
    calls = []

    def log(x):
        calls.append(x)

    def fn(x):
        host_callback(log, x)
        return x + 1

    call = graphed(fn)
    call(normal(3))
    calls.clear()
    profile = call.profile(normal(3))
    assert calls == []
    assert "host" in [t.node.kind for t in profile.times]


def test_what_cannot_be_profiled():
    """Each says why."""
    call = graphed(lambda x: x + 1)
    with pytest.raises(graphjit.GraphjitError, match="make the call first"):
        call.profile(normal(3))
    split = graphed(on_unsupported="split")(lambda x: x * 2 if float(x.sum()) > 0 else x)
    split(normal(3))
    with pytest.raises(graphjit.GraphjitError, match="split at its reads"):
        split.profile(normal(3))
    generator = xp.Generator(3)
    draws = graphed(lambda x: x + generator.uniform(3))
    draws(normal(3))
    with pytest.raises(graphjit.GraphjitError, match="draws random numbers"):
        draws.profile(normal(3))
    call(normal(3))
    call(normal(4))
    first, last = call.cache_entries()
    with pytest.raises(graphjit.SignatureError, match=r"x: .*\(3,\).*\(4,\)|\(4,\).*\(3,\)"):
        first.profile(normal(3))
    last.profile(normal(3))
    with graphjit.capture(inputs={"x": normal(3)}) as block:
        block.outputs = block.inputs["x"] * 2
    with pytest.raises(graphjit.GraphjitError, match="only entries of graphed functions"):
        block.info().profile(x=normal(3))


def test_an_exception_while_it_is_captured_again(monkeypatch):
    """It comes out, and nothing is left."""

    def fn(x):
        return xp.sin(x) + 1

    call = graphed(fn)
    x = normal(3)
    call(x)
    graphs = device.driver().counts["live_graphs"]

    def fail(*args, **kwargs):
        raise graphjit.DriverError("cuEventCreate", "CUDA_ERROR_OUT_OF_MEMORY", 2)

    monkeypatch.setattr(device.driver(), "event_create", fail)
    with pytest.raises(graphjit.DriverError, match="cuEventCreate"):
        call.profile(x)
    assert device.driver().counts["live_graphs"] == graphs
    assert agrees(call, fn, normal(3))


def test_table_and_trace():
    """The longest first; JSON that Perfetto reads, child graphs around what is in them."""
    call = graphed(work)
    x, y = normal(4), normal(4)
    call(x, y)
    profile = call.profile(x, y)
    table = profile.table()
    assert table.row_count == len(profile.times)
    assert "simulated device" in table.title
    trace = json.loads(profile.to_chrome_trace())["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X"]
    assert [span["args"]["node"] for span in spans] == [t.node.index for t in profile.times]
    assert {span["cat"] for span in spans} >= {"kernel", "conditional", "child_graph"}
    assert any("x" in span["args"]["memory"] for span in spans)


def test_an_empty_graph():
    """There is nothing to time."""
    call = graphed(lambda x: x)
    x = normal(3)
    call(x)
    profile = call.profile(x)
    assert profile.times == ()
    assert profile.total_us == 0
    assert profile.table().row_count == 0


def test_methods():
    """A bound function is profiled for its instance."""

    class Model:
        def __init__(self):
            self.w = normal(3)

        @graphed
        def __call__(self, x):
            return x * self.w

        forward = __call__

    model = Model()
    x = normal(3)
    model.forward(x)
    assert [t.node.kind for t in model.forward.profile(x).times] == ["kernel"]
