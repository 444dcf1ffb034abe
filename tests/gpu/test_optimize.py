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


deceitful = cp.ElementwiseKernel(
    "T x", "T z", "z = x; const_cast<T&>(x) = 7", "deceitful_of_a_test"
)
device_code = cp.RawModule(
    code="""
    __device__ float kept[4096];
    extern "C" __global__ void put(const float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) kept[i] = x[i];
    }
    extern "C" __global__ void get(float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = kept[i];
    }"""
)
tables_of_rows = cp.RawKernel(
    """extern "C" __global__ void tables_of_rows(float* x, float** table, int n, int width) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) table[i] = x + (long long)i * width;
    }""",
    "tables_of_rows",
)
twice_behind = cp.RawKernel(
    """extern "C" __global__ void twice_behind(float* const* x, float* const* y, int width) {
        for (int i = threadIdx.x; i < width; i += blockDim.x)
            y[blockIdx.x][i] = 2 * x[blockIdx.x][i];
    }""",
    "twice_behind",
)


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


def products(x, y):
    """CuPy multiplies broadcast stacks through tables of addresses that a kernel fills."""
    a, b = (x + 1).reshape(4, 1, 32, 32), (y - 1).reshape(1, 4, 32, 32)
    c = a @ b
    d = c * 2
    a *= 0
    e = (a + y[0, 0]).astype(np.int32) @ b.astype(np.int32)
    return c, d + e, a


def many_parts(x, y):
    """More than eight arrays are joined through a table of addresses of the host."""
    parts = [x * np.float32(i + 1) for i in range(9)]
    whole = cp.concatenate(parts)
    for part in parts:
        part += y
    return whole, *parts


def behind_pointers(x, y):
    """A kernel stores addresses, and another goes there."""
    a, out = x * y, cp.empty_like(x)
    tables = [cp.empty(64, np.uint64) for _ in range(2)]
    for array, table in zip((a, out), tables, strict=True):
        tables_of_rows((1,), (64,), (array, table, np.int32(64), np.int32(64)))
    twice_behind((64,), (64,), (*tables, np.int32(64)))
    a -= y
    return out + y, a


def deceived(x, y):
    a = x + y
    b = deceitful(a)
    return a * 2, b + y


def device_variables(x, y):
    a, out = x + y, cp.empty_like(x)
    device_code.get_function("put")((32,), (128,), (a, np.int32(a.size)))
    device_code.get_function("get")((32,), (128,), (out, np.int32(a.size)))
    return out * 2


def gathered(x, y):
    rows = cp.argsort(y[0])
    results = [cp.take(x, (rows + i) % 64, axis=0) - y for i in range(4)]
    scattered = cp.zeros_like(x)
    scattered[rows] = x
    return *results, scattered


def in_turn(x, y):
    """Branches that fan out from one array, are reduced, and meet again."""
    z = x + y
    parts = [(z * np.float32(i + 1)).sum(axis=0) for i in range(5)]
    z[...] = 0
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total, z, cp.stack(parts)


def layers(x, y):
    """Matrix products in branches of their own."""
    branches = [(x * np.float32(i + 1)) @ y for i in range(4)]
    return [cp.maximum(b, 0) @ x for b in branches]


FUNCTIONS = [
    independent, joined, in_place, written_inputs, reductions, libraries, raw_kernels, fills,
    host_data, streams, products, many_parts, behind_pointers, deceived, device_variables,
    gathered, in_turn, layers,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("patch", ["auto", "host", "device"])
def test_the_same_bits(fn, patch):
    """Six calls on fresh arrays, each compared with the eager call by verify, and again here."""
    needs_device_patch = fn in (host_data, many_parts, in_turn)
    call = graphed(optimize=True, verify=True, patch="auto" if needs_device_patch else patch)(fn)
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


@pytest.mark.parametrize(
    ("fn", "shortest"),
    [(deceived, 3), (device_variables, 4), (behind_pointers, 4), (products, 4)],
)
def test_what_must_wait_does(fn, shortest):
    """Kernels that meet in memory that no parameter shows are in order."""
    call = graphed(optimize=True)(fn)
    call(normal(64, 64), normal(64, 64))
    assert call.cache_entries()[0].critical_path >= shortest


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_memory_of_the_host_is_memory(kind):
    """Two kernels that meet in memory which is not on the device are in order."""
    if kind == "pinned":
        memory = cp.cuda.alloc_pinned_memory(64 * 4)
    else:
        memory = cp.cuda.malloc_managed(64 * 4)
    ptr = np.uint64(memory.ptr)

    def fn(x):
        out = cp.empty_like(x)
        raw((1,), (64,), (x, ptr, np.int32(64)))
        raw((1,), (64,), (ptr, out, np.int32(64)))
        return out

    call = graphed(optimize=True)(fn)
    for _ in range(4):
        x = normal(64)
        assert same_bits(call(x), x * 4)
    assert call.cache_entries()[0].critical_path == 2


def test_many_launches_in_a_row():
    """Queued launches of a graph with branches do not disturb each other."""
    call = graphed(optimize=True)(joined)
    inputs = [(normal(4096), normal(4096)) for _ in range(50)]
    results = [call(x, y) for x, y in inputs]
    for (x, y), result in zip(inputs, results, strict=True):
        assert same_bits(result, joined(x, y))
