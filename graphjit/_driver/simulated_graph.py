"""Graphs of the simulated device: nodes with packed parameters, and graph execs.

Input: nodes and edges, captured or added one by one.
Output: ``SimulatedGraphExec.run`` executes them in any order that the edges allow, chosen at
random, so that a missing edge shows.
Raises: ``DriverError`` with CUDA's names and codes.
Source: cuGraphInstantiate, cuGraphLaunch, cuGraphExecKernelNodeSetParams.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphjit._driver.interface import CONDITIONAL_TYPES, Launch
from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_kernels import Run, copy_box, fill_rows
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


class SimulatedParams:
    """Parameters of a kernel node that own their bytes, as ``KernelNodeParams``."""

    __slots__ = ("buffer", "launch")

    def __init__(self, launch: Launch, params: bytes) -> None:
        nbytes = launch.function.params_nbytes
        if len(params) < nbytes or launch.param_layout != launch.function.param_layout:
            raise failure(
                "cuLaunchKernel",
                "INVALID_VALUE",
                f"{launch.function.name} takes {nbytes} bytes, laid out as "
                f"{launch.function.param_layout}; given are {len(params)} bytes",
            )
        self.launch = launch
        self.buffer = bytearray(params[:nbytes])


@dataclass(eq=False, slots=True)
class SimulatedNode:
    """A node of a graph; the fields that its kind needs."""

    kind: str
    graph: SimulatedGraph
    params: SimulatedParams | None = None
    fields: dict[str, int] = field(default_factory=dict)
    device_handle: int = 0
    bodies: list[SimulatedGraph] = field(default_factory=list)
    """Of a conditional node."""


@dataclass(eq=False, slots=True)
class SimulatedGraph:
    """A graph definition."""

    nodes: list[SimulatedNode] = field(default_factory=list)
    edges: dict[tuple[SimulatedNode, SimulatedNode], None] = field(default_factory=dict)
    is_destroyed: bool = False
    n_instantiated: int = 0
    handles: dict[int, SimulatedNode | None] = field(default_factory=dict)
    """Conditional handles that were created for it, and the nodes that have them."""
    parent: SimulatedGraph | None = None
    """Of a body: the graph with the conditional node."""

    def add(self, kind: str, params: SimulatedParams | None = None, **fields: int) -> SimulatedNode:
        """Add a node without dependencies; it owns a copy of its parameters."""
        if params is not None:
            params = SimulatedParams(params.launch, bytes(params.buffer))
        self.nodes.append(SimulatedNode(kind, self, params, fields))
        return self.nodes[-1]

    def add_conditional(self, handle: int, kind: str, n_bodies: int) -> SimulatedNode:
        """Add a conditional node with empty bodies."""
        node = self.add("conditional", handle=handle, type=CONDITIONAL_TYPES.index(kind))
        node.bodies = [SimulatedGraph(parent=self) for _ in range(n_bodies)]
        return node

    def with_bodies(self) -> Iterator[SimulatedGraph]:
        """Yield the graph and every body in it."""
        yield self
        for node in self.nodes:
            for body in node.bodies:
                yield from body.with_bodies()

    def is_behind(self, node: SimulatedNode, heads: list[SimulatedNode]) -> bool:
        """Say whether a node is one of ``heads`` or runs before one of them."""
        sources: dict[SimulatedNode, list[SimulatedNode]] = {}
        for source, target in self.edges:
            sources.setdefault(target, []).append(source)
        seen, pending = set(heads), list(heads)
        while pending:
            for source in sources.get(pending.pop(), ()):
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return node in seen

    def read(self) -> CapturedGraph:
        """Copy nodes, parameters and edges out."""
        index = {node: i for i, node in enumerate(self.nodes)}
        edges = tuple(Edge(index[source], index[target]) for source, target in self.edges)
        return CapturedGraph(tuple(_read_node(node) for node in self.nodes), edges)


class SimulatedGraphExec:
    """A graph exec, with parameters of its own.

    Parameters
    ----------
    graph : SimulatedGraph
    memory : SimulatedMemory
    order : random.Random
        Chooses among the nodes that may run next.
    """

    def __init__(
        self, graph: SimulatedGraph, memory: SimulatedMemory, order: random.Random
    ) -> None:
        graphs = list(graph.with_bodies())
        nodes = [node for part in graphs for node in part.nodes]
        if any(node.device_handle for node in nodes) and graph.n_instantiated:
            raise failure(
                "cuGraphInstantiate",
                "INVALID_VALUE",
                "a graph with device-updatable nodes can be instantiated once",
            )
        for part in graphs:
            _refuse_unmapped(part, memory)
            _refuse_in_bodies(part)
        self.graph = graph
        self.is_destroyed = False
        self._memory = memory
        self._order = order
        self._links = {part: _Links(part) for part in graphs}
        if any(sum(1 for _ in self._in_order(p)) < len(p.nodes) for p in graphs):
            raise failure("cuGraphInstantiate", "INVALID_VALUE", "the edges form a cycle")
        self._params = {
            n: SimulatedParams(n.params.launch, bytes(n.params.buffer))
            for n in nodes
            if n.params is not None
        }
        self._conditions = [handle for part in graphs for handle in part.handles]
        graph.n_instantiated += 1

    def set_params(self, node: SimulatedNode, params: SimulatedParams) -> None:
        """Replace the parameters of a kernel node for the launches to come."""
        call = "cuGraphExecKernelNodeSetParams"
        if self.graph.is_destroyed:
            raise failure(call, "INVALID_HANDLE", "the node's graph is destroyed")
        owned = self._params.get(node)
        if owned is None:
            raise failure(call, "INVALID_VALUE", "no kernel node of this graph exec")
        if node.device_handle and params.launch.function is not owned.launch.function:
            raise failure(call, "INVALID_VALUE", "a device-updatable node keeps its function")
        self._params[node] = SimulatedParams(params.launch, bytes(params.buffer))

    def run(self) -> None:
        """Execute every node, in a random order among those that the edges allow."""
        updatable = {n.device_handle: p.buffer for n, p in self._params.items() if n.device_handle}
        run = Run(self._memory, updatable, self._conditions)
        mapped: set[int] = set()
        try:
            self._run(self.graph, run, mapped)
        except BaseException:
            for ptr in mapped:
                self._memory.free(ptr)
            raise

    def _run(self, graph: SimulatedGraph, run: Run, mapped: set[int]) -> None:
        for node in self._in_order(graph):
            self._execute(node, run, mapped)

    def _in_order(self, graph: SimulatedGraph) -> Iterator[SimulatedNode]:
        links = self._links[graph]
        waiting = dict(links.n_sources)
        ready = [n for n in graph.nodes if not waiting[n]]
        while ready:
            node = ready.pop(self._order.randrange(len(ready)))
            yield node
            for target in links.targets[node]:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)

    def _execute(self, node: SimulatedNode, run: Run, mapped: set[int]) -> None:
        if node.kind == "kernel":
            params = self._params[node]
            params.launch.function.body(run, bytes(params.buffer))
        elif node.kind == "memcpy":
            copy_box(self._memory, **node.fields)
        elif node.kind == "memset":
            fill_rows(self._memory, **node.fields)
        elif node.kind == "mem_alloc":
            self._memory.map(node.fields["device_ptr"], node.fields["nbytes"])
            mapped.add(node.fields["device_ptr"])
        elif node.kind == "mem_free":
            self._memory.free(node.fields["device_ptr"])
            mapped.discard(node.fields["device_ptr"])
        elif node.kind == "conditional":
            self._execute_bodies(node, run, mapped)

    def _execute_bodies(self, node: SimulatedNode, run: Run, mapped: set[int]) -> None:
        handle, kind = node.fields["handle"], CONDITIONAL_TYPES[node.fields["type"]]
        if kind == "while":
            while run.conditions[handle]:
                self._run(node.bodies[0], run, mapped)
            return
        value = run.conditions[handle]
        index = int(not value) if kind == "if" else value
        if index < len(node.bodies):
            self._run(node.bodies[index], run, mapped)


class _Links:
    """The edges of a graph, by node."""

    def __init__(self, graph: SimulatedGraph) -> None:
        self.targets: dict[SimulatedNode, list[SimulatedNode]] = {n: [] for n in graph.nodes}
        self.n_sources = dict.fromkeys(graph.nodes, 0)
        for source, target in graph.edges:
            self.targets[source].append(target)
            self.n_sources[target] += 1


def _refuse_in_bodies(graph: SimulatedGraph) -> None:
    """Refuse what conditional nodes cannot have: other kinds of nodes, handles without a node."""
    if unused := [handle for handle, node in graph.handles.items() if node is None]:
        detail = f"no node has the conditional handle 0x{unused[0]:x}"
        raise failure("cuGraphInstantiate", "INVALID_VALUE", detail)
    allowed = ("kernel", "memcpy", "memset", "empty", "conditional")
    other = [node.kind for node in graph.nodes if node.kind not in allowed]
    if graph.parent is not None and other:
        raise failure("cuGraphInstantiate", "NOT_SUPPORTED", f"a {other[0]} node in a body")


def _refuse_unmapped(graph: SimulatedGraph, memory: SimulatedMemory) -> None:
    """Refuse copies and fills of addresses without memory: CUDA looks them up now."""
    own = {n.fields["device_ptr"]: n.fields["nbytes"] for n in graph.nodes if n.kind == "mem_alloc"}
    for node in graph.nodes:
        if node.kind not in ("memcpy", "memset"):
            continue
        for name in ("dst_ptr", "src_ptr"):
            ptr = node.fields.get(name)
            if ptr is None or any(begin <= ptr < begin + own[begin] for begin in own):
                continue
            if memory.find(ptr) is None:
                detail = f"{name} 0x{ptr:x} of a {node.kind} node holds no memory"
                raise failure("cuGraphInstantiate", "INVALID_VALUE", detail)


def _read_node(node: SimulatedNode) -> Node:
    f = node.fields
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
        return MemcpyNode(node, f["dst_ptr"], f["src_ptr"], f["width"], 1, 1, 0, 0, 0, 0)
    if node.kind == "memset":
        return MemsetNode(
            node, f["dst_ptr"], f["value"], f["element_size"], f["width"], f["height"], f["pitch"]
        )
    if node.kind == "mem_alloc":
        return MemAllocNode(node, f["device_ptr"], f["nbytes"])
    if node.kind == "mem_free":
        return MemFreeNode(node, f["device_ptr"])
    return EmptyNode(node)
