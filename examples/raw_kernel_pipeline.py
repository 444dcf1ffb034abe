# Shows: kernels written in CUDA C++. A blur, a gradient and a histogram are launched one after the
# other, with a struct of parameters by value; the graph is pointed at another image at every call.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

CODE = r"""
struct Image { int height; int width; };
#define AT(p, i, j) p[(i) * image.width + (j)]

extern "C" __global__ void blur(Image image, const float* in, float* out) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= image.height || j >= image.width) return;
    int up = max(i - 1, 0), down = min(i + 1, image.height - 1);
    int left = max(j - 1, 0), right = min(j + 1, image.width - 1);
    AT(out, i, j) = 0.25f * (AT(in, up, j) + AT(in, down, j) + AT(in, i, left) + AT(in, i, right));
}

extern "C" __global__ void edges(Image image, const float* in, float* out) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= image.height || j >= image.width) return;
    float dy = AT(in, min(i + 1, image.height - 1), j) - AT(in, i, j);
    float dx = AT(in, i, min(j + 1, image.width - 1)) - AT(in, i, j);
    AT(out, i, j) = fabsf(dx) + fabsf(dy);
}

extern "C" __global__ void histogram(Image image, const float* in, float top, int n, int* counts) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= image.height || j >= image.width) return;
    atomicAdd(&counts[min((int)(AT(in, i, j) / top * n), n - 1)], 1);
}
"""
module = cp.RawModule(code=CODE)
blur, edges, histogram = (module.get_function(name) for name in ("blur", "edges", "histogram"))
IMAGE = np.dtype([("height", np.int32), ("width", np.int32)])
N_BLURS, N_BINS, TOP = 6, 32, 0.25


def analyse(picture):
    """Return the edges of a blurred picture and the histogram of their strength."""
    height, width = picture.shape
    image = np.array((height, width), IMAGE)[()]
    grid, block = ((width + 31) // 32, (height + 7) // 8), (32, 8)
    for _ in range(N_BLURS):
        blurred = cp.empty_like(picture)
        blur(grid, block, (image, picture, blurred))
        picture = blurred
    strength = cp.empty_like(picture)
    edges(grid, block, (image, picture, strength))
    counts = cp.zeros(N_BINS, cp.int32)
    histogram(grid, block, (image, strength, cp.float32(TOP), cp.int32(N_BINS), counts))
    return strength, counts


graphed_analyse = graphed(analyse)


def reference(picture):
    for _ in range(N_BLURS):
        p = np.pad(picture, 1, mode="edge")
        vertical = p[:-2, 1:-1] + p[2:, 1:-1]
        picture = np.float32(0.25) * (vertical + p[1:-1, :-2] + p[1:-1, 2:])
    p = np.pad(picture, ((0, 1), (0, 1)), mode="edge")
    return abs(p[:-1, 1:] - picture) + abs(p[1:, :-1] - picture)


def seconds(fn, n=300):
    fn(picture)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(n):
        fn(picture)
    cp.cuda.Device().synchronize()
    return (time.perf_counter() - start) / n


random = np.random.default_rng(0)
for _ in range(4):
    host = random.random((300, 400), np.float32)
    picture = cp.asarray(host)
    strength, counts = graphed_analyse(picture)
    eager_strength, eager_counts = analyse(picture)
    assert np.array_equal(cp.asnumpy(strength), cp.asnumpy(eager_strength))
    assert np.array_equal(cp.asnumpy(counts), cp.asnumpy(eager_counts))
    np.testing.assert_allclose(cp.asnumpy(strength), reference(host), atol=1e-5)
    assert int(counts.sum()) == host.size

print(f"strongest edge {float(strength.max()):.3f}; {graphed_analyse.cache_info()}")
print(f"graphed: {seconds(analyse) / seconds(graphed_analyse):.1f} times as fast as eager")
assert graphed_analyse.cache_info().misses == 1
