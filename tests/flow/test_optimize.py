"""optimize=True: chains that share nothing run at once, and give the same bits."""

import pytest
from helpers.flow_checks import agrees, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit.testing import simulated as xp


def independent(x, y):
    """Four chains from shared inputs."""
    results = []
    for i in range(4):
        z = x * (i + 1)
        for _ in range(5):
            z = z + y
        results.append(z)
    return tuple(results)


def joined(x, y):
    a, b, c = independent(x, y)[:3]
    return a * b + c, a - c


def in_place(x, y):
    """Later chains overwrite what earlier ones read."""
    a = x + y
    x *= 2
    b = x - y
    y += a
    return a, b + y, x.sum()


def fills(x, y):
    """Fills, small and following each other, of memory that is apart and of memory that is not."""
    a, b, c = xp.zeros(5), xp.full(6, 0), xp.zeros((2, 3))
    d = xp.zeros(8)
    d[...] = 0
    a += x[:5]
    return a, b, c, d, x + y


def temporaries(x, y):
    """Memory of temporaries that end is not used again by a chain that need not wait."""
    total = x * 0
    for i in range(6):
        part = (x + i) * y
        part = part - x
        total = total + part
        del part
    return total, y * 3


FUNCTIONS = [independent, joined, in_place, fills, temporaries]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("outputs", ["fresh", "static"])
def test_the_same_bits(fn, outputs, patch):
    """Whatever order the device chooses among those allowed."""
    call = graphed(optimize=True, verify=True, outputs=outputs, patch=patch)(fn)
    for _ in range(12):
        assert agrees(call, fn, normal(8), normal(8))
    assert call.cache_info().hits == 11


def test_chains_are_apart():
    """The longest chain of dependencies is that of one branch; without the option all wait."""
    x, y = xp.asarray(normal(8)), xp.asarray(normal(8))
    paths = {}
    for optimize in (False, True):
        call = graphed(optimize=optimize)(independent)
        call(x, y)
        (entry,) = call.cache_entries()
        paths[optimize] = entry.critical_path
        assert entry.nodes == {"kernel": 24}
    assert paths == {False: 24, True: 6}


def test_small_fills_are_merged():
    """Three fills that follow each other are one node of the launched graph."""
    call = graphed(optimize=True)(lambda: (xp.zeros(5), xp.zeros(6), xp.zeros((2, 3))))
    call()
    assert [r.get().tolist() for r in call()] == [[0] * 5, [0] * 6, [[0] * 3] * 2]
    (entry,) = call._self_state.cache.entries()
    assert entry.executable.graph.nodes[0].params.launch.function.name == "graphjit_fills"
    assert entry.critical_path == 1


def test_overlapping_fills_stay_in_order():
    """The second fill wins."""

    def fn(x):
        y = xp.zeros(8)
        y[2:6] = 0
        y[...] = 0
        return x + y

    call = graphed(optimize=True, verify=True)(fn)
    for _ in range(6):
        assert agrees(call, fn, normal(8))


def test_capture_blocks_take_the_option():
    """As the decorator does."""
    x, y = xp.asarray(normal(8)), xp.asarray(normal(8))
    with graphjit.capture(inputs={"x": x, "y": y}, optimize=True) as block:
        block.outputs = independent(block.inputs["x"], block.inputs["y"])
    assert block.info().critical_path == 6
    assert same_bits(block.launch(x=x, y=y), independent(x, y))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_wrong_values_are_refused(value):
    """The option is a bool."""
    with pytest.raises(ValueError, match="optimize"):
        graphed(optimize=value)(independent)
