"""optimize=True on CuPy: the same bits, shorter chains, and a gain in time."""

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import hits, normal, same_bits

from graphjit import graphed

raw = cp.RawKernel(
    """extern "C" __global__ void twice(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 2 * x[i];
    }""",
    "twice",
)
axpy = cp.ElementwiseKernel("T a, T x, T y", "T z", "z = a * x + y", "axpy_of_a_test")
sneaky = cp.ElementwiseKernel("_non_const T x", "T z", "z = x; x = 7", "sneaky_of_a_test")


def independent(x, y, n=8, length=6):
    results = []
    for i in range(n):
        z = x * np.float32(i + 1)
        for _ in range(length - 1):
            z = z + y
        results.append(z)
    return tuple(results)


def joined(x, y):
    a, b, c = independent(x, y, 3)
    return cp.where(a > b, c, a), axpy(np.float32(2), a, c)


def in_place(x, y):
    a = x + y
    x *= 2
    b = x - y
    cp.multiply(y, a, out=y)
    y[::2] = 3
    return a, b + y


def written_inputs(x, y):
    a = sneaky(x)
    return a + y, x + 1


def reductions(x, y):
    return x.sum(axis=0), y.max(axis=1), cp.cumsum(x), (x * y).mean(), cp.sort(y, axis=None)


def libraries(x, y):
    a, b = x @ y, y @ x
    f = cp.fft.fft(x)
    return a + b, f.real, cp.linalg.norm(b)


def raw_kernels(x, y):
    a, b = cp.empty_like(x), cp.empty_like(y)
    n = x.size
    raw(((n + 127) // 128,), (128,), (x, a, n))
    raw(((n + 127) // 128,), (128,), (y, b, n))
    return a - b, a, b


def fills(x, y):
    a, b = cp.zeros(100, np.float32), cp.zeros((3, 4))
    c, d = cp.zeros(7, np.int8), cp.zeros(1 << 16)
    a += x.ravel()[:100]
    return a, b, c, d, y * 2


def host_data(x, y):
    table = cp.asarray(np.arange(64, dtype=np.float32))
    return x[[3, 1, 2]] + table, cp.concatenate([y, x, y]), x * table


def streams(x, y):
    side = cp.cuda.Stream()  # ordered with the default stream, which runs the eager call
    with side:
        a = x * 3
    return a + y, y - 1


FUNCTIONS = [
    independent, joined, in_place, written_inputs, reductions, libraries, raw_kernels, fills,
    host_data, streams,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("patch", ["auto", "host", "device"])
def test_the_same_bits(fn, patch):
    """Six calls on fresh arrays, each compared with the eager call by verify, and again here."""
    call = graphed(optimize=True, verify=True, patch="auto" if fn is host_data else patch)(fn)
    for _ in range(6):
        x, y = normal(64, 64), normal(64, 64)
        copies = x.copy(), y.copy()
        assert same_bits(call(x, y), fn(*copies))
        assert same_bits((x, y), copies)
    assert hits(call) == 5


def test_chains_are_apart():
    """CuPy's kernels are known to read their inputs only: the chains do not wait for each other."""
    paths = {}
    for optimize in (False, True):
        call = graphed(optimize=optimize)(independent)
        call(normal(64), normal(64))
        paths[optimize] = call.cache_entries()[0].critical_path
    assert paths == {False: 48, True: 6}


def test_inputs_that_are_written_are_not_taken_for_inputs():
    """A `_non_const` parameter counts as written, and what comes behind waits."""
    call = graphed(optimize=True)(written_inputs)
    call(normal(64), normal(64))
    assert call.cache_entries()[0].critical_path >= 2


def test_many_launches_in_a_row():
    """Queued launches of a graph with branches do not disturb each other."""
    call = graphed(optimize=True)(joined)
    inputs = [(normal(4096), normal(4096)) for _ in range(50)]
    results = [call(x, y) for x, y in inputs]
    for (x, y), result in zip(inputs, results, strict=True):
        assert same_bits(result, joined(x, y))
