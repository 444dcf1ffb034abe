"""Read and add nodes through cuda.bindings: the specification of ``cuda_nodes_cython.pyx``.

Input / Output: handles of graphs and nodes as ``int``; edge data as the 8 bytes of a
CUgraphEdgeData, or None for a plain dependency.
Raises: ``DriverError``.
Source: cuGraphGetNodes, cuGraphNodeGetType, cuGraphGetEdges, cuGraphKernelNodeGetParams,
cuGraphAddKernelNode, cuGraphKernelNodeCopyAttributes, cuGraphKernelNodeSetAttribute,
cuGraphAddDependencies, cuGraphExecKernelNodeSetParams (with edge data: CUDA 12.3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from struct import pack
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver.cuda_check import check
from graphjit._driver.interface import Launch
from graphjit._nodes import KernelNode, ParamLayout

Functions = Mapping[tuple[str, int], tuple[str, ParamLayout]]
"""(``"func"`` or ``"kern"``, handle) -> name and (offset, size) of each parameter."""
_DEVICE_UPDATABLE = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE


class KernelNodeParams:
    """A CUDA_KERNEL_NODE_PARAMS over bytes that live as long as it does."""

    __slots__ = ("_pointers", "buffer", "struct")

    def __init__(self, launch: Launch, params: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(params, max(len(params), 1))
        addresses = [self.buffer_ptr + offset for offset, _ in launch.param_layout] or [0]
        self._pointers = ctypes.create_string_buffer(pack(f"<{len(addresses)}Q", *addresses))
        struct = cu.CUDA_KERNEL_NODE_PARAMS()
        kind, handle, context = launch.function
        if kind == "kern":
            struct.kern = handle
        else:
            struct.func = handle
        if context:
            struct.ctx = context
        struct.gridDimX, struct.gridDimY, struct.gridDimZ = launch.grid_dim
        struct.blockDimX, struct.blockDimY, struct.blockDimZ = launch.block_dim
        struct.sharedMemBytes = launch.shared_mem_bytes
        struct.kernelParams = self.pointers_ptr
        self.struct = struct

    @property
    def struct_ptr(self) -> int:
        """Address of the CUDA_KERNEL_NODE_PARAMS."""
        return int(self.struct.getPtr())

    @property
    def buffer_ptr(self) -> int:
        """Address of the packed parameters."""
        return ctypes.addressof(self.buffer)

    @property
    def pointers_ptr(self) -> int:
        """Address of ``kernelParams``."""
        return ctypes.addressof(self._pointers)


class NodeCalls:
    """The calls that are made once a node."""

    def nodes(self, graph: int) -> list[tuple[int, int]]:
        """Return (handle, CUgraphNodeType) of each node, in the order of creation."""
        n = check(cu.cuGraphGetNodes(graph, 0), "cuGraphGetNodes")[-1]
        if not n:
            return []
        handles = check(cu.cuGraphGetNodes(graph, n), "cuGraphGetNodes")[0][:n]
        return [
            (int(h), int(check(cu.cuGraphNodeGetType(h), "cuGraphNodeGetType"))) for h in handles
        ]

    def edges(self, graph: int) -> list[tuple[int, int, bytes | None]]:
        """Return (source, target, data) of each edge."""
        # CUDA 12 has the call with edge data as _v2, CUDA 13 under the plain name.
        call = getattr(cu, "cuGraphGetEdges_v2", cu.cuGraphGetEdges)
        n = check(call(graph, 0), "cuGraphGetEdges")[-1]
        if not n:
            return []
        sources, targets, data, n = check(call(graph, n), "cuGraphGetEdges")
        packed = [bytes([d.from_port, d.to_port, int(d.type)]).ljust(8, b"\0") for d in data[:n]]
        return [
            (int(sources[i]), int(targets[i]), packed[i] if any(packed[i]) else None)
            for i in range(n)
        ]

    def kernel(self, handle: int, functions: Functions) -> KernelNode:
        """Read a kernel node; its parameters are copied."""
        p = check(cu.cuGraphKernelNodeGetParams(handle), "cuGraphKernelNodeGetParams")
        kind = "func" if int(p.func) else "kern"
        function = int(p.func) or int(p.kern)
        name, layout = functions[kind, function]
        return KernelNode(
            handle=handle,
            name=name,
            function=(kind, function, int(p.ctx)),
            grid_dim=(int(p.gridDimX), int(p.gridDimY), int(p.gridDimZ)),
            block_dim=(int(p.blockDimX), int(p.blockDimY), int(p.blockDimZ)),
            shared_mem_bytes=int(p.sharedMemBytes),
            params=_packed_params(p, layout),
            param_layout=layout,
        )

    def params(self, launch: Launch, packed: bytes) -> KernelNodeParams:
        """Build parameters that own a copy of ``packed``."""
        return KernelNodeParams(launch, packed)

    def add_kernel(self, graph: int, params: KernelNodeParams, like: int | None) -> int:
        """Add a kernel node, with the attributes of the node ``like`` if that is not None."""
        node = check(cu.cuGraphAddKernelNode(graph, None, 0, params.struct), "cuGraphAddKernelNode")
        if like is not None:
            check(cu.cuGraphKernelNodeCopyAttributes(node, like), "cuGraphKernelNodeCopyAttributes")
        return int(node)

    def add_dependencies(self, graph: int, edges: list[tuple[int, int, bytes | None]]) -> None:
        """Add edges (source, target, data)."""
        call = getattr(cu, "cuGraphAddDependencies_v2", cu.cuGraphAddDependencies)
        sources, targets, packed = (list(column) for column in zip(*edges, strict=True))
        nodes = [[cu.CUgraphNode(h) for h in handles] for handles in (sources, targets)]
        data = [_edge_data(item) for item in packed]
        check(call(graph, *nodes, data, len(edges)), "cuGraphAddDependencies")

    def make_device_updatable(self, node: int) -> int:
        """Set the attribute of that name; return the device node handle."""
        value = cu.CUkernelNodeAttrValue()
        value.deviceUpdatableKernelNode.deviceUpdatable = 1
        check(
            cu.cuGraphKernelNodeSetAttribute(node, _DEVICE_UPDATABLE, value),
            "cuGraphKernelNodeSetAttribute",
        )
        # The driver has written the handle into the value; older ones want to be asked.
        return int(value.deviceUpdatableKernelNode.devNode) or self._device_node(node)

    def _device_node(self, node: int) -> int:
        value = check(
            cu.cuGraphKernelNodeGetAttribute(node, _DEVICE_UPDATABLE),
            "cuGraphKernelNodeGetAttribute",
        )
        return int(value.deviceUpdatableKernelNode.devNode)

    def set_params(self, graph_exec: int, node: int, params: KernelNodeParams) -> None:
        """Give a node of a graph exec other parameters."""
        check(
            cu.cuGraphExecKernelNodeSetParams(graph_exec, node, params.struct),
            "cuGraphExecKernelNodeSetParams",
        )


def _edge_data(packed: bytes | None) -> Any:
    data = cu.CUgraphEdgeData()
    if packed is not None:
        data.from_port, data.to_port = packed[:2]
        data.type = cu.CUgraphDependencyType(packed[2])
    return data


def _packed_params(p: Any, layout: ParamLayout) -> bytes:
    """Copy parameters out of ``kernelParams``, or of ``extra`` as cuBLAS's kernels use it."""
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
