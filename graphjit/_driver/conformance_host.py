"""Checks of a driver: page-locked memory, host functions, and events in graphs.

Input: a ``Bench``. Output: nothing. Raises: ``AssertionError``.
Source: cuMemHostAlloc, cuLaunchHostFunc, cuGraphAddHostNode, cuGraphAddEventRecordNode,
cuGraphAddEventWaitNode, cuEventElapsedTime.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphjit._driver import host_functions
from graphjit._driver.conformance_bench import Bench, Check, refused
from graphjit._driver.conformance_conditionals import Conditional
from graphjit._driver.interface import CONDITION_TRUTH, KernelLaunch
from graphjit._nodes import EventNode, HostNode


@contextmanager
def _page_locked(bench: Bench, nbytes: int) -> Iterator[tuple[int, Any]]:
    """Allocate page-locked memory; yield its address, and its bytes."""
    ptr = bench.driver.host_alloc(nbytes)
    try:
        yield ptr, bench.driver.host_view(ptr, nbytes, None)
    finally:
        bench.driver.host_free(ptr)


def _add(bench: Bench, graph: Any, launch: tuple[KernelLaunch, bytes]) -> Any:
    params = bench.driver.kernel_node_params(*launch)
    return bench.driver.graph_add_kernel_node(graph, params, None)


def kernels_reach_page_locked_memory(bench: Bench) -> None:
    """A launch reads what the host has written before, and writes what the host reads behind."""
    with _page_locked(bench, 16) as (ptr, octets):
        device_ptr = bench.memory(b"." * 8)
        graph, _, _ = bench.graph(bench.copy(device_ptr, ptr, 8), bench.copy(ptr + 8, ptr, 8))
        graph_exec = bench.instantiate(graph)
        for letter in b"ab":
            octets[:8] = letter
            bench.run(graph_exec)
            assert bench.read(device_ptr, 8) == octets[8:].tobytes() == bytes([letter]) * 8


def host_functions_are_called_in_order(bench: Bench) -> None:
    """At each launch, once, behind the work before them and before the work behind them."""
    driver, seen = bench.driver, []
    with _page_locked(bench, 16) as (ptr, octets):
        source, result = bench.memory(b"." * 8), bench.memory(b"." * 8)
        graph = driver.graph_create()
        try:
            number = host_functions.new_number()
            before = _add(bench, graph, bench.copy(ptr, source, 8))
            call = driver.graph_add_host_node(graph, number)
            behind = _add(bench, graph, bench.copy(result, ptr + 8, 8))
            driver.graph_add_dependencies(graph, [(before, call, None), (call, behind, None)])
            nodes = driver.graph_read(graph).nodes
            assert [n.number for n in nodes if isinstance(n, HostNode)] == [number]
            graph_exec = bench.instantiate(graph)

            def double() -> None:
                seen.append(octets[:8].tobytes())
                octets[8:] = octets[:8] + 1

            for letter in b"ace":
                driver.memcpy_htod(source, bytes([letter]) * 8)
                host_functions.arm(number, double)
                bench.run(graph_exec)
                assert bench.read(result, 8) == bytes([letter + 1]) * 8
            assert seen == [bytes([letter]) * 8 for letter in b"ace"]
            assert host_functions.n_armed() == 0
        finally:
            driver.graph_destroy(graph)


def host_functions_are_recorded(bench: Bench) -> None:
    """A stream under capture records a node with the number, and calls nothing."""
    driver, number = bench.driver, host_functions.new_number()
    driver.stream_begin_capture(bench.stream, "thread_local")
    driver.launch_host_function(number, bench.stream)
    (node,) = bench.end_capture().nodes
    assert isinstance(node, HostNode)
    assert node.number == number


def host_functions_in_bodies_are_refused(bench: Bench) -> None:
    """A body of a conditional node can have none, nor can a child graph in it."""
    driver, decider = bench.driver, bench.memory(b"\1")
    for is_nested in (False, True):
        conditional = Conditional(bench, "if", 1)
        conditional.set_from(decider, 1, CONDITION_TRUTH)

        def build(conditional: Conditional = conditional, is_nested: bool = is_nested) -> None:
            (graph,) = conditional.bodies
            if is_nested:
                graph = driver.graph_add_child_graph_node(graph)[1]
            driver.graph_add_host_node(graph, host_functions.new_number())
            bench.instantiate(conditional.graph)

        assert refused(build) == "CUDA_ERROR_INVALID_VALUE"


def events_are_recorded_by_launches(bench: Bench) -> None:
    """Each launch records anew; the time between two is that of the work between them."""
    driver = bench.driver
    events = [driver.event_create(timing=True) for _ in range(2)]
    try:
        dst, graph = bench.memory(b"." * 8), bench.graph()[0]
        first, last = (driver.graph_add_event_node(graph, e, is_record=True) for e in events)
        wait = driver.graph_add_event_node(graph, events[0], is_record=False)
        fill = _add(bench, graph, bench.fill(dst, 0x41, 8))
        order = [(first, wait, None), (wait, fill, None), (fill, last, None)]
        driver.graph_add_dependencies(graph, order)
        graph_exec = bench.instantiate(graph)
        for _ in range(3):
            driver.memcpy_htod(dst, b"." * 8)
            bench.run(graph_exec)
            assert bench.read(dst, 8) == b"A" * 8
            assert driver.event_elapsed_us(*events) >= 0
    finally:
        for event in events:
            driver.event_destroy(event)


def external_events_are_recorded_as_nodes(bench: Bench) -> None:
    """Under capture a record and a wait are nodes with the event."""
    driver = bench.driver
    event = driver.event_create()
    try:
        driver.stream_begin_capture(bench.stream, "thread_local")
        driver.event_record_external(event, bench.stream)
        driver.stream_wait_event_external(bench.stream, event)
        nodes = bench.end_capture().nodes
        assert [isinstance(node, EventNode) and node.event == event for node in nodes] == [True] * 2
        assert [node.is_record for node in nodes if isinstance(node, EventNode)] == [True, False]
    finally:
        driver.event_destroy(event)


CHECKS: tuple[Check, ...] = (
    kernels_reach_page_locked_memory,
    host_functions_are_called_in_order,
    host_functions_are_recorded,
    host_functions_in_bodies_are_refused,
    events_are_recorded_by_launches,
    external_events_are_recorded_as_nodes,
)
