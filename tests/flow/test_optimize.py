"""optimize=True: chains that share nothing run at once, and give the same bits."""

import numpy as np
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


@xp.kernel(params=["pointer", "pointer", "int64"])
def twice_behind(memory, sources, targets, n):
    """Double one array into another; it is given tables of their addresses."""
    source_ptr, target_ptr = (int(memory.array(t, (1,), "u8")[0]) for t in (sources, targets))
    memory.array(target_ptr, (n,), "f8")[...] = 2 * memory.array(source_ptr, (n,), "f8")


@xp.kernel(params=["pointer", "pointer"])
def store_address(memory, array_ptr, table_ptr):
    memory.array(table_ptr, (1,), "u8")[0] = array_ptr


def stored_numbers(x, y):
    """Kernels make the tables of numbers, as CuPy does for batched products."""
    a, out = x * y, xp.empty(8)
    tables = [xp.zeros(1, np.uint64) + np.uint64(array.device_ptr) for array in (a, out)]
    twice_behind(*tables, 8)
    return out + y


def stored_addresses(x, y):
    """A kernel of the user's own stores the addresses of the arrays that it is given."""
    a, out = x * y, xp.empty(8)
    tables = [xp.empty(1, np.uint64) for _ in range(2)]
    store_address(a, tables[0])
    store_address(out, tables[1])
    twice_behind(*tables, 8)
    a -= y
    return out + y, a


def tables_of_the_host(x, y):
    """The host makes the tables, and what they lead to is overwritten afterwards."""
    a, out = x * y, xp.empty(8)
    tables = [xp.asarray(np.array([v.device_ptr], np.uint64)) for v in (a, out)]
    b = a + 1
    twice_behind(*tables, 8)
    a *= 0
    return out + y, b


def many_parts(x, y):
    """The parts of a long concatenation change behind it."""
    parts = [x * (i + 1) for i in range(9)]
    whole = xp.concatenate(parts)
    for part in parts:
        part += y
    return whole, *parts


FUNCTIONS = [
    independent, joined, in_place, fills, temporaries, stored_numbers, stored_addresses,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("outputs", ["fresh", "static"])
def test_the_same_bits(fn, outputs, patch):
    """Whatever order the device chooses among those allowed."""
    call = graphed(optimize=True, verify=True, outputs=outputs, patch=patch)(fn)
    for _ in range(12):
        assert agrees(call, fn, normal(8), normal(8))
    assert call.cache_info().hits == 11


@pytest.mark.parametrize("fn", [tables_of_the_host, many_parts])
def test_the_same_bits_behind_tables(fn):
    """Work on memory that is found by tables is ordered with work on that memory."""
    call = graphed(optimize=True, verify=True)(fn)
    for _ in range(12):
        assert agrees(call, fn, normal(8), normal(8))
    assert call.cache_info().hits == 11


def test_tables_that_are_arguments():
    """An array of integers may hold addresses of other arguments."""

    def fn(x, y, sources, targets):
        x += 1
        twice_behind(sources, targets, 8)
        return y * 3

    call = graphed(optimize=True)(fn)
    for _ in range(12):
        x, y = xp.asarray(normal(8)), xp.asarray(normal(8))
        tables = [xp.asarray(np.array([v.device_ptr], np.uint64)) for v in (x, y)]
        wanted = (x.get() + 1) * 2 * 3
        assert same_bits(call(x, y, *tables), xp.asarray(wanted))
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
