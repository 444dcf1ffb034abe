"""Graphs of the simulated device: nodes with packed parameters, capture, executables.

Input: launches on streams. Output: graphs that can be read, built and executed; the order of
execution is any that the edges allow, so that a missing edge shows.
Raises: ``DriverError`` with the names and codes of CUDA.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from graphjit._driver.interface import PATCH_MEMORY_WORD, KernelLaunch
from graphjit._driver.simulated_memory import SimulatedMemory
from graphjit.errors import DriverError

Body = Callable[["Run", bytes], None]


@dataclass(frozen=True, eq=False)
class SimulatedFunction:
    """A kernel: the sizes of its parameters, and what it does with their bytes."""

    name: str
    param_layout: tuple[tuple[int, int], ...]
    body: Body


@dataclass
class SimulatedParams:
    """Node parameters that own their bytes, as ``KernelNodeParams``."""

    launch: KernelLaunch
    buffer: bytearray


@dataclass(eq=False)
class SimulatedNode:
    """A node of a graph; the fields that its kind needs."""

    kind: str
    params: SimulatedParams | None = None
    fields: dict[str, int] = field(default_factory=dict)
    device_handle: int = 0


@dataclass(eq=False)
class SimulatedGraph:
    """A graph definition."""

    nodes: list[SimulatedNode] = field(default_factory=list)
    edges: list[tuple[SimulatedNode, SimulatedNode]] = field(default_factory=list)
    is_destroyed: bool = False
    n_instantiated: int = 0

    @property
    def is_device_updatable(self) -> bool:
        return any(node.device_handle for node in self.nodes)


@dataclass(eq=False)
class CaptureState:
    """A capture in progress; streams that were forked into it share it."""

    graph: SimulatedGraph
    origin: int
    mode: str
    thread: int = field(default_factory=threading.get_ident)
    is_invalidated: bool = False
    heads: dict[int, list[SimulatedNode]] = field(default_factory=dict)
    """Stream -> the nodes that its next node depends on."""

    def append(self, stream: int, node: SimulatedNode) -> None:
        """Add a node behind everything that the stream waits for."""
        self.graph.nodes.append(node)
        self.graph.edges += [(head, node) for head in self.heads[stream]]
        self.heads[stream] = [node]

    def unjoined(self) -> list[int]:
        """Return the streams whose last work the origin does not wait for."""
        behind = {id(node) for node in self.heads[self.origin]}
        sources: dict[int, list[SimulatedNode]] = {}
        for source, target in self.graph.edges:
            sources.setdefault(id(target), []).append(source)
        open_nodes = list(self.heads[self.origin])
        while open_nodes:
            for source in sources.get(id(open_nodes.pop()), ()):
                if id(source) not in behind:
                    behind.add(id(source))
                    open_nodes.append(source)
        return [s for s, nodes in self.heads.items() if any(id(n) not in behind for n in nodes)]


class Run:
    """One execution of a graph, or of a single kernel, as kernels see it."""

    def __init__(self, memory: SimulatedMemory, updatable: dict[int, bytearray]) -> None:
        self.memory = memory
        self._updatable = updatable

    def set_param(self, device_node: int, offset: int, value: bytes) -> None:
        """CudaGraphKernelNodeSetParam."""
        buffer = self._updatable.get(device_node)
        if buffer is None:
            raise DriverError(
                "cudaGraphKernelNodeSetParam", "CUDA_ERROR_INVALID_HANDLE", 400, "not updatable"
            )
        buffer[offset : offset + len(value)] = value


class SimulatedGraphExec:
    """An executable graph with parameters of its own."""

    def __init__(self, graph: SimulatedGraph, memory: SimulatedMemory) -> None:
        if graph.is_device_updatable and graph.n_instantiated:
            raise DriverError("cuGraphInstantiate", "CUDA_ERROR_INVALID_VALUE", 1, "second time")
        self._refuse_unmapped(graph, memory)
        graph.n_instantiated += 1
        self.graph = graph
        self.memory = memory
        self.needs_upload = graph.is_device_updatable
        self.is_destroyed = False
        self._nodes = list(graph.nodes)
        self._edges = list(graph.edges)
        self._buffers = {
            id(n): bytearray(n.params.buffer) for n in self._nodes if n.params is not None
        }
        self._order = random.Random(len(self._nodes))

    @staticmethod
    def _refuse_unmapped(graph: SimulatedGraph, memory: SimulatedMemory) -> None:
        for node in graph.nodes:
            for name in ("dst_ptr", "src_ptr"):
                ptr = node.fields.get(name) if node.kind in ("memcpy", "memset") else None
                if ptr is not None and memory.find(ptr) is None:
                    raise DriverError("cuGraphInstantiate", "CUDA_ERROR_INVALID_VALUE", 1, name)

    def set_params(self, node: SimulatedNode, params: SimulatedParams) -> None:
        """CuGraphExecKernelNodeSetParams."""
        if id(node) not in self._buffers or len(params.buffer) != len(self._buffers[id(node)]):
            raise DriverError("cuGraphExecKernelNodeSetParams", "CUDA_ERROR_INVALID_VALUE", 1)
        self._buffers[id(node)][:] = params.buffer

    def run(self) -> None:
        """Execute every node, in a random order among those that the edges allow."""
        if self.needs_upload:
            raise DriverError("cuGraphLaunch", "CUDA_ERROR_INVALID_VALUE", 1, "not uploaded")
        updatable = {n.device_handle: self._buffers[id(n)] for n in self._nodes if n.device_handle}
        run = Run(self.memory, updatable)
        waiting = {id(n): 0 for n in self._nodes}
        for _, target in self._edges:
            waiting[id(target)] += 1
        ready = [n for n in self._nodes if not waiting[id(n)]]
        while ready:
            node = ready.pop(self._order.randrange(len(ready)))
            self._execute(node, run)
            for source, target in self._edges:
                if source is node:
                    waiting[id(target)] -= 1
                    if not waiting[id(target)]:
                        ready.append(target)

    def _execute(self, node: SimulatedNode, run: Run) -> None:
        if node.params is not None:
            node.params.launch.function.body(run, bytes(self._buffers[id(node)]))
        elif node.kind == "memcpy":
            copy_box(run, **node.fields)
        elif node.kind == "memset":
            fill_rows(run, **node.fields)


def copy_box(
    run: Run,
    *,
    dst_ptr: int,
    src_ptr: int,
    width: int,
    height: int = 1,
    depth: int = 1,
    dst_pitch: int = 0,
    src_pitch: int = 0,
    dst_slice_pitch: int = 0,
    src_slice_pitch: int = 0,
) -> None:
    """Copy a box of bytes row by row."""
    for z in range(depth):
        for y in range(height):
            src = run.memory.view(src_ptr + z * src_slice_pitch + y * src_pitch, width)
            dst = run.memory.view(dst_ptr + z * dst_slice_pitch + y * dst_pitch, width)
            dst[:] = src.copy()


def fill_rows(
    run: Run, *, dst_ptr: int, value: int, element_size: int, width: int, height: int, pitch: int
) -> None:
    """Fill rows with elements of 1, 2 or 4 bytes."""
    pattern = list((value & (1 << 8 * element_size) - 1).to_bytes(element_size, "little"))
    for y in range(height):
        row = run.memory.view(dst_ptr + y * pitch, width * element_size)
        row.reshape(-1, element_size)[:] = pattern


def copy_body(run: Run, params: bytes) -> None:
    """Do what the ``copy`` kernel of graphjit does."""
    names = ("dst_ptr", "src_ptr", "width", "height", "depth")
    pitches = ("dst_pitch", "src_pitch", "dst_slice_pitch", "src_slice_pitch")
    copy_box(run, **dict(zip(names + pitches, struct.unpack("<9Q", params), strict=True)))


def fill_body(run: Run, params: bytes) -> None:
    """Do what the ``fill`` kernel of graphjit does."""
    names = ("dst_ptr", "value", "element_size", "width", "height", "pitch")
    fill_rows(run, **dict(zip(names, struct.unpack("<6Q", params), strict=True)))


def patch_body(run: Run, params: bytes) -> None:
    """Do what a patch kernel of graphjit does: read the table from memory, write addresses."""
    table_ptr, n = struct.unpack_from("<QI", params)
    slots = struct.unpack_from(f"<{(len(params) - 16) // 8}Q", params, 16)
    table = run.memory.view(table_ptr, 24 * n).tobytes()
    for target, offset, slot, delta in struct.iter_unpack("<QIIQ", table):
        value = ((slots[slot] + delta) & (1 << 64) - 1).to_bytes(8, "little")
        if offset == PATCH_MEMORY_WORD:
            run.memory.view(target, 8)[:] = list(value)
        else:
            run.set_param(target, offset, value)
