"""Random numbers whose generators keep their state on the host: every call draws the next ones."""

import numpy as np
import pytest
from helpers.flow_checks import normal

import graphjit
from graphjit import CaptureError, graphed
from graphjit.testing import simulated as xp


def same(left, right):
    """Say whether two nested tuples of arrays have the same bits."""
    if isinstance(left, tuple):
        return all(same(a, b) for a, b in zip(left, right, strict=True))
    return left.get().tobytes() == right.get().tobytes()


def sequence(fn, n=6, size=5):
    """Call a function on inputs that are the same for each function."""
    rng = np.random.default_rng(9)
    return tuple(fn(xp.asarray(rng.standard_normal(size))) for _ in range(n))


def make(kind, generator):
    """Return a function that draws, in a way of its own."""

    def by_library(x):
        return x + generator.uniform(x.shape)

    def by_kernel(x):
        return x * generator.seeded(x.shape)

    def mixed(x):
        a = generator.uniform(x.shape)
        b = generator.seeded(7)
        c = generator.uniform((3, 2)) * 2
        d = generator.seeded(x.shape)
        return (x + a * d, b, c.sum(), generator.uniform(4))

    def into_scratch(x):
        """Temporaries before the draw must not share its place: it is made before all."""
        y = ((x + 1) * 2 - 3) * 4
        z = y + 1
        del y
        draw = generator.uniform(x.shape)
        w = z * draw
        del draw, z
        return w + generator.uniform(x.shape)

    return locals()[kind]


@pytest.mark.parametrize("kind", ["by_library", "by_kernel", "mixed", "into_scratch"])
def test_a_graph_draws_what_eager_calls_draw(kind):
    """The sequence of numbers is that of the eager calls, launch after launch."""
    call = graphed(make(kind, xp.Generator(3)))
    got = sequence(call)
    assert same(got, sequence(make(kind, xp.Generator(3))))
    assert call.cache_info().hits == 5
    assert call.cache_entries()[0].draws > 0
    assert not same(got[1], got[2])


def test_a_generator_is_shared():
    """Two graphed functions and eager draws between them take the numbers in turn."""

    def run(wrap, generator):
        first, second = wrap(make("mixed", generator)), wrap(make("by_kernel", generator))
        found = []
        for _ in range(3):
            found += [*sequence(first, 1), *sequence(second, 2), generator.uniform(3)]
        return tuple(found)

    assert same(run(graphed, xp.Generator(5)), run(lambda fn: fn, xp.Generator(5)))


def test_seeding_between_calls():
    """A seed that is set between calls is what the next launch begins with."""
    generator = xp.Generator(1)
    call = graphed(make("mixed", generator))
    sequence(call, 3)
    generator.seed(8)
    assert same(sequence(call, 2), sequence(make("mixed", xp.Generator(8)), 2))
    assert call.cache_info().misses == 1


def test_seeds_that_run_out_are_a_miss():
    """Where the count would wrap within a call, the call runs eagerly."""
    generator = xp.Generator(1)
    call = graphed(make("by_kernel", generator))
    sequence(call, 2)
    generator.seed((1 << 64) - 3)
    assert same(sequence(call, 1), sequence(make("by_kernel", xp.Generator((1 << 64) - 3)), 1))
    assert call.cache_info().misses == 2


def test_seeding_inside_is_refused():
    """A launch would not repeat the seeding; the refusal names it, and nothing is drawn twice."""
    generator = xp.Generator(1)

    @graphed
    def fn(x):
        generator.seed(4)
        return x + generator.uniform(x.shape)

    with pytest.raises(CaptureError, match=r"seeds a random generator.*test_draws.py"):
        fn(xp.asarray(normal(4)))
    generator.seed(2)
    other = xp.Generator(2)
    assert same(generator.uniform(3), other.uniform(3))


def test_a_failed_capture_draws_nothing():
    """After a refusal the generator is where the eager call left it."""
    generator, other = xp.Generator(1), xp.Generator(1)

    @graphed(on_unsupported="eager")
    def fn(x):
        y = x + generator.uniform(x.shape) + generator.seeded(x.shape)
        return y if float(y.sum()) > 1e9 else y + 1

    x = xp.asarray(normal(4))
    got = tuple(fn(x) for _ in range(3))
    expected = tuple(x + other.uniform(4) + other.seeded(4) + 1 for _ in range(3))
    assert same(got, expected)


def test_verification_is_refused():
    """The eager call beside a launch would take other numbers."""
    call = graphed(verify=True)(make("by_library", xp.Generator(3)))
    with pytest.raises(CaptureError, match="cannot be verified"):
        sequence(call, 1)


def test_capture_blocks_draw():
    """A block draws at each launch, and not while it is captured."""
    generator, other = xp.Generator(3), xp.Generator(3)
    x = xp.asarray(normal(4))
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = make("mixed", generator)(block.inputs["x"])
    fn = make("mixed", other)
    for _ in range(3):
        x = xp.asarray(normal(4))
        assert same(block.launch(x=x), fn(x))


def test_static_outputs_hold_new_numbers():
    """With static outputs the draws fill the same memory at every call."""
    call = graphed(outputs="static")(make("by_library", xp.Generator(3)))
    fn = make("by_library", xp.Generator(3))
    for _ in range(4):
        x = xp.asarray(normal(4))
        assert same(call(x), fn(x))
