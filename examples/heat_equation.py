# Shows: a solver loop. Twenty explicit steps of the heat equation in two dimensions are one graph;
# the state of one call is the input of the next, and the time step is a 0-d array, so that it may
# change without a new capture.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

N = 256
STEPS_PER_CALL = 20


def advance(u, conductivity, dt):
    """Advance the temperature by some steps; the border keeps its temperature."""
    for _ in range(STEPS_PER_CALL):
        inner = u[1:-1, 1:-1]
        laplacian = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * inner
        u = u.copy()
        u[1:-1, 1:-1] += dt * conductivity[1:-1, 1:-1] * laplacian
    return u


graphed_advance = graphed(advance)


def hot_spot(xp):
    x, y = xp.meshgrid(xp.linspace(-1, 1, N), xp.linspace(-1, 1, N))
    return xp.exp(-20 * (x * x + y * y))


def solve(step, xp, n_calls):
    u = hot_spot(xp)
    conductivity = 1 + 0.5 * xp.sin(8 * u)
    for k in range(n_calls):
        u = step(u, conductivity, xp.asarray(0.1 if k < n_calls // 2 else 0.15))
    return u


def seconds(step):
    solve(step, cp, 4)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    solve(step, cp, 50)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


u = solve(graphed_advance, cp, 10)
print(f"highest temperature {float(u.max()):.4f}, {graphed_advance.cache_info()}")
print(f"graphed: {seconds(advance) / seconds(graphed_advance):.1f} times as fast as eager")

assert np.array_equal(cp.asnumpy(u), cp.asnumpy(solve(advance, cp, 10)))
np.testing.assert_allclose(cp.asnumpy(u), solve(advance, np, 10), rtol=1e-9, atol=1e-12)
assert graphed_advance.cache_info().misses == 1
