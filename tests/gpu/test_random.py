"""cupy.random's older functions and RandomState: each launch draws what an eager call would."""

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import hits, in_threads, normal, same_bits

import graphjit
from graphjit import graphed

METHODS = (
    cp.cuda.curand.CURAND_RNG_PSEUDO_XORWOW,
    cp.cuda.curand.CURAND_RNG_PSEUDO_MRG32K3A,
    cp.cuda.curand.CURAND_RNG_PSEUDO_MT19937,
    cp.cuda.curand.CURAND_RNG_PSEUDO_PHILOX4_32_10,
)
DRAWS = {
    "random": lambda r, n: r.random_sample(n),
    "float32": lambda r, n: r.random_sample(n, dtype=np.float32),
    "rand": lambda r, n: r.rand(n, 3),
    "standard_normal, odd": lambda r, n: r.standard_normal(2 * n + 1),
    "normal, float32": lambda r, n: r.normal(1, 2, 2 * n, dtype=np.float32),
    "lognormal": lambda r, n: r.lognormal(0.5, 1.5, 2 * n),
    "uniform": lambda r, n: r.uniform(-1, 1, n),
    "randint": lambda r, n: r.randint(0, 64, n),
    "tomaxint": lambda r, n: r.tomaxint(n),
    "permutation": lambda r, n: r.permutation(n),
    "permutation of an array": lambda r, n: r.permutation(cp.arange(n)),
    "choice": lambda r, n: r.choice(64, n),
    "beta": lambda r, n: r.beta(1.5, 2.5, n),
    "binomial": lambda r, n: r.binomial(10, 0.4, n),
    "chisquare": lambda r, n: r.chisquare(3, n),
    "dirichlet": lambda r, n: r.dirichlet(cp.asarray([1.0, 2.0, 3.0]), n),
    "f": lambda r, n: r.f(3, 4, n),
    "gamma": lambda r, n: r.gamma(2, 3, n),
    "geometric": lambda r, n: r.geometric(0.3, n),
    "gumbel": lambda r, n: r.gumbel(1, 2, n),
    "hypergeometric": lambda r, n: r.hypergeometric(9, 8, 7, n),
    "laplace": lambda r, n: r.laplace(0, 1, n),
    "logistic": lambda r, n: r.logistic(0, 1, n),
    "pareto": lambda r, n: r.pareto(3, n),
    "poisson": lambda r, n: r.poisson(4, n),
    "standard_cauchy": lambda r, n: r.standard_cauchy(n),
    "standard_t": lambda r, n: r.standard_t(5, n),
    "vonmises": lambda r, n: r.vonmises(0, 1, n),
    "wald": lambda r, n: r.wald(1, 2, n),
    "two of each": lambda r, n: (r.rand(n), r.gamma(2, 3, n), r.randn(2 * n), r.beta(1, 2, n)),
}
# They compare their parameters with bounds, on the device, and read the answer.
READS = {
    "exponential": lambda r, n: r.exponential(2, n),
    "logseries": lambda r, n: r.logseries(0.4, n),
    "negative_binomial": lambda r, n: r.negative_binomial(5, 0.5, n),
    "power": lambda r, n: r.power(2, n),
    "rayleigh": lambda r, n: r.rayleigh(2, n),
    "triangular": lambda r, n: r.triangular(0, 1, 3, n),
    "weibull": lambda r, n: r.weibull(2, n),
    "zipf": lambda r, n: r.zipf(2.5, n),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_state_of_the_users_own(draw):
    """Launch after launch the numbers are those of the eager sequence, and the state goes on."""
    state, other = cp.random.RandomState(5), cp.random.RandomState(5)

    def fn(x):
        return x + 1, draw(state, x.size)

    call = graphed(fn)
    inputs = [normal(50) for _ in range(5)]
    got = [call(x) for x in inputs] + [state.rand(3), state.gamma(2, 3, 3)]
    expected = [(x + 1, draw(other, x.size)) for x in inputs]
    expected += [other.rand(3), other.gamma(2, 3, 3)]
    assert same_bits(got, expected)
    assert hits(call) == 4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_curand(method):
    """The generators that cuRAND has."""
    state, other = (cp.random.RandomState(5, method) for _ in range(2))
    call = graphed(lambda x: x * state.random_sample(x.shape) + state.standard_normal(x.shape))
    for _ in range(4):
        x = normal(64)
        expected = x * other.random_sample(x.shape) + other.standard_normal(x.shape)
        assert same_bits(call(x), expected)
    assert hits(call) == 3


def test_functions_of_cupy_random_share_a_state():
    """Two graphed functions, eager draws and seeds between them: one sequence of numbers."""

    def noise(x):
        return x + cp.random.standard_normal(x.shape, dtype=np.float32)

    def dropout(x):
        return cp.where(cp.random.random(x.shape) < 0.5, x, 0) * cp.random.gamma(2, 1, x.shape)

    def run(first, second, inputs):
        found = []
        cp.random.seed(3)
        for i, x in enumerate(inputs):
            if i == 4:
                cp.random.seed(8)
            found += [first(x), second(x), first(x), cp.random.rand(3), cp.random.beta(1, 2, 3)]
        return found

    inputs = [normal(40) for _ in range(7)]
    calls = graphed(noise), graphed(dropout)
    assert same_bits(run(*calls, inputs), run(noise, dropout, inputs))
    assert [hits(call) for call in calls] == [13, 6]


def test_another_default_state():
    """A default state that is replaced is noticed at the next call."""
    call = graphed(lambda x: x + cp.random.random(x.shape))
    x = normal(9)
    before = cp.random.get_random_state()
    try:
        for seed in (3, 4, 3):
            cp.random.set_random_state(cp.random.RandomState(seed))
            got = [call(x) for _ in range(3)]
            cp.random.set_random_state(cp.random.RandomState(seed))
            assert same_bits(got, [x + cp.random.random(x.shape) for _ in range(3)])
    finally:
        cp.random.set_random_state(before)


def test_making_or_seeding_a_generator_inside_is_refused():
    """A launch would not repeat it; the eager form draws what it would have drawn."""
    for draw in (
        lambda x: x + cp.random.RandomState(3).normal(size=x.shape),
        lambda x: [cp.random.seed(3), x + cp.random.random(x.shape)][1],
    ):
        with pytest.raises(graphjit.CaptureError, match="random generator"):
            graphed(draw)(normal(10))
        eager = graphed(on_unsupported="eager")(draw)
        x = normal(10)
        assert same_bits([eager(x) for _ in range(3)], [draw(x) for _ in range(3)])


@pytest.mark.parametrize("draw", READS.values(), ids=READS)
def test_distributions_that_read_are_refused(draw):
    """The refusal names the function; the state is where the eager call left it."""
    state, other = cp.random.RandomState(5), cp.random.RandomState(5)
    with pytest.raises(graphjit.HostReadError, match="RandomState"):
        graphed(lambda x: x + draw(state, x.size))(normal(10))
    draw(other, 10)
    assert same_bits([state.rand(5), state.gamma(1, 2, 5)], [other.rand(5), other.gamma(1, 2, 5)])


def test_a_range_that_needs_rejection_is_refused():
    """It reads on the host how many numbers to draw again; the state is left where it was."""
    state, other = cp.random.RandomState(5), cp.random.RandomState(5)
    with pytest.raises(graphjit.HostReadError, match="randint"):
        graphed(lambda x: x + state.randint(0, 100, x.shape))(normal(10))
    other.randint(0, 100, 10)
    assert same_bits(state.rand(5), other.rand(5))


def test_draws_into_scratch_and_outputs():
    """What is drawn may be returned as it is, or be used between temporaries."""
    state, other = cp.random.RandomState(5), cp.random.RandomState(5)

    def fn(r, x):
        y = cp.sin(x) * 2
        y = cp.cos(y) + y
        a = r.random_sample(x.shape)
        z = a * y
        del a, y
        b = r.standard_normal(x.shape)
        return z @ b.T, r.random_sample(x.shape), b.sum()

    call = graphed(lambda x: fn(state, x))
    for _ in range(5):
        x = normal(32, 32).astype(float)
        assert same_bits(call(x), fn(other, x))


def test_streams_and_threads():
    """Draws run on the caller's stream; threads share a state without a number drawn twice."""
    state = cp.random.RandomState(5)
    call = graphed(lambda x: x + state.random_sample(x.shape))
    found = []

    def work(i):
        with cp.cuda.Stream(non_blocking=True) as stream:
            x = cp.zeros(1000) + i
            results = [call(x) - i for _ in range(20)]
            stream.synchronize()
            found.extend(cp.asnumpy(r) for r in results)

    call(cp.zeros(1000))
    in_threads(8, work)
    rounded = {tuple(np.round(f[:5], 9)) for f in found}
    assert len(rounded) == len(found) == 160


def test_capture_blocks_draw():
    """A block draws at each launch, and not while it is captured."""
    state, other = cp.random.RandomState(5), cp.random.RandomState(5)
    x = normal(16)
    for r in (state, other):
        r.random_sample(16)
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = block.inputs["x"] + state.random_sample(16)
    for _ in range(3):
        x = normal(16)
        assert same_bits(block.launch(x=x), x + other.random_sample(16))
