"""Read a captured CUgraph into plain data, child graphs inlined.

Input: a CUgraph. Output: ``CapturedGraph``; parameters copied, nothing of the driver's
memory is kept or written.
Raises: ``DriverError``.
Source: cuFuncGetParamInfo, cuKernelGetParamInfo (CUDA 12.4), cuGraphMemcpyNodeGetParams,
cuGraphMemsetNodeGetParams, cuGraphMemAllocNodeGetParams; ``cuda_nodes_python.py`` for kernels.
"""

from __future__ import annotations

import itertools
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver.cuda_check import check
from graphjit._driver.cuda_host import number_of
from graphjit._driver.cuda_nodes import NodeCalls
from graphjit._nodes import (
    CapturedGraph,
    Edge,
    EmptyNode,
    EventNode,
    HostNode,
    MemAllocNode,
    MemcpyNode,
    MemFreeNode,
    MemsetNode,
    Node,
    ParamLayout,
    UnsupportedNode,
)

_Type = cu.CUgraphNodeType
_HOST = cu.CUmemorytype.CU_MEMORYTYPE_HOST
_UNIFIED = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
_DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
# Plain numbers: comparing members of cuda.bindings' enumerations costs a Python call each.
_KERNEL = int(_Type.CU_GRAPH_NODE_TYPE_KERNEL)
_CHILD_GRAPH = int(_Type.CU_GRAPH_NODE_TYPE_GRAPH)


def read_graph(graph: Any, calls: NodeCalls) -> CapturedGraph:
    """Copy a graph's nodes and edges out of the driver."""
    reader = _Reader(calls)
    found = calls.nodes(int(graph))
    if any(node_type == _CHILD_GRAPH for _, node_type in found):
        reader.read(graph)
        return CapturedGraph(tuple(reader.nodes), tuple(reader.edges))
    index = {handle: i for i, (handle, _) in enumerate(found)}
    edges = [Edge(index[i], index[j], data) for i, j, data in calls.edges(int(graph))]
    return CapturedGraph(tuple(itertools.starmap(reader.node, found)), tuple(edges))


class _Reader:
    """Collects nodes; a child graph's nodes take the place of its node."""

    def __init__(self, calls: NodeCalls) -> None:
        self.calls = calls
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        # Handles of functions may be reused after a module is unloaded: one graph only.
        self._functions = _Functions()

    def read(self, graph: Any) -> tuple[list[int], list[int]]:
        """Append a graph; return the indices of its roots and of its leaves."""
        found = self.calls.nodes(int(graph))
        entries: dict[int, list[int]] = {}
        exits: dict[int, list[int]] = {}
        for handle, node_type in found:
            if node_type == _CHILD_GRAPH:
                child = check(
                    cu.cuGraphChildGraphNodeGetGraph(handle), "cuGraphChildGraphNodeGetGraph"
                )
                first, last = self.read(child)
            else:
                self.nodes.append(self.node(handle, node_type))
                first = last = [len(self.nodes) - 1]
            entries[handle], exits[handle] = first, last
        has_source: set[int] = set()
        has_target: set[int] = set()
        for source, target, data in self.calls.edges(int(graph)):
            has_source.add(target)
            has_target.add(source)
            self.edges += [Edge(i, j, data) for i in exits[source] for j in entries[target]]
        roots = [i for h, _ in found if h not in has_source for i in entries[h]]
        leaves = [i for h, _ in found if h not in has_target for i in exits[h]]
        return roots, leaves

    def node(self, handle: int, node_type: int) -> Node:
        """Read one node."""
        if node_type == _KERNEL:
            return self.calls.kernel(handle, self._functions)
        return _other_node(handle, _Type(node_type))


class _Functions(dict[tuple[str, int], tuple[str, ParamLayout]]):
    """(``"func"`` or ``"kern"``, handle) -> name and parameters, asked for once a function."""

    def __missing__(self, key: tuple[str, int]) -> tuple[str, ParamLayout]:
        kind, function = key
        self[key] = described = _describe_function(function, kind == "kern")
        return described


def _other_node(handle: int, node_type: Any) -> Node:
    if node_type == _Type.CU_GRAPH_NODE_TYPE_MEMCPY:
        return _memcpy(handle)
    if node_type == _Type.CU_GRAPH_NODE_TYPE_MEMSET:
        p = check(cu.cuGraphMemsetNodeGetParams(handle), "cuGraphMemsetNodeGetParams")
        values = (p.dst, p.value, p.elementSize, p.width, p.height, p.pitch)
        return MemsetNode(handle, *(int(v) for v in values))
    if node_type == _Type.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        p = check(cu.cuGraphMemAllocNodeGetParams(handle), "cuGraphMemAllocNodeGetParams")
        return MemAllocNode(handle, int(p.dptr), int(p.bytesize))
    if node_type == _Type.CU_GRAPH_NODE_TYPE_MEM_FREE:
        ptr = check(cu.cuGraphMemFreeNodeGetParams(handle), "cuGraphMemFreeNodeGetParams")
        return MemFreeNode(handle, int(ptr))
    if node_type == _Type.CU_GRAPH_NODE_TYPE_EMPTY:
        return EmptyNode(handle)
    if node_type == _Type.CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        event = check(cu.cuGraphEventRecordNodeGetEvent(handle), "cuGraphEventRecordNodeGetEvent")
        return EventNode(handle, True, int(event))
    if node_type == _Type.CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        event = check(cu.cuGraphEventWaitNodeGetEvent(handle), "cuGraphEventWaitNodeGetEvent")
        return EventNode(handle, False, int(event))
    if node_type == _Type.CU_GRAPH_NODE_TYPE_HOST:
        number = number_of(handle)
        if number is not None:
            return HostNode(handle, number)
        reason = "what it calls is not known; use graphjit.host_callback"
        return UnsupportedNode(handle, node_type.name, reason)
    return UnsupportedNode(handle, node_type.name, "graphjit cannot rebuild this kind of node")


def _describe_function(function: int, is_kernel: bool) -> tuple[str, ParamLayout]:
    """Return a function's name and the (offset, size) of each of its parameters."""
    get_info = cu.cuKernelGetParamInfo if is_kernel else cu.cuFuncGetParamInfo
    get_name = cu.cuKernelGetName if is_kernel else cu.cuFuncGetName
    layout: list[tuple[int, int]] = []
    while (info := get_info(function, len(layout)))[0] == cu.CUresult.CUDA_SUCCESS:
        layout.append((int(info[1]), int(info[2])))
    error, name = get_name(function)
    known = error == cu.CUresult.CUDA_SUCCESS and name
    return (name.decode() if known else "?"), tuple(layout)


def _memcpy(handle: int) -> Node:
    p = check(cu.cuGraphMemcpyNodeGetParams(handle), "cuGraphMemcpyNodeGetParams")
    for side, kind in (("source", p.srcMemoryType), ("destination", p.dstMemoryType)):
        if kind not in (_DEVICE, _UNIFIED):
            # Also if it is page-locked: it may be a block that a library recycles after the call.
            what = "host memory; use graphjit.PinnedArray" if kind == _HOST else "a CUDA array"
            return UnsupportedNode(handle, "CU_GRAPH_NODE_TYPE_MEMCPY", f"its {side} is {what}")
    src_slice = int(p.srcPitch) * int(p.srcHeight)
    dst_slice = int(p.dstPitch) * int(p.dstHeight)
    src_ptr = int(p.srcDevice) + int(p.srcXInBytes) + int(p.srcY) * int(p.srcPitch)
    dst_ptr = int(p.dstDevice) + int(p.dstXInBytes) + int(p.dstY) * int(p.dstPitch)
    return MemcpyNode(
        handle=handle,
        src_ptr=src_ptr + int(p.srcZ) * src_slice,
        dst_ptr=dst_ptr + int(p.dstZ) * dst_slice,
        width=int(p.WidthInBytes),
        height=int(p.Height),
        depth=int(p.Depth),
        dst_pitch=int(p.dstPitch),
        src_pitch=int(p.srcPitch),
        dst_slice_pitch=dst_slice,
        src_slice_pitch=src_slice,
    )
