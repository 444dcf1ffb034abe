"""A captured graph that is launched in another capture: it becomes a child graph there.

Its nodes are put into the graph around it as they were captured, pointed at the arrays of the
launch; no function is called again. What the graph around it knows of them is what it knows of
its own nodes, so that they are analysed, ordered and re-pointed like those.

Input: a cache entry, the arrays of a launch, the capture around it.
Output: what a launch returns, made of memory of the capture around it.
Raises: ``CaptureError`` for what cannot be there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graphjit._capture import Capture
from graphjit._draws import Draws
from graphjit._driver.interface import COPY_SRC_OFFSET
from graphjit._entry import CacheEntry
from graphjit._hit import MISS
from graphjit._nodes import (
    CapturedGraph,
    EmptyNode,
    EventNode,
    HostNode,
    KernelNode,
    MemAllocNode,
    MemFreeNode,
    Node,
)
from graphjit._replace import COPY_NAME
from graphjit._turns import take_turns

_IN_BODY = (
    "it launches a graph ({name}) that calls the host or uses an event, in a branch or a loop of "
    "graphjit.control, and CUDA allows no such nodes there"
)
_U64 = (1 << 64) - 1
PointAt = Callable[[int, int], int]
"""Slot and distance -> address."""


def compose(
    capture: Capture, entry: CacheEntry, name: str, arrays: list[Any], scalars: Sequence[Any]
) -> Any:
    """Add the launch of an entry to a capture; ``MISS`` if its graph cannot be had now."""
    calls_host = any(isinstance(node, (HostNode, EventNode)) for node in entry.graph.nodes)
    if calls_host and capture.flow.is_in_body:
        raise capture.refuse(_IN_BODY.format(name=name))
    with entry.executable.held() as is_mine:
        if not is_mine:
            return MISS
        externals = entry.externals
        memories = [entry.adapter.allocate(nbytes) for nbytes in entry.memory_nbytes]
        slots = entry.slots(arrays, memories, scalars)
        graph = _pointed(capture, entry, slots, _with_seeds(capture, entry.draws, slots))
        _keep(capture, entry, uses_in_place=_words_in_place(entry))
    take_turns(entry.executable, externals)
    capture.cut()
    with capture.calling(entry, name):
        capture.flow.add_piece(graph)
    return entry.outputs.build(entry.adapter, memories, arrays)


def _with_seeds(capture: Capture, draws: Draws, slots: list[int]) -> PointAt:
    """Let the capture draw what the graph draws; return where each slot leads."""
    stand_ins: dict[int, list[tuple[int, int]]] = {}
    for seeds in draws.seeds.values():
        begins = sorted(seeds.ptrs.values())
        ends = [*begins[1:], seeds.n]
        stand_ins[seeds.slot] = [
            (begin, capture.seed_before_launch(seeds.generator, end - begin))
            for begin, end in zip(begins, ends, strict=True)
        ]
    for fill in draws.fills:
        assert fill.target is not None
        ptr = slots[fill.target.slot] + fill.target.delta
        capture.fill_before_launch(fill.generator, fill.call, ptr)

    def point_at(slot: int, delta: int) -> int:
        if slot not in stand_ins:
            return slots[slot] + delta & _U64
        begin, ptr = max((b, p) for b, p in stand_ins[slot] if b <= delta or not b)
        return ptr + delta - begin & _U64

    return point_at


def _pointed(
    capture: Capture, entry: CacheEntry, slots: list[int], point_at: PointAt
) -> CapturedGraph:
    """Return the nodes with the addresses and numbers of a launch, on constants of their own."""
    plan = entry.plan
    params = {
        index: bytearray(node.params)
        for index, node in enumerate(entry.graph.nodes)
        if isinstance(node, KernelNode)
    }
    for index, param_offset, slot, delta in plan.table.tolist():
        struct.pack_into("<Q", params[index], param_offset, point_at(slot, delta))
    for scalar in plan.scalars:
        data = slots[scalar.slot].to_bytes(8, "little")[: scalar.nbytes]
        end = scalar.param_offset + scalar.nbytes
        params[scalar.node][scalar.param_offset : end] = data
    ptrs = _copied_constants(capture, entry, point_at)
    for index, node in enumerate(entry.graph.nodes):
        if isinstance(node, KernelNode) and node.is_own and node.name == COPY_NAME:
            (source,) = struct.unpack_from("<Q", node.params, COPY_SRC_OFFSET)
            if found := entry.constant_at(source):
                struct.pack_into("<Q", params[index], COPY_SRC_OFFSET, ptrs[found[0]] + found[1])
    made = entry.executable.nodes
    nodes = tuple(
        replace(
            node,
            handle=None,
            params=bytes(params[index]),
            attributes=capture.driver.kernel_node_attributes(made[index]),
        )
        if isinstance(node, KernelNode)
        else _without_memory(node)
        for index, node in enumerate(entry.graph.nodes)
    )
    return replace(entry.graph, nodes=nodes)


def _copied_constants(capture: Capture, entry: CacheEntry, point_at: PointAt) -> list[int]:
    """Upload the constants once more, with the addresses of a launch; return where they are."""
    constants = [bytearray(capture.driver.memcpy_dtoh(*c)) for c in entry.constant_ranges]
    for word in entry.plan.words:
        if found := entry.constant_at(word.device_ptr):
            struct.pack_into("<Q", constants[found[0]], found[1], point_at(word.slot, word.delta))
    return [capture.upload_constant(bytes(data)) for data in constants]


def _without_memory(node: Node) -> Node:
    """Return a node as it is in the executable graph: its workspaces are scratch memory."""
    return EmptyNode(None) if isinstance(node, (MemAllocNode, MemFreeNode)) else node


def _words_in_place(entry: CacheEntry) -> set[int]:
    """Return the addresses of arrays that the graph uses where they are."""
    arrays = [external for external in entry.externals if external.kind == "array"]
    return {w for _, w in entry.plan.candidates if any(array.holds(w) for array in arrays)}


def _keep(capture: Capture, entry: CacheEntry, *, uses_in_place: set[int]) -> None:
    """Let the graph around it hold what this one holds."""
    capture.in_place |= uses_in_place
    if entry.executable.use_node_priority:
        capture.keep_priorities()
    for external in entry.externals:
        if external.kind == "page-locked":
            external.owner.is_shared = True
            capture.host_memory.append(external.owner)
    calls_host = any(isinstance(node, (HostNode, EventNode)) for node in entry.graph.nodes)
    (capture.kept if calls_host else capture.owners).extend(entry.kept)
    owners = [external.owner for external in entry.externals]
    capture.owners += [*entry.executable.modules, *owners]
