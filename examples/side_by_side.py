# Shows: a graph put together by hand. Two filters of one signal do not wait for each other, a third
# node waits for both, and the host hears of each result without holding up the device.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

import graphjit

N, TAPS = 4000, 40
peaks = []


def smooth(signal):
    """Average over neighbours, time and again."""
    for _ in range(TAPS):
        signal = (cp.roll(signal, 1) + signal + cp.roll(signal, -1)) / 3
    return signal


def sharpen(signal):
    for _ in range(TAPS):
        signal = signal + 0.05 * (2 * signal - cp.roll(signal, 1) - cp.roll(signal, -1))
    return signal


def compare(low, high):
    difference = abs(high - low)
    graphjit.host_callback(note, difference.max())
    return difference


def note(peak):
    peaks.append(float(peak))


def eager(signal):
    return compare(smooth(signal), sharpen(signal))


def signal():
    return cp.random.standard_normal(N)


eager(signal())  # compiles the kernels

graph = graphjit.Graph(inputs={"signal": signal()})
low = graph.add(smooth, graph.inputs["signal"])
high = graph.add(sharpen, graph.inputs["signal"])
graph.outputs = graph.add(compare, low.result, high.result).result

for _ in range(20):
    x = signal()
    expected = eager(x)
    graphjit.synchronize()
    peaks.clear()
    assert np.array_equal(cp.asnumpy(graph.launch(signal=x)), cp.asnumpy(expected))
    graphjit.synchronize()
    assert peaks == [float(expected.max())]


def seconds(function):
    inputs = [signal() for _ in range(100)]
    function(inputs[0])
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    for x in inputs:
        function(x)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - begin


def launch(x):
    return graph.launch(signal=x)


print(f"by hand: {seconds(eager) / seconds(launch):.1f} times as fast as eager")
