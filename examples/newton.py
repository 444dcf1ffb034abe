# Shows: a loop until a tolerance. The function reads on the host in every round whether it is done;
# with on_unsupported="split" each part between two reads is a graph of its own.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

N = 2000


def roots(coefficients, guess):
    """Solve x**3 + a*x - b = 0 for many a and b by Newton's method."""
    a, b = coefficients
    x, rounds = guess, 0
    while (abs(x**3 + a * x - b) > 1e-6).any():
        x = x - (x**3 + a * x - b) / (3 * x**2 + a)
        rounds += 1
    return x, rounds


graphed_roots = graphed(on_unsupported="split")(roots)


def problems(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        a, b = (cp.asarray(rng.uniform(0.5, 2, N)) for _ in range(2))
        yield (a, b), cp.full(N, 1.0)


def seconds(function):
    inputs = list(problems(100))
    for one in inputs[:5]:
        function(*one)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for one in inputs:
        function(*one)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


for one in problems(20):
    x, rounds = graphed_roots(*one)
    expected, expected_rounds = roots(*one)
    assert np.array_equal(cp.asnumpy(x), cp.asnumpy(expected))
    assert rounds == expected_rounds
(entry,) = graphed_roots.cache_entries()
print(f"{rounds} rounds, {entry.segments} graphs, {entry.host_reads} reads on the host")
print(f"graphed: {seconds(roots) / seconds(graphed_roots):.1f} times as fast as eager")
