"""A node that graphjit cannot rebuild: the error names the user's line that recorded it."""

import gc
import itertools
import sys

import pytest
from helpers.flow_checks import held_on_device, normal, same_bits

import graphjit
from graphjit import Graph, UnsupportedNodeError, graphed
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, while_loop
from graphjit.testing import simulated as xp

EVENT = xp.Event()

# A function of a library: its frame is not the user's.
_library = {"__name__": "numpy.made_up", "device": device, "EVENT": EVENT}
exec(
    "def RECORD(x=None):\n"
    "    device.driver().event_record_external(EVENT.handle, device.current_stream().handle)\n",
    _library,
)
RECORD = _library["RECORD"]


def refused_by(call, *args, **kwargs):
    """Return the message of the refusal; it leaves nothing on the device, and no tracer."""
    gc.collect()
    before, tracer = held_on_device(), sys.gettrace()
    with pytest.raises(UnsupportedNodeError, match="CU_GRAPH_NODE_TYPE_EVENT_RECORD") as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    del caught
    gc.collect()
    assert all(now <= then for now, then in zip(held_on_device(), before, strict=True))
    assert sys.gettrace() is tracer
    return message


def line_in(message):
    """Return the text of the line that a message names, from its comment on."""
    assert f", recorded at {__file__}:" in message, message
    return message.partition("  # ")[2].partition(". ")[0]


def record():
    device.driver().event_record_external(EVENT.handle, device.current_stream().handle)  # records


def helper(x):
    y = xp.sin(x)
    record()
    return y + 1


# -- graphed functions


def test_in_a_helper_function():
    """The innermost line of the user is named, with file, number and function."""

    @graphed
    def fn(x):
        z = x * 2
        return helper(z) - 1

    message = refused_by(fn, normal(3))
    number = record.__code__.co_firstlineno + 1
    assert "node 2 is a CU_GRAPH_NODE_TYPE_EVENT_RECORD and nobody vouches" in message
    assert f", recorded at {__file__}:{number}, in record: device.driver()" in message
    assert message.endswith(
        "# records. Move the call that made it out of the function, or use "
        "@graphed(on_unsupported='eager')."
    )


def test_behind_a_helper_function():
    """What a line does after a call of the user's own function has returned is that line's."""

    @graphed
    def fn(x):
        driver, stream = device.driver(), device.current_stream()
        y = [xp.sin(x), driver.event_record_external(EVENT.handle, twice(stream).handle)]  # here
        return y[0] + 1

    def twice(stream):
        x = normal(3)
        x * 2
        return stream

    assert line_in(refused_by(fn, normal(3))) == "here"


def test_in_a_loop():
    """One line records many nodes, and another one of its passes the refused one."""

    @graphed
    def fn(x):
        handles = device.current_stream().handle, EVENT.handle
        for i in range(5):
            x = x + i
            if i == 3:
                device.driver().event_record_external(handles[1], handles[0])  # the fourth pass
            x = x * 2
        return x

    message = refused_by(fn, normal(3))
    assert "node 7 is" in message
    assert line_in(message) == "the fourth pass"


def test_in_a_method():
    """Of a bound graphed method, and in a property that it reads."""

    class Layer:
        def __init__(self):
            self.weight = normal(3)

        @property
        def scale(self):
            y = self.weight * 2
            device.driver().event_record_external(EVENT.handle, device.current_stream().handle)  # p
            return y

        @graphed
        def forward(self, x):
            return x * self.scale + self.weight

    message = refused_by(Layer().forward, normal(3))
    assert "Layer.scale: " in message
    assert line_in(message) == "p"


def test_in_a_generator():
    """A generator goes on in the middle of a line, and is left with others still to come."""

    def steps(x):
        yield x + 1
        yield record() or x * 2
        yield x * 3

    @graphed
    def fn(x):
        pending = steps(x)
        return next(pending) + next(pending)

    assert line_in(refused_by(fn, normal(3))) == "records"


@pytest.mark.parametrize(
    "options", [{}, {"optimize": True}, {"on_unsupported": "split"}], ids=["", "flat", "split"]
)
def test_in_a_nested_graphed_function(options):
    """Child graphs are nodes of the graph, and nothing that was captured."""
    inner, first = graphed(helper), graphed(lambda x: xp.sin(x) * 2)

    @graphed(**options)
    def fn(x):
        y = first(x) - first(x * 2)
        return inner(y) * inner(x)

    assert line_in(refused_by(fn, normal(3))) == "records"


def test_in_control_flow():
    """Conditions and conditional nodes stand between the pieces that were captured."""

    def branch(x):
        y = x / 4
        device.driver().event_record_external(EVENT.handle, device.current_stream().handle)  # in it
        return y

    def body(x):
        return cond(x.sum() > 0, lambda: branch(x), lambda: x / 2)

    @graphed
    def fn(x):
        y = cond(x.sum() > 0, lambda: x * 2, lambda: x - 1)
        return while_loop(lambda c: abs(c).max() > 0.5, body, y) * 2

    assert line_in(refused_by(fn, normal(3))) == "in it"

    @graphed
    def behind(x):
        y = cond(x.sum() > 0, lambda: x * 2, lambda: x - 1)
        record()
        return y

    assert line_in(refused_by(behind, normal(3))) == "records"


@pytest.mark.parametrize("where", ["before", "at", "behind"])
def test_between_reads(where):
    """A function that is split at its reads: in each part, up to the very line of a read."""

    @graphed(on_unsupported="split")
    def fn(x):
        y = x + 1
        if where == "before":
            record()
        if float((y * 2).sum()) > 0:
            y = y * 3
        if where == "at":
            y = y + float((record() or y).sum())
        if float(y.sum()) > 0 and where == "behind":
            record()
        return y + 1

    def call():
        fn.cache_clear()
        return fn(xp.ones(3))

    if where == "before":
        assert line_in(refused_by(call)) == "records"
        return
    call()  # captures the first part only
    assert line_in(refused_by(lambda: fn(xp.ones(3)))) == "records"


def test_with_a_dynamic_scalar():
    """Numbers that refuse to be looked at are watched at the same time."""

    @graphed(dynamic="s")
    def fn(x, s):
        return helper(x * s)

    assert line_in(refused_by(fn, normal(3), 2.0)) == "records"


def test_a_library_without_a_line():
    """What calls no line of the user's is done by the line that calls it."""
    fn = graphed(lambda x: RECORD() or x)
    assert "<lambda>: fn = graphed(lambda x: RECORD() or x)" in refused_by(fn, normal(3))
    assert line_in(refused_by(lambda: graphed(RECORD)(normal(3)))) == ""


def test_refused_for_eager_calls():
    """The reason that is kept names the line, and is found once."""
    runs = itertools.count()

    @graphed(on_unsupported="eager")
    def fn(x):
        next(runs)
        return helper(x)

    x = normal(3)
    for _ in range(3):
        assert same_bits(fn(x), xp.sin(x) + 1)
    assert next(runs) == 5  # three eager calls, the capture, and the second attempt
    assert line_in(fn.explain(x).refusal) == "records"


def test_a_function_that_can_be_captured(monkeypatch):
    """No second attempt, and no tracer."""
    runs = itertools.count()

    @graphed
    def fn(x):
        next(runs)
        return x + 1

    monkeypatch.setattr(sys, "settrace", None)
    for _ in range(3):
        assert fn(xp.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert next(runs) == 2


def test_what_the_function_changes_is_put_back():
    """Between the attempts, and behind the second one."""
    counts = [0]

    @graphed
    def fn(x):
        counts[0] += 1
        return helper(x)

    for n in (1, 2):
        assert line_in(refused_by(fn, normal(3))) == "records"
        assert counts == [n]  # of the eager calls


# -- second attempts that tell nothing


@pytest.mark.parametrize("second", ["other node", "other reason", "none", "error", "invalid"])
def test_an_attempt_that_differs(second):
    """The first error is raised without a line, whatever the second attempt does."""
    runs = itertools.count()

    @graphed
    def fn(x):
        is_second = next(runs) % 3 == 2
        if is_second and second == "error":
            raise ValueError("in the second attempt")
        if is_second and second == "invalid":
            xp.synchronize()
        if is_second and second == "other node":
            x = x + 1
        if is_second and second == "other reason":
            device.driver().stream_wait_event_external(device.current_stream().handle, EVENT.handle)
        elif not is_second or second == "other node":
            record()
        return x + 1

    for _ in range(2):
        message = refused_by(fn, normal(3))
        assert "node 0 is a CU_GRAPH_NODE_TYPE_EVENT_RECORD" in message
        assert "recorded at" not in message
    assert next(runs) == 6
    plain = graphed(lambda x: x * 2)
    assert plain(plain(xp.ones(1))).tolist() == [4.0]


def test_an_interrupt_of_the_second_attempt():
    """Control-C ends the program, not the search."""
    runs = itertools.count()

    @graphed
    def fn(x):
        if next(runs) == 2:
            raise KeyboardInterrupt
        return helper(x)

    with pytest.raises(KeyboardInterrupt):
        fn(normal(3))
    assert sys.gettrace() is None
    assert line_in(refused_by(fn, normal(3))) == "records"


def test_nodes_that_are_counted_differently(monkeypatch):
    """A graph that a library puts in is one node to the driver: then no line is certain."""
    driver = device.driver()
    count = driver.stream_count_captured
    monkeypatch.setattr(driver, "stream_count_captured", lambda stream: min(count(stream), 1))
    assert "recorded at" not in refused_by(graphed(helper), normal(3))


# -- tracers of others


def test_a_tracer_is_left_in_place():
    """A debugger's tracer sees the eager call and the first attempt, and is there afterwards."""
    seen = []

    def trace(frame, event, arg):
        if frame.f_code is helper.__code__ and event == "call":
            seen.append(frame.f_code)
        return trace

    def here(x):
        return fn(x)

    fn = graphed(helper)
    x, before = normal(3), sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(UnsupportedNodeError) as caught:
            here(x)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert line_in(str(caught.value)) == "records"
    assert len(seen) == 2


@pytest.mark.parametrize("tracer", [None, lambda *_: None], ids=["none", "another"])
def test_a_function_that_installs_a_tracer(tracer):
    """As one with a breakpoint does: that tracer is kept, and no line is named."""

    @graphed
    def fn(x):
        sys.settrace(tracer)
        return helper(x)

    before = sys.gettrace()
    try:
        with pytest.raises(UnsupportedNodeError) as caught:
            fn(normal(3))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert "recorded at" not in str(caught.value)


# -- blocks and explicit graphs


def test_a_node_of_an_explicit_graph():
    """The graph is as it was, and takes the next node."""
    x = normal(3)
    graph = Graph(inputs={"x": x})
    y = graph.add(lambda x: x + xp.asarray([1.0, 2.0, 3.0]), graph.inputs["x"])
    for _ in range(2):
        with pytest.raises(
            UnsupportedNodeError, match=r"the graph cannot be captured: node 1 "
        ) as c:
            graph.add(helper, y.result)
        assert line_in(str(c.value)) == "records"
        assert str(c.value).endswith("Leave out the call that made it.")
    graph.outputs = graph.add(xp.sin, y.result).result
    assert same_bits(graph.launch(x=x), xp.sin(x + xp.asarray([1.0, 2.0, 3.0])))
    graph.close()


def test_a_node_of_an_explicit_graph_that_differs_the_second_time():
    """What the second attempt would have kept is let go of; the node is refused all the same."""
    runs = itertools.count()
    x = normal(3)
    graph = Graph(inputs={"x": x})
    graphjit_event, seen = xp.Event(), []

    def first(x):
        graphjit.record_event(graphjit_event)
        graphjit.host_callback(seen.append, x)
        return x + xp.asarray([1.0, 2.0, 3.0])

    def second(x):
        return x * 2 if next(runs) else helper(x)

    y = graph.add(first, graph.inputs["x"])
    with pytest.raises(UnsupportedNodeError, match=r"behind the kernel sin, in the code of ") as c:
        graph.add(second, y.result)  # added here
    assert "# added here. Leave out" in str(c.value)
    graph.outputs = graph.add(second, y.result).result
    assert same_bits(graph.launch(x=x), (x + xp.asarray([1.0, 2.0, 3.0])) * 2)
    graphjit.synchronize()
    assert [values.tolist() for values in seen] == [x.tolist()]
    graph.close()


def test_a_capture_block():
    """Its code cannot be run again: the statement is named, and the kernel before."""

    def block():
        with graphjit.capture(inputs={"x": xp.ones(3)}) as made:  # the statement
            made.outputs = helper(made.inputs["x"])

    message = refused_by(block)
    assert "behind the kernel sin, in the code of " in message
    assert f"{__file__}:{block.__code__.co_firstlineno + 1}, in " in message
    assert "# the statement. Leave out the call that made it. In a function with" in message
