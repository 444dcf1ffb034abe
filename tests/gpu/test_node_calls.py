"""The two forms of the calls that are made once a node do the same."""

import ctypes

import cupy as cp
import pytest
from helpers.gpu_checks import normal, same_bits

from graphjit import DriverError, graphed
from graphjit._driver import cuda, cuda_nodes_python
from graphjit._driver.cuda_graph_reader import read_graph
from graphjit._driver.interface import KernelLaunch

compiled_form = pytest.importorskip("graphjit._driver.cuda_nodes_cython")

PLAIN = cuda_nodes_python.NodeCalls()
COMPILED = compiled_form.NodeCalls()
FORMS = pytest.mark.parametrize("calls", [PLAIN, COMPILED], ids=["plain", "compiled"])


def elementwise(x):
    return cp.sin(x) * 2 + x


def many_kinds(x):
    """Kernels with parameters in either form, copies, fills, allocations of a library."""
    y = cp.zeros_like(x)
    y[:] = x[::-1].copy() @ x
    return cp.fft.ifft(cp.fft.fft(y)).real, cp.sort(x, axis=0), x.sum(axis=1)


def branches(x):
    """A fork and a join."""
    stream, other = cp.cuda.get_current_stream(), cp.cuda.Stream(non_blocking=True)
    y = x + 1
    other.wait_event(stream.record())
    with other:
        z = y * 3
    w = y - 2
    stream.wait_event(other.record())
    return z + w


@pytest.mark.parametrize("fn", [elementwise, many_kinds, branches])
def test_graphs_are_read_alike(fn, monkeypatch):
    """Nodes, their parameters and the edges are equal in both forms."""
    read = []

    def read_twice(self, graph):
        read.append((read_graph(graph, PLAIN), read_graph(graph, COMPILED)))
        return read[-1][1]

    monkeypatch.setattr(cuda.CudaDriver, "graph_read", read_twice)
    call = graphed(fn)
    for _ in range(3):
        x = normal(64, 64)
        assert same_bits(call(x), fn(x))
    ((plain, compiled),) = read
    assert plain == compiled
    assert len(plain.nodes) > 1
    assert plain.edges


@FORMS
@pytest.mark.parametrize("device_updatable", [False, True])
def test_nodes_are_built_alike(calls, device_updatable):
    """A node that was added reads back as what was asked for, in both forms."""
    driver = cuda.cuda_driver(0)
    function = driver.builtin_kernel("fill")
    layout = tuple((8 * i, 8) for i in range(6))
    packed = bytes(range(48))
    launch = KernelLaunch(function, (3, 2, 1), (32, 4, 1), 64, layout)
    graph = driver.graph_create()
    try:
        nodes = [calls.add_kernel(graph, calls.params(launch, packed), None) for _ in range(3)]
        calls.add_dependencies(graph, [(nodes[0], nodes[1], None), (nodes[0], nodes[2], None)])
        if device_updatable:
            handles = {calls.make_device_updatable(node) for node in nodes}
            assert 0 not in handles
            assert len(handles) == 3
        for form in (PLAIN, COMPILED):
            found = read_graph(graph, form)
            for node in found.nodes:
                assert (node.grid_dim, node.block_dim) == ((3, 2, 1), (32, 4, 1))
                assert (node.shared_mem_bytes, node.params) == (64, packed)
                assert (node.param_layout, node.function[:2]) == (layout, function[:2])
            assert sorted((e.from_, e.to, e.data) for e in found.edges) == [
                (0, 1, None),
                (0, 2, None),
            ]
    finally:
        driver.graph_destroy(graph)


@FORMS
def test_parameters_are_laid_out_alike(calls):
    """The addresses lead to the struct, the pointers and the packed bytes."""
    launch = KernelLaunch(("func", 0x1234, 0), (1, 2, 3), (4, 5, 6), 7, ((0, 4), (8, 8)))
    params = calls.params(launch, b"0123456789abcdef")
    words = (ctypes.c_uint64 * 9).from_address(params.struct_ptr)
    dims = (ctypes.c_uint32 * 7).from_address(params.struct_ptr + 8)
    assert (words[0], list(dims), words[5]) == (0x1234, [1, 2, 3, 4, 5, 6, 7], params.pointers_ptr)
    pointers = (ctypes.c_uint64 * 2).from_address(params.pointers_ptr)
    assert list(pointers) == [params.buffer_ptr, params.buffer_ptr + 8]
    params.buffer[8:9] = b"X"
    assert ctypes.string_at(params.buffer_ptr, 16) == b"01234567X9abcdef"


@FORMS
def test_failures_have_the_names_of_cuda(calls):
    """A refused call raises an error with the function and the name of the error."""
    driver = cuda.cuda_driver(0)
    launch = KernelLaunch(driver.builtin_kernel("fill"), (0, 1, 1), (32, 1, 1), 0, ())
    graph = driver.graph_create()
    try:
        with pytest.raises(DriverError, match=r"cuGraphAddKernelNode.*CUDA_ERROR_INVALID_VALUE"):
            calls.add_kernel(graph, calls.params(launch, b""), None)
    finally:
        driver.graph_destroy(graph)
