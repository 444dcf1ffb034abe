"""Updates: parameters that are set many times, structs by value, both patches."""

import itertools

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, hits, normal, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from graphjit import graphed

_BYTES_CODE = r"""
#pragma pack(push, 1)
struct Packed { unsigned char bytes[SIZE]; };
#pragma pack(pop)
extern "C" __global__ void copy_bytes(
    char tag, Packed p, const float* x, Packed q, unsigned char* out, float* y
) {
    for (int i = 0; i < SIZE; ++i) { out[i] = p.bytes[i]; out[SIZE + i] = q.bytes[i]; }
    out[2 * SIZE] = tag;
    y[0] = x[0] * 2;
}
"""
_PAIR_CODE = r"""
#pragma pack(push, 1)
struct Pair { char tag; const float* x; short n; float* y; unsigned char rest; };
#pragma pack(pop)
extern "C" __global__ void add_pair(Pair p) {
    int i = threadIdx.x;
    if (i < p.n) p.y[i] = p.x[i] + p.tag + p.rest;
}
"""


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("size", [1, 3, 5, 13, 17, 31, 255])
def test_structs_of_odd_size_by_value(size, patch):
    """A packed struct of any size reaches the kernel byte for byte, beside patched addresses."""
    kernel = cp.RawKernel(_BYTES_CODE.replace("SIZE", str(size)), "copy_bytes")
    host = np.random.default_rng(size).integers(0, 256, (2, size), np.uint8)
    first, second = (row.tobytes() for row in host)

    def fn(x):
        out, y = cp.zeros(2 * size + 1, np.uint8), cp.zeros(1, np.float32)
        p, q = (np.frombuffer(data, f"V{size}")[0] for data in (first, second))
        kernel((1,), (1,), (np.int8(42), p, x, q, out, y))
        return out, y

    graphed_fn = graphed(patch=patch)(fn)
    kept = []
    for _ in range(5):
        kept.append(normal(1))
        out, y = graphed_fn(kept[-1])
        assert out.get().tobytes() == first + second + b"\x2a"
        assert float(y[0]) == 2 * float(kept[-1][0])
    assert hits(graphed_fn) == 4


@pytest.mark.parametrize("patch", ["host", "device"])
def test_addresses_inside_a_packed_struct(patch):
    """Addresses at odd offsets of a struct by value are patched; the bytes beside them stay."""
    kernel = cp.RawKernel(_PAIR_CODE, "add_pair")
    dtype = np.dtype([("tag", "i1"), ("x", "u8"), ("n", "i2"), ("y", "u8"), ("rest", "u1")])

    def fn(x):
        y = cp.zeros_like(x)
        pair = np.zeros((), dtype)
        pair[()] = (3, x.data.ptr, x.size, y.data.ptr, 200)
        kernel((1,), (64,), (pair[()],))
        return y

    graphed_fn = graphed(patch=patch)(fn)
    kept = []
    for _ in range(5):
        kept.append(normal(40))
        assert agrees(graphed_fn, fn, kept[-1])
    assert hits(graphed_fn) == 4


def test_many_updates_and_an_older_key():
    """Entries that were launched long ago and others in between are right when they come back."""
    fn = graphed(lambda x, k: cp.fft.fft(x * k).real @ x)
    sizes, factors = (32, 64, 100), (1, 2.5)
    keys = list(itertools.product(sizes, factors))
    order = np.random.default_rng(3).integers(0, len(keys), 300)
    for index in order:
        n, k = keys[index]
        x = normal(n)
        assert same_bits(fn(x, k), cp.fft.fft(x * k).real @ x)
    assert fn.cache_info()[:2] == (294, 6)


@pytest.mark.parametrize("patch", ["host", "device"])
def test_the_same_addresses_are_not_written_again(patch):
    """A launch with the addresses of the last one skips the patch; others do not."""
    fn = graphed(patch=patch, outputs="static")(lambda x: x * 2)
    x, y = normal(10), normal(10)
    for a in (x, x, x, x, y, x):
        assert same_bits(fn(a), a * 2)
    (entry,) = fn.cache_entries()
    assert (entry.launches, entry.patches) == (5, 3)


def test_changed_contents_at_the_same_address():
    """New numbers at an old address are read, although no address is written."""
    fn = graphed(lambda x: x * 2)
    x = normal(100)
    for k in range(5):
        x[:] = k
        assert same_bits(fn(x), x * 2)


def test_launches_are_queued_without_waiting():
    """Launches that are queued back to back on other arrays each use their own addresses."""

    def fn(x):
        for _ in range(30):
            x = cp.sin(x) + 0.5
        return x

    for patch in ("host", "device"):
        graphed_fn = graphed(patch=patch)(fn)
        inputs = [normal(1 << 18) for _ in range(40)]
        expected = [fn(x) for x in inputs]
        graphed_fn(inputs[0])
        cp.cuda.Device().synchronize()
        results = [graphed_fn(x) for x in inputs]
        assert same_bits(expected, results)


def test_more_arrays_than_one_patch_kernel_takes():
    """A function of 500 arrays, more than one patch node holds, has them all re-pointed."""

    def fn(arrays):
        return [a + k for k, a in enumerate(arrays)]

    graphed_fn = graphed(patch="device")(fn)
    for _ in range(3):
        arrays = [normal(3) for _ in range(500)]
        assert same_bits(graphed_fn(arrays), fn(arrays))
    assert hits(graphed_fn) == 2


def test_a_thousand_kernels():
    """A chain of 1,000 kernels is one graph launch, and equal to eager."""

    def fn(x):
        for k in range(1000):
            x = x + (k % 7)
        return x

    graphed_fn = graphed(fn)
    for _ in range(3):
        assert agrees(graphed_fn, fn, normal(200))
    (entry,) = graphed_fn.cache_entries()
    assert entry.nodes["kernel"] == 1000
    assert entry.patch_kind == "device"
    assert entry.scratch_nbytes <= 4 * 1024  # the temporaries share their memory


_OPERATIONS = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "view": lambda a, b: a[::-1] + b,
    "sort": lambda a, b: cp.sort(a) - b,
    "sum": lambda a, b: a + b.sum(),
    "scan": lambda a, b: cp.cumsum(a) * 0.1 + b,
    "in place": lambda a, b: a.__iadd__(b * 0.5),
    "copy": lambda a, b: cp.concatenate([a[:16], b[16:]]),
    "list": lambda a, b: a[list(range(31, -1, -1))] + b,
    "product": lambda a, b: cp.outer(a, b)[3] * 0.1,
}


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(_OPERATIONS)), st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    patch=st.sampled_from(["host", "device"]),
)
def test_random_programs(steps, patch):
    """A random program on two arrays, with temporaries that come and go, equals eager."""

    def program(x, y):
        values = [x, y, x + 1, y * 2]
        for name, left, right in steps:
            values[(left + right) % 4] = _OPERATIONS[name](values[left], values[right])
        return values[-1], values[0].sum()

    fn = graphed(patch=patch)(program)
    for _ in range(3):
        assert agrees(fn, program, normal(32), normal(32))
    assert hits(fn) == 2
