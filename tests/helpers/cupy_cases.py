"""CuPy functions and compositions, each with a maker of fresh random arguments.

``CASES`` maps a name to a ``Case``. ``expected`` is ``"graph"`` or the part of the refusal's
text that must be there. Used by tests/gpu/test_functions.py and by the table in the docs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

N = 96


@dataclass(frozen=True)
class Case:
    """A function, its arguments, and what is expected of it."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    expected: str = "graph"
    tolerance: float = 0.0
    reason: str = ""


CASES: dict[str, Case] = {}


def normal(*shape: int, dtype: Any = cp.float32) -> Any:
    """Return fresh random numbers at a new address."""
    return cp.random.standard_normal(shape).astype(dtype)


def complex_normal(*shape: int) -> Any:
    """Return fresh random complex64 numbers."""
    return (normal(*shape) + 1j * normal(*shape)).astype(cp.complex64)


def integers(*shape: int, high: int = 1000) -> Any:
    """Return fresh random integers."""
    return cp.random.randint(0, high, shape)


def positive_definite(n: int, dtype: Any = cp.float32) -> Any:
    """Return a fresh symmetric positive definite matrix."""
    a = cp.random.standard_normal((n, n))
    return (a @ a.T + n * cp.eye(n)).astype(dtype)


def one() -> tuple[Any, ...]:
    """One matrix."""
    return (normal(N, N),)


def two() -> tuple[Any, ...]:
    """Two matrices."""
    return normal(N, N), normal(N, N)


def add(
    name: str,
    fn: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]] = two,
    expected: str = "graph",
    **more: Any,
) -> None:
    """Register a case."""
    CASES[name] = Case(name, fn, make, expected, **more)


# -- elementwise
add("add", lambda x, y: x + y)
add("chain of 20", lambda x, y: _chain(x, y, 20))
add("sin exp log1p", lambda x, y: cp.sin(x) + cp.exp(-y * y) + cp.log1p(cp.abs(x)))
add("where", lambda x, y: cp.where(x > y, x, y * 2))
add("clip", lambda x, y: cp.clip(x, -0.5, 0.5) + cp.maximum(x, y))
add("astype", lambda x, y: (x.astype(cp.float64) + y).astype(cp.float16))
add(
    "complex",
    lambda x, y: (x * y.conj()).real,
    lambda: (complex_normal(N, N), complex_normal(N, N)),
)
add(
    "integer and bit operations",
    lambda a, b: (a & b) | (a << 2) ^ (b % 7),
    lambda: (integers(N, N), integers(N, N)),
)
add("divmod", lambda a, b: cp.divmod(a, b + 1), lambda: (integers(N), integers(N)))
add(
    "broadcast",
    lambda x, y: x[:, None, :] + y[None, :, :],
    lambda: (normal(20, 30), normal(25, 30)),
)
add("in place", lambda x, y: _in_place(x, y))
add("negative strides", lambda x, y: x[::-1, ::-2] + y[:, ::2])
add("fortran order", lambda x, y: cp.asfortranarray(x) + y)
add(
    "zeros and full", lambda x, y: cp.zeros_like(x) + cp.full(x.shape, 3, x.dtype) + cp.ones_like(y)
)
add(
    "arange linspace eye",
    lambda x, y: (
        x
        + cp.arange(N, dtype=x.dtype)
        + cp.linspace(0, 1, N, dtype=x.dtype)
        + cp.eye(N, dtype=x.dtype)
    ),
)
add("fused", lambda x, y: _fused(x, y))
add("raw kernel", lambda x, y: _raw(x, y))
add("elementwise kernel", lambda x, y: _elementwise(x, y))
add("reduction kernel", lambda x, y: _reduction(x))

# -- reductions and statistics
add("sum", lambda x: x.sum(), one)
add("sum axis 0", lambda x: x.sum(axis=0), one)
add("mean var std", lambda x: (x.mean(axis=1), x.var(axis=0), x.std()), one)
add("max argmax", lambda x: (x.max(axis=1), x.argmax(axis=0)), one)
add("softmax", lambda x: _softmax(x), one)
add("norm", lambda x: cp.linalg.norm(x), one)
add("any all", lambda x: (cp.any(x > 3), cp.all(x < 9, axis=0)), one)
add("prod nansum", lambda x: (x[:4].prod(axis=0), cp.nansum(x)), one)
add("percentile", lambda x: cp.percentile(x, 30, axis=1), one)
add("median", lambda x: cp.median(x, axis=1), one)
add("histogram", lambda x: cp.histogram(x, bins=10, range=(-4, 4))[0], one)
add("corrcoef", lambda x: cp.corrcoef(x), one)

# -- scans, sorting, searching
add("cumsum", lambda x: cp.cumsum(x, axis=1), one)
add("cumprod flat", lambda x: cp.cumprod(x), lambda: (normal(1000),))
add("diff", lambda x: cp.diff(x, axis=1), one)
add("sort", lambda x: cp.sort(x, axis=1), one)
add("argsort", lambda x: cp.argsort(x, axis=0), one)
add("partition", lambda x: cp.partition(x, 5, axis=1), one)
add("searchsorted", lambda x, y: cp.searchsorted(cp.sort(x), y), lambda: (normal(500), normal(300)))
add("lexsort", lambda x: cp.lexsort(x), lambda: (normal(3, 200),))
add(
    "interp",
    lambda x, y: cp.interp(x, cp.arange(9.0), y),
    lambda: (normal(300, dtype=cp.float64), normal(9, dtype=cp.float64)),
)

# -- indexing and manipulation
add("slice assignment", lambda x, y: _assign(x, y))
add("list index", lambda x: x[[0, 2, 5]] + x[:, [1]].T[:, :1], one)
add("take", lambda x, i: cp.take(x, i, axis=0), lambda: (normal(N, N), integers(40, high=N)))
add("integer array index", lambda x, i: x[i, i], lambda: (normal(N, N), integers(40, high=N)))
add(
    "scatter add",
    lambda x, i: _scatter(x, i),
    lambda: (normal(N, N), cp.random.permutation(N)[:40]),
)
add("concatenate", lambda x, y: cp.concatenate([x, y], axis=1))
add(
    "concatenate nine",
    lambda x, y: cp.concatenate([x, y, x * 2, y * 2, x + 1, y + 1, x - 1, y - 1, x * y]),
)
add("stack", lambda x, y: cp.stack([x, y, x], axis=1))
add("split", lambda x: cp.split(x, 3), one)
add("pad", lambda x: cp.pad(x, 2), one)
add("roll flip rot90", lambda x: (cp.roll(x, 3, axis=1), cp.flip(x, 0), cp.rot90(x)), one)
add("tile repeat", lambda x: (cp.tile(x, (2, 1)), cp.repeat(x, 2, axis=0)), one)
add("transpose reshape", lambda x: x.T.reshape(-1, 12), one)
add("tril diag trace", lambda x: (cp.tril(x), cp.diag(x), cp.trace(x)), one)
add("host constant", lambda x: x + cp.asarray(np.linspace(0, 1, N, dtype=np.float32)), one)
add(
    "choose",
    lambda x, i: cp.choose(i % 2, cp.stack([x, -x])),
    lambda: (normal(N), integers(N)),
    "reads the contents",
)
add("meshgrid", lambda x: cp.meshgrid(x, x * 2), lambda: (normal(N),))

# -- linear algebra
add("matmul f32", lambda x, y: x @ y)
add(
    "matmul f64",
    lambda x, y: x @ y,
    lambda: (normal(N, N, dtype=cp.float64), normal(N, N, dtype=cp.float64)),
)
add(
    "matmul f16",
    lambda x, y: x @ y,
    lambda: (normal(128, 128, dtype=cp.float16), normal(128, 128, dtype=cp.float16)),
)
add(
    "matmul f16 large",
    lambda x, y: x @ y,
    lambda: (normal(1024, 1024, dtype=cp.float16), normal(1024, 1024, dtype=cp.float16)),
)
add("matmul complex", lambda x, y: x @ y, lambda: (complex_normal(N, N), complex_normal(N, N)))
add("batched matmul", lambda x, y: x @ y, lambda: (normal(7, 40, 50), normal(7, 50, 30)))
add("matvec dot outer", lambda x, y: (x @ y[0], x[0] @ y[0], cp.outer(x[0], y[0])))
add("tensordot", lambda x, y: cp.tensordot(x, y, axes=([1], [0])))
add("einsum", lambda x, y: cp.einsum("ij,kj->ik", x, y))
add(
    "einsum batched",
    lambda x, y: cp.einsum("bij,bjk->bik", x, y),
    lambda: (normal(5, 20, 30), normal(5, 30, 10)),
)
add("kron", lambda x, y: cp.kron(x[:8, :8], y[:8, :8]))
add("MLP", lambda x, w: _mlp(x, w))
add("solve", lambda a, b: cp.linalg.solve(a, b), lambda: (positive_definite(N), normal(N, 4)))
add("inv", lambda a: cp.linalg.inv(a), lambda: (positive_definite(N),))
add("cholesky", lambda a: cp.linalg.cholesky(a), lambda: (positive_definite(N, cp.float64),))
add("det slogdet", lambda a: cp.linalg.slogdet(a), lambda: (positive_definite(N),))
add(
    "qr",
    lambda a: cp.linalg.qr(a),
    one,
)
add("eigh", lambda a: cp.linalg.eigh(a), lambda: (positive_definite(N),), "CUSOLVER")
add("svd", lambda a: cp.linalg.svd(a), one, "CUSOLVER")
add(
    "lstsq",
    lambda a, b: cp.linalg.lstsq(a, b, rcond=None)[0],
    lambda: (normal(N, 20), normal(N)),
    "CUSOLVER",
)
add("matrix power", lambda a: cp.linalg.matrix_power(a * 0.1, 3), one)
add("sparse @ dense", lambda a, x: a @ x, lambda: (_sparse(), normal(N, 8)))
add("sparse @ vector", lambda a, x: a @ x, lambda: (_sparse(), normal(N)))

# -- FFT and signal
add("fft", lambda x: cp.fft.fft(x), lambda: (complex_normal(8, 128),))
add("fft prime", lambda x: cp.fft.fft(x), lambda: (complex_normal(4, 1009),))
add("rfft irfft", lambda x: cp.fft.irfft(cp.fft.rfft(x) * 0.5), lambda: (normal(8, 256),))
add("fft2", lambda x: cp.fft.ifft2(cp.fft.fft2(x)).real, one)
add("fftshift", lambda x: cp.fft.fftshift(x), one)
add("convolve", lambda x, y: cp.convolve(x, y), lambda: (normal(300), normal(9)))
add("ndimage gaussian", lambda x: _gaussian(x), one)
add("ndimage convolve", lambda x, w: _nd_convolve(x, w), lambda: (normal(N, N), normal(3, 3)))

# -- random numbers
add("random integers", lambda x: cp.random.randint(0, 100, x.shape), one, "reads the contents")

# -- reads on the host: refused, naming the call
add("item", lambda x: float(x.sum()), one, "reads the contents")
add("branch", lambda x: x if x.sum() > 0 else -x, one, "reads the contents")
add("nonzero", lambda x: cp.nonzero(x > 0), one, "reads the contents")
add("boolean mask", lambda x: x[x > 0], one, "reads the contents")
add("unique", lambda i: cp.unique(i), lambda: (integers(N),), "reads the contents")
add("asnumpy", lambda x: cp.asnumpy(x), one, "reads the contents")


def _chain(x: Any, y: Any, n: int) -> Any:
    for _ in range(n):
        x = x * 0.9 + y * 0.1
    return x


def _in_place(x: Any, y: Any) -> Any:
    x += y
    x[1:] *= 2
    return x


def _assign(x: Any, y: Any) -> Any:
    x[:10] = y[10:20]
    x[20:, ::2] = 7
    x[1:] = x[:-1]
    return x[5:]


def _scatter(x: Any, i: Any) -> Any:
    cp.add.at(x, i, 1.0)
    return x


def _softmax(x: Any) -> Any:
    e = cp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _mlp(x: Any, w: Any) -> Any:
    for _ in range(8):
        x = cp.tanh(x @ w * 0.05) + x
    return x


def _gaussian(x: Any) -> Any:
    from cupyx.scipy import ndimage

    return ndimage.gaussian_filter(x, 1.5)


def _nd_convolve(x: Any, w: Any) -> Any:
    from cupyx.scipy import ndimage

    return ndimage.convolve(x, w)


def _sparse() -> Any:
    from cupyx.scipy import sparse

    return sparse.random(N, N, density=0.1, dtype=cp.float32, format="csr")


@cp.fuse()
def _fused(x: Any, y: Any) -> Any:
    return cp.sqrt(x * x + y * y) * 2


_elementwise = cp.ElementwiseKernel("T x, T y", "T z", "z = x * y + 2", "graphjit_test_ew")
_reduction = cp.ReductionKernel(
    "T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "graphjit_test_red"
)
_axpy = cp.RawKernel(
    r"""struct Packed { char tag; float scale; const float* x; int n; float* y; };
    extern "C" __global__ void axpy(Packed p, const float* x, float* y, float a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
    }""",
    "axpy",
)


def _raw(x: Any, y: Any) -> Any:
    out = y.copy()
    packed = np.zeros(40, np.uint8)
    _axpy(
        ((x.size + 255) // 256,),
        (256,),
        (packed.view("V40")[0], x, out, cp.float32(2.5), cp.int32(x.size)),
    )
    return out
