"""The CUDA driver through cuda.bindings.

Input / Output: as ``_driver/interface.py``; one instance a device, made by ``cuda_driver``.
Raises: ``DriverError`` with the driver function, the error's name and its code.
Source: CUDA Driver API, 12.4 or later.
"""

from __future__ import annotations

import ctypes
import threading
from struct import pack
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver import cuda_kernels
from graphjit._driver.cuda_graph_reader import check, read_graph
from graphjit._driver.cuda_memory import CAPTURE_MODE, CudaMemory
from graphjit._driver.interface import PATCH_SLOT_CLASSES, KernelLaunch
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit.errors import DriverError, GraphjitError

MINIMUM_VERSION = 12040
_ENTRY_POINTS = {
    "cuCtxGetCurrent": 12000,
    "cuStreamIsCapturing": 12000,
    "cuGraphExecKernelNodeSetParams": 12000,
    "cuGraphLaunch": 12000,
}
_DEVICE_UPDATABLE = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE


class CudaKernelNodeParams:
    """A CUDA_KERNEL_NODE_PARAMS over bytes that live as long as it does."""

    __slots__ = ("_pointers", "buffer", "struct")

    def __init__(self, launch: KernelLaunch, params: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(params, max(len(params), 1))
        base_ptr = ctypes.addressof(self.buffer)
        addresses = [base_ptr + offset for offset, _ in launch.param_layout] or [0]
        self._pointers = ctypes.create_string_buffer(pack(f"<{len(addresses)}Q", *addresses))
        struct = cu.CUDA_KERNEL_NODE_PARAMS()
        kind, handle, context = launch.function
        if kind == "kern":
            struct.kern = handle
        else:
            struct.func = handle
        if context is not None:
            struct.ctx = context
        struct.gridDimX, struct.gridDimY, struct.gridDimZ = launch.grid_dim
        struct.blockDimX, struct.blockDimY, struct.blockDimZ = launch.block_dim
        struct.sharedMemBytes = launch.shared_mem_bytes
        struct.kernelParams = ctypes.addressof(self._pointers)
        self.struct = struct


class CudaDriver(CudaMemory):
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
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    # -- what this driver is and can do

    def version(self) -> int:
        return int(check(cu.cuDriverGetVersion(), "cuDriverGetVersion"))

    def device_name(self, device: int) -> str:
        return str(
            check(cu.cuDeviceGetName(128, device), "cuDeviceGetName").split(b"\0")[0].decode()
        )

    def missing_for_device_patch(self) -> str:
        return "" if cuda_kernels.find_device_runtime() else cuda_kernels.PATCH_MISSING

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
        status = check(cu.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
        return bool(status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    # -- graphs

    def graph_read(self, graph: Any) -> CapturedGraph:
        return read_graph(graph)

    def graph_create(self) -> Any:
        return check(cu.cuGraphCreate(0), "cuGraphCreate")

    def graph_destroy(self, graph: Any) -> None:
        with self.relaxed():
            check(cu.cuGraphDestroy(graph), "cuGraphDestroy")

    def kernel_node_params(self, launch: KernelLaunch, params: bytes) -> CudaKernelNodeParams:
        return CudaKernelNodeParams(launch, params)

    def graph_add_kernel_node(
        self, graph: Any, params: CudaKernelNodeParams, attributes_of: KernelNode | None
    ) -> Any:
        node = check(cu.cuGraphAddKernelNode(graph, None, 0, params.struct), "cuGraphAddKernelNode")
        if attributes_of is not None:
            check(
                cu.cuGraphKernelNodeCopyAttributes(node, attributes_of.handle),
                "cuGraphKernelNodeCopyAttributes",
            )
        return node

    def graph_add_empty_node(self, graph: Any) -> Any:
        return check(cu.cuGraphAddEmptyNode(graph, None, 0), "cuGraphAddEmptyNode")

    def graph_add_dependencies(self, graph: Any, edges: list[tuple[Any, Any, Any]]) -> None:
        if not edges:
            return
        sources, targets, data = (list(column) for column in zip(*edges, strict=True))
        data = [cu.CUgraphEdgeData() if item is None else item for item in data]
        check(_add_dependencies(graph, sources, targets, data), "cuGraphAddDependencies")

    def graph_node_make_device_updatable(self, node: Any) -> int:
        value = cu.CUkernelNodeAttrValue()
        value.deviceUpdatableKernelNode.deviceUpdatable = 1
        check(
            cu.cuGraphKernelNodeSetAttribute(node, _DEVICE_UPDATABLE, value),
            "cuGraphKernelNodeSetAttribute",
        )
        # The driver has written the handle into the value; older ones want to be asked.
        return int(value.deviceUpdatableKernelNode.devNode) or self._device_node(node)

    @staticmethod
    def _device_node(node: Any) -> int:
        value = check(
            cu.cuGraphKernelNodeGetAttribute(node, _DEVICE_UPDATABLE),
            "cuGraphKernelNodeGetAttribute",
        )
        return int(value.deviceUpdatableKernelNode.devNode)

    def graph_instantiate(self, graph: Any) -> Any:
        with self._current():
            return check(cu.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")

    def graph_upload(self, graph_exec: Any, stream: int) -> None:
        check(cu.cuGraphUpload(graph_exec, stream), "cuGraphUpload")

    def graph_launch(self, graph_exec: Any, stream: int) -> None:
        check(cu.cuGraphLaunch(graph_exec, stream), "cuGraphLaunch")

    def graph_exec_kernel_node_set_params(
        self, graph_exec: Any, node: Any, params: CudaKernelNodeParams
    ) -> None:
        check(
            cu.cuGraphExecKernelNodeSetParams(graph_exec, node, params.struct),
            "cuGraphExecKernelNodeSetParams",
        )

    def graph_exec_destroy(self, graph_exec: Any) -> None:
        with self.relaxed():  # a function that is captured may drop the last reference to one
            check(cu.cuGraphExecDestroy(graph_exec), "cuGraphExecDestroy")

    def launch_kernel(self, launch: KernelLaunch, params: bytes, stream: int) -> None:
        """Launch one kernel on a stream, capturing or not (cuLaunchKernel)."""
        owned = CudaKernelNodeParams(launch, params)
        grid, block = launch.grid_dim, launch.block_dim
        result = cu.cuLaunchKernel(
            launch.function[1],
            *grid,
            *block,
            launch.shared_mem_bytes,
            stream,
            owned.struct.kernelParams,
            0,
        )
        check(result, "cuLaunchKernel")

    # -- for the compiled hit

    def entry_points(self) -> dict[str, int] | None:
        flags = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        return {
            name: int(check(cu.cuGetProcAddress(name.encode(), version, flags), name)[0])
            for name, version in _ENTRY_POINTS.items()
        }

    def native_params(self, params: CudaKernelNodeParams) -> tuple[int, int]:
        return int(params.struct.getPtr()), ctypes.addressof(params.buffer)

    def native_context(self) -> int:
        return int(self._context)

    def error(self, call: str, status: int) -> DriverError:
        result = cu.CUresult(status)
        return DriverError(call, result.name, status)

    # -- the kernels that graphjit brings along

    def builtin_kernel(self, name: str) -> Any:
        with self._lock:
            if name not in self._functions:
                self._load(patch=name.startswith("patch_"))
            return self._functions[name]

    def _load(self, *, patch: bool) -> None:
        major, minor = (
            check(cu.cuDeviceGetAttribute(attribute, self._cu_device), "cuDeviceGetAttribute")
            for attribute in (
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        cubin = cuda_kernels.load_cubin(f"sm_{major}{minor}", patch=patch)
        names = [f"patch_{n}" for n in PATCH_SLOT_CLASSES] if patch else ["copy", "fill"]
        with self.relaxed():
            module = check(cu.cuModuleLoadData(cubin), "cuModuleLoadData")
            for name in names:
                function = check(
                    cu.cuModuleGetFunction(module, f"graphjit_{name}".encode()),
                    "cuModuleGetFunction",
                )
                self._functions[name] = ("func", function, None)
        self._modules.append(module)


def _add_dependencies(graph: Any, sources: list[Any], targets: list[Any], data: list[Any]) -> Any:
    """Call cuGraphAddDependencies of CUDA 13, or _v2 of CUDA 12: both take edge data."""
    call = getattr(cu, "cuGraphAddDependencies_v2", cu.cuGraphAddDependencies)
    return call(graph, sources, targets, data, len(sources))


_drivers: dict[int, CudaDriver] = {}
_drivers_lock = threading.Lock()


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
