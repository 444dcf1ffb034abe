"""The graph of a cache entry as plain data, with names: what is launched, and on which memory.

Input: what an entry keeps of its capture. Output: ``GraphInfo``; sizes and offsets in bytes.
It is the graph that is launched: copies and fills are kernels of graphjit's own, allocations and
frees of libraries are joins, and the node that patches it is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import optree

from graphjit._adapters.interface import ArraySpec
from graphjit._containers import steps_text
from graphjit._externals import External
from graphjit._nodes import (
    CapturedGraph,
    ChildGraphNode,
    ConditionalNode,
    Dim3,
    EventNode,
    HostNode,
    KernelNode,
    Node,
)
from graphjit._outputs import FreshOutput, OutputPlan
from graphjit._relocation import RelocationPlan
from graphjit._scalars import AnyValue
from graphjit._signature import Signature

_NAMED = (KernelNode, ConditionalNode, ChildGraphNode, HostNode, EventNode)


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """A piece of memory that a graph works on.

    Attributes
    ----------
    name : str
        Path of an argument or of a result, such as ``x['w']`` or ``result[0]``; ``scratch``.
    kind : str
        ``"argument"``, ``"implicit"`` (reached through a closure, a global, an attribute),
        ``"output"``, ``"carried"`` (between the parts of a split function), ``"scratch"``,
        ``"seed"`` and ``"scalar"`` (a number, no memory), ``"constant"`` or ``"external"``.
    nbytes : int
    """

    name: str
    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class WordInfo:
    """A word of a parameter that is an address, or a dynamic scalar.

    Attributes
    ----------
    offset : int
        Within the parameter.
    memory : MemoryInfo
        What it leads to.
    delta : int
        Bytes from the beginning of that memory.
    is_patched : bool
        Written anew when the graph is pointed at other arrays or numbers.
    """

    offset: int
    memory: MemoryInfo
    delta: int
    is_patched: bool

    def __str__(self) -> str:
        return self.memory.name + (f" {self.delta:+}" if self.delta else "")


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """A parameter of a kernel.

    Attributes
    ----------
    index, offset : int
        Its number, and where it begins in the packed parameters.
    data : bytes
        As captured; addresses are those of stand-ins.
    words : tuple of WordInfo
        The addresses and dynamic scalars in it.
    """

    index: int
    offset: int
    data: bytes
    words: tuple[WordInfo, ...]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the launched graph.

    Attributes
    ----------
    index : int
    kind : str
        ``"kernel"``, ``"conditional"``, ``"child_graph"``, ``"host"``, ``"event"`` or ``"empty"``.
    name : str
        Of the kernel's function, as it was compiled; ``"if"``, ``"while"`` or ``"switch"``;
        of the function whose call is a child graph; ``"record"`` or ``"wait"``.
    grid_dim, block_dim : tuple of int
        (x, y, z)
    shared_mem_bytes : int
    params : tuple of ParamInfo
    depends_on : tuple of int
        Indices of the nodes that it waits for.
    inside : (int, int) or None
        The conditional node in whose body it is, and which of its bodies that is; the child graph
        node in whose graph it is, and 0.
    """

    index: int
    kind: str
    name: str
    grid_dim: Dim3
    block_dim: Dim3
    shared_mem_bytes: int
    params: tuple[ParamInfo, ...]
    depends_on: tuple[int, ...]
    inside: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """A graph of a cache entry.

    Attributes
    ----------
    name : str
        The function, and the part of it if it is split.
    nodes : tuple of NodeInfo
    memory : tuple of MemoryInfo
        Everything that the nodes work on.
    """

    name: str
    nodes: tuple[NodeInfo, ...]
    memory: tuple[MemoryInfo, ...]


class GraphSource(NamedTuple):
    """What an entry, or a part of a split function, knows of its graph."""

    graph: CapturedGraph
    plan: RelocationPlan
    signature: Signature
    implicit: tuple[str, ...]
    specs: list[ArraySpec]
    leaders: list[int]
    n_seeds: int
    outputs: OutputPlan
    scratch_nbytes: int
    constant_ranges: list[tuple[int, int]]
    externals: tuple[External, ...]


def describe_graph(entry: GraphSource, name: str) -> GraphInfo:
    """Name everything in a graph."""
    graph = entry.graph
    slots = list(_slots(entry))
    fixed = list(_fixed(entry))
    words: list[list[tuple[int, WordInfo]]] = [[] for _ in graph.nodes]
    for node, param_offset, slot, delta in entry.plan.relocations:
        words[node].append((param_offset, WordInfo(0, slots[slot], delta, True)))
    for scalar in entry.plan.scalars:
        words[scalar.node].append((scalar.param_offset, WordInfo(0, slots[scalar.slot], 0, True)))
    for index, word in set(entry.plan.candidates):
        words[index] += _places_of(graph, index, word, fixed)
    sources: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        sources[edge.to].append(edge.from_)
    nodes = tuple(
        _describe_node(graph, i, sorted(words[i], key=lambda found: found[0]), sources[i])
        for i in range(len(graph.nodes))
    )
    return GraphInfo(name, nodes, (*slots, *(memory for _, memory in fixed)))


def _slots(entry: GraphSource) -> Iterator[MemoryInfo]:
    """Name the slots, in their order."""
    names = [*entry.signature.arrays, *entry.implicit]
    n_arguments = len(entry.signature.arrays)
    for i in entry.leaders:
        spec = entry.specs[i]
        kind = "argument" if i < n_arguments else "implicit"
        yield MemoryInfo(names[i], kind, spec.high - spec.low)
    for i in range(entry.n_seeds):
        yield MemoryInfo(f"seed {i}", "seed", 8)
    outputs = entry.outputs
    for i, region in enumerate(outputs.regions):
        name = _name_of_output(outputs, i)
        yield MemoryInfo(name, "output" if outputs.leaves else "carried", region.nbytes)
    if entry.scratch_nbytes:
        yield MemoryInfo("scratch", "scratch", entry.scratch_nbytes)
    scalars = [path for path, v in entry.signature.static.items() if isinstance(v, AnyValue)]
    for word in entry.plan.scalar_slots:
        yield MemoryInfo(scalars[word.scalar], "scalar", word.nbytes)


def _name_of_output(outputs: OutputPlan, memory: int) -> str:
    """Return the path of the first result that lies in a piece of memory."""
    for i, leaf in enumerate(outputs.leaves):
        if isinstance(leaf, FreshOutput) and leaf.memory == memory:
            path = optree.treespec_paths(outputs.tree)[i] if outputs.tree is not None else ()
            return "result" + steps_text(path)
    return f"memory {memory}"


def _fixed(entry: GraphSource) -> Iterator[tuple[int, MemoryInfo]]:
    """Name the memory that is never patched, with its address."""
    for i, (ptr, nbytes) in enumerate(entry.constant_ranges):
        yield ptr, MemoryInfo(f"constant {i}", "constant", nbytes)
    for i, external in enumerate(entry.externals):
        memory = MemoryInfo(f"external {i} ({external.holder})", "external", external.nbytes)
        yield external.device_ptr, memory


def _places_of(
    graph: CapturedGraph, index: int, word: int, fixed: list[tuple[int, MemoryInfo]]
) -> Iterator[tuple[int, WordInfo]]:
    """Find where the address of fixed memory stands in the parameters of a node."""
    node = graph.nodes[index]
    assert isinstance(node, KernelNode)
    for ptr, memory in fixed:
        if ptr <= word < ptr + max(memory.nbytes, 1):
            packed, at = struct.pack("<Q", word), -1
            while (at := node.params.find(packed, at + 1)) >= 0:
                yield at, WordInfo(0, memory, word - ptr, False)
            return


def _name(node: Node) -> str:
    if isinstance(node, EventNode):
        return "record" if node.is_record else "wait"
    return node.type if isinstance(node, ConditionalNode) else getattr(node, "name", "")


def _describe_node(
    graph: CapturedGraph, index: int, words: list[tuple[int, WordInfo]], sources: list[int]
) -> NodeInfo:
    node, scope = graph.nodes[index], graph.scope(index)
    inside = None if scope < 0 else graph.bodies[scope]
    described = NodeInfo(
        index=index,
        kind=node.kind if isinstance(node, _NAMED) else "empty",
        name=_name(node),
        grid_dim=(0, 0, 0),
        block_dim=(0, 0, 0),
        shared_mem_bytes=0,
        params=(),
        depends_on=tuple(sorted(sources)),
        inside=inside,
    )
    if not isinstance(node, KernelNode):
        return described
    return replace(
        described,
        name=node.name,
        grid_dim=node.grid_dim,
        block_dim=node.block_dim,
        shared_mem_bytes=node.shared_mem_bytes,
        params=tuple(_describe_params(node, words)),
    )


def _describe_params(node: KernelNode, words: list[tuple[int, WordInfo]]) -> Iterator[ParamInfo]:
    for i, (offset, nbytes) in enumerate(node.param_layout):
        inside = tuple(
            replace(word, offset=at - offset)
            for at, word in words
            if offset <= at < offset + nbytes
        )
        yield ParamInfo(i, offset, node.params[offset : offset + nbytes], inside)
