"""Nodes of an explicit graph that use the same memory and are in no order.

Certain conflicts are refused; what a kernel does with memory that it is given is known for those of
the library's elementwise functions and for graphjit's own, and others only count as users.

Input: a graph whose pieces are child graphs, its ``RelocationPlan``, and who waits for whom.
Output: nothing. Raises: ``CaptureError`` that names two nodes and the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graphjit._adapters.interface import Adapter
from graphjit._driver.interface import COPY_SRC_OFFSET
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit._relocation import RelocationPlan
from graphjit._replace import COPY_NAME
from graphjit.errors import CaptureError

_RACE = (
    "the nodes {a} and {b} use the same memory, {memory}, {what}, and neither waits for the "
    "other: add one of them with `after=` the other"
)
_WRITES = "at least one of them writes to it"
_LIBRARY = "which the library works in for both"


@dataclass(slots=True)
class _Use:
    """What a piece does with memory, by the address where a block begins."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    other: set[int] = field(default_factory=set)
    """Used in a way that is not known."""
    library: set[int] = field(default_factory=set)


Piece = tuple[str, range, frozenset[int]]
"""Name, indices of the nodes, and the pieces before it that it waits for."""
FindBlock = Callable[[int], "int | None"]
"""Address -> where the block begins that it is in; None if it is in none."""


def refuse_races(
    graph: CapturedGraph,
    plan: RelocationPlan,
    adapter: Adapter,
    pieces: Sequence[Piece],
    finders: tuple[FindBlock, FindBlock, Callable[[int], bool]],
    name_of: Callable[[int], str],
) -> None:
    """Refuse two unordered pieces that conflict; ``name_of`` says what a block of memory is.

    ``finders`` say what an address is of: a stand-in, memory of a library, or an array that is
    used in place.
    """
    uses = _uses(graph, plan, adapter, *finders)
    of_piece = [_joined([uses[i] for i in nodes if i in uses]) for _, nodes, _ in pieces]
    behind: list[frozenset[int]] = []
    for _, _, after in pieces:
        behind.append(after.union(*(behind[i] for i in after)))
    for j, b in enumerate(of_piece):
        for i in sorted(set(range(j)) - behind[j]):
            a = of_piece[i]
            shared = a.writes & (b.reads | b.writes | b.other) | b.writes & (a.reads | a.other)
            what = _WRITES
            if not shared:
                shared, what = a.library & b.library, _LIBRARY
            if shared:
                memory = name_of(min(shared))
                text = _RACE.format(a=pieces[i][0], b=pieces[j][0], memory=memory, what=what)
                raise CaptureError(text)


def _joined(uses: Sequence[_Use]) -> _Use:
    names = ("reads", "writes", "other", "library")
    return _Use(*(set().union(*(getattr(use, name) for use in uses)) for name in names))


def _uses(
    graph: CapturedGraph,
    plan: RelocationPlan,
    adapter: Adapter,
    stand_in_at: FindBlock,
    library_at: FindBlock,
    array_at: Callable[[int], bool],
) -> dict[int, _Use]:
    kernels = {i: node for i, node in enumerate(graph.nodes) if isinstance(node, KernelNode)}
    found = {i: _Use() for i in kernels}
    n_inputs = dict(zip(kernels, adapter.read_only_params(list(kernels.values())), strict=True))
    for index, param_offset, _, _ in plan.relocations:
        node, use = kernels[index], found[index]
        word = int.from_bytes(node.params[param_offset : param_offset + 8], "little")
        block = stand_in_at(word)
        # Further back in a parameter may be bytes that nobody has written.
        if block is not None and any(param_offset == begin for begin, _ in node.param_layout):
            _kind(node, n_inputs[index], param_offset, use).add(block)
    for index, word in plan.candidates:
        node, use = kernels[index], found[index]
        block = library_at(word)
        if block is not None:
            use.library.add(block)
        elif array_at(word):
            for begin, size in node.param_layout:
                if size >= 8 and node.params[begin : begin + 8] == word.to_bytes(8, "little"):
                    _kind(node, n_inputs[index], begin, use).add(word)
    return found


def _kind(node: KernelNode, n_inputs: int, param_offset: int, use: _Use) -> set[int]:
    """Return where an address in the parameters of a kernel belongs."""
    if node.is_own:
        is_source = node.name == COPY_NAME and param_offset == COPY_SRC_OFFSET
        return use.reads if is_source or node.name == "graphjit_set_condition" else use.writes
    if n_inputs < 0:
        return use.other
    inputs = node.param_layout[:n_inputs]
    is_input = any(offset <= param_offset < offset + size for offset, size in inputs)
    return use.reads if is_input else use.writes
