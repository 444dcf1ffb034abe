"""Dynamic scalars with CuPy: found in the parameters of its kernels, and written anew."""

import math

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, normal, same_bits

from graphjit import DynamicScalarError, graphed
from graphjit import _hit as hit

axpy = cp.RawKernel(
    r"""extern "C" __global__ void axpy(float a, const float* x, float* y, int n, double b) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + (float)b;
    }""",
    "axpy",
)
half = cp.RawKernel(
    r"""#include <cuda_fp16.h>
    extern "C" __global__ void half_kernel(__half a, float* y, int n, signed char c) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] = __half2float(a) + c;
    }""",
    "half_kernel",
)
scale = cp.ElementwiseKernel("float32 x, float32 a, int64 n", "float32 z", "z = x * a + n", "f")
generic = cp.ElementwiseKernel("T x, T a", "T z", "z = x - a", "g")


def raw(x, a, b):
    y = cp.empty_like(x)
    axpy((1,), (128,), (np.float32(a), x, y, np.int32(x.size), b))
    return y


def narrow(x, a, c):
    y = cp.empty_like(x)
    half((1,), (128,), (a, y, np.int32(x.size), c))
    return y


def adam(p, g, m, v, lr, correction1, correction2):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - lr * (m / correction1) / (cp.sqrt(v / correction2) + 1e-8), m, v


def in_place(x, a):
    x *= a
    x += a
    cp.subtract(x, a, out=x)
    return x.sum()


def product(x, a):
    return a * (x @ x.T) + cp.full(3, 1.0).sum()


def _fill(x, a):
    """CuPy fills with zeros in another way than with other numbers."""
    x[3:7] = a
    return x + 0


def f32(*shape):
    return normal(*shape)


RANDOM = np.random.default_rng(7)
CASES = {
    "ufunc f4": (lambda x, a: x * a + a, "a", lambda k: (f32(50), RANDOM.normal())),
    "ufunc f8": (
        lambda x, a: cp.sin(x) * a,
        "a",
        lambda k: (f32(50).astype("f8"), RANDOM.normal()),
    ),
    "ufunc f2": (lambda x, a: x * a, "a", lambda k: (f32(50).astype("f2"), RANDOM.normal())),
    "reflected": (lambda x, a: a / x - a, "a", lambda k: (f32(50), RANDOM.normal())),
    "where": (lambda x, a: cp.where(x > 0, x, a), "a", lambda k: (f32(50), RANDOM.normal())),
    "compare": (lambda x, a: (x > a).sum(), "a", lambda k: (f32(50), RANDOM.normal())),
    "maximum": (lambda x, a: cp.maximum(x, a), "a", lambda k: (f32(50), RANDOM.normal())),
    "integers": (
        lambda x, n: (x + n) * n,
        "n",
        lambda k: (cp.arange(50), int(RANDOM.integers(-(1 << 40), 1 << 40))),
    ),
    "small integers": (
        lambda x, n: x + n,
        "n",
        lambda k: (cp.arange(50, dtype="i1"), int(RANDOM.integers(-128, 127))),
    ),
    "unsigned": (
        lambda x, n: x + n,
        "n",
        lambda k: (cp.arange(50, dtype="u1"), int(RANDOM.integers(0, 255))),
    ),
    "integer in floats": (lambda x, n: x * n, "n", lambda k: (f32(50), 3 * k - 5)),
    "complex": (
        lambda x, z: x * z + z,
        "z",
        lambda k: (f32(50).astype("c8"), complex(RANDOM.normal(), RANDOM.normal())),
    ),
    "numpy f4": (lambda x, a: x * a, "a", lambda k: (f32(50), np.float32(RANDOM.normal()))),
    "numpy f8": (lambda x, a: x * a, "a", lambda k: (f32(50), np.float64(RANDOM.normal()))),
    "raw kernel": (raw, ("a", "b"), lambda k: (f32(50), RANDOM.normal(), RANDOM.normal())),
    "narrow": (
        narrow,
        ("a", "c"),
        lambda k: (f32(50), np.float16(RANDOM.normal()), np.int8(RANDOM.integers(-128, 127))),
    ),
    "elementwise": (
        lambda x, a, n: scale(x, a, n),
        ("a", "n"),
        lambda k: (f32(50), RANDOM.normal(), int(RANDOM.integers(-99, 99))),
    ),
    "generic elementwise": (lambda x, a: generic(x, a), "a", lambda k: (f32(50), np.float32(k))),
    "adam": (
        adam,
        ("lr", "correction1", "correction2"),
        lambda k: (
            *(f32(50) for _ in range(3)),
            abs(f32(50)),
            1e-3 / (k + 1),
            1 - 0.9 ** (k + 1),
            1 - 0.999 ** (k + 1),
        ),
    ),
    "in place": (in_place, "a", lambda k: (f32(50), RANDOM.normal())),
    "gemm": (product, "a", lambda k: (f32(20, 20), RANDOM.normal())),
    "reduction": (lambda x, a: (x * a).sum(axis=0), "a", lambda k: (f32(50, 4), RANDOM.normal())),
    "full": (lambda x, a: cp.full(5, a) + x[:5], "a", lambda k: (f32(50), RANDOM.normal())),
    "put": (lambda x, a: _put(x, a), "a", lambda k: (f32(50), RANDOM.normal())),
}


def _put(x, a):
    x[3:7] = cp.ones(4, "f4") * a
    return x + 0


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize(("fn", "dynamic", "make"), CASES.values(), ids=list(CASES))
def test_one_graph_for_all_numbers(fn, dynamic, make, patch):
    """Fresh arrays and other numbers at every call: equal to eager bit for bit, captured once."""
    call = graphed(dynamic=dynamic, patch=patch)(fn)
    for k in range(6):
        assert agrees(call, fn, *make(k))
    info = call.cache_info()
    assert (info.misses, info.hits, info.eager_calls) == (1, 5, 0)
    assert call.cache_entries()[0].scalar_words > 0


def test_a_thousand_steps():
    """A step counter and a learning rate over many calls: one entry, no growth."""
    call = graphed(dynamic=("lr", "correction1", "correction2"))(adam)
    p, m, v = (cp.zeros(100, "f4") for _ in range(3))
    expected = (p, m, v)
    for step in range(1, 1001):
        g = normal(100)
        numbers = (1e-3 / step, 1 - 0.9**step, 1 - 0.999**step)
        p, m, v = call(p, g, m, v, *numbers)
        expected = adam(expected[0], g, expected[1], expected[2], *numbers)
    for got, want in zip((p, m, v), expected, strict=True):
        assert got.get().tobytes() == want.get().tobytes()
    assert call.cache_info()[:2] == (999, 1)


def test_numbers_that_the_kernel_does_not_hold():
    """An integer out of the array's range raises what the eager call raises."""
    call = graphed(dynamic="n")(lambda x, n: x + n)
    x = cp.arange(5, dtype="i1")
    assert [int(call(x, n)[0]) for n in (3, -4, 100)] == [3, -4, 100]
    with pytest.raises(OverflowError):
        call(x, 300)
    assert int(call(x, 7)[0]) == 7


@pytest.mark.parametrize(
    ("fn", "number", "reason"),
    [
        (lambda x, a: x * (a * 2), 1.5, "is computed with"),
        (lambda x, a: x if a > 1 else -x, 1.5, "decides"),
        (lambda x, a: x[a:], 2, "decides"),
        (lambda x, a: x + cp.asarray(a), 1.5, "host data|decides|computed"),
        (lambda x, a: x * math.sqrt(a), 2.25, "is computed with|derived form"),
        (lambda x, a: abs(x) ** a, 1.5, "decides what is launched"),
        (lambda x, n: x**n, 3, "decides what is launched"),
        (lambda x, a: _fill(x, a), 1.5, "decides what is launched"),
        (lambda x, a: cp.linspace(0, a, 5) + x[0], 1.5, "computed|decides|derived|host data"),
        (lambda x, a: cp.random.normal(0, a, 5) + x[0], 1.5, "random numbers|computed|decides"),
    ],
    ids=[
        "derived",
        "branch",
        "slice",
        "asarray",
        "sqrt",
        "power",
        "square",
        "full",
        "linspace",
        "random",
    ],
)
def test_what_is_refused(fn, number, reason):
    """What the host does with the number is refused, and the eager result is there."""
    with pytest.raises(DynamicScalarError, match=reason) as caught:
        graphed(dynamic=fn.__code__.co_varnames[1])(fn)(normal(8), number)
    assert caught.value.eager_result is not None


@pytest.mark.skipif(not hit.IS_COMPILED, reason="the compiled hit is not built, or turned off")
@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("a", [1.5, 3, np.float32(0.1), 1.5 - 2j], ids=repr)
def test_hits_are_served_by_compiled_code(patch, a):
    """New numbers, of Python's and NumPy's, reach the kernels on the native path."""

    def fn(x, a):
        return x * a + a, x - a

    call = graphed(dynamic="a", patch=patch)(fn)
    x = normal(50).astype("c16" if isinstance(a, complex) else "f8")
    call(x, a)
    call(x, a)
    (entry,) = call._self_state.cache.entries()
    assert [native.is_open for native in entry.executable.native] == [True]
    fast = call._self_fast
    for k in range(20):
        other = type(a)(a * (k + 2))
        got = fast.call((x, other))
        assert got is not hit.MISS
        assert same_bits(got, fn(x, other))
    assert call.cache_info().misses == 1
