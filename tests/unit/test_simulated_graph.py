"""Graph execs of the simulated device: order, ownership, and what CUDA refuses."""

import struct

import pytest

from graphjit._driver.interface import COPY_LAYOUT, FILL_LAYOUT, KernelLaunch
from graphjit.errors import DriverError
from graphjit.testing import SimulatedDriver


@pytest.fixture
def device():
    return SimulatedDriver()


def refusal(call, *args) -> str:
    """Return the name of the error that a call fails with."""
    with pytest.raises(DriverError) as caught:
        call(*args)
    return caught.value.name.removeprefix("CUDA_ERROR_")


def fill(device, ptr, value, nbytes=8):
    """Return parameters of a node that fills bytes."""
    launch = KernelLaunch(device.builtin_kernel("fill"), (1, 1, 1), (1, 1, 1), 0, FILL_LAYOUT)
    packed = struct.pack("<6Q", ptr, value, 1, nbytes, 1, nbytes)
    return device.kernel_node_params(launch, packed)


def run(device, graph) -> None:
    """Instantiate, upload, launch, destroy."""
    graph_exec = device.graph_instantiate(graph)
    device.graph_upload(graph_exec, 0)
    device.graph_launch(graph_exec, 0)
    device.graph_exec_destroy(graph_exec)


def test_missing_edges_show(device):
    """Nodes without an edge between them run in either order."""
    ptr, seen = device.mem_alloc(8), set()
    for _ in range(40):
        graph = device.graph_create()
        for value in (1, 2):
            device.graph_add_kernel_node(graph, fill(device, ptr, value), None)
        run(device, graph)
        seen.add(device.memcpy_dtoh(ptr, 1))
    assert seen == {b"\1", b"\2"}


def test_edges_are_followed(device):
    """A diamond: both branches after the first node, the last after both."""
    ptr = device.mem_alloc(8)
    for _ in range(20):
        graph = device.graph_create()
        nodes = [
            device.graph_add_kernel_node(graph, fill(device, ptr + at, value, nbytes), None)
            for at, value, nbytes in ((0, 1, 8), (0, 2, 4), (4, 3, 4), (2, 4, 4))
        ]
        edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
        device.graph_add_dependencies(graph, [(nodes[a], nodes[b], None) for a, b in edges])
        run(device, graph)
        assert device.memcpy_dtoh(ptr, 8) == bytes([2, 2, 4, 4, 4, 4, 3, 3])


def test_copies_and_fills_need_memory_at_instantiation(device):
    """CUDA looks up the addresses of memcpy and memset nodes when it instantiates."""
    ptr, nothing = device.mem_alloc(8), device.mem_address_reserve(1 << 30)
    stream = device.stream_create()
    for dst, src in ((ptr, nothing), (nothing, ptr)):
        device.stream_begin_capture(stream, "thread_local")
        device.memcpy_async(dst, src, 8, stream)
        graph = device.stream_end_capture(stream)
        assert refusal(device.graph_instantiate, graph) == "INVALID_VALUE"
    device.stream_begin_capture(stream, "thread_local")
    device.memset_async(nothing, 0, 8, stream)
    graph = device.stream_end_capture(stream)
    assert refusal(device.graph_instantiate, graph) == "INVALID_VALUE"


def test_copies_and_fills_run(device):
    """Captured copies and fills do what they do outside of a capture."""
    first, second = device.mem_alloc(8), device.mem_alloc(8)
    stream = device.stream_create()
    device.stream_begin_capture(stream, "thread_local")
    device.memset_async(first, 0x41, 8, stream)
    device.memcpy_async(second + 4, first, 4, stream)
    graph = device.stream_end_capture(stream)
    assert [node.kind for node in device.graph_read(graph).nodes] == ["memset", "memcpy"]
    run(device, graph)
    assert device.memcpy_dtoh(second, 8) == b"\xcb" * 4 + b"AAAA"


def test_graph_memory_exists_while_the_graph_runs(device):
    """An allocation node's memory is there between it and the node that frees it."""
    out, stream = device.mem_alloc(8), device.stream_create()
    device.stream_begin_capture(stream, "thread_local")
    ptr = device.mem_alloc_async(8, stream)
    device.memset_async(ptr, 7, 8, stream)
    device.memcpy_async(out, ptr, 8, stream)
    device.mem_free_async(ptr, stream)
    graph = device.stream_end_capture(stream)
    for _ in range(2):
        run(device, graph)
        assert device.memcpy_dtoh(out, 8) == b"\7" * 8
        assert device.mem_get_address_range(ptr) is None


def test_a_failed_launch_leaves_the_device_usable(device):
    """An access that traps fails the launch, and nothing later."""
    nothing, stream = device.mem_address_reserve(1 << 30), device.stream_create()
    device.stream_begin_capture(stream, "thread_local")
    ptr = device.mem_alloc_async(8, stream)
    launch = fill(device, nothing, 1).launch
    device.launch_kernel(launch, bytes(fill(device, nothing, 1).buffer), stream)
    device.mem_free_async(ptr, stream)
    graph_exec = device.graph_instantiate(device.stream_end_capture(stream))
    for _ in range(2):
        assert refusal(device.graph_launch, graph_exec, stream) == "ILLEGAL_ADDRESS"
        assert device.mem_get_address_range(ptr) is None


def test_destroyed_things_are_refused(device):
    """Graphs, nodes of destroyed graphs, and graph execs cannot be used any more."""
    ptr = device.mem_alloc(8)
    graph, other = device.graph_create(), device.graph_create()
    params = fill(device, ptr, 1)
    node = device.graph_add_kernel_node(graph, params, None)
    captured = device.graph_read(graph).nodes[0]
    graph_exec = device.graph_instantiate(graph)
    device.graph_destroy(graph)
    set_params = device.graph_exec_kernel_node_set_params
    assert refusal(device.graph_destroy, graph) == "INVALID_HANDLE"
    assert refusal(device.graph_read, graph) == "INVALID_HANDLE"
    assert refusal(device.graph_instantiate, graph) == "INVALID_HANDLE"
    assert refusal(device.graph_add_kernel_node, other, params, captured) == "INVALID_HANDLE"
    assert refusal(set_params, graph_exec, node, params) == "INVALID_HANDLE"
    device.graph_launch(graph_exec, 0)
    device.graph_exec_destroy(graph_exec)
    assert refusal(device.graph_exec_destroy, graph_exec) == "INVALID_HANDLE"
    assert refusal(device.graph_launch, graph_exec, 0) == "INVALID_HANDLE"
    assert device.counts["live_graphs"] == 1
    assert device.counts["live_graph_execs"] == 0


def test_nodes_belong_to_one_graph(device):
    """Edges and parameters of another graph's nodes are refused, and edges given twice."""
    ptr = device.mem_alloc(8)
    graphs = [device.graph_create() for _ in range(2)]
    params = fill(device, ptr, 1)
    first, second = (device.graph_add_kernel_node(g, params, None) for g in graphs)
    third = device.graph_add_empty_node(graphs[0])
    add = device.graph_add_dependencies
    assert refusal(add, graphs[0], [(first, second, None)]) == "INVALID_VALUE"
    add(graphs[0], [(first, third, None)])
    assert refusal(add, graphs[0], [(first, third, None)]) == "INVALID_VALUE"
    graph_exec = device.graph_instantiate(graphs[0])
    set_params = device.graph_exec_kernel_node_set_params
    assert refusal(set_params, graph_exec, second, params) == "INVALID_VALUE"
    assert refusal(set_params, graph_exec, third, params) == "INVALID_VALUE"


def test_parameters_have_to_fit_the_kernel(device):
    """Too few bytes, or a layout that is not the kernel's, are refused."""
    launch = KernelLaunch(device.builtin_kernel("copy"), (1, 1, 1), (1, 1, 1), 0, COPY_LAYOUT)
    assert refusal(device.kernel_node_params, launch, bytes(71)) == "INVALID_VALUE"
    wrong = KernelLaunch(device.builtin_kernel("copy"), (1, 1, 1), (1, 1, 1), 0, FILL_LAYOUT)
    assert refusal(device.kernel_node_params, wrong, bytes(72)) == "INVALID_VALUE"


def test_driver_without_device_patch(device):
    """An older driver says what it lacks, and refuses the attribute."""
    device.device_patch = False
    graph = device.graph_create()
    node = device.graph_add_kernel_node(graph, fill(device, 0, 1), None)
    assert device.missing_for_device_patch()
    assert refusal(device.graph_node_make_device_updatable, node) == "NOT_SUPPORTED"


def test_launch_of_a_graph_during_capture_is_refused(device):
    """A graph exec cannot be launched, nor uploaded, on a stream under capture."""
    graph_exec = device.graph_instantiate(device.graph_create())
    for call in (device.graph_launch, device.graph_upload):
        stream = device.stream_create()
        device.stream_begin_capture(stream, "thread_local")
        assert refusal(call, graph_exec, stream) == "STREAM_CAPTURE_UNSUPPORTED"
        device.stream_abandon_capture(stream)
