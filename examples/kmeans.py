# Shows: k-means with matrix products (cuBLAS). One step assigns points to centres and moves the
# centres; several batches of points at different addresses share one graph.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

N_POINTS, N_DIMENSIONS, N_CENTRES = 20_000, 16, 8


def step(points, centres):
    """Return the moved centres and the mean squared distance to the nearest centre."""
    xp = cp.get_array_module(points)
    squares = (points * points).sum(axis=1)[:, None] + (centres * centres).sum(axis=1)
    distances = squares - 2 * (points @ centres.T)
    is_nearest = distances.argmin(axis=1)[:, None] == xp.arange(N_CENTRES)
    members = is_nearest.astype(points.dtype)
    counts = xp.maximum(members.sum(axis=0), 1)
    return (members.T @ points) / counts[:, None], distances.min(axis=1).mean()


graphed_step = graphed(step)


def fit(step, points, n_steps=15):
    centres = points[:N_CENTRES].copy()
    loss = None
    for _ in range(n_steps):
        centres, loss = step(points, centres)
    return centres, loss


def seconds(step, points):
    fit(step, points)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(10):
        fit(step, points)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


random = np.random.default_rng(0)
means = random.normal(scale=5, size=(N_CENTRES, N_DIMENSIONS))
batches = [
    means[random.integers(0, N_CENTRES, N_POINTS)] + random.normal(size=(N_POINTS, N_DIMENSIONS))
    for _ in range(3)
]

for batch in batches:
    batch[:N_CENTRES] = means + random.normal(scale=0.1, size=means.shape)
    points = cp.asarray(batch)
    centres, loss = fit(graphed_step, points)
    eager_centres, eager_loss = fit(step, points)
    reference, _ = fit(step, batch)
    print(f"mean squared distance {float(loss):.3f}")
    assert np.array_equal(cp.asnumpy(centres), cp.asnumpy(eager_centres))
    assert float(loss) == float(eager_loss)
    np.testing.assert_allclose(cp.asnumpy(centres), reference, rtol=1e-8)

ratio = seconds(step, points) / seconds(graphed_step, points)
print(f"graphed: {ratio:.1f} times as fast as eager; {graphed_step.cache_info()}")
assert graphed_step.cache_info().misses == 1
