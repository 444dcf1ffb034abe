"""Library work: kernels at their first launch, cuBLAS, cuFFT, CUB, sparse and random numbers."""

import gc
import uuid

import cupy as cp
import numpy as np
import pytest
from cupy import cublas
from helpers.gpu_checks import agrees, hits, in_threads, normal, same_bits

from graphjit import graphed

UNUSUAL_PRIMES = (1013, 2027, 4051)


def _raw_kernel():
    name = f"k{uuid.uuid4().hex}"
    code = f"""extern "C" __global__ void {name}(const float* x, float* y, float a, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + 1;
    }}"""
    return cp.RawKernel(code, name)


def first_raw_kernel():
    kernel = _raw_kernel()

    def fn(x):
        y = cp.empty_like(x)
        kernel((4,), (128,), (x, y, cp.float32(3), cp.int32(x.size)))
        return y

    return fn


def first_raw_module():
    name = f"k{uuid.uuid4().hex}"
    code = f"""template<typename T> __global__ void {name}(T* x, size_t n) {{
        size_t i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += T(2);
    }}"""
    module = cp.RawModule(code=code, options=("-std=c++17",), name_expressions=[f"{name}<float>"])

    def fn(x):
        y = x.copy()
        module.get_function(f"{name}<float>")((4,), (128,), (y, np.uint64(y.size)))
        return y

    return fn


def first_elementwise_kernel():
    kernel = cp.ElementwiseKernel("T x", "T y", "y = x * 5 - 1", f"k{uuid.uuid4().hex}")
    return lambda x: kernel(x)


def first_reduction_kernel():
    kernel = cp.ReductionKernel(
        "T x", "T y", "x * 3", "a + b", "y = a", "0", f"k{uuid.uuid4().hex}"
    )
    return lambda x: kernel(x.reshape(-1, 4), axis=1)


def first_fused_kernel():
    shift = float(np.random.default_rng().random())

    @cp.fuse(kernel_name=f"k{uuid.uuid4().hex}")
    def fused(x, y):
        return cp.exp(x * y) + shift

    return lambda x: fused(x, x + 1)


def first_prime_fft():
    n = UNUSUAL_PRIMES[0]
    return lambda x: cp.fft.fft(cp.tile(x, 20)[:n])


@pytest.mark.parametrize(
    "make",
    [
        first_raw_kernel,
        first_raw_module,
        first_elementwise_kernel,
        first_reduction_kernel,
        first_fused_kernel,
        first_prime_fft,
    ],
    ids=lambda make: make.__name__,
)
def test_the_first_launch_ever_is_inside_a_graphed_function(make):
    """A kernel that was never compiled or loaded may meet its first call in a graphed function."""
    fn = make()
    graphed_fn = graphed(fn)
    inputs = [normal(64) for _ in range(4)]
    results = [graphed_fn(x) for x in inputs]  # before the eager function has ever run
    assert all(same_bits(r, fn(x)) for r, x in zip(results, inputs, strict=True))
    assert hits(graphed_fn) == 3


def test_ffts_of_several_prime_sizes():
    """Plans with work areas of their own are kept alive, and each graph uses its own."""
    fn = graphed(lambda x: cp.fft.ifft(cp.fft.fft(x) * 2))
    for _ in range(3):
        for n in UNUSUAL_PRIMES:
            x = (normal(n) + 1j * normal(n)).astype(np.complex64)
            assert agrees(fn, lambda x: cp.fft.ifft(cp.fft.fft(x) * 2), x)
        cp.fft.config.get_plan_cache().clear()
        gc.collect()
    assert hits(fn) == 6


def test_a_plan_that_leaves_the_cache_of_plans():
    """A graph that uses the work area of a plan is right after the plan cache was cleared."""
    fn = graphed(lambda x: cp.fft.fft(x))
    make = lambda: (normal(1009) + 1j * normal(1009)).astype(np.complex64)  # noqa: E731
    fn(make())
    cp.fft.config.get_plan_cache().clear()
    gc.collect()
    cp.get_default_memory_pool().free_all_blocks()
    junk = [cp.full(1 << k, cp.nan, np.float32) for k in range(8, 20) for _ in range(4)]
    for _ in range(3):
        x = make()
        got = fn(x)
        assert same_bits(got, cp.fft.fft(x))
    assert all(bool(cp.isnan(block).all()) for block in junk)


def gemm_32(x, y):
    return (x @ y) @ x


def gemm_batched(x, y):
    return x.reshape(4, 16, 64) @ y.reshape(4, 64, 16)


def gemm_with_host_scalars(x, y):
    out = cp.ones((64, 64), np.float32)
    cublas.gemm("N", "T", x, y, out=out, alpha=2.0, beta=3.0)
    return out, cublas.dot(x[0], y[0]), cublas.nrm2(x[1])


@pytest.mark.parametrize("fn", [gemm_32, gemm_batched, gemm_with_host_scalars])
@pytest.mark.parametrize("patch", ["host", "device"])
def test_blas(fn, patch):
    """Matrix products, with scalars from the host as well, equal eager bit for bit."""
    graphed_fn = graphed(patch=patch)(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(64, 64), normal(64, 64))
    assert hits(graphed_fn) == 3


def test_two_matrix_products_the_first_graph_destroyed():
    """Two graphs with matrix products on one stream: the second works without the first."""
    first, second = graphed(gemm_32), graphed(lambda x, y: x @ y + gemm_32(y, x))
    x, y = normal(64, 64), normal(64, 64)
    for _ in range(2):
        first(x, y)
        second(x, y)
    first.cache_clear()
    del first
    gc.collect()
    for _ in range(3):
        x, y = normal(64, 64), normal(64, 64)
        assert same_bits(second(x, y), x @ y + gemm_32(y, x))


def test_a_matrix_product_captured_in_a_thread_that_ends():
    """A graph with a matrix product outlives the thread, and its library handle, that made it."""
    fn = graphed(gemm_32)
    expected = []

    def work(_):
        x, y = normal(64, 64), normal(64, 64)
        expected.append((x, y, gemm_32(x, y).get()))
        fn(x, y)

    in_threads(1, work)
    gc.collect()
    cp.get_default_memory_pool().free_all_blocks()
    junk = [cp.full(1 << 20, cp.nan, np.float32) for _ in range(16)]
    ((x, y, result),) = expected
    for _ in range(3):
        assert fn(x, y).get().tobytes() == result.tobytes()
    assert hits(fn) == 3
    assert all(bool(cp.isnan(block).all()) for block in junk)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_sparse_matrices_as_arguments(columns):
    """Sparse matrices with as many elements share a graph; others are captured anew."""
    from cupyx.scipy import sparse

    def fn(a, x):
        return a @ x, a.data.sum()

    graphed_fn = graphed(fn)
    for density in (0.1, 0.1, 0.2, 0.1):
        a = sparse.random(40, 40, density=density, format="csr", dtype=np.float32)
        assert agrees(graphed_fn, fn, a, normal(40, *columns))
    assert graphed_fn.cache_info()[:2] == (2, 2)


def library_storage(x):
    return (
        cp.sort(x, axis=None),
        cp.argsort(x, axis=1),
        cp.partition(x, 1, axis=0),
        cp.cumsum((x * 8).astype(cp.int32)),  # sums of floats differ from run to run
        cp.cumsum(x, axis=0),
        x.max(),
        x.sum(),
        cp.lexsort(x[:2]),
    )


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("shape", [(3, 5), (64, 64), (700, 900)])
def test_temporary_storage_of_libraries(shape, patch):
    """Sorting, scanning and reducing, whose libraries ask for storage, equal eager."""
    fn = graphed(patch=patch)(library_storage)
    for _ in range(4):
        assert agrees(fn, library_storage, normal(*shape))
    assert hits(fn) == 3


# -- random numbers


def test_a_generator_advances():
    """A sequence of graphed calls draws what eager calls would, and advances the generator."""
    generator = cp.random.default_rng(7)

    def draw(x):
        return x + generator.random(x.shape, dtype=np.float32), generator.standard_normal(9)

    state = generator.bit_generator._state
    start = state.copy()
    inputs = [normal(30, 20) for _ in range(6)]
    expected = [draw(x) for x in inputs] + [generator.random(5)]
    state[...] = start
    fn = graphed(draw)
    got = [fn(x) for x in inputs] + [generator.random(5)]
    assert same_bits(expected, got)
    assert hits(fn) == 5
    assert len({r[1].get().tobytes() for r in got[:-1]}) == 6


def test_reseeding_a_generator():
    """Another generator in the same variable is used from the next call on."""
    generator = cp.random.default_rng(7)

    def draw():
        return generator.random(100)

    fn = graphed(draw)
    sequences = []
    for seed in (7, 8, 7):
        generator = cp.random.default_rng(seed)
        sequences.append([fn() for _ in range(3)])
        generator = cp.random.default_rng(seed)
        assert same_bits(sequences[-1], [draw() for _ in range(3)])
    assert same_bits(sequences[0], sequences[2])
    assert not same_bits(sequences[0], sequences[1])


def sorted_both(a, b):
    return cp.take_along_axis(a, cp.argsort(a, -1), -1), cp.sort(b), a + b


@pytest.mark.parametrize("optimize", [False, True])
def test_sorting_arrays_that_share_memory(optimize):
    """A sort asks the driver about its addresses, also for arrays given twice or overlapping."""
    call = graphed(optimize=optimize)(sorted_both)
    for _ in range(3):
        x = (normal(9) * 100).astype("i4")
        assert agrees(call, sorted_both, x, x)
        assert agrees(call, sorted_both, x[:6], x[3:])
        assert agrees(call, sorted_both, x[:6], x[6:].repeat(2))
    assert call.cache_info()[:2] == (6, 3)
