"""Copies and fills of a captured graph -> kernel nodes, which both patches can re-point.

Input: a ``CapturedGraph``. Output: the same with kernel nodes in the places of memcpy and
memset nodes: those cannot be updated from the device, and not be instantiated at addresses
that hold nothing.
"""

from __future__ import annotations

import struct
from typing import Any

from graphjit._driver.interface import COPY_LAYOUT, FILL_LAYOUT, Driver
from graphjit._nodes import CapturedGraph, KernelNode, MemcpyNode, MemsetNode, Node

_MAX_COPY_BLOCKS = 2048


def replace_copies_and_fills(driver: Driver, graph: CapturedGraph) -> CapturedGraph:
    """Turn memcpy and memset nodes into kernel nodes, which both patches can re-point."""
    return CapturedGraph(tuple(_as_kernel(driver, node) for node in graph.nodes), graph.edges)


def _as_kernel(driver: Driver, node: Node) -> Node:
    if isinstance(node, MemcpyNode):
        values: tuple[int, ...] = (
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
        return _builtin(driver, "copy", values, COPY_LAYOUT, nbytes)
    if isinstance(node, MemsetNode):
        values = (node.dst_ptr, node.value, node.element_size, node.width, node.height, node.pitch)
        nbytes = node.element_size * node.width * node.height
        return _builtin(driver, "fill", values, FILL_LAYOUT, nbytes)
    return node


def _builtin(
    driver: Driver, name: str, values: tuple[int, ...], layout: Any, nbytes: int
) -> KernelNode:
    blocks = min(max(-(-nbytes // (256 * 16)), 1), _MAX_COPY_BLOCKS)
    return KernelNode(
        handle=None,
        name=f"graphjit_{name}",
        function=driver.builtin_kernel(name),
        grid_dim=(blocks, 1, 1),
        block_dim=(256, 1, 1),
        shared_mem_bytes=0,
        params=struct.pack(f"<{len(values)}Q", *values),
        param_layout=tuple(layout),
    )
