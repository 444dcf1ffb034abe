# Shows: numbers that change at every call. Step size and bias corrections of Adam are dynamic
# scalars: one graph serves all steps, and each launch gets the numbers of its own call.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

N = 1000
BETA1, BETA2 = 0.9, 0.999


def update(weights, gradient, mean, square, rate, correction1, correction2):
    """Move the weights by one step of Adam."""
    mean = BETA1 * mean + (1 - BETA1) * gradient
    square = BETA2 * square + (1 - BETA2) * gradient * gradient
    step = rate * (mean / correction1) / (cp.sqrt(square / correction2) + 1e-8)
    return weights - step, mean, square


graphed_update = graphed(dynamic=("rate", "correction1", "correction2"))(update)


def fit(function, n_steps):
    """Minimise the distance from a target; the step size falls from call to call."""
    target = cp.sin(cp.arange(N, dtype=cp.float32))
    weights, mean, square = (cp.zeros(N, cp.float32) for _ in range(3))
    for k in range(1, n_steps + 1):
        gradient = weights - target
        numbers = (0.05 / (1 + 0.01 * k), 1 - BETA1**k, 1 - BETA2**k)
        weights, mean, square = function(weights, gradient, mean, square, *numbers)
    return weights, target


def seconds(function):
    fit(function, 10)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    fit(function, 300)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


weights, target = fit(graphed_update, 300)
print(f"distance {float(abs(weights - target).max()):.1e}, {graphed_update.cache_info()}")
print(f"graphed: {seconds(update) / seconds(graphed_update):.1f} times as fast as eager")

assert graphed_update.cache_info().misses == 1
assert np.array_equal(cp.asnumpy(weights), cp.asnumpy(fit(update, 300)[0]))
