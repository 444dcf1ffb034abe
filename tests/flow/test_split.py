"""Functions that read on the host, as trees of graphs: ``on_unsupported="split"``."""

import gc
import itertools
import threading

import numpy as np
import pytest
from helpers.flow_checks import agrees, held_on_device, normal

from graphjit import CaptureError, HostReadError, graphed
from graphjit._segments import MAX_SEGMENTS
from graphjit.testing import simulated as xp

split = graphed(on_unsupported="split")


def branch(x):
    y = x * 2
    if float(y.sum()) > 0:
        return y + 1
    return y - 1, x


def halve(x):
    """Read in a loop: the number of rounds depends on the contents."""
    n = 0
    while bool((x > 1).any()):
        x = x / 2
        n += 1
    return x, n


def newton(x):
    n = 0
    while float(xp.absolute(x * x - 2).max()) > 1e-9:
        x = (x + 2 / x) / 2
        n += 1
    return x, n


def in_place(x, y):
    """Change arguments before, between and after reads."""
    x += 1
    if bool((x > 0.5).any()):
        y *= x
    z = y + x
    if bool((z > 1).any()):
        x[:] = z
    return z.sum(), x


def carried(x):
    """Temporaries of the first part are used, and returned, by the last."""
    a, b = x + 1, x * 3
    dead = a * b
    first = int(dead.sum() > 0)
    c = a - b
    second = int((c > 0).any())
    if second:
        return {"a": a, "c": [c, b[1:]], "n": first + second}
    return {"a": a, "b": b.reshape(1, -1)}


def select(x):
    return x[xp.nonzero(x > 0)[0]] * 2


def nested(x):
    if x.sum() > 0:
        if x.max() > 1:
            return x * 3
        return x * 5
    if x.min() < -1:
        return x * 7
    return x * 11


@pytest.mark.parametrize("fn", [branch, nested, carried], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("verify", [False, True])
def test_paths_in_any_order(fn, verify):
    """Fresh numbers on every call: whichever way they lead, the results are the eager ones."""
    call = graphed(on_unsupported="split", verify=verify)(fn)
    for _ in range(40):
        assert agrees(call, fn, normal(3))
    info = call.cache_info()
    assert (info.misses, info.eager_calls) == (1, 0)
    (entry,) = call.cache_entries()
    assert entry.segments > 2
    assert entry.host_reads >= 39


def test_a_loop_until_a_tolerance():
    """A loop whose rounds depend on what is read; equal contents take the same graphs again."""
    starts = [xp.asarray(np.array([1.5, 2.0, 3.0]) * s) for s in (1.0, 1.1, 1.0, 1.1)]
    call = split(newton)
    for x in starts * 2:
        assert agrees(call, newton, x)
    (entry,) = call.cache_entries()
    n_segments = entry.segments
    for x in starts:
        call(x)
    assert call.cache_entries()[0].segments == n_segments


def test_reads_of_few_values():
    """Booleans and counts give few segments, for any number of different arrays."""
    call = split(halve)
    for scale in (0.5, 3, 7, 30, 2, 5, 0.1, 25) * 3:
        x = xp.asarray(np.random.default_rng(0).uniform(0.5, 1, 4) * scale)
        assert agrees(call, halve, x)
    assert call.cache_entries()[0].segments <= 13


def test_arguments_changed_in_place():
    """What the function writes to its arguments is theirs, whatever was read between."""
    call = split(in_place)
    for _ in range(30):
        assert agrees(call, in_place, normal(4), normal(4))
    assert call.cache_info().misses == 1


def test_indices_that_are_read():
    """The number of selected elements is read, and decides the shape of the result."""
    call = split(select)
    for _ in range(6):
        x = xp.asarray(np.array([1.0, -2.0, 3.0]) * float(np.random.default_rng().uniform(1, 2)))
        assert agrees(call, select, x)
    assert call.cache_info().misses == 1


def test_a_function_that_reads_nothing_is_one_graph():
    """The option changes nothing for it."""
    call = split(lambda x: x * 2 + 1)
    for _ in range(3):
        assert agrees(call, lambda x: x * 2 + 1, normal(3))
    assert call.cache_entries()[0].segments == 1
    assert call.cache_entries()[0].host_reads == 0


def test_results_are_not_overwritten():
    """Memory that a segment leaves behind belongs to its call."""
    call = split(carried)
    inputs = [normal(3) for _ in range(12)]
    results = [call(x) for x in inputs]
    for x, got in zip(inputs, results, strict=True):
        assert str(got) == str(carried(x))


def test_nothing_is_held_between_calls():
    """Graphs hold no arrays, and all of them go with the cache."""
    before = held_on_device()
    call = split(carried)
    for _ in range(20):
        call(normal(3))
    held = held_on_device()
    assert held.array_nbytes == before.array_nbytes
    assert held.graph_execs - before.graph_execs == call.cache_entries()[0].segments > 2
    call.cache_clear()
    assert held_on_device() == before


def test_a_function_that_is_dropped_takes_its_graphs_along():
    """At once, without the garbage collector."""
    gc.collect()
    before = held_on_device().graph_execs
    gc.disable()
    try:
        call = split(lambda x: x * 2 if x.sum() > 0 else x * 3)
        for _ in range(6):
            call(normal(3))
        assert held_on_device().graph_execs > before
        del call
        assert held_on_device().graph_execs == before
    finally:
        gc.enable()


def test_what_a_branch_reaches_is_watched():
    """A global of code that only one branch runs is seen, and its change, too."""
    space = {"factor": 3.0}
    exec("def helper(x):\n    return x * factor", space)
    helper = space["helper"]

    def fn(x):
        if float(x.sum()) > 0:
            return helper(x)
        return x - 1

    call = split(fn)
    down, up = xp.asarray(np.full(3, -1.0)), xp.asarray(np.full(3, 2.0))
    for x in (down, down, up, up, down, up, up):
        assert agrees(call, fn, x + 0)
    space["factor"] = 5.0
    for x in (up, up, down, up):
        assert agrees(call, fn, x + 0)


def test_an_exception_of_a_branch_is_the_callers():
    """What the function raises is raised, each time, and other calls go on."""

    def fn(x):
        if float(x.sum()) < 0:
            raise ValueError("negative")
        return x + 1

    call = split(fn)
    for _ in range(3):
        assert agrees(call, fn, xp.ones(3))
        with pytest.raises(ValueError, match="negative"):
            call(xp.ones(3) * -1)


def test_a_branch_that_cannot_be_captured():
    """The call is carried out partly and says so; later ones are eager, and counted."""

    def fn(x):
        x += 1
        if float(x.sum()) > 0:
            xp.synchronize()
        return x * 2

    call = split(fn)
    for _ in range(2):
        assert call(xp.ones(2) * -3).tolist() == [-4.0, -4.0]
    with pytest.raises(CaptureError) as caught:
        call(xp.ones(2))
    (note,) = caught.value.__notes__
    assert "carried out up to the read at" in note
    assert "test_split.py" in note
    assert call(xp.ones(2)).tolist() == [4.0, 4.0]
    assert call.cache_info()[3:] == (0, 0, 1)
    assert "refus" in str(call.explain(xp.ones(2))) or "eagerly" in str(call.explain(xp.ones(2)))


def test_a_part_that_cannot_be_captured_before_anything_changed():
    """Without changes in place the call is run eagerly, and its result is with the error."""

    def fn(x):
        y = x * 2
        if y.sum() > 0:
            xp.synchronize()
        return y + 1

    call = split(fn)
    for _ in range(2):
        assert call(xp.ones(2) * -3).tolist() == [-5.0, -5.0]
    with pytest.raises(CaptureError) as caught:
        call(xp.ones(2))
    assert caught.value.eager_result.tolist() == [3.0, 3.0]
    assert "run eagerly instead" in caught.value.__notes__[-1]
    assert call(xp.ones(2)).tolist() == [3.0, 3.0]


def test_too_many_different_values():
    """A value that is another one each time fills the tree; then calls run eagerly."""

    def fn(x):
        return x * float(x.sum())

    call = split(fn)
    for k in range(MAX_SEGMENTS + 6):
        assert agrees(call, fn, xp.ones(3) * k)
    assert call.cache_info().eager_calls >= 5
    assert call.cache_info().current_entries == 0
    assert "different graphs" in str(call.explain(xp.ones(3)))


def test_a_function_that_does_not_do_the_same_each_time():
    """Other memory, or other reads, than in the run before: refused."""
    sizes = itertools.count(1)

    def fn(x):
        y = xp.zeros(next(sizes)) + 1
        if x.sum() > 0:
            return y.sum() + x
        return y.sum() - x

    call = split(fn)
    call(normal(2))
    with pytest.raises(CaptureError, match=r"does not do the same each time"):
        call(normal(2))


def test_large_reads_are_refused():
    """Whole arrays choose no graphs."""
    call = split(lambda x: x + float(x.get().sum()))
    with pytest.raises(CaptureError, match="reads 8000 bytes on the host"):
        call(normal(1000))


def test_random_numbers_beside_a_read_are_refused():
    """A generator of the host is drawn from before each launch, not between them."""
    rng = xp.Generator(3)
    call = split(lambda x: rng.uniform(3) + float(x.sum()))
    with pytest.raises(CaptureError, match="draws random numbers"):
        call(normal(3))


def test_work_on_other_streams():
    """A branch on another stream goes on after a read within it."""

    def fn(x):
        other = xp.Stream(non_blocking=True)
        with other:
            y = x * 3
            big = float(y.max()) > 1
            z = y + 1 if big else y - 1
        return z * 2

    call = split(fn)
    for _ in range(12):
        assert agrees(call, fn, normal(4))
    assert call.cache_info().misses == 1


def test_threads():
    """Several callers go through one tree at once, and make it grow."""
    call = split(nested)
    call(normal(3))
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            x = xp.asarray(rng.standard_normal(3))
            if call(x).tolist() != nested(x).tolist():
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert call.cache_info().misses == 1


def test_clearing_the_cache_while_a_call_goes_through():
    """Graphs stay until the call in the middle of them is done."""
    before = held_on_device()
    call = split(branch)
    call(xp.ones(3))
    call(xp.ones(3))
    (entry,) = call._self_state.cache.entries()
    tree = entry.segments
    plain_read = tree._read

    def read(*arguments):
        call.cache_clear()
        return plain_read(*arguments)

    tree._read = read
    assert agrees(call, branch, xp.ones(3))
    assert agrees(call, branch, normal(3))
    call.cache_clear()
    assert held_on_device() == before


def test_the_default_still_raises():
    """Without the option the read is an error, which names the option."""
    with pytest.raises(HostReadError, match="on_unsupported='split'"):
        graphed(branch)(normal(3))


@pytest.mark.parametrize("options", [{"outputs": "static"}, {"dynamic": "x"}])
def test_options_that_do_not_go_together(options):
    """Refused when the function is decorated."""
    with pytest.raises(ValueError, match="cannot be combined"):
        graphed(on_unsupported="split", **options)(branch)
