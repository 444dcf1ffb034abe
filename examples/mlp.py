# Shows: training a small network. The forward pass is a graphed method that finds its weights in
# `self`; the training step takes the weights as a list and returns new ones. Replacing the weights
# needs no new capture.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import itertools
import time

import cupy as cp
import numpy as np

from graphjit import graphed

SIZES = (2, 64, 64, 1)
RATE = 0.1


class Network:
    def __init__(self, weights):
        self.weights = weights

    def plain_forward(self, x):
        for w in self.weights[:-1]:
            x = cp.tanh(x @ w)
        return x @ self.weights[-1]

    forward = graphed(plain_forward)


def train_step(weights, x, target):
    """Return weights after one step of gradient descent on the squared error, and the error."""
    xp = cp.get_array_module(x)
    activations = [x]
    for w in weights[:-1]:
        activations.append(xp.tanh(activations[-1] @ w))
    error = activations[-1] @ weights[-1] - target
    gradient = 2 * error / len(x)
    new = []
    for w, a in zip(reversed(weights), reversed(activations), strict=True):
        new.append(w - RATE * (a.T @ gradient))
        gradient = (gradient @ w.T) * (1 - a * a)
    return new[::-1], (error * error).mean()


graphed_train_step = graphed(train_step)

random = np.random.default_rng(0)


def new_weights():
    return [random.normal(scale=n**-0.5, size=(n, m)) for n, m in itertools.pairwise(SIZES)]


def new_batch(n=256):
    x = random.uniform(-1, 1, size=(n, 2))
    return x, np.sin(3 * x[:, :1]) * x[:, 1:]


def train(step, weights, batches):
    loss = None
    for x, target in batches:
        weights, loss = step(weights, x, target)
    return weights, loss


def seconds(step):
    train(step, start, device_batches[:4])
    cp.cuda.Device().synchronize()
    began = time.perf_counter()
    train(step, start, device_batches)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - began


host_weights = new_weights()
host_batches = [new_batch() for _ in range(400)]
start = [cp.asarray(w) for w in host_weights]
device_batches = [(cp.asarray(x), cp.asarray(t)) for x, t in host_batches]

network = Network(start)
x, target = device_batches[0]
before = float(((network.forward(x) - target) ** 2).mean())
network.weights, loss = train(graphed_train_step, start, device_batches)
after = float(((network.forward(x) - target) ** 2).mean())
print(f"squared error before {before:.4f}, after {after:.4f}")
print(f"graphed: {seconds(train_step) / seconds(graphed_train_step):.1f} times as fast as eager")

eager_weights, eager_loss = train(train_step, start, device_batches)
for w, eager in zip(network.weights, eager_weights, strict=True):
    assert np.array_equal(cp.asnumpy(w), cp.asnumpy(eager))
assert float(loss) == float(eager_loss)
host_trained, _ = train(train_step, host_weights, host_batches)
for w, reference in zip(network.weights, host_trained, strict=True):
    np.testing.assert_allclose(cp.asnumpy(w), reference, rtol=1e-6, atol=1e-9)
assert np.array_equal(cp.asnumpy(network.forward(x)), cp.asnumpy(network.plain_forward(x)))
assert Network.forward.cache_info().misses == 1
assert graphed_train_step.cache_info().misses == 1
assert after < before
