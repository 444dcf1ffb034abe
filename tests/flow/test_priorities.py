"""Streams of different priorities: a graph keeps the priority of each of its nodes."""

import pytest
from helpers.flow_checks import normal, same_bits
from helpers.priorities import priorities_of

import graphjit
from graphjit import graphed
from graphjit.testing import simulated as xp


def forked(x, high):
    with high:
        y = xp.sin(x)
    z = xp.cos(x)
    high.synchronize()
    return y + z


@pytest.mark.parametrize("own_fork", [False, True])
def test_a_branch_keeps_its_priority(own_fork, patch, tmp_path):
    """Whoever forks it; in a file, too."""
    high = xp.Stream(non_blocking=True, priority=-3)

    def fn(x):
        if own_fork:
            high.wait_event(xp.current_stream().record())
        y = forked(x, high)
        if own_fork:
            xp.current_stream().wait_event(high.record())
        return y

    call = graphed(patch=patch)(fn)
    for _ in range(3):
        x = normal(4)
        assert same_bits(call(x), fn(x))
    assert priorities_of(call) == (True, [-3, 0, 0])
    call.export(tmp_path / "graph", x)
    loaded = graphjit.load(tmp_path / "graph")
    assert loaded._entry.executable.use_node_priority
    assert [dict(n.attributes).keys() for n in loaded._entry.graph.nodes if n.kind == "kernel"] == [
        {"PRIORITY"},
        set(),
        set(),
    ]
    assert same_bits(loaded.launch(x=x), fn(x))
    loaded.close()


def test_one_priority_is_that_of_the_launch():
    """Where all streams have the priority of the caller's, a launch goes by its own stream."""
    side = xp.Stream(non_blocking=True)
    call = graphed(lambda x: forked(x, side))
    call(normal(3))
    assert priorities_of(call) == (False, [0, 0, 0])
    call.cache_clear()
    side = xp.Stream(non_blocking=True, priority=-2)
    with xp.Stream(non_blocking=True, priority=-2):
        call(normal(3))
    assert priorities_of(call) == (False, [-2, -2, -2])
