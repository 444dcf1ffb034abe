# Shows: a loop to a tolerance that the device decides. A solver by conjugate gradients and a power
# iteration are one graph each, whatever number of rounds they take; nothing is read on the host.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed
from graphjit.control import while_loop

N = 512


def solve(a, b):
    """Solve a @ x = b for a symmetric positive definite a; return x and the rounds it took."""

    def step(carry):
        x, r, p, rr, rounds = carry
        ap = a @ p
        alpha = rr / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        new_rr = r @ r
        return x, r, r + new_rr / rr * p, new_rr, rounds + 1

    def goes_on(carry):
        return (carry[3] > 1e-20) & (carry[4] < N)

    x, _, _, _, rounds = while_loop(goes_on, step, (cp.zeros_like(b), b, b, b @ b, 0))
    return x, rounds


def largest_eigenvalue(a, x):
    """Multiply and normalize until the length settles; return it."""

    def step(carry):
        x, _, length = carry
        y = a @ x
        new_length = cp.sqrt(y @ y)
        return y / new_length, abs(new_length - length), new_length

    def goes_on(carry):
        return carry[1] > 1e-9 * carry[2]

    one = cp.ones((), x.dtype)
    return while_loop(goes_on, step, (x, one, one))[2]


def spd_matrix(rng):
    a = rng.standard_normal((N, N))
    return a @ a.T / N + np.eye(N)


def seconds(function, arguments):
    for pair in arguments[:3]:
        function(*pair)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for pair in arguments:
        function(*pair)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


graphed_solve = graphed(solve)
graphed_eigenvalue = graphed(largest_eigenvalue)
rng = np.random.default_rng(0)
problems = [(cp.asarray(spd_matrix(rng)), cp.asarray(rng.standard_normal(N))) for _ in range(20)]

for a, b in problems:
    x, rounds = graphed_solve(a, b)
    expected, expected_rounds = solve(a, b)
    assert np.array_equal(cp.asnumpy(x), cp.asnumpy(expected))
    assert int(rounds) == int(expected_rounds)
    assert float(abs(a @ x - b).max()) < 1e-8
    assert float(graphed_eigenvalue(a, b)) == float(largest_eigenvalue(a, b))
    np.testing.assert_allclose(float(graphed_eigenvalue(a, b)), np.linalg.norm(a.get(), 2))
assert graphed_solve.cache_info().misses == 1
(entry,) = graphed_solve.cache_entries()
print(f"{int(rounds)} rounds in one launch of {sum(entry.nodes.values())} nodes")
ratio = seconds(solve, problems) / seconds(graphed_solve, problems)
print(f"graphed: {ratio:.1f} times as fast as eager")
