"""Checks of a driver: memory, the copy and fill kernels, and stream capture.

Input: a ``Bench``. Output: nothing. Raises: ``AssertionError``.
Source: cuMemAlloc, cuMemAddressReserve, cuMemGetAddressRange, cuLaunchKernel,
cuStreamBeginCapture, cuStreamEndCapture.
"""

from __future__ import annotations

import struct

from graphjit._driver.conformance_bench import (
    Bench,
    Check,
    kernel_nodes,
    refused,
)
from graphjit._driver.interface import FILL_LAYOUT, FILLS_LAYOUT, MAX_FILLS, KernelLaunch

# -- memory


def memory_keeps_what_is_written(bench: Bench) -> None:
    """Bytes that are copied to the device come back; blocks are aligned to 256 bytes."""
    ptrs = [bench.memory(bytes([i]) * 100) for i in range(4)]
    assert [bench.read(ptr, 100) for ptr in ptrs] == [bytes([i]) * 100 for i in range(4)]
    assert not any(ptr % 256 for ptr in ptrs)


def address_range_is_that_of_the_allocation(bench: Bench) -> None:
    """An address inside a block leads to the block; an address that holds nothing to None."""
    driver = bench.driver
    ptr = driver.mem_alloc(1000)
    found = driver.mem_get_address_range(ptr + 999)
    assert found is not None
    assert found[0] <= ptr < ptr + 1000 <= found[0] + found[1]
    assert driver.mem_get_address_range(driver.mem_address_reserve(4 << 20) + 512) is None
    driver.mem_free(ptr)


def reserved_ranges_do_not_overlap(bench: Bench) -> None:
    """Reserved addresses belong to nobody else."""
    first = bench.driver.mem_address_reserve(4 << 20)
    second = bench.driver.mem_address_reserve(4 << 20)
    assert abs(first - second) >= 4 << 20
    assert abs(bench.memory(b"x") - first) >= 4 << 20


# -- the kernels that graphjit brings along


def copy_moves_a_box(bench: Bench) -> None:
    """``copy`` moves rows and slices with pitches of their own, and nothing between them."""
    src = bench.memory(bytes(range(64)))
    dst = bench.memory(b"." * 64)
    packed = struct.pack("<9Q", dst + 1, src, 3, 2, 2, 10, 8, 30, 20)
    bench.driver.launch_kernel(bench.copy(0, 0, 0)[0], packed, bench.stream)
    expected = bytearray(b"." * 64)
    for z in range(2):
        for y in range(2):
            at = 1 + 30 * z + 10 * y
            expected[at : at + 3] = bytes(range(20 * z + 8 * y, 20 * z + 8 * y + 3))
    assert bench.read(dst, 64) == expected


def copy_moves_rows_of_any_alignment(bench: Bench) -> None:
    """``copy`` moves exactly the bytes that it is told, from wherever they begin."""
    data = bytes(i * 7 % 251 for i in range(5000))
    src = bench.memory(data)
    for begin, nbytes in ((0, 4096), (1, 4097), (4, 777), (16, 1), (3, 0)):
        dst = bench.memory(b"." * 5000)
        bench.driver.launch_kernel(*bench.copy(dst + begin, src + begin, nbytes), bench.stream)
        expected = bytearray(b"." * 5000)
        expected[begin : begin + nbytes] = data[begin : begin + nbytes]
        assert bench.read(dst, 5000) == expected


def fill_writes_elements(bench: Bench) -> None:
    """``fill`` writes elements of 1, 2 and 4 bytes, row by row."""
    for element_size, value in ((1, 0xAB), (2, 0xABCD), (4, 0x89ABCDEF)):
        dst = bench.memory(b"." * 96)
        packed = struct.pack("<6Q", dst, value, element_size, 5, 3, 32)
        bench.driver.launch_kernel(bench.fill(0, 0, 0)[0], packed, bench.stream)
        row = value.to_bytes(element_size, "little") * 5
        assert bench.read(dst, 96) == row.ljust(32, b".") * 3


def fills_do_one_fill_a_block(bench: Bench) -> None:
    """``fills`` does each fill of its table as ``fill`` does it."""
    rows = [(0xAB, 1, 16, 1, 0), (0xABCD, 2, 5, 3, 32), (0x89ABCDEF, 4, 3, 1, 0), (7, 1, 3, 2, 9)]
    ptrs = [bench.memory(b"." * 96) for _ in rows]
    table = b"".join(struct.pack("<6Q", p, *row) for p, row in zip(ptrs, rows, strict=True))
    packed = table.ljust(48 * MAX_FILLS, b"\0")
    function = bench.driver.builtin_kernel("fills")
    launch = KernelLaunch(function, (len(rows), 1, 1), (256, 1, 1), 0, FILLS_LAYOUT)
    bench.driver.launch_kernel(launch, packed, bench.stream)
    for ptr, (value, element_size, width, height, pitch) in zip(ptrs, rows, strict=True):
        expected = bytearray(b"." * 96)
        for y in range(height):
            row = (value & (1 << 8 * element_size) - 1).to_bytes(element_size, "little") * width
            expected[y * pitch : y * pitch + len(row)] = row
        assert bench.read(ptr, 96) == expected


# -- capture


def capture_records_and_runs_nothing(bench: Bench) -> None:
    """A captured kernel has not run, and its node holds its parameters byte for byte."""
    dst = bench.memory(b"." * 16)
    launch, packed = bench.fill(dst, 1, 16)
    (node,) = kernel_nodes(bench.capture((launch, packed)))
    assert bench.read(dst, 16) == b"." * 16
    assert (node.params, node.param_layout) == (packed, FILL_LAYOUT)
    assert (node.grid_dim, node.block_dim) == (launch.grid_dim, launch.block_dim)
    assert node.name == "graphjit_fill"


def capture_orders_by_stream(bench: Bench) -> None:
    """Work on one stream becomes a chain."""
    dst = bench.memory(b"." * 16)
    graph = bench.capture(bench.fill(dst, 1, 16), bench.copy(dst, dst, 8), bench.fill(dst, 2, 4))
    names = {index: node.name for index, node in enumerate(kernel_nodes(graph))}
    assert sorted(names.values()) == ["graphjit_copy", "graphjit_fill", "graphjit_fill"]
    assert len(graph.edges) == 2
    copy = next(index for index, name in names.items() if name == "graphjit_copy")
    assert {(e.from_ == copy, e.to == copy) for e in graph.edges} == {(False, True), (True, False)}


def capture_accepts_addresses_that_hold_nothing(bench: Bench) -> None:
    """Kernels can be captured, and instantiated, at reserved addresses."""
    ptr = bench.driver.mem_address_reserve(4 << 20)
    graph = bench.capture(bench.fill(ptr, 1, 16))
    assert struct.unpack_from("<Q", kernel_nodes(graph)[0].params) == (ptr,)
    bench.instantiate(bench.graph(bench.fill(ptr, 1, 16))[0])


def own_allocations_are_legal_during_capture(bench: Bench) -> None:
    """``mem_alloc``, ``memcpy_htod``, ``memcpy_dtoh`` and ``mem_free`` leave a capture valid."""
    for mode in ("thread_local", "global", "relaxed"):
        bench.driver.stream_begin_capture(bench.stream, mode)
        ptr = bench.driver.mem_alloc(16)
        bench.driver.memcpy_htod(ptr, b"0123456789abcdef")
        assert bench.driver.memcpy_dtoh(ptr, 4) == b"0123"
        bench.driver.launch_kernel(*bench.fill(ptr, 1, 16), bench.stream)
        assert len(bench.end_capture().nodes) == 1
        bench.driver.mem_free(ptr)


def graphs_can_be_destroyed_during_capture(bench: Bench) -> None:
    """Destroying a graph and a launched graph exec leaves a capture valid."""
    driver = bench.driver
    dst = bench.memory(b"." * 16)
    for mode in ("thread_local", "global", "relaxed"):
        graph = driver.graph_create()
        params = driver.kernel_node_params(*bench.fill(dst, 0x41, 16))
        driver.graph_add_kernel_node(graph, params, None)
        graph_exec = driver.graph_instantiate(graph)
        bench.run(graph_exec)
        driver.stream_begin_capture(bench.stream, mode)
        driver.graph_exec_destroy(graph_exec)
        driver.graph_destroy(graph)
        driver.launch_kernel(*bench.fill(dst, 0x42, 16), bench.stream)
        assert len(bench.end_capture().nodes) == 1
    assert bench.read(dst, 16) == b"A" * 16


def begin_and_end_come_in_pairs(bench: Bench) -> None:
    """A second begin, and an end without a begin, are refused and change nothing."""
    driver, stream = bench.driver, bench.stream
    assert refused(lambda: driver.stream_end_capture(stream)) == "CUDA_ERROR_ILLEGAL_STATE"
    driver.stream_begin_capture(stream, "thread_local")
    begin_again = refused(lambda: driver.stream_begin_capture(stream, "thread_local"))
    assert begin_again == "CUDA_ERROR_ILLEGAL_STATE"
    assert driver.stream_is_capturing(stream)
    bench.end_capture()
    assert not driver.stream_is_capturing(stream)


def waiting_invalidates_a_capture(bench: Bench) -> None:
    """Waiting for the stream is refused; the capture ends without a graph, the stream works."""
    driver, stream = bench.driver, bench.stream
    dst = bench.memory(b"." * 4)
    driver.stream_begin_capture(stream, "thread_local")
    wait = refused(lambda: driver.stream_synchronize(stream))
    assert wait == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    assert driver.stream_is_capturing(stream)
    launch = refused(lambda: driver.launch_kernel(*bench.fill(dst, 1, 4), stream))
    assert launch == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    end = refused(lambda: driver.stream_end_capture(stream))
    assert end == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    assert not driver.stream_is_capturing(stream)
    driver.launch_kernel(*bench.fill(dst, 0x41, 4), stream)
    assert bench.read(dst, 4) == b"AAAA"


def abandoning_ends_any_capture(bench: Bench) -> None:
    """A capture can be abandoned while active, when invalidated, and when there is none."""
    driver, stream = bench.driver, bench.stream
    driver.stream_abandon_capture(stream)
    driver.stream_begin_capture(stream, "thread_local")
    driver.stream_abandon_capture(stream)
    driver.stream_begin_capture(stream, "thread_local")
    refused(lambda: driver.stream_synchronize(stream))
    driver.stream_abandon_capture(stream)
    assert not driver.stream_is_capturing(stream)
    assert bench.capture().nodes == ()


def capture_ends_in_its_own_thread(bench: Bench) -> None:
    """Another thread cannot end a capture that is not relaxed."""
    driver, stream = bench.driver, bench.stream
    driver.stream_begin_capture(stream, "thread_local")
    other = bench.refused_in_other_thread(lambda: driver.stream_end_capture(stream))
    assert other == "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
    driver.stream_abandon_capture(stream)
    assert not driver.stream_is_capturing(stream)


def streams_fork_and_join(bench: Bench) -> None:
    """A stream that waits for a captured one joins its capture; joined work is in the graph."""
    if bench.wait is None:
        return
    other = bench.new_stream()
    dst = bench.memory(b"." * 16)
    bench.driver.stream_begin_capture(bench.stream, "thread_local")
    bench.driver.launch_kernel(*bench.fill(dst, 1, 16), bench.stream)
    bench.wait(other, bench.stream)
    assert bench.driver.stream_is_capturing(other)
    bench.driver.launch_kernel(*bench.copy(dst + 8, dst, 4), other)
    bench.driver.launch_kernel(*bench.copy(dst, dst + 4, 4), bench.stream)
    bench.wait(bench.stream, other)
    bench.driver.launch_kernel(*bench.fill(dst, 3, 2), bench.stream)
    graph = bench.end_capture()
    assert not bench.driver.stream_is_capturing(other)
    assert len(graph.nodes) == len(graph.edges) == 4


def unjoined_work_is_refused(bench: Bench) -> None:
    """A fork with work that is not joined ends the capture without a graph."""
    if bench.wait is None:
        return
    other = bench.new_stream()
    dst = bench.memory(b"." * 16)
    bench.driver.stream_begin_capture(bench.stream, "thread_local")
    bench.driver.launch_kernel(*bench.fill(dst, 1, 16), bench.stream)
    bench.wait(other, bench.stream)
    bench.driver.launch_kernel(*bench.fill(dst, 2, 16), other)
    end = refused(lambda: bench.driver.stream_end_capture(bench.stream))
    assert end == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
    assert not bench.driver.stream_is_capturing(bench.stream)
    assert not bench.driver.stream_is_capturing(other)


def streams_wait_for_events(bench: Bench) -> None:
    """A stream waits for what an event has noted of another; one never recorded is no wait."""
    driver, dst = bench.driver, bench.memory(b"." * 8)
    other, event = bench.new_stream(), driver.event_create()
    driver.stream_wait_event(other, event)
    driver.launch_kernel(*bench.fill(dst, 0x41, 8), bench.stream)
    driver.event_record(event, bench.stream)
    driver.stream_wait_event(other, event)
    driver.event_destroy(event)
    driver.launch_kernel(*bench.fill(dst, 0x42, 8), other)
    driver.stream_synchronize(other)
    assert bench.read(dst, 8) == b"B" * 8


def waiting_for_the_device_spares_captures(bench: Bench) -> None:
    """``wait_for_device`` is legal while this thread captures, and spares the capture."""
    dst = bench.memory(b"." * 8)
    bench.driver.stream_begin_capture(bench.stream, "thread_local")
    bench.driver.launch_kernel(*bench.fill(dst, 1, 8), bench.stream)
    bench.driver.wait_for_device()
    assert len(bench.end_capture().nodes) == 1


CHECKS: tuple[Check, ...] = (
    memory_keeps_what_is_written,
    address_range_is_that_of_the_allocation,
    reserved_ranges_do_not_overlap,
    copy_moves_a_box,
    copy_moves_rows_of_any_alignment,
    fill_writes_elements,
    fills_do_one_fill_a_block,
    capture_records_and_runs_nothing,
    capture_orders_by_stream,
    capture_accepts_addresses_that_hold_nothing,
    own_allocations_are_legal_during_capture,
    graphs_can_be_destroyed_during_capture,
    begin_and_end_come_in_pairs,
    waiting_invalidates_a_capture,
    abandoning_ends_any_capture,
    capture_ends_in_its_own_thread,
    streams_fork_and_join,
    unjoined_work_is_refused,
    streams_wait_for_events,
    waiting_for_the_device_spares_captures,
)
