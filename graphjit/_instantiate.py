"""Build an executable graph from captured data, with the patch that re-points it.

Input: a captured graph, a ``RelocationPlan`` and the number of slots for addresses.
Output: ``Executable``.
Raises: ``DriverError``, ``PatchError``; then nothing is left of the graph.
Source: cuGraphAddKernelNode, cuGraphKernelNodeCopyAttributes, cuGraphInstantiate,
cuGraphUpload; the device patch needs CUDA 12.4.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from graphjit._driver.interface import (
    PATCH_MEMORY_WORD,
    PATCH_SIZE_SHIFT,
    PATCH_SLOT_CLASSES,
    PATCH_TABLE_ENTRY_NBYTES,
    Driver,
    KernelLaunch,
)
from graphjit._executable import DevicePatch, Executable, HostPatch
from graphjit._nodes import (
    Body,
    CapturedGraph,
    ChildGraphNode,
    ConditionalNode,
    EventNode,
    HostNode,
    KernelNode,
)
from graphjit._relocation import RelocationPlan
from graphjit.errors import PatchError

HOST_PATCH_MAX_NODES = 4
"""Up to this many touched nodes the host patch is faster: about 0.2 us a node against the
launch of one more kernel and its dependency, 2.4 us end to end, on an H200."""
_PATCH_BLOCK = 128
_PATCH_ROW = np.dtype(
    [("target", "<u8"), ("param_offset", "<u4"), ("slot", "<u4"), ("delta", "<i8")]
)
assert _PATCH_ROW.itemsize == PATCH_TABLE_ENTRY_NBYTES


def choose_patch_kind(driver: Driver, plan: RelocationPlan, wanted: str) -> str:
    """Choose the patch by cost; addresses inside constants need the device patch."""
    if not plan.touched_nodes and not plan.words:
        return "none"
    missing = driver.missing_for_device_patch()
    if missing and (plan.words or wanted == "device"):
        raise PatchError(f"this graph needs the device patch. {missing}")
    if plan.words or wanted == "device":
        return "device"
    if wanted == "host" or missing:
        return "host"
    return "host" if len(plan.touched_nodes) <= HOST_PATCH_MAX_NODES else "device"


def instantiate(
    driver: Driver,
    graph: CapturedGraph,
    plan: RelocationPlan,
    n_slots: int,
    wanted: str,
    *,
    use_node_priority: bool = False,
) -> Executable:
    """Build the graph anew without allocation nodes, add the patch, and instantiate it.

    Rebuilding is what lets library workspaces become scratch: nodes cannot be taken out of
    a graph that holds allocation nodes.
    """
    kind = choose_patch_kind(driver, plan, wanted)
    handle = driver.graph_create()
    executable = Executable(driver, handle, None, n_slots + len(plan.scalar_slots), kind)
    executable.use_node_priority = use_node_priority
    try:
        nodes, params = _GraphBuilder(driver, handle, graph).build()
        executable.nodes = nodes
        if kind == "host":
            executable.host_patches = _host_patches(plan, nodes, params)
        elif kind == "device":
            roots = _roots(graph, nodes)
            _add_device_patches(executable, plan, nodes, roots)
        executable.graph_exec = driver.graph_instantiate(
            handle, use_node_priority=use_node_priority
        )
        stream = driver.stream_create()
        try:
            driver.graph_upload(executable.graph_exec, stream)
            driver.stream_synchronize(stream)
        finally:
            driver.stream_destroy(stream)
    except BaseException:
        if executable.graph_exec is not None:
            driver.graph_exec_destroy(executable.graph_exec)
        driver.graph_destroy(handle)
        for ptr in executable.owned_ptrs:
            driver.mem_free(ptr)
        raise
    return executable


class _GraphBuilder:
    """Adds every node, those of bodies and child graphs to their graphs."""

    def __init__(self, driver: Driver, handle: Any, graph: CapturedGraph) -> None:
        self._driver, self._graph = driver, graph
        self._graphs = {-1: handle}
        """Scope -> the driver's graph."""
        self._scope_of = {body: scope for scope, body in enumerate(graph.bodies)}
        self._conditional_of = dict(graph.setters)
        self._handles: dict[int, int] = {}
        """Conditional node -> its handle."""

    def build(self) -> tuple[list[Any], dict[int, Any]]:
        """Return the driver's nodes, and the parameters of those that are kernels."""
        driver, graph = self._driver, self._graph
        scopes = graph.scopes or (-1,) * len(graph.nodes)
        nodes: list[Any] = []
        params: dict[int, Any] = {}
        for index, (node, scope) in enumerate(zip(graph.nodes, scopes, strict=True)):
            handle = self._graphs[scope]
            if isinstance(node, KernelNode):
                packed = node.params
                if index in self._conditional_of:
                    conditional = self._handle(self._conditional_of[index])
                    packed = struct.pack("<Q", conditional) + packed[8:]
                params[index] = driver.kernel_node_params(node, packed)
                like = node if node.handle is not None else None
                added = driver.graph_add_kernel_node(handle, params[index], like)
                if node.attributes:
                    driver.graph_kernel_node_set_attributes(added, node.attributes)
                nodes.append(added)
            elif isinstance(node, ConditionalNode):
                nodes.append(self._add_conditional(index, node, handle))
            elif isinstance(node, ChildGraphNode):
                added, child = driver.graph_add_child_graph_node(handle)
                self._graphs[self._scope_of[Body(index, 0)]] = child
                nodes.append(added)
            elif isinstance(node, HostNode):
                nodes.append(driver.graph_add_host_node(handle, node.number))
            elif isinstance(node, EventNode):
                added = driver.graph_add_event_node(handle, node.event, is_record=node.is_record)
                nodes.append(added)
            else:  # allocation and free nodes become joins of their dependencies
                nodes.append(driver.graph_add_empty_node(handle))
        edges: dict[int, list[tuple[Any, Any, Any]]] = {scope: [] for scope in self._graphs}
        for i, j, data in graph.edges:
            edges[scopes[i]].append((nodes[i], nodes[j], data))
        for scope, handle in self._graphs.items():
            driver.graph_add_dependencies(handle, edges[scope])
        return nodes, params

    def _handle(self, conditional: int) -> int:
        """Return the handle of a conditional node, which is set before the node is added."""
        if conditional not in self._handles:
            graph = self._graphs[self._graph.scope(conditional)]
            self._handles[conditional] = self._driver.graph_conditional_handle_create(graph)
        return self._handles[conditional]

    def _add_conditional(self, index: int, node: ConditionalNode, graph: Any) -> Any:
        added, graphs = self._driver.graph_add_conditional_node(
            graph, self._handle(index), node.type, node.n_bodies
        )
        for position, body in enumerate(graphs):
            self._graphs[self._scope_of[Body(index, position)]] = body
        return added


def _roots(graph: CapturedGraph, nodes: list[Any]) -> list[Any]:
    targets = {edge.to for edge in graph.edges}
    return [
        node
        for index, node in enumerate(nodes)
        if index not in targets and graph.scope(index) == -1
    ]


def _host_patches(
    plan: RelocationPlan, nodes: list[Any], params: dict[int, Any]
) -> list[HostPatch]:
    patches = {i: HostPatch(nodes[i], params[i], []) for i in plan.touched_nodes}
    for r in plan.relocations:
        patches[r.node].words.append((r.param_offset, r.slot, r.delta, 8))
    for word in plan.scalars:
        patches[word.node].words.append((word.param_offset, word.slot, 0, word.nbytes))
    return list(patches.values())


def _add_device_patches(
    executable: Executable, plan: RelocationPlan, nodes: list[Any], roots: list[Any]
) -> None:
    """Add patch nodes before every root; more than 448 slots need more than one."""
    driver = executable.driver
    table = _patch_table(driver, plan, nodes)
    step = PATCH_SLOT_CLASSES[-1]
    for first_slot in range(0, executable.n_slots, step):
        n_slots = min(step, executable.n_slots - first_slot)
        rows = table[(table["slot"] >= first_slot) & (table["slot"] < first_slot + n_slots)]
        if len(rows):
            rows["slot"] -= first_slot
            patch = _add_device_patch(executable, rows, first_slot, n_slots)
            executable.device_patches.append(patch)
            driver.graph_add_dependencies(
                executable.graph, [(patch.node, root, None) for root in roots]
            )


def _patch_table(driver: Driver, plan: RelocationPlan, nodes: list[Any]) -> npt.NDArray[np.void]:
    """Return the rows of the patch kernel: words of parameters, then words of constants."""
    table = np.empty(len(plan.table) + len(plan.scalars) + len(plan.words), _PATCH_ROW)
    if touched := plan.touched_nodes:
        device_nodes = np.zeros(touched[-1] + 1, np.uint64)
        device_nodes[list(touched)] = [
            driver.graph_node_make_device_updatable(nodes[i]) for i in touched
        ]
        node, param_offset, slot, delta = plan.table.T
        words = table[: len(node)]
        words["target"], words["param_offset"] = device_nodes[node], param_offset
        words["slot"], words["delta"] = slot, delta
        for row, scalar in zip(table[len(node) :], plan.scalars, strict=False):
            row["target"], row["slot"] = device_nodes[scalar.node], scalar.slot
            row["param_offset"] = scalar.param_offset | scalar.nbytes << PATCH_SIZE_SHIFT
            row["delta"] = 0
    for row, word in zip(table[len(table) - len(plan.words) :], plan.words, strict=True):
        row["target"], row["param_offset"] = word.device_ptr, PATCH_MEMORY_WORD
        row["slot"], row["delta"] = word.slot, word.delta
    return table


def _add_device_patch(
    executable: Executable, rows: npt.NDArray[np.void], first_slot: int, n_slots: int
) -> DevicePatch:
    driver = executable.driver
    table = rows.tobytes()
    table_ptr = driver.mem_alloc(len(table))
    executable.owned_ptrs.append(table_ptr)
    executable.table_nbytes += len(table)
    driver.memcpy_htod(table_ptr, table)
    size_class = next(n for n in PATCH_SLOT_CLASSES if n >= n_slots)
    launch = KernelLaunch(
        function=driver.builtin_kernel(f"patch_{size_class}"),
        grid_dim=(-(-len(rows) // _PATCH_BLOCK), 1, 1),
        block_dim=(_PATCH_BLOCK, 1, 1),
        shared_mem_bytes=0,
        param_layout=((0, 8), (8, 4), (16, 8 * size_class)),
    )
    packed = struct.pack("<QII", table_ptr, len(rows), 0) + bytes(8 * size_class)
    params = driver.kernel_node_params(launch, packed)
    node = driver.graph_add_kernel_node(executable.graph, params, None)
    return DevicePatch(node, params, first_slot, n_slots)
