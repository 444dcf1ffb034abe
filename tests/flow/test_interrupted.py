"""What a signal handler or a finaliser does in the middle of a launch by its own thread."""

import gc
import weakref

import pytest
from helpers.flow_checks import normal, same_bits

import graphjit
from graphjit import CaptureError, Graph, graphed
from graphjit._adapters import simulated_device as device
from graphjit._driver import host_functions
from graphjit.testing import simulated as xp


@pytest.fixture
def interrupt(monkeypatch):
    """Let a function run in the middle of the next launch; it returns what that function gave."""

    def wait_for(function, *, behind=False):
        driver, got = device.driver(), []
        launch = driver.graph_launch

        def interrupted(*args):
            monkeypatch.setattr(driver, "graph_launch", launch)
            if behind:
                launch(*args)
            got.append(function())
            if not behind:
                launch(*args)

        monkeypatch.setattr(driver, "graph_launch", interrupted)
        return got

    return wait_for


def test_the_same_function_is_called(interrupt):
    """Both calls give what they should."""

    @graphed
    def fn(x):
        return x * 2

    fn(normal(3))
    x, y = normal(3), normal(3)
    got = interrupt(lambda: fn(y))
    assert same_bits(fn(x), x * 2)
    assert same_bits(got[0], y * 2)
    assert same_bits(fn(y), y * 2)


def test_the_graph_is_closed(interrupt):
    """It is freed behind its launch; nothing waits for itself."""

    @graphed
    def fn(x):
        return x * 2

    fn(normal(3))
    x = normal(3)
    interrupt(fn.cache_clear)
    assert same_bits(fn(x), x * 2)
    assert device.driver().counts["live_graph_execs"] == 0
    assert same_bits(fn(x), x * 2)


def test_the_launch_fails_behind_a_close(interrupt):
    """The graph is freed all the same."""

    def fail():
        graph.close()
        raise graphjit.DriverError("cuGraphLaunch", "CUDA_ERROR_LAUNCH_FAILED", 719)

    graph = Graph(inputs={"x": normal(3)})
    graph.outputs = graph.add(lambda x: x + 1, graph.inputs["x"]).result
    graph.launch(x=normal(3))
    interrupt(fail)
    with pytest.raises(graphjit.DriverError):
        graph.launch(x=normal(3))
    assert device.driver().counts["live_graph_execs"] == 0


def test_it_is_composed_and_exported(interrupt, tmp_path):
    """Both are refused; a second launch, too."""
    graph = Graph(inputs={"x": normal(3)})
    graph.outputs = graph.add(lambda x: x + 1, graph.inputs["x"]).result
    graph.launch(x=normal(3))

    def meddle():
        with pytest.raises(CaptureError, match="cannot be launched now"):
            graph.launch(x=normal(3))
        with pytest.raises(CaptureError, match="cannot be launched now"):
            graphed(lambda x: graph.launch(x=x) * 2)(normal(3))
        with pytest.raises(graphjit.ExportError, match="interrupts a launch"):
            graph.export(tmp_path / "graph")

    x = normal(3)
    got = interrupt(meddle)
    assert same_bits(graph.launch(x=x), x + 1)
    assert got == [None]
    assert not list(tmp_path.iterdir())
    graph.close()


@xp.kernel(params=["pointer", "uint64"])
def through_area(memory, out_ptr, area_ptr):
    """Count the launches in memory of a library."""
    area = memory.array(area_ptr, (1,), "float64")
    area += 1
    memory.array(out_ptr, (1,), "float64")[...] = area


def test_graphs_that_take_turns(interrupt):
    """A new one in the same memory is refused; one of the others has to wait."""
    driver = device.driver()
    area = driver.mem_alloc(8)
    driver.memcpy_htod(area, bytes(8))

    def count(x):
        out = xp.empty((1,))
        through_area(out, area)
        return out + x

    def graph_of(fn):
        graph = Graph(inputs={"x": normal(1)})
        graph.outputs = graph.add(fn, graph.inputs["x"]).result
        return graph

    first, second = graph_of(count), graph_of(lambda x: count(x) * 1)
    zero = xp.zeros((1,))
    assert [float(g.launch(x=zero)[0]) for g in (first, second, first)] == [1, 2, 3]

    def meddle():
        with pytest.raises(CaptureError, match="cannot be launched now"):
            second.launch(x=zero)
        with pytest.raises(CaptureError, match="works in the same memory"):
            graph_of(count).launch(x=zero)

    got = interrupt(meddle)
    assert float(first.launch(x=zero)[0]) == 4
    assert got == [None]
    assert [float(g.launch(x=zero)[0]) for g in (second, graph_of(count), first)] == [5, 6, 7]
    first.close()
    second.close()
    gc.collect()
    driver.mem_free(area)


def test_a_keyboard_interrupt_behind_the_launch(interrupt):
    """What has been launched calls its function; the next launch calls it once."""
    seen = []

    def note(h):
        seen.append(h[0])

    @graphed
    def fn(x):
        graphjit.host_callback(note, x)
        return x * 2

    def stop():
        raise KeyboardInterrupt

    fn(normal(3))
    x, y = normal(3), normal(3)
    del seen[:]
    interrupt(stop, behind=True)
    with pytest.raises(KeyboardInterrupt):
        fn(x)
    fn(y)
    assert seen == [x.get()[0], y.get()[0]]
    assert host_functions.n_armed() == 0


def test_what_a_closed_graph_uses_outlives_its_launches(monkeypatch):
    """Arrays that it uses in place are kept until the device is done."""
    weights = normal(3)
    graph = Graph(inputs={"x": normal(3)})
    graph.outputs = graph.add(lambda x, w: x * w, graph.inputs["x"], weights).result
    x = normal(3)
    assert same_bits(graph.launch(x=x), x * weights)
    alive, kept = [], weakref.ref(weights)
    del weights
    wait = device.driver().wait_for_device
    monkeypatch.setattr(
        device.driver(), "wait_for_device", lambda: (alive.append(kept() is not None), wait())
    )
    graph.close()
    gc.collect()
    assert alive[0]
    assert kept() is None
