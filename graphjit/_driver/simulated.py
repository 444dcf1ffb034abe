"""A CUDA driver in plain Python, as strict as CUDA where it matters for graphs.

Input / Output: as ``_driver/interface.py``. Work runs at once, in the order of the calls; a
stream under capture records instead. The interface's allocation and copies are legal during a
capture; those that programs make are in ``simulated_runtime.py``.
Raises: ``DriverError`` with CUDA's names and codes. Unlike on CUDA an illegal address is
reported by the call that launched the work, and the device remains usable.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from graphjit._driver.interface import CUDA_WITH_FLOW_IN_CHILDREN, CUDA_WITH_SWITCH, Launch
from graphjit._driver.simulated_code import SimulatedCode
from graphjit._driver.simulated_errors import failure, failure_of_code
from graphjit._driver.simulated_exec import SimulatedGraphExec
from graphjit._driver.simulated_graph import SimulatedGraph, SimulatedNode, SimulatedParams
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit.errors import DriverError

_FIRST_DEVICE_NODE = 0x5A00_0000_0000
_FIRST_CONDITION = 0x5C00_0000_0000


class SimulatedDriver(SimulatedCode):
    """One simulated device.

    Parameters
    ----------
    nbytes : int
        Size of its memory.
    device_patch : bool
        False simulates a driver without device-updatable nodes; may be changed later.
    cuda_version : int
        1000 * major + 10 * minor; from 12.8 conditional nodes may be a switch, or have an else.

    Attributes
    ----------
    counts : collections.Counter
        ``kernel_launches``, ``graph_launches``, ``instantiations``, ``uploads``,
        ``set_params``, ``captures``, ``live_graphs`` and ``live_graph_execs``.
    memory : SimulatedMemory
        ``memory.live_nbytes`` are allocated now.

    Examples
    --------
    >>> from graphjit.testing import SimulatedDriver
    >>> driver = SimulatedDriver()
    >>> ptr = driver.mem_alloc(8)
    >>> driver.memcpy_htod(ptr, b"graphjit")
    >>> driver.memcpy_dtoh(ptr, 8)
    b'graphjit'
    """

    name = "simulated"

    def __init__(
        self, nbytes: int = 1 << 30, *, device_patch: bool = True, cuda_version: int = 13000
    ) -> None:
        super().__init__(nbytes)
        self.device_patch = device_patch
        self.cuda_version = cuda_version
        self._order = random.Random(0)

    # -- what this driver is and can do

    def version(self) -> int:
        return self.cuda_version

    def device_name(self, device: int) -> str:
        return "simulated device"

    def missing_for_device_patch(self) -> str:
        return "" if self.device_patch else "this driver has no device-updatable nodes"

    def missing_for_conditionals(self) -> str:
        return ""

    # -- memory

    def mem_address_reserve(self, nbytes: int) -> int:
        return self.memory.reserve(nbytes)

    def mem_alloc(self, nbytes: int) -> int:
        return self.memory.allocate(nbytes)

    def mem_free(self, ptr: int) -> None:
        self.memory.free(ptr)

    def memcpy_htod(self, dst_ptr: int, data: bytes) -> None:
        self._write(dst_ptr, data)

    def memcpy_dtoh(self, src_ptr: int, nbytes: int) -> bytes:
        return self.memory.view(src_ptr, nbytes).tobytes()

    def mem_get_address_range(self, ptr: int) -> tuple[int, int] | None:
        return self.memory.find(ptr)

    def wait_for_device(self) -> None:
        """Do nothing: work is done when a call returns."""

    def relaxed(self) -> AbstractContextManager[None]:
        return nullcontext()  # there are no kernels to load, and programs get no more than before

    # -- graphs

    def stream_end_capture(self, stream: int) -> SimulatedGraph:
        graph = super().stream_end_capture(stream)
        self.counts["captures"] += 1
        self.counts["live_graphs"] += 1
        return graph

    def graph_create(self) -> SimulatedGraph:
        self.counts["live_graphs"] += 1
        return SimulatedGraph()

    def graph_destroy(self, graph: Any) -> None:
        _check_graph(graph, "cuGraphDestroy")
        if graph.parent is not None:
            raise failure("cuGraphDestroy", "INVALID_VALUE", "a body, or the graph of a node")
        for part in graph.with_bodies():
            part.is_destroyed = True
        self.counts["live_graphs"] -= 1

    def graph_read(self, graph: Any) -> CapturedGraph:
        _check_graph(graph, "cuGraphGetNodes")
        return graph.read()  # type: ignore[no-any-return]

    def kernel_node_params(self, launch: Launch, params: bytes) -> SimulatedParams:
        return SimulatedParams(launch, params)

    def graph_add_kernel_node(
        self, graph: Any, params: SimulatedParams, attributes_of: KernelNode | None
    ) -> SimulatedNode:
        _check_graph(graph, "cuGraphAddKernelNode")
        node: SimulatedNode = graph.add("kernel", params)
        if attributes_of is not None:
            _check_node(attributes_of.handle, "cuGraphKernelNodeCopyAttributes")
            node.priority = attributes_of.handle.priority
        return node

    def graph_add_empty_node(self, graph: Any) -> SimulatedNode:
        _check_graph(graph, "cuGraphAddEmptyNode")
        return graph.add("empty")  # type: ignore[no-any-return]

    def graph_add_dependencies(self, graph: Any, edges: list[tuple[Any, Any, Any]]) -> None:
        call = "cuGraphAddDependencies"
        _check_graph(graph, call)
        for source, target, _ in edges:
            for node in (source, target):
                _check_node(node, call)
                if node.graph is not graph:
                    raise failure(call, "INVALID_VALUE", "a node of another graph")
            if source is target or (source, target) in graph.edges:
                raise failure(call, "INVALID_VALUE", "the edge exists already, or is a loop")
            graph.edges[source, target] = None

    def graph_conditional_handle_create(self, graph: Any) -> int:
        _check_graph(graph, "cuGraphConditionalHandleCreate")
        handle = _FIRST_CONDITION + next(self._handles)
        graph.handles[handle] = None
        return int(handle)

    def graph_add_conditional_node(
        self, graph: Any, handle: int, kind: str, n_bodies: int
    ) -> tuple[SimulatedNode, list[SimulatedGraph]]:
        call = "cuGraphAddNode"
        _check_graph(graph, call)
        most = {"if": 1, "while": 1, "switch": 0}
        if self.cuda_version >= CUDA_WITH_SWITCH:
            most |= {"if": 2, "switch": 1 << 16}
        if not 1 <= n_bodies <= most.get(kind, 0):
            raise failure(call, "INVALID_VALUE", f"{kind} with {n_bodies} bodies")
        owner = graph
        while owner is not None and handle not in owner.handles:
            owner = owner.parent
        if owner is None or owner.handles[handle] is not None:
            detail = "the conditional handle is of another graph, or has a node already"
            raise failure(call, "INVALID_VALUE", detail)
        node = owner.handles[handle] = graph.add_conditional(handle, kind, n_bodies)
        return node, node.bodies

    def graph_add_child_graph_node(self, graph: Any) -> tuple[SimulatedNode, SimulatedGraph]:
        _check_graph(graph, "cuGraphAddChildGraphNode")
        node = graph.add_child_graph()
        return node, node.bodies[0]

    def graph_node_make_device_updatable(self, node: Any) -> int:
        call = "cuGraphKernelNodeSetAttribute"
        if not self.device_patch:
            raise failure(call, "NOT_SUPPORTED", self.missing_for_device_patch())
        _check_node(node, call)
        if node.kind != "kernel":
            raise failure(call, "INVALID_VALUE", f"a {node.kind} node")
        if not node.device_handle:
            node.device_handle = _FIRST_DEVICE_NODE + 64 * next(self._handles)
        return int(node.device_handle)

    # -- graph execs

    def graph_instantiate(
        self, graph: Any, *, use_node_priority: bool = False
    ) -> SimulatedGraphExec:
        _check_graph(graph, "cuGraphInstantiate")
        flow = self.cuda_version >= CUDA_WITH_FLOW_IN_CHILDREN
        graph_exec = SimulatedGraphExec(
            graph,
            self.memory,
            self._order,
            flow_in_children=flow,
            on_host=self.execute_on_host,
        )
        self.counts["instantiations"] += 1
        self.counts["live_graph_execs"] += 1
        return graph_exec

    def graph_upload(self, graph_exec: Any, stream: int) -> None:
        _check_exec(graph_exec, "cuGraphUpload")
        self._check_stream(stream, "cuGraphUpload")
        self._refuse_on_captured(stream, "cuGraphUpload")
        self.counts["uploads"] += 1

    def graph_launch(self, graph_exec: Any, stream: int) -> None:
        _check_exec(graph_exec, "cuGraphLaunch")
        self._active_capture(stream, "cuGraphLaunch")
        # CUDA records a child graph, unless the graph has device-updatable nodes.
        self._refuse_on_captured(stream, "cuGraphLaunch")
        with self._lock:
            self.counts["graph_launches"] += 1
            graph_exec.run()

    def graph_exec_kernel_node_set_params(
        self, graph_exec: Any, node: Any, params: SimulatedParams
    ) -> None:
        self._refuse_in_host_function("cuGraphExecKernelNodeSetParams")
        _check_exec(graph_exec, "cuGraphExecKernelNodeSetParams")
        with self._lock:
            self.counts["set_params"] += 1
            graph_exec.set_params(node, params)

    def graph_exec_destroy(self, graph_exec: Any) -> None:
        _check_exec(graph_exec, "cuGraphExecDestroy")
        graph_exec.is_destroyed = True
        self.counts["live_graph_execs"] -= 1

    # -- for the compiled hit, which calls the driver by address: there is none

    def entry_points(self) -> dict[str, int] | None:
        return None

    def native_params(self, params: Any) -> tuple[int, int]:
        raise failure("cuGetProcAddress", "NOT_SUPPORTED")

    def native_context(self) -> int:
        raise failure("cuGetProcAddress", "NOT_SUPPORTED")

    def error(self, call: str, status: int) -> DriverError:
        return failure_of_code(call, status)


def _check_graph(graph: Any, call: str) -> None:
    if not isinstance(graph, SimulatedGraph) or graph.is_destroyed:
        raise failure(call, "INVALID_HANDLE", "no graph, or a destroyed one")


def _check_node(node: Any, call: str) -> None:
    if not isinstance(node, SimulatedNode) or node.graph.is_destroyed:
        raise failure(call, "INVALID_HANDLE", "no node, or one of a destroyed graph")


def _check_exec(graph_exec: Any, call: str) -> None:
    if not isinstance(graph_exec, SimulatedGraphExec) or graph_exec.is_destroyed:
        raise failure(call, "INVALID_HANDLE", "no graph exec, or a destroyed one")
