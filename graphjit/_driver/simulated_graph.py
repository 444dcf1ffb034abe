"""Graphs of the simulated device: nodes with packed parameters, and the edges between them.

Input: nodes and edges, captured or added one by one. Output: ``CapturedGraph``.
Raises: ``DriverError`` with CUDA's names and codes.
Source: cuGraphAddNode, cuGraphGetNodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphjit._driver.interface import CONDITIONAL_TYPES, Launch
from graphjit._driver.simulated_errors import failure
from graphjit._nodes import (
    CapturedGraph,
    Edge,
    EmptyNode,
    EventNode,
    HostNode,
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
    priority: int = 0
    bodies: list[SimulatedGraph] = field(default_factory=list)
    """Of a conditional node, or the graph of a child graph node."""


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
    """Of a body or of a child graph: the graph with the node."""
    is_child: bool = False
    """The graph of a child graph node."""

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

    def add_child_graph(self) -> SimulatedNode:
        """Add a child graph node with an empty graph."""
        node = self.add("child_graph")
        node.bodies = [SimulatedGraph(parent=self, is_child=True)]
        return node

    def with_bodies(self) -> Iterator[SimulatedGraph]:
        """Yield the graph, every body and every child graph in it."""
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
    if node.kind == "host":
        return HostNode(node, f["number"])
    if node.kind in ("event_record", "event_wait"):
        return EventNode(node, node.kind == "event_record", f["event"])
    return EmptyNode(node)
