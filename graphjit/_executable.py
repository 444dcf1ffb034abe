"""Build an executable graph from captured data, and point it at other arrays.

Input: a captured graph, a ``RelocationPlan`` and the slots.
Output: ``Executable``: patch and launch in O(1) driver calls (device patch) or one call a
touched node (host patch).
Raises: ``DriverError``, ``PatchError``.
Source: cuGraphAddKernelNode, cuGraphKernelNodeCopyAttributes, cuGraphInstantiate,
cuGraphUpload, cuGraphExecKernelNodeSetParams; the device patch needs CUDA 12.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from graphjit._driver.interface import (
    PATCH_MEMORY_WORD,
    PATCH_SLOT_CLASSES,
    Driver,
    KernelLaunch,
)
from graphjit._hit import HitCounts, Lock
from graphjit._nodes import (
    CapturedGraph,
    KernelNode,
)
from graphjit._relocation import RelocationPlan
from graphjit.errors import PatchError

HOST_PATCH_MAX_NODES = 4
"""Up to this many touched nodes the host patch is faster: about 0.2 us a node against the
launch of one more kernel and its dependency, 2.4 us end to end, on an H200."""
_PATCH_BLOCK = 128
_U64 = (1 << 64) - 1


_PATCH_ROW = np.dtype(
    [("target", "<u8"), ("param_offset", "<u4"), ("slot", "<u4"), ("delta", "<i8")]
)


@dataclass(slots=True)
class HostPatch:
    """The relocations of one node, written into its parameters by the host."""

    node: Any
    params: Any
    words: list[tuple[int, int, int]]
    """(param_offset, slot, delta)"""


@dataclass(slots=True)
class DevicePatch:
    """One patch node: a piece of the relocation table and up to 448 slots."""

    node: Any
    params: Any
    first_slot: int
    n_slots: int
    table_ptr: int


@dataclass(slots=True)
class Executable:
    """A CUgraphExec and everything that must live as long as it does."""

    driver: Driver
    graph: Any
    graph_exec: Any
    n_slots: int
    patch_kind: str
    """``"host"``, ``"device"`` or ``"none"`` for a graph without relocations."""
    host_patches: list[HostPatch] = field(default_factory=list)
    device_patches: list[DevicePatch] = field(default_factory=list)
    owned_ptrs: list[int] = field(default_factory=list)
    table_nbytes: int = 0
    counts: HitCounts = field(default_factory=HitCounts)
    native: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)

    def launch(
        self, slots: list[int], stream: int, draw: Callable[[list[int]], None] | None = None
    ) -> bool:
        """Point the graph at ``slots`` (addresses) and launch it; one caller at a time.

        ``draw`` is called with the slots before that. False if the graph has been destroyed
        meanwhile; then nothing was drawn.
        """
        with self.lock:
            if self.graph_exec is None:
                return False
            if draw is not None:
                draw(slots)
            if not self.counts.points_at(slots):
                self._patch(slots)
            self.driver.graph_launch(self.graph_exec, stream)
            self.counts.launches += 1
            return True

    def _patch(self, slots: Sequence[int]) -> None:
        self.counts.set_slots(None)  # half a patch is no state to skip from
        for host in self.host_patches:
            buffer = host.params.buffer
            for param_offset, slot, delta in host.words:
                struct.pack_into("<Q", buffer, param_offset, (slots[slot] + delta) & _U64)
            self.driver.graph_exec_kernel_node_set_params(self.graph_exec, host.node, host.params)
        for patch in self.device_patches:
            part = slots[patch.first_slot : patch.first_slot + patch.n_slots]
            struct.pack_into(f"<{len(part)}Q", patch.params.buffer, 16, *part)
            self.driver.graph_exec_kernel_node_set_params(self.graph_exec, patch.node, patch.params)
        self.counts.set_slots(slots)
        self.counts.patches += 1

    def fail(self, call: str, status: int) -> None:
        """Raise the error of a driver call that the compiled hit made."""
        raise self.driver.error(call, status)

    def native_patches(self) -> list[Any]:
        """Return the patches as addresses, for ``HitPlan``."""
        native = self.driver.native_params
        found: list[Any] = [
            (int(h.node), *native(h.params), [(o, s, d & _U64) for o, s, d in h.words], 0, 0, h)
            for h in self.host_patches
        ]
        found += [
            (int(p.node), *native(p.params), None, p.first_slot, p.n_slots, p)
            for p in self.device_patches
        ]
        return found

    def open_native(self, entry: Any) -> None:
        """Let the compiled hit launch the graph, unless another thread has just destroyed it."""
        with self.lock:
            if self.graph_exec is not None and not entry.is_open:
                self.native.append(entry)
                entry.is_open = True

    def close(self) -> None:
        """Destroy the graph once its launches are done, and free what it owned."""
        with self.lock:
            graph_exec, self.graph_exec = self.graph_exec, None
            for entry in self.native:
                entry.is_open = False
            self.native.clear()
        if graph_exec is None:
            return
        self.driver.graph_exec_destroy(graph_exec)
        self.driver.graph_destroy(self.graph)
        for ptr in self.owned_ptrs:
            self.driver.mem_free(ptr)  # waits for launches in flight that may read it
        self.owned_ptrs.clear()


def choose_patch_kind(driver: Driver, plan: RelocationPlan, wanted: str) -> str:
    """Choose the patch by cost; addresses inside constants need the device patch."""
    if not len(plan.table) and not plan.words:
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
    driver: Driver, graph: CapturedGraph, plan: RelocationPlan, n_slots: int, wanted: str
) -> Executable:
    """Build the graph anew without allocation nodes, add the patch, and instantiate it.

    Rebuilding is what lets library workspaces become scratch: nodes cannot be taken out of
    a graph that holds allocation nodes.
    """
    kind = choose_patch_kind(driver, plan, wanted)
    handle = driver.graph_create()
    executable = Executable(driver, handle, None, n_slots, kind)
    try:
        nodes, params = _add_nodes(driver, handle, graph)
        driver.graph_add_dependencies(
            handle, [(nodes[e.from_], nodes[e.to], e.data) for e in graph.edges]
        )
        if kind == "host":
            executable.host_patches = _host_patches(plan, nodes, params)
        elif kind == "device":
            roots = _roots(graph, nodes)
            _add_device_patches(executable, plan, nodes, roots)
        executable.graph_exec = driver.graph_instantiate(handle)
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


def _add_nodes(
    driver: Driver, handle: Any, graph: CapturedGraph
) -> tuple[list[Any], dict[int, Any]]:
    """Add every node; allocation and free nodes become joins of their dependencies."""
    nodes: list[Any] = []
    params: dict[int, Any] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node, KernelNode):
            params[index] = driver.kernel_node_params(node, node.params)
            like = node if node.handle is not None else None
            nodes.append(driver.graph_add_kernel_node(handle, params[index], like))
        else:
            nodes.append(driver.graph_add_empty_node(handle))
    return nodes, params


def _roots(graph: CapturedGraph, nodes: list[Any]) -> list[Any]:
    targets = {edge.to for edge in graph.edges}
    return [node for index, node in enumerate(nodes) if index not in targets]


def _host_patches(
    plan: RelocationPlan, nodes: list[Any], params: dict[int, Any]
) -> list[HostPatch]:
    patches = {i: HostPatch(nodes[i], params[i], []) for i in plan.touched_nodes}
    for r in plan.relocations:
        patches[r.node].words.append((r.param_offset, r.slot, r.delta))
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
    table = np.empty(len(plan.table) + len(plan.words), _PATCH_ROW)
    if touched := plan.touched_nodes:
        device_nodes = np.zeros(touched[-1] + 1, np.uint64)
        device_nodes[list(touched)] = [
            driver.graph_node_make_device_updatable(nodes[i]) for i in touched
        ]
        node, param_offset, slot, delta = plan.table.T
        words = table[: len(node)]
        words["target"], words["param_offset"] = device_nodes[node], param_offset
        words["slot"], words["delta"] = slot, delta
    for row, word in zip(table[len(plan.table) :], plan.words, strict=True):
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
    return DevicePatch(node, params, first_slot, n_slots, table_ptr)
