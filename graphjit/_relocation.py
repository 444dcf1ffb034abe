"""Find every address in a captured graph and say where it comes from.

Input: a ``CapturedGraph`` whose copies and fills are kernel nodes already, the regions of
the capture, and the real memory of implicit arguments and library workspaces.
Output: a ``RelocationPlan``: (node, byte offset in its parameters) <- slot + delta.
A pure function of data. Offsets and deltas in bytes.
Raises: ``AmbiguousPointerError`` when a word may or may not be an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphjit._nodes import CapturedGraph, KernelNode, ParamLayout
from graphjit._regions import GAP_NBYTES, RANGE_NBYTES, Regions
from graphjit._scalars import ScalarWord
from graphjit.errors import AmbiguousPointerError

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

_LOWEST_ADDRESS, _HIGHEST_ADDRESS = 1 << 32, 1 << 49
_AMBIGUOUS = (
    "parameter {param_index} of kernel {kernel} (node {node}) holds 0x{word:x} at byte {at}: at "
    "the end of an array or near it, but outside. It may be an address of that array, or of one "
    "that is no argument and was reached by a computed name; graphjit does not guess. Pass such "
    "arrays as arguments, or run the function uncaptured."
)


class Target(NamedTuple):
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


class Relocation(NamedTuple):
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


@dataclass(frozen=True, eq=False)
class RelocationPlan:
    """Everything that must change when a graph is pointed at other arrays."""

    table: Integers
    """(n_relocations, 4), the columns of ``Relocation``, in ascending order of node."""
    memory: Integers
    """(n_relocations,): which piece of memory each leads to; equal numbers for the same piece."""
    words: tuple[WordRelocation, ...]
    candidates: tuple[tuple[int, int], ...]
    """(node, word) of words that look like addresses of other memory: external if they are."""
    scalars: tuple[ScalarWord, ...] = ()

    def with_scalars(self, words: Sequence[ScalarWord], first_slot: int) -> RelocationPlan:
        """Return the plan with the words of dynamic scalars, whose slots begin at 0."""
        moved = (replace(word, slot=first_slot + word.slot) for word in words)
        return replace(self, scalars=tuple(moved))

    @cached_property
    def scalar_slots(self) -> list[ScalarWord]:
        """One word for each slot of a dynamic scalar, in the order of the slots."""
        return list({word.slot: word for word in self.scalars}.values())

    @cached_property
    def relocations(self) -> tuple[Relocation, ...]:
        """The rows of the table."""
        return tuple(map(Relocation._make, self.table.tolist()))

    @cached_property
    def touched_nodes(self) -> tuple[int, ...]:
        """Indices of the nodes with at least one word to rewrite, ascending."""
        nodes = [*self.table[:, 0].tolist(), *(word.node for word in self.scalars)]
        return tuple(sorted(set(nodes)))


@dataclass(frozen=True, slots=True)
class FoundAddresses:
    """Words that are addresses, one row each: where they are, and where they lead."""

    offset: Integers
    """Of the word within the data, in bytes."""
    word: Integers
    memory: Integers
    """Number of the region, or of the real memory."""
    slot: Integers
    delta: Integers
    is_inside: Booleans
    """Within the memory itself, not just near it."""
    is_stand_in: Booleans

    def where(self, mask: Booleans) -> FoundAddresses:
        """Return the rows for which ``mask`` holds."""
        return FoundAddresses(*(getattr(self, field.name)[mask] for field in fields(self)))


class AddressMap:
    """Tells addresses from other words: regions of the capture, and real memory with a slot.

    A word in the gap around a region belongs to the region. The byte past the end of real
    memory may just as well be the start of the neighbour in the pool: near, but not inside.
    """

    def __init__(self, regions: Regions, targets: dict[int, Target], real: Sequence[RealRange]):
        """``targets`` maps the address of each region to the target of its first byte."""
        rows = [(r.ptr, r.nbytes, *targets[r.ptr], 1) for r in regions.regions]
        rows += [(r.ptr, r.nbytes, *r.target, 0) for r in real]
        table = np.array(rows, np.int64).reshape(-1, 5)
        table = table[np.argsort(table[:, 0])]
        self._begin, nbytes, self._slot, self._delta, is_stand_in = table.T
        self._is_stand_in = is_stand_in == 1
        self._low = self._begin - GAP_NBYTES * is_stand_in
        self._high = self._begin + nbytes + np.where(self._is_stand_in, GAP_NBYTES, 1)
        self._end = self._begin + np.where(self._is_stand_in, nbytes + 1, np.maximum(nbytes, 1))
        # Bits 40 to 47 of every address that can be met; the two bytes above are zero.
        tops = {regions.range.ptr >> 40 & 255}
        for r in real:
            tops |= {r.ptr >> 40 & 255, (r.ptr + r.nbytes) >> 40 & 255}
        self._is_top = np.isin(np.arange(256), list(tops))

    def search(self, data: bytes) -> FoundAddresses:
        """Find the addresses in the data, at any offset."""
        octets = np.frombuffer(data, np.uint8)
        may_be = self._is_top[octets[5:-2]] & (octets[6:-1] == 0) & (octets[7:] == 0)
        offset = np.flatnonzero(may_be)
        word = words_at(octets, offset)
        row = np.searchsorted(self._low, word, "right") - 1
        is_known = (row >= 0) & (word < self._high[row]) if len(self._low) else row >= 0
        offset, word, row = offset[is_known], word[is_known], row[is_known]
        begin = self._begin[row]
        return FoundAddresses(
            offset,
            word,
            row,
            self._slot[row],
            self._delta[row] + word - begin,
            (begin <= word) & (word < self._end[row]),
            self._is_stand_in[row],
        )


def words_at(octets: npt.NDArray[np.uint8], offsets: Integers) -> Integers:
    """Gather 8-byte words at any offsets."""
    if not len(offsets):
        return np.empty(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(octets, 8)
    return np.ascontiguousarray(windows[offsets]).view("<i8").ravel()


class _Parameters:
    """The parameters of all kernels, end to end, and where each begins."""

    def __init__(self, graph: CapturedGraph) -> None:
        kernels = [(i, node) for i, node in enumerate(graph.nodes) if isinstance(node, KernelNode)]
        self.nodes = [node for _, node in kernels]
        self.index = np.array([i for i, _ in kernels], np.int64)
        self.data = b"".join(node.params for node in self.nodes)
        nbytes = [len(node.params) for node in self.nodes]
        self.node_begin = np.cumsum([0, *nbytes], dtype=np.int64)[:-1]
        bounds, self.param_node = self._spread(_bounds)
        self.param_begin, self.param_end = bounds.T

    def _spread(self, of_layout: Callable[[ParamLayout], Integers]) -> tuple[Integers, Integers]:
        """Return offsets that each layout gives, within the data, and the kernel of each."""
        offsets = [of_layout(()), *(of_layout(node.param_layout) for node in self.nodes)]
        kernel = np.repeat(np.arange(len(offsets)) - 1, [len(o) for o in offsets])
        found = np.concatenate(offsets)
        return found + self.node_begin[kernel].reshape(-1, *[1] * (found.ndim - 1)), kernel

    def addresses(self, addresses: AddressMap) -> tuple[FoundAddresses, Integers]:
        """Search the parameters; an address never spans two of them."""
        found = addresses.search(self.data)
        param = np.searchsorted(self.param_begin, found.offset, "right") - 1
        is_whole = found.offset + 8 <= self.param_end[param] if len(param) else param >= 0
        return found.where(is_whole), param[is_whole]

    def other_words(self, known: Integers) -> list[tuple[int, int]]:
        """Return (node, word) of words that can be addresses of memory outside the capture."""
        offset, kernel = self._spread(_address_offsets)
        is_other = np.ones(len(self.data), np.bool_)
        is_other[known] = False
        offset, kernel = offset[is_other[offset]], kernel[is_other[offset]]
        word = words_at(np.frombuffer(self.data, np.uint8), offset)
        may_be = (word >= _LOWEST_ADDRESS) & (word < _HIGHEST_ADDRESS)
        nodes = self.index[kernel[may_be]]
        return list(zip(nodes.tolist(), word[may_be].tolist(), strict=True))


UnwrittenBytes = Callable[[KernelNode], Iterable[tuple[int, int]]]
"""Kernel -> (begin, end) of bytes in its parameters that hold what was on the host's stack."""


def find_relocations(
    graph: CapturedGraph,
    addresses: AddressMap,
    constants: Sequence[tuple[int, bytes]],
    unwritten: UnwrittenBytes = lambda node: (),
) -> RelocationPlan:
    """Collect the relocations of a graph and of its constants (device address, host data)."""
    parameters = _Parameters(graph)
    found, param = _certain(parameters, *parameters.addresses(addresses), unwritten)
    kernel = parameters.param_node[param]
    param_offset = found.offset - parameters.node_begin[kernel]
    table = np.stack([parameters.index[kernel], param_offset, found.slot, found.delta], axis=1)
    words = [word for device_ptr, data in constants for word in _table(device_ptr, data, addresses)]
    candidates = parameters.other_words(found.offset)
    return RelocationPlan(table, found.memory, tuple(words), tuple(candidates))


def _certain(
    parameters: _Parameters, found: FoundAddresses, param: Integers, unwritten: UnwrittenBytes
) -> tuple[FoundAddresses, Integers]:
    """Refuse words near memory, unless they are stand-ins where a compiler puts addresses.

    A word of which a byte was never written is no address, and nobody reads it.
    """
    at = found.offset - parameters.param_begin[param]
    is_certain = found.is_inside | ((at % 8 == 0) & found.is_stand_in)
    for i in np.flatnonzero(~is_certain):
        kernel = parameters.param_node[param[i]]
        offset = found.offset[i] - parameters.node_begin[kernel]
        ranges = unwritten(parameters.nodes[kernel])
        if any(begin < offset + 8 and offset < end for begin, end in ranges):
            continue
        first = np.searchsorted(parameters.param_node, kernel)
        raise AmbiguousPointerError(
            _AMBIGUOUS.format(
                param_index=param[i] - first,
                kernel=parameters.nodes[kernel].name,
                node=parameters.index[kernel],
                word=found.word[i],
                at=at[i],
            )
        )
    return found.where(is_certain), param[is_certain]


def _table(device_ptr: int, data: bytes, addresses: AddressMap) -> list[WordRelocation]:
    """Return addresses in host data: aligned, and within an array, not just near one."""
    found = addresses.search(data)
    found = found.where((found.offset % 8 == 0) & found.is_inside)
    rows = zip(found.offset.tolist(), found.slot.tolist(), found.delta.tolist(), strict=True)
    return [WordRelocation(device_ptr + offset, slot, delta) for offset, slot, delta in rows]


@cache
def _bounds(layout: ParamLayout) -> Integers:
    """Return begin and end of each parameter, (n_params, 2)."""
    return np.array([(offset, offset + size) for offset, size in layout], np.int64).reshape(-1, 2)


@cache
def _address_offsets(layout: ParamLayout) -> Integers:
    """Return the offsets at which an address of memory outside the capture may be.

    In small structs only the first word counts: what follows is sizes and, in CuPy's, bytes
    that were never written and can hold anything.
    """
    offsets = [
        at
        for offset, size in layout
        for at in range(offset, offset + (size if size >= 256 else min(size, 8)) - 7, 8)
    ]
    return np.array(offsets, np.int64)


assert RANGE_NBYTES == 1 << 40, "AddressMap relies on the range filling bits 0 to 39"
