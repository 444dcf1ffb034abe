"""CuPy for the walk through its public functions, and the modules that are walked."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from helpers.api_walk import Library

MODULES = [
    "cupy",
    "cupy.linalg",
    "cupy.fft",
    "cupy.random",
    "cupyx",
    "cupyx.linalg",
    "cupyx.scipy.fft",
    "cupyx.scipy.fftpack",
    "cupyx.scipy.interpolate",
    "cupyx.scipy.linalg",
    "cupyx.scipy.ndimage",
    "cupyx.scipy.signal",
    "cupyx.scipy.signal.windows",
    "cupyx.scipy.sparse",
    "cupyx.scipy.sparse.csgraph",
    "cupyx.scipy.sparse.linalg",
    "cupyx.scipy.spatial",
    "cupyx.scipy.spatial.distance",
    "cupyx.scipy.special",
    "cupyx.scipy.stats",
]
_SIZES = (512, 1024, 2048, 8192)


class CuPy(Library):
    """CuPy's arrays, and what recipes name besides them."""

    def __init__(self) -> None:
        from cupyx.scipy import interpolate, ndimage, signal, sparse

        super().__init__(cp)
        knots = cp.asarray(np.array([0.0] * 4 + [0.5] + [1.0] * 4))
        self.names |= {
            "interpolate": interpolate,
            "ndimage": ndimage,
            "sparse": sparse,
            "sos": cp.asarray(signal.butter(4, 0.3, output="sos")),
            "spline": interpolate.BSpline(knots, cp.asarray(np.arange(5.0)), 3),
            "mean3": cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a / 9", "0", "mean3"),
            "raw_filter1d": cp.RawKernel(_FILTER, "shrink"),
            "second_derivative": _second_derivative,
            "vectorized": cp.vectorize(_polynomial),
            "fused": cp.fuse()(_polynomial),
            "elementwise_kernel": cp.ElementwiseKernel(
                "T x, T y", "T z", "z = x * y + 2", "walk_ew"
            ),
            "reduction_kernel": cp.ReductionKernel(
                "T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "walk_red"
            ),
        }

    def asarray(self, host: np.ndarray) -> Any:
        return cp.asarray(host)

    def get(self, array: Any) -> np.ndarray:
        return cp.asnumpy(array)

    def reset(self, seed: int) -> None:
        cp.random.seed(seed)

    def poison(self) -> None:
        """Fill what the pool will hand out next with the bits of a NaN."""
        blocks = [cp.empty(nbytes, "u1") for nbytes in _SIZES for _ in range(8)]
        for block in blocks:
            block.data.memset_async(0xFF, block.nbytes)

    def check(self) -> str:
        if cp.cuda.get_current_stream().is_capturing():
            return "the stream is capturing"
        cp.cuda.Device().synchronize()
        return super().check()


_FILTER = r"""extern "C" __global__ void shrink(
        const double* in, ptrdiff_t in_length, double* out, ptrdiff_t out_length) {
    for (ptrdiff_t k = threadIdx.x; k < out_length; k += blockDim.x) out[k] = in[k] + in[k + 2];
}"""


def _second_derivative(array: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
    from cupyx.scipy import ndimage

    return ndimage.correlate1d(array, cp.asarray([1.0, -2.0, 1.0]), axis, output, mode, cval, 0)


def _polynomial(x: Any, y: Any) -> Any:
    return x * x + 2 * y
