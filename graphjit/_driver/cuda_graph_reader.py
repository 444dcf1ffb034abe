"""Read a captured CUgraph into plain data, child graphs inlined.

Input: a CUgraph. Output: ``CapturedGraph``; parameters copied, nothing of the driver's
memory is kept or written.
Raises: ``DriverError``.
Source: cuGraphGetNodes, cuGraphGetEdges, cuGraphKernelNodeGetParams, cuFuncGetParamInfo,
cuKernelGetParamInfo (CUDA 12.4), cuGraphMemcpyNodeGetParams, cuGraphMemsetNodeGetParams.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from graphjit._nodes import (
    CapturedGraph,
    Edge,
    EmptyNode,
    KernelNode,
    MemAllocNode,
    MemcpyNode,
    MemFreeNode,
    MemsetNode,
    Node,
    UnsupportedNode,
)
from graphjit.errors import DriverError

_Type = cu.CUgraphNodeType
_HOST = cu.CUmemorytype.CU_MEMORYTYPE_HOST
_UNIFIED = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
_DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE


def check(result: tuple[Any, ...], call: str) -> Any:
    """Return what a driver call returned, without its status; raise if that is an error."""
    status = result[0]
    if status != cu.CUresult.CUDA_SUCCESS:
        raise DriverError(call, status.name, int(status), _describe(status))
    return result[1] if len(result) == 2 else result[1:]


def _describe(status: Any) -> str:
    error, text = cu.cuGetErrorString(status)
    return text.decode() if error == cu.CUresult.CUDA_SUCCESS and text else ""


def read_graph(graph: Any) -> CapturedGraph:
    """Copy a graph's nodes and edges out of the driver."""
    reader = _Reader()
    reader.read(graph)
    return CapturedGraph(tuple(reader.nodes), tuple(reader.edges))


class _Reader:
    """Collects nodes; a child graph's nodes take the place of its node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        # Handles of functions may be reused after a module is unloaded: one graph only.
        self._functions: dict[tuple[str, int], tuple[str, tuple[tuple[int, int], ...]]] = {}

    def read(self, graph: Any) -> tuple[list[int], list[int]]:
        """Append a graph; return the indices of its roots and of its leaves."""
        handles = _nodes_of(graph)
        entries: dict[int, list[int]] = {}
        exits: dict[int, list[int]] = {}
        for handle in handles:
            if _node_type(handle) == _Type.CU_GRAPH_NODE_TYPE_GRAPH:
                child = check(
                    cu.cuGraphChildGraphNodeGetGraph(handle), "cuGraphChildGraphNodeGetGraph"
                )
                first, last = self.read(child)
            else:
                self.nodes.append(self._node(handle))
                first = last = [len(self.nodes) - 1]
            entries[int(handle)], exits[int(handle)] = first, last
        has_source: set[int] = set()
        has_target: set[int] = set()
        for source, target, data in _edges_of(graph):
            has_source.add(target)
            has_target.add(source)
            self.edges += [Edge(i, j, data) for i in exits[source] for j in entries[target]]
        roots = [i for h in handles if int(h) not in has_source for i in entries[int(h)]]
        leaves = [i for h in handles if int(h) not in has_target for i in exits[int(h)]]
        return roots, leaves

    def _node(self, handle: Any) -> Node:
        node_type = _node_type(handle)
        if node_type == _Type.CU_GRAPH_NODE_TYPE_KERNEL:
            return self._kernel(handle)
        if node_type == _Type.CU_GRAPH_NODE_TYPE_MEMCPY:
            return _memcpy(handle)
        if node_type == _Type.CU_GRAPH_NODE_TYPE_MEMSET:
            p = check(cu.cuGraphMemsetNodeGetParams(handle), "cuGraphMemsetNodeGetParams")
            return MemsetNode(
                handle,
                int(p.dst),
                int(p.value),
                int(p.elementSize),
                int(p.width),
                int(p.height),
                int(p.pitch),
            )
        if node_type == _Type.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            p = check(cu.cuGraphMemAllocNodeGetParams(handle), "cuGraphMemAllocNodeGetParams")
            return MemAllocNode(handle, int(p.dptr), int(p.bytesize))
        if node_type == _Type.CU_GRAPH_NODE_TYPE_MEM_FREE:
            ptr = check(cu.cuGraphMemFreeNodeGetParams(handle), "cuGraphMemFreeNodeGetParams")
            return MemFreeNode(handle, int(ptr))
        if node_type == _Type.CU_GRAPH_NODE_TYPE_EMPTY:
            return EmptyNode(handle)
        return UnsupportedNode(handle, node_type.name, "graphjit cannot rebuild this kind of node")

    def _kernel(self, handle: Any) -> KernelNode:
        p = check(cu.cuGraphKernelNodeGetParams(handle), "cuGraphKernelNodeGetParams")
        is_kernel = int(p.func) == 0
        function = p.kern if is_kernel else p.func
        key = ("kern" if is_kernel else "func", int(function))
        if key not in self._functions:
            self._functions[key] = _describe_function(function, is_kernel)
        name, layout = self._functions[key]
        return KernelNode(
            handle=handle,
            name=name,
            function=(*key, int(p.ctx)),
            grid_dim=(int(p.gridDimX), int(p.gridDimY), int(p.gridDimZ)),
            block_dim=(int(p.blockDimX), int(p.blockDimY), int(p.blockDimZ)),
            shared_mem_bytes=int(p.sharedMemBytes),
            params=_packed_params(p, layout),
            param_layout=layout,
        )


def _nodes_of(graph: Any) -> list[Any]:
    n = cu.cuGraphGetNodes(graph, 0)[-1]
    return list(check(cu.cuGraphGetNodes(graph, n), "cuGraphGetNodes")[0][:n]) if n else []


def _edges_of(graph: Any) -> list[tuple[int, int, Any]]:
    # CUDA 12 has the call with edge data as _v2, CUDA 13 under the plain name.
    call = getattr(cu, "cuGraphGetEdges_v2", cu.cuGraphGetEdges)
    n = call(graph, 0)[-1]
    if not n:
        return []
    sources, targets, data, n = check(call(graph, n), "cuGraphGetEdges")
    return [
        (int(sources[i]), int(targets[i]), data[i] if _is_programmatic(data[i]) else None)
        for i in range(n)
    ]


def _is_programmatic(data: Any) -> bool:
    return bool(data.from_port or data.to_port or int(data.type))


def _node_type(handle: Any) -> Any:
    return check(cu.cuGraphNodeGetType(handle), "cuGraphNodeGetType")


def _describe_function(function: Any, is_kernel: bool) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return a function's name and the (offset, size) of each of its parameters."""
    get_info = cu.cuKernelGetParamInfo if is_kernel else cu.cuFuncGetParamInfo
    get_name = cu.cuKernelGetName if is_kernel else cu.cuFuncGetName
    layout: list[tuple[int, int]] = []
    while (info := get_info(function, len(layout)))[0] == cu.CUresult.CUDA_SUCCESS:
        layout.append((int(info[1]), int(info[2])))
    error, name = get_name(function)
    known = error == cu.CUresult.CUDA_SUCCESS and name
    return (name.decode() if known else "?"), tuple(layout)


def _packed_params(p: Any, layout: tuple[tuple[int, int], ...]) -> bytes:
    """Copy parameters out of ``kernelParams``, or of ``extra`` as cuBLAS's nvjet kernels use it."""
    nbytes = max((offset + size for offset, size in layout), default=0)
    packed = bytearray(nbytes)
    if pointers := int(p.kernelParams or 0):
        sources = (ctypes.c_uint64 * len(layout)).from_address(pointers)
        for source, (offset, size) in zip(sources, layout, strict=True):
            packed[offset : offset + size] = ctypes.string_at(source, size)
    elif extra := int(p.extra or 0):
        buffer_ptr, buffer_nbytes = _extra_buffer(extra)
        n = min(nbytes, buffer_nbytes)
        packed[:n] = ctypes.string_at(buffer_ptr, n)
    return bytes(packed)


def _extra_buffer(extra: int) -> tuple[int, int]:
    """Parse CU_LAUNCH_PARAM_BUFFER_POINTER / _SIZE / _END: key and value pairs up to END (0)."""
    buffer_ptr = nbytes = 0
    while key := ctypes.c_void_p.from_address(extra).value or 0:
        value = ctypes.c_void_p.from_address(extra + 8).value or 0
        if key == 1:
            buffer_ptr = value
        elif key == 2:
            nbytes = ctypes.c_size_t.from_address(value).value
        extra += 16
    return buffer_ptr, nbytes


def _memcpy(handle: Any) -> Node:
    p = check(cu.cuGraphMemcpyNodeGetParams(handle), "cuGraphMemcpyNodeGetParams")
    for side, kind in (("source", p.srcMemoryType), ("destination", p.dstMemoryType)):
        if kind not in (_DEVICE, _UNIFIED):
            what = "host memory" if kind == _HOST else "a CUDA array"
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
