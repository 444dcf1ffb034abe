# Shows: a function is captured as a graph at its first call, and launched on new arrays at every
# later one. It runs on the GPU if there is one, and on graphjit's simulated device otherwise.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit"]
# ///

import time

import numpy as np

from graphjit import graphed


def find_array_module():
    """Return CuPy if a CUDA device works, else the simulated arrays; and which of them it is."""
    try:
        import cupy

        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except ImportError as error:
        reason = f"CuPy cannot be imported ({error})"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        reason = f"no CUDA device works ({error})"
    else:
        return cupy, f"the GPU: {name}"
    from graphjit.testing import simulated

    return simulated, f"the simulated device, because {reason}"


xp, device = find_array_module()
print(f"running on {device}")


@graphed
def layer(x, weight, bias):
    y = x @ weight + bias
    return xp.maximum(y, 0) / (1 + xp.abs(y))


random = np.random.default_rng(0)


def new_array(*shape):
    return xp.asarray(random.standard_normal(shape).astype(np.float32))


weight, bias = new_array(128, 128), new_array(128)

inputs, results = [], []
for _ in range(5):
    inputs.append(new_array(64, 128))  # a new array at a new address
    results.append(layer(inputs[-1], weight, bias))  # captured once, then launched

print(layer.cache_info())
(entry,) = layer.cache_entries()
print(entry)


def seconds_per_call(fn, n=200):
    def wait():
        return float(fn(inputs[0], weight, bias)[0, 0])  # reads a number: waits for the device

    wait()
    start = time.perf_counter()
    for _ in range(n - 1):
        fn(inputs[0], weight, bias)
    wait()
    return (time.perf_counter() - start) / n


if xp.__name__ == "cupy":
    ratio = seconds_per_call(layer.eager) / seconds_per_call(layer)
    print(f"a graphed call is {ratio:.1f} times as fast as an eager one")

# Every result is what the undecorated function returns, bit for bit, and none was overwritten.
for x, result in zip(inputs, results, strict=True):
    expected = layer.eager(x, weight, bias)
    assert np.array_equal(xp.asnumpy(result), xp.asnumpy(expected))
assert layer.cache_info().hits >= 4
print("every result equals the eager one, bit for bit")
