"""Which nodes must wait for which: the dependencies of a captured chain that are none are dropped.

A stream orders everything behind everything. Two nodes have to stay in order only if one of
them may write memory that the other uses; of a hundred small kernels on eight arrays most need
not wait for each other. Only kernels of which it is known that they reach memory through their
parameters alone change places: those of the library's elementwise functions, and graphjit's
copies and fills. Every other kernel may follow an address that it finds in memory, or meet
another in a device variable; it stays in order with all.

Input: a graph of kernel nodes, its ``RelocationPlan``, and what each node does with it.
Output: the graph with other edges. A pure function of data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphjit._capture import Constant
from graphjit._nodes import CapturedGraph, Edge, EmptyNode, KernelNode, MemAllocNode, MemFreeNode
from graphjit._relocation import RelocationPlan

_JOINS = (EmptyNode, MemAllocNode, MemFreeNode)
MAX_REDUCED_NODES = 4096
"""Up to this many nodes edges that others imply are left out: the check takes n * n bits."""


@dataclass(slots=True)
class Access:
    """The pieces of memory that a node uses; None if it may use any."""

    reads: set[int] | None = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


def find_accesses(
    graph: CapturedGraph,
    plan: RelocationPlan,
    constants: Sequence[Constant],
    read_only_params: Callable[[Sequence[KernelNode]], list[int]],
    is_memory: Callable[[int], Any],
) -> list[Access]:
    """Say what each node uses, by the numbers of ``RelocationPlan.memory``.

    Parameters
    ----------
    graph, plan, constants
        As captured; ``read_only_params`` gives the number of leading parameters of each
        kernel whose memory it only reads, -1 for a kernel that may use any memory.
    is_memory : callable
        Says whether a word is the address of memory.
    """
    kernels = [(i, node) for i, node in enumerate(graph.nodes) if isinstance(node, KernelNode)]
    known = read_only_params([node for _, node in kernels])
    n_inputs = {i: 0 if node.is_own else n for (i, node), n in zip(kernels, known, strict=True)}
    found = [Access() for _ in graph.nodes]
    for (index, param_offset, _, _), memory in zip(
        plan.table.tolist(), plan.memory.tolist(), strict=True
    ):
        access, node = found[index], graph.nodes[index]
        assert isinstance(node, KernelNode)
        assert access.reads is not None
        is_read = any(
            offset <= param_offset < offset + size
            for offset, size in node.param_layout[: max(n_inputs[index], 0)]
        )
        (access.reads if is_read else access.writes).add(memory)
    for index in _nodes_that_may_use_any(graph, plan, constants, found, is_memory):
        found[index].reads = None
    for index, n in n_inputs.items():
        if n < 0:
            found[index].reads = None
    return found


def may_write(accesses: Sequence[Access], memories: set[int]) -> bool:
    """Say whether a node that is given any of these pieces of memory may write to it."""
    return any(access.writes & memories for access in accesses)


def _nodes_that_may_use_any(
    graph: CapturedGraph,
    plan: RelocationPlan,
    constants: Sequence[Constant],
    found: list[Access],
    is_memory: Callable[[int], Any],
) -> set[int]:
    """Find nodes with memory that no relocation explains: of libraries, or behind pointers."""
    tables = {word.device_ptr for word in plan.words}
    plain = [
        (c.device_ptr, c.device_ptr + max(len(c.data), 1))
        for c in constants
        if not any(c.device_ptr <= ptr < c.device_ptr + len(c.data) for ptr in tables)
    ]
    unknown = {
        index
        for index, word in plan.candidates
        if not any(begin <= word < end for begin, end in plain) and is_memory(word)
    }
    for index, node in enumerate(graph.nodes):
        if not isinstance(node, _JOINS) and not found[index].reads and not found[index].writes:
            unknown.add(index)  # what does it work on?
    return unknown


def drop_false_dependencies(graph: CapturedGraph, accesses: list[Access]) -> CapturedGraph:
    """Return the graph with the edges that its memory asks for, in the order of its nodes."""
    if any(edge.data is not None for edge in graph.edges):
        return graph  # programmatic launches overlap on purpose, in ways of their own
    if graph.bodies:
        return graph  # what a body uses, its conditional node uses
    order = _Order()
    sources = [
        set() if isinstance(graph.nodes[index], _JOINS) else order.place(index, access)
        for index, access in enumerate(accesses)
    ]
    if len(graph.nodes) <= MAX_REDUCED_NODES:
        sources = _without_implied(sources)
    edges = [Edge(i, index) for index, of in enumerate(sources) for i in sorted(of)]
    return CapturedGraph(graph.nodes, tuple(edges))


class _Order:
    """Who wrote and who read each piece of memory last, as the nodes go by."""

    def __init__(self) -> None:
        self._writer: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        self._last_barrier: int | None = None
        self._since_barrier: list[int] = []

    def place(self, index: int, access: Access) -> set[int]:
        """Return the nodes that a node has to wait for."""
        waits_for: set[int] = set()
        if self._last_barrier is not None:
            waits_for.add(self._last_barrier)
        if access.reads is None:
            waits_for.update(self._since_barrier)
            self._writer, self._readers, self._since_barrier = {}, {}, []
            self._last_barrier = index
            return waits_for
        for memory in access.reads - access.writes:
            if memory in self._writer:
                waits_for.add(self._writer[memory])
            self._readers.setdefault(memory, []).append(index)
        for memory in access.writes:
            if memory in self._writer:
                waits_for.add(self._writer[memory])
            waits_for.update(self._readers.pop(memory, ()))
            self._writer[memory] = index
        self._since_barrier.append(index)
        return waits_for


def _without_implied(sources: list[set[int]]) -> list[set[int]]:
    """Leave out a source that another source waits for anyway."""
    ancestors: list[int] = []  # a bit for each node
    reduced = []
    for of in sources:
        behind = 0
        for i in of:
            behind |= ancestors[i]
        reduced.append({i for i in of if not behind >> i & 1})
        ancestors.append(behind | sum(1 << i for i in of))
    return reduced


def critical_path(graph: CapturedGraph) -> int:
    """Return the number of nodes in the longest chain of dependencies."""
    if graph.is_linear:
        return len(graph.nodes)
    length = [1] * len(graph.nodes)  # each body by itself
    for edge in sorted(graph.edges, key=lambda edge: edge.to):
        length[edge.to] = max(length[edge.to], length[edge.from_] + 1)
    return max(length, default=0)
