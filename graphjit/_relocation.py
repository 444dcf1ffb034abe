"""Find every address in a captured graph and say where it comes from.

Input: a ``CapturedGraph`` whose copies and fills are kernel nodes already, the regions of
the capture, and the real memory of implicit arguments and library workspaces.
Output: a ``RelocationPlan``: (node, byte offset in its parameters) <- slot + delta.
A pure function of data. Offsets and deltas in bytes.
Raises: ``AmbiguousPointerError`` when a word may or may not be an address.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from graphjit._nodes import CapturedGraph, KernelNode
from graphjit._regions import RANGE_NBYTES, Regions
from graphjit.errors import AmbiguousPointerError

_LOWEST_ADDRESS, _HIGHEST_ADDRESS = 1 << 32, 1 << 49
_AMBIGUOUS = (
    "parameter {param_index} of kernel {kernel} (node {node}) holds 0x{word:x} at byte {at}: at "
    "the end of an array or near it, but outside. It may be an address of that array, or of one "
    "that is no argument and was reached by a computed name; graphjit does not guess. Pass such "
    "arrays as arguments, or run the function uncaptured."
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where an address leads: a slot of the call and the distance from the slot's address."""

    slot: int
    delta: int


@dataclass(frozen=True, slots=True)
class RealRange:
    """Memory that has its real address during capture: implicit arguments, workspaces."""

    ptr: int
    nbytes: int
    target: Target
    """Target of the range's first byte."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """``params[param_offset:+8]`` of a node <- slot's address + delta."""

    node: int
    param_offset: int
    slot: int
    delta: int


@dataclass(frozen=True, slots=True)
class WordRelocation:
    """An address inside host data that became a constant, such as a table of pointers."""

    device_ptr: int
    slot: int
    delta: int


@dataclass(frozen=True, slots=True)
class RelocationPlan:
    """Everything that must change when a graph is pointed at other arrays."""

    relocations: tuple[Relocation, ...]
    words: tuple[WordRelocation, ...]
    candidates: tuple[tuple[int, int], ...]
    """(node, word) of words that look like addresses of other memory: external if they are."""

    @property
    def touched_nodes(self) -> tuple[int, ...]:
        """Indices of the nodes with at least one relocation, ascending."""
        return tuple(sorted({r.node for r in self.relocations}))


class AddressMap:
    """Classifies a word: region of the capture, real memory with a slot, or neither."""

    def __init__(self, regions: Regions, targets: dict[int, Target], real: Sequence[RealRange]):
        """``targets`` maps the address of each region to the target of its first byte."""
        self.regions = regions
        self._targets = targets
        self._real = sorted(real, key=lambda r: r.ptr)
        self._real_starts = [r.ptr for r in self._real]
        self._pattern = re.compile(
            b"(?s)(?=([%s]\0\0))" % b"".join(re.escape(bytes([b])) for b in self._top_bytes())
        )

    def _top_bytes(self) -> list[int]:
        """Bits 40 to 47 of every address that can be met; the two bytes above are zero."""
        tops = {self.regions.range.ptr >> 40 & 255}
        for r in self._real:
            tops |= {r.ptr >> 40 & 255, (r.ptr + r.nbytes) >> 40 & 255}
        return sorted(tops)

    def words(self, data: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, word) of each 8-byte word in ``data[begin:end]`` that may be known."""
        for match in self._pattern.finditer(data, begin, end):
            offset = match.start() - 5
            if offset >= begin and offset + 8 <= end:
                yield offset, int.from_bytes(data[offset : offset + 8], "little")

    def find(self, word: int) -> tuple[Target, bool] | None:
        """Return where a word leads, and whether it is within the memory itself."""
        if self.regions.range.holds(word):
            region = self.regions.find(word)
            if region is None:
                return None  # left over in uninitialised padding from an earlier capture
            target = self._targets[region.ptr]
            return Target(target.slot, target.delta + word - region.ptr), region.holds(word)
        return self._find_real(word)

    def _find_real(self, word: int) -> tuple[Target, bool] | None:
        i = bisect_right(self._real_starts, word) - 1
        if i < 0:
            return None
        found = self._real[i]
        if word > found.ptr + found.nbytes:
            return None
        # One past the end may just as well be the start of the neighbour in the pool.
        is_inside = word < found.ptr + max(found.nbytes, 1)
        return Target(found.target.slot, found.target.delta + word - found.ptr), is_inside


def find_relocations(
    graph: CapturedGraph, addresses: AddressMap, constants: Sequence[tuple[int, bytes]]
) -> RelocationPlan:
    """Collect the relocations of a graph and of its constants (device address, host data)."""
    relocations: list[Relocation] = []
    candidates: list[tuple[int, int]] = []
    for index, node in enumerate(graph.nodes):
        if isinstance(node, KernelNode):
            found = list(_node_relocations(index, node, addresses))
            relocations += found
            known = {r.param_offset for r in found}
            candidates += [(index, word) for word in _other_words(node, known)]
    words = [
        WordRelocation(device_ptr + offset, target.slot, target.delta)
        for device_ptr, data in constants
        for offset, target in _table_words(data, addresses)
    ]
    return RelocationPlan(tuple(relocations), tuple(words), tuple(candidates))


@cache
def _starts(layout: tuple[tuple[int, int], ...]) -> list[int]:
    return [offset for offset, _ in layout]


@cache
def _address_offsets(layout: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return the offsets at which an address of memory outside the capture may be.

    In small structs only the first word counts: what follows is sizes and, in CuPy's, bytes
    that were never written and can hold anything.
    """
    return tuple(
        at
        for offset, size in layout
        for at in range(offset, offset + (size if size >= 256 else min(size, 8)) - 7, 8)
    )


def _node_relocations(index: int, node: KernelNode, addresses: AddressMap) -> Iterator[Relocation]:
    """Search the parameters; an address never spans two of them."""
    layout = node.param_layout
    starts = _starts(layout)
    for at, word in addresses.words(node.params, 0, len(node.params)):
        param_index = bisect_right(starts, at) - 1
        offset, size = layout[param_index]
        found = addresses.find(word) if at + 8 <= offset + size else None
        if found is None:
            continue
        target, inside = found
        if not inside and ((at - offset) % 8 or not addresses.regions.range.holds(word)):
            raise AmbiguousPointerError(
                _AMBIGUOUS.format(
                    param_index=param_index, kernel=node.name, node=index, word=word, at=at - offset
                )
            )
        yield Relocation(index, at, target.slot, target.delta)


def _other_words(node: KernelNode, known: set[int]) -> Iterator[int]:
    """Yield words that can be addresses of memory outside the capture."""
    params = node.params
    for at in _address_offsets(node.param_layout):
        if at not in known:
            word = int.from_bytes(params[at : at + 8], "little")
            if _LOWEST_ADDRESS <= word < _HIGHEST_ADDRESS:
                yield word


def _table_words(data: bytes, addresses: AddressMap) -> Iterator[tuple[int, Target]]:
    """Yield addresses in host data: aligned, and within an array, not just near one."""
    for offset, word in addresses.words(data, 0, len(data)):
        if offset % 8 == 0 and (found := addresses.find(word)) and found[1]:
            yield offset, found[0]


def is_linear(graph: CapturedGraph) -> bool:
    """Say whether the nodes form one chain, so that capture order is execution order."""
    edges = {(edge.from_, edge.to) for edge in graph.edges}
    sources = {source for source, _ in edges}
    targets = {target for _, target in edges}
    n_links = max(len(graph.nodes) - 1, 0)
    return len(edges) == len(sources) == len(targets) == n_links


assert RANGE_NBYTES == 1 << 40, "words() relies on the range filling bits 0 to 39"
