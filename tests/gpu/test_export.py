"""Graphs in files, on the GPU: the code of CuPy's kernels travels along, that of libraries not."""

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import copy_arrays, normal, poison_free_memory, same_bits
from helpers.processes import run_python
from helpers.saved_graphs import names_of

import graphjit
from graphjit import ExportError, graphed
from graphjit.control import cond, fori_loop, switch, while_loop

RAW = cp.RawModule(
    code=r"""
    struct Box { float* data; int n; float scale; };
    extern "C" __global__ void scaled(Box box) {
        extern __shared__ float shared[];
        for (int i = threadIdx.x; i < box.n; i += blockDim.x) shared[i] = box.data[i] * box.scale;
        __syncthreads();
        for (int i = threadIdx.x; i < box.n; i += blockDim.x) box.data[i] = shared[box.n - 1 - i];
    }
    __constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};
    __device__ int calls;
    extern "C" __global__ void look_up(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += table[i % 4];
    }
    extern "C" __global__ void counted(float* x) { x[0] += 1; atomicAdd(&calls, 1); }
    """
)
BOX = np.dtype([("data", "u8"), ("n", "i4"), ("scale", "f4")], align=True)


def chain(x, y):
    for _ in range(12):
        x = cp.sin(x) * y + 1
    return x, x[::2], cp.where(x > 0, x, y).astype("f2")


def reductions(x):
    """Along axes: for sums of whole arrays CuPy has compiled kernels of CUB."""
    return x.max(axis=0), x.argmin(axis=0), (x > 0).any(axis=0), x.T.copy(), x.std(axis=0)


def constants(x):
    return x + cp.asarray([1, 2, 3], "f4") + cp.asarray(np.arange(3, dtype="f4"))


def raw(x):
    scaled = RAW.get_function("scaled")
    scaled.max_dynamic_shared_size_bytes = 100 << 10
    y = x.copy()
    box = np.zeros((), BOX)
    box["data"], box["n"], box["scale"] = y.data.ptr, y.size, 1.5
    scaled((1,), (256,), (box,), shared_mem=y.nbytes)
    RAW.get_function("look_up")((-(-y.size // 128),), (128,), (y, np.int32(y.size)))
    return y


def flow(x, i):
    def step(carry):
        y, n = carry
        return cond(y[0] > 2, lambda y: y * 0.5, lambda y: y + 1, y), n + 1

    y, n = while_loop(lambda c: (c[1] < 9) & (c[0][1] < 50), step, (x, 0))
    y = switch(i, [lambda v: v, cp.sin, lambda v: v * v], y)
    return fori_loop(0, 3, lambda k, v: v * 0.5 + 1, y), n


@graphed
def layer(x):
    return cp.tanh(x) * 2


def calls(x, p):
    p["w"][0] += 1
    return {"y": layer(layer(x)) + 1, "w": p["w"][0], "view": x[1:]}


CASES = {
    "chain": (chain, lambda: (normal(3, 5), normal(5))),
    "reductions": (reductions, lambda: (normal(40, 30),)),
    "constants": (constants, lambda: (normal(3),)),
    "raw": (raw, lambda: (normal(20000),)),
    "flow": (flow, lambda: (normal(3), cp.random.randint(-1, 4, dtype="i4"))),
    "calls": (calls, lambda: (normal(4, 4), {"w": [normal(3)]})),
    "half": (chain, lambda: (normal(7).astype("f2")[::-1], normal(7).astype("f2"))),
    "complex": (lambda x, y: abs(x * y) + y, lambda: (normal(9) + 1j * normal(9), normal(9))),
}


def arguments_of(make):
    return [cp.asarray(a) if isinstance(a, int) else a for a in make()]


def exported(call, path, make):
    """Write the graph of a call."""
    for _ in range(2):
        call(*arguments_of(make))
    call.export(path, *arguments_of(make))


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.conditional] * (n == "flow")) for n in CASES],
)
def test_a_loaded_graph_gives_eager_results(name, patch, tmp_path):
    """On fresh arrays each time, after the one it is from is gone."""
    fn, make = CASES[name]
    call = graphed(patch=patch)(fn)
    exported(call, tmp_path / "graph", make)
    call.cache_clear()
    loaded = graphjit.load(tmp_path / "graph")
    for _ in range(5):
        given = arguments_of(make)
        copies = copy_arrays(given)
        if name == "calls":
            copies = given[0].copy(), {"w": [given[1]["w"][0].copy()]}
        expected = fn(*copies)
        poison_free_memory()
        got = loaded.launch(**dict(zip(names_of(fn), given, strict=True)))
        assert same_bits(got, expected)
        assert same_bits(given, list(copies))
    loaded.close()


@pytest.mark.conditional
def test_another_process(tmp_path):
    """What one process captured another launches, with the same bits; and does not import this."""
    expected = {}
    for name, (fn, make) in CASES.items():
        exported(graphed(fn), tmp_path / name, make)
        given = arguments_of(make)
        if name != "calls":
            np.savez(
                tmp_path / f"{name}.in.npz",
                **{n: g.get() for n, g in zip(names_of(fn), given, strict=True)},
            )
            result = fn(*given)
            result = result if isinstance(result, tuple) else (result,)
            expected[name] = [r.get() for r in result]
    done = run_python(
        "-c",
        "import sys, numpy as np, cupy as cp, graphjit\n"
        "from pathlib import Path\n"
        "for path in sys.argv[1:]:\n"
        "    loaded = graphjit.load(path)\n"
        "    given = {n: cp.asarray(a) for n, a in np.load(path + '.in.npz').items()}\n"
        "    given = {n: g[::-1].copy()[::-1] if 'half' in path and n == 'x' else g\n"
        "             for n, g in given.items()}\n"
        "    for _ in range(3):\n"
        "        out = loaded.launch(**given)\n"
        "    out = out if isinstance(out, tuple) else (out,)\n"
        "    np.savez(path + '.out.npz', *[o.get() for o in out])\n",
        *(str(tmp_path / name) for name in expected),
    )
    assert done.returncode == 0, done.stderr
    for name, results in expected.items():
        with np.load(tmp_path / f"{name}.out.npz") as out:
            for i, result in enumerate(results):
                assert out[f"arr_{i}"].tobytes() == result.tobytes(), (name, i)


def test_a_cooperative_kernel_stays_one(tmp_path):
    """Attributes of nodes travel along."""
    kernel = cp.RawKernel(
        r"""
        #include <cooperative_groups.h>
        extern "C" __global__ void passed_on(float* x) {
            if (threadIdx.x == 0) x[blockIdx.x] += 1;
            cooperative_groups::this_grid().sync();
            if (threadIdx.x == 0) x[blockIdx.x + gridDim.x] = x[(blockIdx.x + 1) % gridDim.x];
        }""",
        "passed_on",
        enable_cooperative_groups=True,
    )

    def fn(x):
        x = x.copy()
        kernel((8,), (32,), (x,))
        return x

    call = graphed(fn)
    exported(call, tmp_path / "graph", lambda: (normal(16),))
    loaded = graphjit.load(tmp_path / "graph")
    entry = loaded._entry
    kept = [dict(n.attributes) for n in entry.graph.nodes if getattr(n, "name", "") == "passed_on"]
    assert "COOPERATIVE" in kept[0]
    for _ in range(3):
        x = normal(16)
        assert same_bits(loaded.launch(x=x), fn(x))
    loaded.close()


REFUSED = {
    "cublas": (lambda x: x @ x, "node .*, the kernel .*: graphjit does not have its code"),
    "cufft": (lambda x: cp.fft.fft(x), "the kernel"),
    "sum": (lambda x: x.sum(), "the kernel .*DeviceReduce"),
    "sort": (lambda x: cp.sort(x), "the kernel"),
    "callback": (lambda x: graphjit.host_callback(repr, x), "calls repr, at .* on the host"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_belongs_to_this_process_is_refused(name, tmp_path):
    """The message names the node; no file is left."""
    fn, text = REFUSED[name]
    call = graphed(fn)
    x = normal(8, 8)
    call(x)
    with pytest.raises(ExportError, match=text):
        call.export(tmp_path / "graph", x)
    assert list(tmp_path.iterdir()) == []
    graphjit.synchronize()


def test_variables_of_a_module(tmp_path):
    """Code whose variables hold something else by now is refused by their name."""
    module = cp.RawModule(code=RAW.code + "// a module of its own")

    def look_up(x):
        y = x.copy()
        module.get_function("look_up")((1,), (32,), (y, np.int32(y.size)))
        return y

    call = graphed(look_up)
    exported(call, tmp_path / "graph", lambda: (normal(7),))
    loaded = graphjit.load(tmp_path / "graph")
    x = normal(7)
    assert same_bits(loaded.launch(x=x), look_up(x))
    table = cp.ndarray(4, "f4", module.get_global("table"))
    table[:] = normal(4)
    with pytest.raises(ExportError, match="the variable table of its module"):
        call.export(tmp_path / "again", x)
    assert same_bits(call(x), look_up(x))
    loaded.close()


def test_kernels_that_were_compiled_too_early(tmp_path):
    """Before graphjit was imported nobody kept their code: refused, with what to do."""
    done = run_python(
        "-c",
        "import cupy as cp\n"
        "x = cp.sin(cp.arange(3.0))\n"
        "import graphjit\n"
        "call = graphjit.graphed(lambda x: cp.sin(x))\n"
        "call(x)\n"
        "try:\n"
        f"    call.export({str(tmp_path / 'graph')!r}, x)\n"
        "except graphjit.ExportError as error:\n"
        "    print(error)\n",
    )
    assert done.returncode == 0, done.stderr
    assert "compiled before graphjit was imported" in done.stdout
