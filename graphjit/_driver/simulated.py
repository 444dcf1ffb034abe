"""A CUDA driver in plain Python, as strict as CUDA where it matters for graphs.

Input / Output: as ``_driver/interface.py``. Work runs at once, in the order of the calls; a
stream under capture records instead. The methods named after user-level CUDA calls
(``launch_kernel``, ``memcpy_async``, ``event_record``...) refuse during a capture what CUDA
refuses, and invalidate the capture as CUDA does.
Raises: ``DriverError`` with CUDA's names and codes.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any

from graphjit._driver.interface import (
    COPY_LAYOUT,
    FILL_LAYOUT,
    PATCH_SLOT_CLASSES,
    KernelLaunch,
)
from graphjit._driver.simulated_graph import (
    CaptureState,
    Run,
    SimulatedFunction,
    SimulatedGraph,
    SimulatedGraphExec,
    SimulatedNode,
    SimulatedParams,
    copy_body,
    copy_box,
    fill_body,
    fill_rows,
    patch_body,
)
from graphjit._driver.simulated_memory import SimulatedMemory
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
)
from graphjit.errors import DriverError

_UNSUPPORTED = ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900)
_INVALIDATED = ("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", 901)
_UNJOINED = ("CUDA_ERROR_STREAM_CAPTURE_UNJOINED", 904)
_WRONG_THREAD = ("CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", 908)
_ILLEGAL_STATE = ("CUDA_ERROR_ILLEGAL_STATE", 401)
_INVALID_HANDLE = ("CUDA_ERROR_INVALID_HANDLE", 400)
_NOT_SUPPORTED = ("CUDA_ERROR_NOT_SUPPORTED", 801)


class SimulatedDriver:
    """One simulated device.

    Parameters
    ----------
    nbytes : int
        Size of its memory.
    device_patch : bool
        False simulates a driver without device-updatable nodes.
    """

    name = "simulated"

    def __init__(self, nbytes: int = 1 << 30, *, device_patch: bool = True) -> None:
        self.memory = SimulatedMemory(nbytes)
        self.counts: Counter[str] = Counter()
        self._device_patch = device_patch
        self._handles = itertools.count(1)
        self._captures: dict[int, CaptureState] = {}
        self._streams: set[int] = {0}
        self._events: dict[int, tuple[CaptureState, list[SimulatedNode]] | None] = {}
        self._builtins = _builtin_functions()
        self._lock = threading.RLock()

    # -- what this driver is and can do

    def version(self) -> int:
        return 13000

    def device_name(self, device: int) -> str:
        return "simulated device"

    def missing_for_device_patch(self) -> str:
        return "" if self._device_patch else "this driver has no device-updatable nodes"

    # -- memory

    def mem_address_reserve(self, nbytes: int) -> int:
        return self.memory.reserve(nbytes)

    def mem_alloc(self, nbytes: int) -> int:
        with self._lock:
            return self.memory.allocate(nbytes)

    def mem_free(self, ptr: int) -> None:
        with self._lock:
            self.memory.free(ptr)

    def memcpy_htod(self, dst_ptr: int, data: bytes) -> None:
        self.memory.view(dst_ptr, len(data))[:] = list(data)

    def memcpy_dtoh(self, src_ptr: int, nbytes: int) -> bytes:
        return self.memory.view(src_ptr, nbytes).tobytes()

    def mem_get_address_range(self, ptr: int) -> tuple[int, int] | None:
        return self.memory.find(ptr)

    # -- streams and capture

    def stream_create(self) -> int:
        stream = next(self._handles)
        self._streams.add(stream)
        return stream

    def stream_destroy(self, stream: int) -> None:
        self._check_stream(stream, "cuStreamDestroy")
        self._streams.remove(stream)

    def _check_stream(self, stream: int, call: str) -> None:
        if stream not in self._streams:
            raise DriverError(call, *_INVALID_HANDLE)

    def stream_synchronize(self, stream: int) -> None:
        self._check_stream(stream, "cuStreamSynchronize")
        self._refuse_while_capturing(stream, "cuStreamSynchronize")

    def _refuse_while_capturing(self, stream: int, call: str) -> None:
        if (capture := self._captures.get(stream)) is not None:
            capture.is_invalidated = True
            raise DriverError(call, *_UNSUPPORTED)

    def refuse_unsafe_call(self, call: str) -> None:
        """Refuse a call that this thread must not make while it captures."""
        for capture in self._captures.values():
            here = capture.thread == threading.get_ident()
            if capture.mode == "global" or (capture.mode == "thread_local" and here):
                capture.is_invalidated = True
                raise DriverError(call, *_UNSUPPORTED)

    def stream_begin_capture(self, stream: int, mode: str) -> None:
        self._check_stream(stream, "cuStreamBeginCapture")
        if stream in self._captures or stream == 0:
            name = _ILLEGAL_STATE if stream else _UNSUPPORTED
            raise DriverError("cuStreamBeginCapture", *name)
        capture = CaptureState(SimulatedGraph(), stream, mode)
        capture.heads[stream] = []
        self._captures[stream] = capture

    def stream_end_capture(self, stream: int) -> Any:
        capture = self._captures.get(stream)
        if capture is None or capture.origin != stream:
            raise DriverError("cuStreamEndCapture", *_ILLEGAL_STATE)
        if capture.mode != "relaxed" and capture.thread != threading.get_ident():
            raise DriverError("cuStreamEndCapture", *_WRONG_THREAD)
        for member in [s for s, c in self._captures.items() if c is capture]:
            del self._captures[member]
        if capture.is_invalidated:
            raise DriverError("cuStreamEndCapture", *_INVALIDATED)
        if capture.unjoined():
            raise DriverError("cuStreamEndCapture", *_UNJOINED)
        self.counts["live_graphs"] += 1
        return capture.graph

    def stream_abandon_capture(self, stream: int) -> None:
        capture = self._captures.get(stream)
        if capture is not None:
            for member in [s for s, c in self._captures.items() if c is capture]:
                del self._captures[member]

    def stream_is_capturing(self, stream: int) -> bool:
        return stream in self._captures

    # -- user-level calls of the array library

    def launch_kernel(self, launch: KernelLaunch, params: bytes, stream: int) -> None:
        """Launch one kernel, or record it (cuLaunchKernel)."""
        self.counts["kernel_launches"] += 1
        owned = SimulatedParams(launch, bytearray(params))
        if not self._record(stream, SimulatedNode("kernel", owned), "cuLaunchKernel"):
            launch.function.body(Run(self.memory, {}), params)

    def memcpy_async(self, dst_ptr: int, src_ptr: int, nbytes: int, stream: int) -> None:
        """Copy on the device, or record the copy (cuMemcpyAsync)."""
        fields = {"dst_ptr": dst_ptr, "src_ptr": src_ptr, "width": nbytes}
        if not self._record(stream, SimulatedNode("memcpy", None, fields), "cuMemcpyAsync"):
            copy_box(Run(self.memory, {}), **fields)

    def memset_async(self, dst_ptr: int, value: int, nbytes: int, stream: int) -> None:
        """Fill bytes, or record the filling (cuMemsetD8Async)."""
        fields = {"dst_ptr": dst_ptr, "value": value, "element_size": 1}
        fields |= {"width": nbytes, "height": 1, "pitch": nbytes}
        if not self._record(stream, SimulatedNode("memset", None, fields), "cuMemsetD8Async"):
            fill_rows(Run(self.memory, {}), **fields)

    def mem_alloc_async(self, nbytes: int, stream: int) -> int:
        """Allocate in stream order; during a capture this becomes a node (cuMemAllocAsync)."""
        if stream not in self._captures:
            return self.mem_alloc(nbytes)
        fields = {"device_ptr": self.memory.reserve(nbytes), "nbytes": nbytes}
        self._record(stream, SimulatedNode("mem_alloc", None, fields), "cuMemAllocAsync")
        return fields["device_ptr"]

    def mem_free_async(self, ptr: int, stream: int) -> None:
        """Free in stream order; during a capture this becomes a node (cuMemFreeAsync)."""
        node = SimulatedNode("mem_free", None, {"device_ptr": ptr})
        if not self._record(stream, node, "cuMemFreeAsync"):
            self.mem_free(ptr)

    def _record(self, stream: int, node: SimulatedNode, call: str) -> bool:
        self._check_stream(stream, call)
        capture = self._captures.get(stream)
        if capture is None:
            return False
        if capture.is_invalidated:
            raise DriverError(call, *_INVALIDATED)
        capture.append(stream, node)
        return True

    def event_record(self, event: int, stream: int) -> None:
        """Note what the stream has done so far (cuEventRecord)."""
        capture = self._captures.get(stream)
        self._events[event] = None if capture is None else (capture, list(capture.heads[stream]))

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Wait for an event; one of a capture takes the stream into it (cuStreamWaitEvent)."""
        recorded = self._events.get(event)
        if recorded is None:
            return
        capture, heads = recorded
        if self._captures.get(stream, capture) is not capture:
            raise DriverError("cuStreamWaitEvent", "CUDA_ERROR_STREAM_CAPTURE_MERGE", 902)
        if capture not in self._captures.values():
            raise DriverError("cuStreamWaitEvent", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", 905)
        self._captures[stream] = capture
        known = capture.heads.setdefault(stream, [])
        known += [node for node in heads if node not in known]

    # -- graphs

    def graph_read(self, graph: Any) -> CapturedGraph:
        self._check_graph(graph, "cuGraphGetNodes")
        index = {id(node): i for i, node in enumerate(graph.nodes)}
        edges = tuple(Edge(index[id(a)], index[id(b)]) for a, b in graph.edges)
        return CapturedGraph(tuple(_read_node(node) for node in graph.nodes), edges)

    @staticmethod
    def _check_graph(graph: Any, call: str) -> None:
        if not isinstance(graph, SimulatedGraph) or graph.is_destroyed:
            raise DriverError(call, *_INVALID_HANDLE)

    def graph_create(self) -> Any:
        self.counts["live_graphs"] += 1
        return SimulatedGraph()

    def graph_destroy(self, graph: Any) -> None:
        self._check_graph(graph, "cuGraphDestroy")
        graph.is_destroyed = True
        self.counts["live_graphs"] -= 1

    def kernel_node_params(self, launch: KernelLaunch, params: bytes) -> SimulatedParams:
        return SimulatedParams(launch, bytearray(params))

    def graph_add_kernel_node(
        self, graph: Any, params: SimulatedParams, attributes_of: KernelNode | None
    ) -> Any:
        self._check_graph(graph, "cuGraphAddKernelNode")
        owned = SimulatedParams(params.launch, bytearray(params.buffer))
        graph.nodes.append(SimulatedNode("kernel", owned))
        return graph.nodes[-1]

    def graph_add_empty_node(self, graph: Any) -> Any:
        self._check_graph(graph, "cuGraphAddEmptyNode")
        graph.nodes.append(SimulatedNode("empty"))
        return graph.nodes[-1]

    def graph_add_dependencies(self, graph: Any, edges: list[tuple[Any, Any, Any]]) -> None:
        self._check_graph(graph, "cuGraphAddDependencies")
        for source, target, _ in edges:
            if source not in graph.nodes or target not in graph.nodes:
                raise DriverError("cuGraphAddDependencies", "CUDA_ERROR_INVALID_VALUE", 1)
            graph.edges.append((source, target))

    def graph_node_make_device_updatable(self, node: Any) -> int:
        if not self._device_patch:
            raise DriverError("cuGraphKernelNodeSetAttribute", *_NOT_SUPPORTED)
        node.device_handle = 0x5000_0000 + next(self._handles)
        return int(node.device_handle)

    def graph_instantiate(self, graph: Any) -> Any:
        self._check_graph(graph, "cuGraphInstantiate")
        graph_exec = SimulatedGraphExec(graph, self.memory)
        self.counts["instantiations"] += 1
        self.counts["live_graph_execs"] += 1
        return graph_exec

    @staticmethod
    def _check_exec(graph_exec: Any, call: str) -> None:
        if not isinstance(graph_exec, SimulatedGraphExec) or graph_exec.is_destroyed:
            raise DriverError(call, *_INVALID_HANDLE)

    def graph_upload(self, graph_exec: Any, stream: int) -> None:
        self._check_exec(graph_exec, "cuGraphUpload")
        self._refuse_while_capturing(stream, "cuGraphUpload")
        graph_exec.needs_upload = False

    def graph_launch(self, graph_exec: Any, stream: int) -> None:
        self._check_exec(graph_exec, "cuGraphLaunch")
        self._check_stream(stream, "cuGraphLaunch")
        self._refuse_while_capturing(stream, "cuGraphLaunch")
        self.counts["graph_launches"] += 1
        with self._lock:
            graph_exec.run()

    def graph_exec_kernel_node_set_params(
        self, graph_exec: Any, node: Any, params: SimulatedParams
    ) -> None:
        self._check_exec(graph_exec, "cuGraphExecKernelNodeSetParams")
        self.counts["set_params"] += 1
        graph_exec.set_params(node, params)

    def graph_exec_destroy(self, graph_exec: Any) -> None:
        self._check_exec(graph_exec, "cuGraphExecDestroy")
        graph_exec.is_destroyed = True
        self.counts["live_graph_execs"] -= 1

    # -- for the compiled hit

    def entry_points(self) -> dict[str, int] | None:
        return None

    def native_params(self, params: Any) -> tuple[int, int]:
        raise NotImplementedError

    def native_context(self) -> int:
        raise NotImplementedError

    def error(self, call: str, status: int) -> Exception:
        return DriverError(call, "CUDA_ERROR_UNKNOWN", status)

    # -- the kernels that graphjit brings along

    def builtin_kernel(self, name: str) -> Any:
        return self._builtins[name]


def _builtin_functions() -> dict[str, SimulatedFunction]:
    functions = {
        "copy": SimulatedFunction("graphjit_copy", tuple(COPY_LAYOUT), copy_body),
        "fill": SimulatedFunction("graphjit_fill", tuple(FILL_LAYOUT), fill_body),
    }
    for n in PATCH_SLOT_CLASSES:
        layout = ((0, 8), (8, 4), (16, 8 * n))
        functions[f"patch_{n}"] = SimulatedFunction(f"graphjit_patch_{n}", layout, patch_body)
    return functions


def _read_node(node: SimulatedNode) -> Node:
    if node.params is not None:
        launch = node.params.launch
        return KernelNode(
            handle=node,
            name=launch.function.name,
            function=launch.function,
            grid_dim=launch.grid_dim,
            block_dim=launch.block_dim,
            shared_mem_bytes=launch.shared_mem_bytes,
            params=bytes(node.params.buffer),
            param_layout=launch.param_layout,
        )
    if node.kind == "memcpy":
        f = node.fields
        width = f["width"]
        return MemcpyNode(node, f["dst_ptr"], f["src_ptr"], width, 1, 1, 0, 0, 0, 0)
    if node.kind == "memset":
        f = node.fields
        return MemsetNode(
            node, f["dst_ptr"], f["value"], f["element_size"], f["width"], f["height"], f["pitch"]
        )
    if node.kind == "mem_alloc":
        return MemAllocNode(node, node.fields["device_ptr"], node.fields["nbytes"])
    if node.kind == "mem_free":
        return MemFreeNode(node, node.fields["device_ptr"])
    return EmptyNode(node)
