"""Checks of a driver: graph execs, their parameters, and the device patch.

Input: a ``Bench``. Output: nothing. Raises: ``AssertionError``.
Source: cuGraphInstantiate, cuGraphUpload, cuGraphLaunch, cuGraphExecKernelNodeSetParams;
cudaGraphKernelNodeSetParam (CUDA 12.4).
"""

from __future__ import annotations

import struct

from graphjit._driver.conformance_bench import Bench, Check, kernel_nodes, refused
from graphjit._driver.interface import COPY_LAYOUT, PATCH_MEMORY_WORD, PATCH_SIZE_SHIFT

# -- graph execs


def chains_run_in_order(bench: Bench) -> None:
    """A built graph runs its nodes in the order of its edges, at every launch."""
    a, b = bench.memory(b"a" * 8), bench.memory(b"b" * 8)
    c = bench.memory(b"c" * 8)
    steps = [bench.copy(c, b, 8), bench.copy(b, a, 8), bench.fill(a, 0x2E, 8)]
    graph_exec = bench.instantiate(bench.graph(*steps)[0])
    bench.run(graph_exec)
    assert (bench.read(a, 8), bench.read(b, 8), bench.read(c, 8)) == (b"." * 8, b"a" * 8, b"b" * 8)
    bench.run(graph_exec)
    assert bench.read(c, 8) == b"a" * 8


def captured_nodes_can_be_built_again(bench: Bench) -> None:
    """A graph made of what was read from a captured one does the same, attributes included."""
    dst = bench.memory(b"." * 8)
    (node,) = kernel_nodes(bench.capture(bench.fill(dst, 0x41, 8)))
    launch = bench.fill(0, 0, 0)[0]
    graph, _, _ = bench.graph()
    params = bench.driver.kernel_node_params(launch, node.params)
    bench.driver.graph_add_kernel_node(graph, params, node)
    bench.driver.graph_add_empty_node(graph)
    bench.run(bench.instantiate(graph))
    assert bench.read(dst, 8) == b"A" * 8


def nodes_keep_the_priority_of_their_stream(bench: Bench) -> None:
    """A node has the priority of the stream that it was captured on; it can be read and set."""
    dst, driver = bench.memory(b"." * 8), bench.driver
    plain = kernel_nodes(bench.capture(bench.fill(dst, 0x41, 8)))[0]
    assert driver.kernel_node_attributes(plain.handle) == ()
    bench.stream = bench.new_stream(priority=-2)
    assert driver.stream_priority(bench.stream) < 0 == driver.stream_priority(0)
    (node,) = kernel_nodes(bench.capture(bench.fill(dst, 0x42, 8)))
    ((name, data),) = driver.kernel_node_attributes(node.handle)
    assert name == "PRIORITY"
    assert struct.unpack_from("<i", data) == (driver.stream_priority(bench.stream),)
    graph = bench.graph()[0]
    params = driver.kernel_node_params(bench.fill(0, 0, 0)[0], node.params)
    copied = driver.graph_add_kernel_node(graph, params, node)
    made = driver.graph_add_kernel_node(graph, params, None)
    assert driver.kernel_node_attributes(made) == ()
    driver.graph_kernel_node_set_attributes(made, ((name, data),))
    for added in (copied, made):
        assert driver.kernel_node_attributes(added) == ((name, data),)
    bench.run(bench.instantiate(graph, use_node_priority=True))
    assert bench.read(dst, 8) == b"B" * 8


def own_kernels_have_names(bench: Bench) -> None:
    """The kernels that graphjit brings along are known by their functions."""
    for name in ("copy", "fill", "fills", "patch_32"):
        assert bench.driver.builtin_name(bench.driver.builtin_kernel(name)) == name


def graph_exec_owns_its_parameters(bench: Bench) -> None:
    """Neither the buffer nor the graph changes a graph exec; ``set_params`` does, and only it."""
    dst = bench.memory(b"." * 8)
    other = bench.memory(b"." * 8)
    graph, (node,), (params,) = bench.graph(bench.fill(dst, 0x41, 8))
    first, second = bench.instantiate(graph), bench.instantiate(graph)
    params.buffer[:8] = struct.pack("<Q", other)
    bench.run(first)
    assert (bench.read(dst, 8), bench.read(other, 8)) == (b"A" * 8, b"." * 8)
    bench.driver.graph_exec_kernel_node_set_params(first, node, params)
    bench.run(first)
    assert bench.read(other, 8) == b"A" * 8
    bench.driver.memcpy_htod(dst, b"." * 8)
    bench.run(second)
    assert bench.read(dst, 8) == b"A" * 8


def queued_launches_keep_their_parameters(bench: Bench) -> None:
    """``set_params`` after a launch does not reach back to it."""
    ptrs = [bench.memory(b"." * 8) for _ in range(8)]
    graph, (node,), (params,) = bench.graph(bench.fill(ptrs[0], 0x41, 8))
    graph_exec = bench.instantiate(graph)
    for ptr in ptrs:
        params.buffer[:8] = struct.pack("<Q", ptr)
        bench.driver.graph_exec_kernel_node_set_params(graph_exec, node, params)
        bench.driver.graph_launch(graph_exec, bench.stream)
    assert [bench.read(ptr, 8) for ptr in ptrs] == [b"A" * 8] * 8


def cycles_are_refused(bench: Bench) -> None:
    """A graph whose edges form a cycle cannot be instantiated."""
    dst = bench.memory(b"." * 8)
    graph, nodes, _ = bench.graph(bench.fill(dst, 1, 8), bench.fill(dst, 2, 8))

    def close_the_circle() -> None:
        bench.driver.graph_add_dependencies(graph, [(nodes[1], nodes[0], None)])
        bench.instantiate(graph)

    assert refused(close_the_circle) == "CUDA_ERROR_INVALID_VALUE"


# -- the device patch


def patch_writes_parameters(bench: Bench) -> None:
    """A patch node writes slot + delta into other nodes, anew at every launch, by value."""
    if bench.driver.missing_for_device_patch():
        return
    data = bytes(range(64))
    src, ptrs = bench.memory(data), [bench.memory(b"." * 16) for _ in range(6)]
    graph, (node,), _ = bench.graph(bench.copy(0, 0, 4))
    target = bench.driver.graph_node_make_device_updatable(node)
    rows = [(target, COPY_LAYOUT[0][0], 0, 2), (target, COPY_LAYOUT[1][0], 3, -8)]
    patch, params = bench.patch(graph, rows, [0, 0, 0, 0], node)
    graph_exec = bench.instantiate(graph)
    for i, ptr in enumerate(ptrs):
        struct.pack_into("<4Q", params.buffer, 16, ptr, 0, 0, src + 8 + i)
        bench.driver.graph_exec_kernel_node_set_params(graph_exec, patch, params)
        bench.driver.graph_launch(graph_exec, bench.stream)
    expected = [(b".." + data[i : i + 4]).ljust(16, b".") for i in range(6)]
    assert [bench.read(ptr, 16) for ptr in ptrs] == expected


def patch_writes_memory(bench: Bench) -> None:
    """A row that says so makes a patch node write the word to memory."""
    if bench.driver.missing_for_device_patch():
        return
    word, dst = bench.memory(b"." * 24), bench.memory(b"." * 8)
    graph, (node,), _ = bench.graph(bench.copy(dst, word + 8, 8))
    rows = [(word + 8, PATCH_MEMORY_WORD, 1, 5)]
    bench.patch(graph, rows, [0, 0x1122334455667788, 0, 0], node)
    bench.run(bench.instantiate(graph))
    assert bench.read(dst, 8) == struct.pack("<Q", 0x1122334455667788 + 5)
    assert bench.read(word, 24) == b"." * 8 + bench.read(dst, 8) + b"." * 8


def patch_writes_narrow_words(bench: Bench) -> None:
    """A row can write 1, 2, 4 or 8 bytes of a parameter, and leaves those behind them alone."""
    if bench.driver.missing_for_device_patch():
        return
    n = (1 << 16) + 8
    src, dst = bench.memory(b"a" * n), bench.memory(b"." * n)
    written = 0x1122_3344_0000_0003
    for nbytes, width, expected in ((1, 0x105, 0x103), (2, 0x10005, 0x10003), (4, 5, 3), (8, 5, 3)):
        graph, (node,), _ = bench.graph(bench.copy(dst, src, width))
        target = bench.driver.graph_node_make_device_updatable(node)
        value = 3 if nbytes == 8 else written
        row = (target, COPY_LAYOUT[2][0] | nbytes << PATCH_SIZE_SHIFT, 2, 0)
        bench.patch(graph, [row], [0, 0, value, 0], node)
        bench.driver.memcpy_htod(dst, b"." * n)
        bench.run(bench.instantiate(graph))
        assert bench.read(dst, n) == b"a" * expected + b"." * (n - expected)


def patched_parameters_stay(bench: Bench) -> None:
    """What a patch node wrote holds for later launches, until the host sets the node's own."""
    if bench.driver.missing_for_device_patch():
        return
    first, second = bench.memory(b"." * 8), bench.memory(b"." * 8)
    graph, (node,), (params,) = bench.graph(bench.fill(first, 0x41, 8))
    target = bench.driver.graph_node_make_device_updatable(node)
    patch, patch_params = bench.patch(graph, [(target, 0, 0, 0)], [second, 0, 0, 0], node)
    graph_exec = bench.instantiate(graph)
    bench.run(graph_exec)
    assert (bench.read(first, 8), bench.read(second, 8)) == (b"." * 8, b"A" * 8)
    struct.pack_into("<I", patch_params.buffer, 8, 0)  # a table of no rows
    bench.driver.graph_exec_kernel_node_set_params(graph_exec, patch, patch_params)
    bench.driver.memcpy_htod(second, b"." * 8)
    bench.run(graph_exec)
    assert (bench.read(first, 8), bench.read(second, 8)) == (b"." * 8, b"A" * 8)
    bench.driver.graph_exec_kernel_node_set_params(graph_exec, node, params)
    bench.run(graph_exec)
    assert bench.read(first, 8) == b"A" * 8


def device_updatable_graphs_are_instantiated_once(bench: Bench) -> None:
    """A graph with device-updatable nodes has one graph exec."""
    if bench.driver.missing_for_device_patch():
        return
    dst = bench.memory(b"." * 8)
    graph, (node,), _ = bench.graph(bench.fill(dst, 0x41, 8))
    target = bench.driver.graph_node_make_device_updatable(node)
    assert bench.driver.graph_node_make_device_updatable(node) == target
    graph_exec = bench.instantiate(graph)
    again = refused(lambda: bench.instantiate(graph))
    # Drivers differ in the name; CUDA documents only that there is no second one.
    assert again in {"CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_SUPPORTED"}, again
    bench.run(graph_exec)
    assert bench.read(dst, 8) == b"A" * 8


CHECKS: tuple[Check, ...] = (
    chains_run_in_order,
    captured_nodes_can_be_built_again,
    nodes_keep_the_priority_of_their_stream,
    own_kernels_have_names,
    graph_exec_owns_its_parameters,
    queued_launches_keep_their_parameters,
    cycles_are_refused,
    patch_writes_parameters,
    patch_writes_memory,
    patch_writes_narrow_words,
    patched_parameters_stay,
    device_updatable_graphs_are_instantiated_once,
)
