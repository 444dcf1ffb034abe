"""The CUDA driver through cuda.bindings.

Input / Output: as ``_driver/interface.py``; one instance a device, made by ``cuda_driver``.
Raises: ``DriverError`` with the driver function, the error's name and its code.
Source: CUDA Driver API, 12.4 or later.
"""

from __future__ import annotations

import threading
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver import cuda_kernels
from graphjit._driver.cuda_check import check, driver_error, entry_point
from graphjit._driver.cuda_code import CudaCode
from graphjit._driver.cuda_graph_reader import read_graph
from graphjit._driver.cuda_memory import CAPTURE_MODE
from graphjit._driver.cuda_nodes import KernelNodeParams, NodeCalls
from graphjit._driver.interface import CONDITIONAL_TYPES, KernelLaunch, Launch
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit.errors import DriverError, GraphjitError

MINIMUM_VERSION = 12040
_ENTRY_POINTS = {
    "cuCtxGetCurrent": 12000,
    "cuStreamIsCapturing": 12000,
    "cuGraphExecKernelNodeSetParams": 12000,
    "cuGraphLaunch": 12000,
    "cuStreamWaitEvent": 12000,
    "cuEventRecord": 12000,
}
_add_node = getattr(cu, "cuGraphAddNode_v2", cu.cuGraphAddNode)  # one form from CUDA 13 on
_USE_NODE_PRIORITY = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


class CudaDriver(CudaCode):
    """cuda.bindings behind the ``Driver`` interface, for one device's primary context."""

    name = "cuda"

    def __init__(self, device: int) -> None:
        check(cu.cuInit(0), "cuInit")
        version = self.version()
        if version < MINIMUM_VERSION:
            raise GraphjitError(
                f"graphjit needs a driver for CUDA 12.4 or later; this one is for CUDA "
                f"{version // 1000}.{version % 1000 // 10}. Install a newer NVIDIA driver."
            )
        super().__init__(device)
        self._calls = NodeCalls()

    # -- what this driver is and can do

    def version(self) -> int:
        return int(check(cu.cuDriverGetVersion(), "cuDriverGetVersion"))

    def device_name(self, device: int) -> str:
        return str(
            check(cu.cuDeviceGetName(128, device), "cuDeviceGetName").split(b"\0")[0].decode()
        )

    def missing_for_device_patch(self) -> str:
        return "" if cuda_kernels.find_device_runtime() else cuda_kernels.PATCH_MISSING

    def missing_for_conditionals(self) -> str:
        return "" if cuda_kernels.find_device_runtime() else cuda_kernels.CONDITIONALS_MISSING

    # -- streams and capture

    def stream_destroy(self, stream: int) -> None:
        check(cu.cuStreamDestroy(stream), "cuStreamDestroy")

    def stream_begin_capture(self, stream: int, mode: str) -> None:
        check(cu.cuStreamBeginCapture(stream, CAPTURE_MODE[mode]), "cuStreamBeginCapture")

    def stream_end_capture(self, stream: int) -> Any:
        return check(cu.cuStreamEndCapture(stream), "cuStreamEndCapture")

    def stream_abandon_capture(self, stream: int) -> None:
        if self.stream_is_capturing(stream):
            error, graph = cu.cuStreamEndCapture(stream)
            if error == cu.CUresult.CUDA_SUCCESS and graph is not None and int(graph):
                self.graph_destroy(graph)

    def stream_is_capturing(self, stream: int) -> bool:
        return self._is_capturing(stream)

    def stream_count_captured(self, stream: int) -> int:
        status, _, graph, *_ = check(cu.cuStreamGetCaptureInfo(stream), "cuStreamGetCaptureInfo")
        if status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            return 0
        return int(check(cu.cuGraphGetNodes(graph, 0), "cuGraphGetNodes")[-1])

    # -- graphs

    def graph_read(self, graph: Any) -> CapturedGraph:
        return read_graph(graph, self._calls)

    def graph_create(self) -> int:
        return int(check(cu.cuGraphCreate(0), "cuGraphCreate"))

    def graph_destroy(self, graph: Any) -> None:
        with self.relaxed():
            check(cu.cuGraphDestroy(graph), "cuGraphDestroy")

    def kernel_node_params(self, launch: Launch, params: bytes) -> KernelNodeParams:
        return self._calls.params(launch, params)

    def graph_add_kernel_node(
        self, graph: int, params: KernelNodeParams, attributes_of: KernelNode | None
    ) -> int:
        like = None if attributes_of is None else attributes_of.handle
        return self._calls.add_kernel(graph, params, like)

    def graph_add_empty_node(self, graph: int) -> int:
        return int(check(cu.cuGraphAddEmptyNode(graph, None, 0), "cuGraphAddEmptyNode"))

    def graph_add_dependencies(
        self, graph: int, edges: list[tuple[int, int, bytes | None]]
    ) -> None:
        if edges:
            self._calls.add_dependencies(graph, edges)

    def graph_conditional_handle_create(self, graph: int) -> int:
        call = "cuGraphConditionalHandleCreate"
        return int(check(cu.cuGraphConditionalHandleCreate(graph, self._context, 0, 0), call))

    def graph_add_conditional_node(
        self, graph: int, handle: int, kind: str, n_bodies: int
    ) -> tuple[int, list[int]]:
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = cu.CUgraphConditionalHandle(handle)
        params.conditional.type = cu.CUgraphConditionalNodeType(CONDITIONAL_TYPES.index(kind))
        params.conditional.size = n_bodies
        params.conditional.ctx = self._context
        node = check(_add_node(graph, None, None, 0, params), "cuGraphAddNode")
        return int(node), [int(body) for body in params.conditional.phGraph_out]

    def graph_add_child_graph_node(self, graph: int) -> tuple[int, int]:
        empty = self.graph_create()  # the node takes a copy of it
        try:
            node = check(
                cu.cuGraphAddChildGraphNode(graph, None, 0, empty), "cuGraphAddChildGraphNode"
            )
        finally:
            self.graph_destroy(empty)
        call = "cuGraphChildGraphNodeGetGraph"
        return int(node), int(check(cu.cuGraphChildGraphNodeGetGraph(node), call))

    def graph_node_make_device_updatable(self, node: int) -> int:
        return self._calls.make_device_updatable(node)

    def graph_instantiate(self, graph: int, *, use_node_priority: bool = False) -> int:
        flags = int(_USE_NODE_PRIORITY) if use_node_priority else 0
        with self._current():
            return int(check(cu.cuGraphInstantiate(graph, flags), "cuGraphInstantiate"))

    def graph_upload(self, graph_exec: Any, stream: int) -> None:
        check(cu.cuGraphUpload(graph_exec, stream), "cuGraphUpload")

    def graph_launch(self, graph_exec: Any, stream: int) -> None:
        check(cu.cuGraphLaunch(graph_exec, stream), "cuGraphLaunch")

    def graph_exec_kernel_node_set_params(
        self, graph_exec: int, node: int, params: KernelNodeParams
    ) -> None:
        self._calls.set_params(graph_exec, node, params)

    def graph_exec_destroy(self, graph_exec: Any) -> None:
        with self.relaxed():  # a function that is captured may drop the last reference to one
            check(cu.cuGraphExecDestroy(graph_exec), "cuGraphExecDestroy")

    def launch_kernel(self, launch: KernelLaunch, params: bytes, stream: int) -> None:
        """Launch one kernel on a stream, capturing or not (cuLaunchKernel)."""
        owned = self._calls.params(launch, params)
        grid, block = launch.grid_dim, launch.block_dim
        result = cu.cuLaunchKernel(
            launch.function[1],
            *grid,
            *block,
            launch.shared_mem_bytes,
            stream,
            owned.pointers_ptr,
            0,
        )
        check(result, "cuLaunchKernel")

    # -- for the compiled hit

    def entry_points(self) -> dict[str, int] | None:
        return {name: entry_point(name, version) for name, version in _ENTRY_POINTS.items()}

    def native_params(self, params: KernelNodeParams) -> tuple[int, int]:
        return params.struct_ptr, params.buffer_ptr

    def native_context(self) -> int:
        return int(self._context)

    def error(self, call: str, status: int) -> DriverError:
        return driver_error(call, status)


_drivers: dict[int, CudaDriver] = {}
_drivers_lock = threading.Lock()


def has_drivers() -> bool:
    """Say whether this process, or the one that it was forked from, has used a device."""
    return bool(_drivers)


def cuda_driver(device: int) -> CudaDriver:
    """Return the driver of a device, made at the first call."""
    driver = _drivers.get(device)
    if driver is None:
        with _drivers_lock:
            driver = _drivers.get(device)
            if driver is None:
                driver = _drivers[device] = CudaDriver(device)
    return driver


__all__ = ["CudaDriver", "DriverError", "cuda_driver"]
