"""A captured graph as plain data: what the driver recorded, copied out once.

Input: captured CUgraphs, read by ``Driver.graph_read``.
Output: a ``CapturedGraph``; sizes in bytes, addresses as ``int``. Child graphs are
inlined by the reader, so every node here belongs to one flat graph. (Those of graphed functions
that were called are made later; see ``_children.py``.)
Source: cuGraphGetNodes, cuGraphGetEdges, cuGraph*NodeGetParams, cuFuncGetParamInfo and
cuKernelGetParamInfo (CUDA 12.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

Dim3 = tuple[int, int, int]
ParamLayout = tuple[tuple[int, int], ...]
"""(param_offset, param_size) of each parameter within the packed bytes."""


@dataclass(frozen=True, slots=True)
class KernelNode:
    """CU_GRAPH_NODE_TYPE_KERNEL with its parameters as one packed block of bytes."""

    kind: ClassVar[str] = "kernel"
    handle: Any
    name: str
    function: Any
    """CUfunction or CUkernel, opaque to everyone but the driver."""
    grid_dim: Dim3
    block_dim: Dim3
    shared_mem_bytes: int
    params: bytes
    param_layout: ParamLayout
    attributes: tuple[tuple[str, bytes], ...] = ()
    """Of a node without a handle; those of others are copied from the captured node."""
    is_own: bool = False
    """One of graphjit's own kernels, which uses no memory but what its parameters point to."""


@dataclass(frozen=True, slots=True)
class MemcpyNode:
    """CU_GRAPH_NODE_TYPE_MEMCPY between device addresses, as a box of bytes."""

    kind: ClassVar[str] = "memcpy"
    handle: Any
    dst_ptr: int
    src_ptr: int
    width: int
    """Bytes in a row."""
    height: int
    depth: int
    dst_pitch: int
    src_pitch: int
    dst_slice_pitch: int
    src_slice_pitch: int


@dataclass(frozen=True, slots=True)
class MemsetNode:
    """CU_GRAPH_NODE_TYPE_MEMSET."""

    kind: ClassVar[str] = "memset"
    handle: Any
    dst_ptr: int
    value: int
    element_size: int
    """1, 2 or 4 bytes."""
    width: int
    """Elements in a row."""
    height: int
    pitch: int


@dataclass(frozen=True, slots=True)
class MemAllocNode:
    """CU_GRAPH_NODE_TYPE_MEM_ALLOC: a library's own workspace."""

    kind: ClassVar[str] = "mem_alloc"
    handle: Any
    device_ptr: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemFreeNode:
    """CU_GRAPH_NODE_TYPE_MEM_FREE."""

    kind: ClassVar[str] = "mem_free"
    handle: Any
    device_ptr: int


@dataclass(frozen=True, slots=True)
class EmptyNode:
    """CU_GRAPH_NODE_TYPE_EMPTY: a join of dependencies."""

    kind: ClassVar[str] = "empty"
    handle: Any


@dataclass(frozen=True, slots=True)
class ConditionalNode:
    """CU_GRAPH_NODE_TYPE_CONDITIONAL, whose bodies are scopes of the same ``CapturedGraph``."""

    kind: ClassVar[str] = "conditional"
    handle: Any
    type: str
    """``"if"``, ``"while"`` or ``"switch"``."""
    n_bodies: int


@dataclass(frozen=True, slots=True)
class ChildGraphNode:
    """CU_GRAPH_NODE_TYPE_GRAPH: a graphed function that was called; its body is a scope, too."""

    kind: ClassVar[str] = "child_graph"
    handle: Any
    name: str
    """Of the function."""


@dataclass(frozen=True, slots=True)
class HostNode:
    """CU_GRAPH_NODE_TYPE_HOST: a call of graphjit's own, see ``_host_calls.py``."""

    kind: ClassVar[str] = "host"
    handle: Any
    number: int
    """Of the function; see ``_driver/host_functions.py``."""


@dataclass(frozen=True, slots=True)
class EventNode:
    """CU_GRAPH_NODE_TYPE_EVENT_RECORD or _WAIT_EVENT, of an event that outlives the graph."""

    kind: ClassVar[str] = "event"
    handle: Any
    is_record: bool
    event: int


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """A node that graphjit cannot rebuild; ``reason`` says why."""

    kind: ClassVar[str] = "unsupported"
    handle: Any
    type_name: str
    reason: str


Node = (
    KernelNode
    | MemcpyNode
    | MemsetNode
    | MemAllocNode
    | MemFreeNode
    | EmptyNode
    | ConditionalNode
    | ChildGraphNode
    | HostNode
    | EventNode
    | UnsupportedNode
)


class Edge(NamedTuple):
    """``nodes[to]`` depends on ``nodes[from_]``; ``data`` is the CUgraphEdgeData or None."""

    from_: int
    to: int
    data: bytes | None = None


class Body(NamedTuple):
    """A body graph of a conditional node, or the graph of a child graph node."""

    node: int
    """Its index."""
    position: int
    """Which of its bodies this is."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """Nodes in the order of the program, and the edges between their indices.

    What is in conditional nodes and child graphs is in it, too: an edge joins nodes of one scope.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    bodies: tuple[Body, ...] = ()
    scopes: tuple[int, ...] = ()
    """For each node the body that it is in, -1 for the graph itself; empty if there are none."""
    setters: tuple[tuple[int, int], ...] = ()
    """(kernel, conditional): nodes whose first parameter is the conditional's handle."""

    def scope(self, index: int) -> int:
        """Return the body that a node is in, -1 if it is in none."""
        return self.scopes[index] if self.scopes else -1

    @property
    def is_linear(self) -> bool:
        """Say whether the nodes of each scope form one chain: they run in the order of capture."""
        n_chains = len(set(self.scopes)) or min(len(self.nodes), 1)
        n_links = len(self.nodes) - n_chains
        if len(self.edges) < n_links:
            return False
        sources, targets = {edge[0] for edge in self.edges}, {edge[1] for edge in self.edges}
        n_pairs = len({edge[:2] for edge in self.edges})
        return n_pairs == len(sources) == len(targets) == n_links

    def count_by_kind(self) -> dict[str, int]:
        """Count the nodes of each kind."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.kind] = counts.get(node.kind, 0) + 1
        return counts
