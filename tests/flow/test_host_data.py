"""Host data inside the function: constants are right for ever, reads are refused by line."""

import itertools
import random

import numpy as np
import pytest
from helpers.flow_checks import agrees, held_on_device, normal, same_bits

import graphjit
from graphjit import CaptureError, graphed
from graphjit.testing import simulated as xp


def test_temporary_host_arrays_become_constants():
    """A NumPy array that was made inside, and is gone, is in the graph."""

    def fn(x):
        return x + xp.asarray(np.arange(4.0) * 2)

    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(4))
    (entry,) = graphed_fn.cache_entries()
    assert entry.constant_nbytes == 32
    assert held_on_device().other_nbytes >= 32


def test_list_and_numpy_indices():
    """Lists, NumPy arrays and masks of the host select the same elements on every call."""

    def fn(x):
        mask = np.arange(6) % 2 == 0
        return x[[0, 2]], x[np.array([5, 1])], x[mask], xp.take(x, [3, 3, 1])

    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(6))
    assert graphed_fn.cache_info().hits == 3


def test_tables_of_addresses_are_re_pointed():
    """A table of addresses that the host made holds those of the call's arrays."""

    def fn(x, y):
        return xp.concatenate([x, y, *(x + i for i in range(9))])

    graphed_fn = graphed(fn)
    kept = []
    for _ in range(5):
        kept.append((normal(3), normal(3)))
        assert agrees(graphed_fn, fn, *kept[-1])
    assert graphed_fn.cache_info().hits == 4


def test_a_constant_that_is_changed_in_place():
    """A constant is as the function made it on every call, also if a call wrote into it."""

    def fn(x):
        table = xp.asarray([1.0, 2.0, 3.0])
        table += x
        return table

    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(3))
    assert graphed_fn.cache_info().hits == 3


def test_a_constant_that_is_returned():
    """A returned constant is in fresh memory each time."""

    def fn(x):
        return xp.asarray([1.0, 2.0, 3.0]), x + 1

    graphed_fn = graphed(fn)
    results = []
    for _ in range(4):
        results.append(graphed_fn(normal(3))[0])
        assert results[-1].tolist() == [1.0, 2.0, 3.0]
        results[-1][...] = -1
    assert len({r.device_ptr for r in results}) == 4


def test_host_data_that_looks_like_numbers():
    """Constants of integers, floats and bytes come through as they are."""
    rng = np.random.default_rng(0)
    tables = [rng.integers(0, 1 << 62, 32), rng.random(16), rng.integers(0, 255, 99).astype("u1")]

    def fn(x):
        return [x, *(xp.asarray(table) for table in tables)]

    graphed_fn = graphed(fn)
    for _ in range(3):
        assert agrees(graphed_fn, fn, normal(2))


READS = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "item": lambda v: v.item(),
    "tolist": lambda v: v.tolist(),
    "get": lambda v: v.get(),
    "asnumpy": xp.asnumpy,
    "nonzero": lambda v: xp.nonzero(v.reshape(1)),
    "mask": lambda v: v.reshape(1)[v.reshape(1) > 0],
    "repr": repr,
    "range": lambda v: range(v),
}


@pytest.mark.parametrize("name", READS)
def test_host_reads_are_refused_by_line(name):
    """The error names the user's line; the stream is usable, the cache empty."""

    def fn(x):
        total = x.sum().astype("i8")
        READS[name](total)
        return x

    graphed_fn = graphed(fn)
    for _ in range(3):
        with pytest.raises(graphjit.HostReadError, match=r"test_host_data\.py:") as caught:
            graphed_fn(xp.ones(4))
        text = str(caught.value)
        assert "reads the contents of a device array" in text
        assert "READS[name](total)" in text or f'"{name}": lambda' in text
        assert "test_host_reads_are_refused_by_line.<locals>.fn" in text
    assert graphed_fn.cache_info().current_entries == 0
    assert same_bits(graphed(lambda x: x * 2)(xp.ones(4)), xp.full(4, 2.0))


def test_a_branch_on_a_value_is_refused():
    """``if x.sum() > 0`` cannot be decided in a graph, and the eager result is in the error."""

    def fn(x):
        if x.sum() > 0:
            return x * 2
        return x * 3

    with pytest.raises(graphjit.HostReadError, match=r"if x\.sum") as caught:
        graphed(fn)(xp.ones(4))
    assert caught.value.eager_result.tolist() == [2.0] * 4


def test_a_swallowed_host_read_is_refused():
    """A function that catches the error of the read is refused all the same."""

    def fn(x):
        try:
            n = int(x.sum())
        except graphjit.GraphjitError:
            n = 5
        return x * n

    with pytest.raises(graphjit.HostReadError, match="int"):
        graphed(fn)(xp.ones(4))


def test_a_host_read_runs_eagerly_if_asked():
    """With ``on_unsupported="eager"`` every call decides anew."""
    runs = itertools.count()

    def fn(x):
        next(runs)
        return x * 2 if x.sum() > 0 else x * 3

    graphed_fn = graphed(on_unsupported="eager")(fn)
    for factor in (1.0, -1.0, 1.0):
        x = xp.full(3, factor)
        assert same_bits(graphed_fn(x), x * (2 if factor > 0 else 3))
    assert next(runs) == 4  # three eager calls, one attempt at a capture
    assert graphed_fn.cache_info().eager_calls == 2
    assert "host" in graphed_fn.explain(xp.ones(3)).refusal
    graphed_fn.cache_clear()
    assert graphed_fn.explain(xp.ones(3)).refusal is None


def test_reads_of_other_arrays_are_refused_too():
    """An array that the function was not given cannot be read either."""
    held = xp.ones(3)
    with pytest.raises(graphjit.HostReadError, match=r"float\(held"):
        graphed(lambda x: x * float(held.sum()))(xp.ones(3))


# -- random numbers of the host


def draw_by_random(_):
    return random.random()


def draw_by_numpy(_):
    return float(np.random.standard_normal())


def draw_by_generator(generator):
    return float(generator.random())


@pytest.mark.parametrize(
    ("draw", "generator"),
    [
        (draw_by_random, None),
        (draw_by_numpy, None),
        (draw_by_generator, np.random.default_rng(3)),
        (draw_by_generator, random.Random(3)),
        (draw_by_generator, np.random.RandomState(3)),
    ],
    ids=["random", "numpy.random", "Generator", "Random", "RandomState"],
)
def test_random_numbers_of_the_host_are_refused(draw, generator):
    """They would be the same at every launch; after the refusal they go on as if nothing was."""

    def fn(x):
        return x + (draw(generator) if generator is None else float(generator.random()))

    random.seed(4)
    np.random.seed(4)
    x = xp.asarray(normal(4))
    with pytest.raises(CaptureError, match="random") as caught:
        graphed(fn)(x)
    after = draw(generator)
    random.seed(4)
    np.random.seed(4)
    if generator is None:
        first, second = draw(generator), draw(generator)
        assert caught.value.eager_result.get().tolist() == (x.get() + first).tolist()
        assert after == second
