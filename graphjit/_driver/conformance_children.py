"""Checks of a driver: child graphs, what may be in them, and patches of their nodes.

Input: a ``Bench``. Output: nothing. Raises: ``AssertionError``.
Source: cuGraphAddChildGraphNode, cuGraphChildGraphNodeGetGraph, cuStreamGetCaptureInfo.
"""

from __future__ import annotations

import struct
from typing import Any

from graphjit._driver.conformance_bench import Bench, Check
from graphjit._driver.conformance_conditionals import Conditional
from graphjit._driver.interface import CONDITION_TRUTH, CUDA_WITH_FLOW_IN_CHILDREN, KernelLaunch


def _add(bench: Bench, graph: Any, launch: tuple[KernelLaunch, bytes]) -> tuple[Any, Any]:
    params = bench.driver.kernel_node_params(*launch)
    return bench.driver.graph_add_kernel_node(graph, params, None), params


def child_graphs_keep_their_order(bench: Bench) -> None:
    """A child graph begins after what its node waits for, and ends before what waits for it."""
    driver, graph = bench.driver, bench.graph()[0]
    a, b, c = (bench.memory(letter * 8) for letter in (b"a", b"b", b"c"))
    first, _ = _add(bench, graph, bench.copy(b, a, 8))
    node, child = driver.graph_add_child_graph_node(graph)
    _, inner = driver.graph_add_child_graph_node(child)
    _add(bench, inner, bench.copy(c, b, 8))
    last, _ = _add(bench, graph, bench.fill(b, 0x78, 8))
    driver.graph_add_dependencies(graph, [(first, node, None), (node, last, None)])
    graph_exec = bench.instantiate(graph)
    for letter in (b"1", b"2", b"3"):
        driver.memcpy_htod(a, letter * 8)
        bench.run(graph_exec)
        assert (bench.read(c, 8), bench.read(b, 8)) == (letter * 8, b"x" * 8)


def nodes_in_child_graphs_are_patched(bench: Bench) -> None:
    """The host sets parameters of a node in a child graph, and a patch node writes into it."""
    driver = bench.driver
    for by_device in (False, True):
        if by_device and driver.missing_for_device_patch():
            return
        graph = bench.graph()[0]
        first, second = bench.memory(b"." * 8), bench.memory(b"." * 8)
        child_node, child = driver.graph_add_child_graph_node(graph)
        node, params = _add(bench, child, bench.fill(first, 0x41, 8))
        changed, where, at = node, params, 0
        if by_device:
            target = driver.graph_node_make_device_updatable(node)
            rows, slots = [(target, 0, 0, 0)], [first, 0, 0, 0]
            changed, where = bench.patch(graph, rows, slots, child_node)
            at = 16
        graph_exec = bench.instantiate(graph)
        bench.run(graph_exec)
        assert (bench.read(first, 8), bench.read(second, 8)) == (b"A" * 8, b"." * 8)
        driver.memcpy_htod(first, b"." * 8)
        struct.pack_into("<Q", where.buffer, at, second)
        driver.graph_exec_kernel_node_set_params(graph_exec, changed, where)
        bench.run(graph_exec)
        assert (bench.read(first, 8), bench.read(second, 8)) == (b"." * 8, b"A" * 8)


def child_graphs_and_conditionals_nest(bench: Bench) -> None:
    """A body may have a child graph; from CUDA 13 on a child graph may have a conditional node."""
    driver = bench.driver
    decider, dst = bench.memory(b"\1"), bench.memory(b"." * 8)
    outside, in_child = Conditional(bench, "if", 1), None
    outside.set_from(decider, 1, CONDITION_TRUTH)
    _, child = driver.graph_add_child_graph_node(outside.bodies[0])
    _add(bench, child, bench.fill(dst, 0x41, 8))
    graphs = [outside.graph]
    if driver.version() >= CUDA_WITH_FLOW_IN_CHILDREN:
        graphs.append(bench.graph()[0])
        in_child = Conditional(bench, "if", 1, driver.graph_add_child_graph_node(graphs[1])[1])
        in_child.set_from(decider, 1, CONDITION_TRUTH)
        _add(bench, in_child.bodies[0], bench.fill(dst, 0x41, 8))
    for graph in graphs:
        graph_exec = bench.instantiate(graph)
        for value in (b"\1", b"\0"):
            driver.memcpy_htod(dst, b"." * 8)
            driver.memcpy_htod(decider, value)
            bench.run(graph_exec)
            assert bench.read(dst, 8) == (b"A" if value == b"\1" else b".") * 8


def nodes_under_capture_are_counted(bench: Bench) -> None:
    """The graph under capture grows by one node for each launch."""
    driver, dst = bench.driver, bench.memory(bytes(8))
    driver.stream_begin_capture(bench.stream, "thread_local")
    for n in range(3):
        assert driver.stream_count_captured(bench.stream) == n
        driver.launch_kernel(*bench.fill(dst, 0x41, 8), bench.stream)
    assert len(bench.end_capture().nodes) == 3


CHECKS: tuple[Check, ...] = (
    child_graphs_keep_their_order,
    nodes_in_child_graphs_are_patched,
    child_graphs_and_conditionals_nest,
    nodes_under_capture_are_counted,
)
