"""Copies and fills of a captured graph -> kernel nodes, which both patches can re-point.

Input: a ``CapturedGraph``. Output: the same with kernel nodes in the places of memcpy and
memset nodes: those cannot be updated from the device, and not be instantiated at addresses
that hold nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace

from graphjit._driver.interface import (
    COPY_LAYOUT,
    FILL_LAYOUT,
    FILLS_LAYOUT,
    MAX_FILLS,
    Driver,
    KernelLaunch,
)
from graphjit._nodes import (
    CapturedGraph,
    Edge,
    KernelNode,
    MemcpyNode,
    MemsetNode,
    Node,
    ParamLayout,
)

COPY_NAME = "graphjit_copy"
"""The name of nodes that were memcpy nodes."""
_MAX_COPY_BLOCKS = 2048
MAX_MERGED_NBYTES = 1 << 14
"""A fill of more is left alone: in a merged one it would have a single block."""


def replace_copies_and_fills(driver: Driver, graph: CapturedGraph) -> CapturedGraph:
    """Turn memcpy and memset nodes into kernel nodes, which both patches can re-point."""
    return replace(graph, nodes=tuple(_as_kernel(driver, node) for node in graph.nodes))


def _as_kernel(driver: Driver, node: Node) -> Node:
    if isinstance(node, MemcpyNode):
        values = (
            node.dst_ptr,
            node.src_ptr,
            node.width,
            node.height,
            node.depth,
            node.dst_pitch,
            node.src_pitch,
            node.dst_slice_pitch,
            node.src_slice_pitch,
        )
        nbytes = node.width * node.height * node.depth
        return _builtin(driver, "copy", _pack_words(values), COPY_LAYOUT, _n_blocks(nbytes))
    if isinstance(node, MemsetNode):
        nbytes = node.element_size * node.width * node.height
        return _builtin(driver, "fill", _fill_params(node), FILL_LAYOUT, _n_blocks(nbytes))
    return node


def _fill_params(node: MemsetNode) -> bytes:
    return _pack_words(
        (node.dst_ptr, node.value, node.element_size, node.width, node.height, node.pitch)
    )


def _n_blocks(nbytes: int) -> int:
    return min(max(-(-nbytes // (256 * 16)), 1), _MAX_COPY_BLOCKS)


def _pack_words(values: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def copy_launch(
    driver: Driver, dst_ptr: int, src_ptr: int, nbytes: int
) -> tuple[KernelLaunch, bytes]:
    """Return the launch of a kernel that copies bytes, with its parameters."""
    params = _pack_words((dst_ptr, src_ptr, nbytes, 1, 1, 0, 0, 0, 0))
    kernel = _builtin(driver, "copy", params, COPY_LAYOUT, _n_blocks(nbytes))
    launch = KernelLaunch(
        kernel.function, kernel.grid_dim, kernel.block_dim, 0, kernel.param_layout
    )
    return launch, params


def _builtin(
    driver: Driver, name: str, params: bytes, layout: ParamLayout, n_blocks: int
) -> KernelNode:
    return KernelNode(
        handle=None,
        name=f"graphjit_{name}",
        function=driver.builtin_kernel(name),
        grid_dim=(n_blocks, 1, 1),
        block_dim=(256, 1, 1),
        shared_mem_bytes=0,
        params=params,
        param_layout=layout,
        is_own=True,
    )


def merge_fills(driver: Driver, graph: CapturedGraph) -> CapturedGraph:
    """Put small fills that follow each other, of memory that is apart, into one kernel.

    To be called before ``replace_copies_and_fills``. The merged node takes the place of the
    first one.
    """
    if graph.bodies:
        return graph
    nodes: list[Node] = []
    new_index: list[int] = []
    run: list[MemsetNode] = []
    follows = _only_successors(graph)
    for index, node in enumerate(graph.nodes):
        goes_on = bool(run) and (index - 1, index) in follows and _can_join(run, node)
        if not goes_on:
            run = []
            nodes.append(node)
        new_index.append(len(nodes) - 1)
        if isinstance(node, MemsetNode) and _nbytes(node) <= MAX_MERGED_NBYTES:
            run.append(node)
            if len(run) > 1:
                nodes[-1] = _merged(driver, run)
    edges = {(new_index[e.from_], new_index[e.to]): e for e in graph.edges}
    kept = [Edge(i, j, e.data) for (i, j), e in edges.items() if i != j]
    return CapturedGraph(tuple(nodes), tuple(kept))


def _only_successors(graph: CapturedGraph) -> set[tuple[int, int]]:
    """Return the edges between a node with one target and a node with one source."""
    n_targets = Counter(e.from_ for e in graph.edges)
    n_sources = Counter(e.to for e in graph.edges)
    return {(i, j) for i, j, _ in graph.edges if n_targets[i] == n_sources[j] == 1}


def _nbytes(node: MemsetNode) -> int:
    return (node.height - 1) * node.pitch + node.width * node.element_size


def _can_join(run: list[MemsetNode], node: Node) -> bool:
    if not isinstance(node, MemsetNode) or _nbytes(node) > MAX_MERGED_NBYTES:
        return False
    begin, end = node.dst_ptr, node.dst_ptr + _nbytes(node)
    return len(run) < MAX_FILLS and all(
        end <= other.dst_ptr or other.dst_ptr + _nbytes(other) <= begin for other in run
    )


def _merged(driver: Driver, run: list[MemsetNode]) -> KernelNode:
    params = b"".join(map(_fill_params, run)).ljust(48 * MAX_FILLS, b"\0")
    return _builtin(driver, "fills", params, FILLS_LAYOUT, len(run))
