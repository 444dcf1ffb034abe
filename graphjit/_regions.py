"""Reserved addresses: where stand-in arrays, temporaries and outputs live during a capture.

Input: sizes in bytes, in the order in which the captured function asks for memory.
Output: one ``Region`` each, far apart in a range of addresses that holds no memory, so that
a word in that range is an address and says of what; and the plan of the scratch block.
Raises: ``CaptureError`` when the range is used up.
Source: cuMemAddressReserve (CUDA 10.2).
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from graphjit._driver.interface import Driver
from graphjit.errors import CaptureError

ALIGNMENT = 512
"""Alignment of temporaries and outputs, as CuPy's pool gives them."""
MAX_ALIGNMENT_CLASS = 256
GAP_NBYTES = 16 << 20
"""Addresses this far outside a region still belong to it (one past the end, and the like)."""
RANGE_NBYTES = 1 << 40
_BLOCK = 1 << 32
_MARGIN = (1 << 28) + GAP_NBYTES
_STEP_BETWEEN_CAPTURES = 37 << 30


def alignment_class(ptr: int) -> int:
    """Return the largest power of two that divides the address, at most 256."""
    return (ptr & -ptr & (MAX_ALIGNMENT_CLASS - 1)) or MAX_ALIGNMENT_CLASS


@dataclass(slots=True)
class Region:
    """A piece of the reserved range that stands for one block of memory."""

    ptr: int
    nbytes: int
    argument: int | None = None
    """Group of arguments that it stands for; None for memory that the function asked for."""
    born: int = 0
    freed: int | None = None

    def holds(self, ptr: int) -> bool:
        """Say whether an address is inside, or one past the end."""
        return self.ptr <= ptr <= self.ptr + self.nbytes


_ptr_of = attrgetter("ptr")


@dataclass(frozen=True, slots=True)
class ReservedRange:
    """1 TiB of addresses, aligned to its size: the upper 24 bits tell a stand-in address."""

    ptr: int

    def holds(self, ptr: int) -> bool:
        """Say whether an address lies in the range."""
        return self.ptr <= ptr < self.ptr + RANGE_NBYTES


_ranges: dict[int, ReservedRange] = {}
_ranges_lock = threading.Lock()


def reserved_range(driver: Driver) -> ReservedRange:
    """Return the driver's reserved range, reserved at the first call and kept for good."""
    with _ranges_lock:
        found = _ranges.get(id(driver))
        if found is None:
            ptr = driver.mem_address_reserve(2 * RANGE_NBYTES)
            found = ReservedRange(-(-ptr // RANGE_NBYTES) * RANGE_NBYTES)
            _ranges[id(driver)] = found
        return found


_next_start = 0


def _start_offset() -> int:
    """Give each capture another part, so that leftovers of an earlier one are no addresses."""
    global _next_start
    _next_start = (_next_start + _STEP_BETWEEN_CAPTURES) % (RANGE_NBYTES // 2)
    return _next_start


@dataclass(slots=True)
class Regions:
    """The regions of one capture, in ascending order of address."""

    range: ReservedRange
    regions: list[Region] = field(default_factory=list)
    _at: dict[int, Region] = field(default_factory=dict)
    _top: int = 0
    _clock: int = 0
    _loops: list[tuple[int, list[int]]] = field(default_factory=list)
    """When each loop began that the function is in, and what it has let go of since."""

    def __post_init__(self) -> None:
        self._top = self.range.ptr + _start_offset()

    def place(self, nbytes: int, *, offset: int = 0, argument: int | None = None) -> Region:
        """Add a region; ``offset`` spoils its alignment on purpose, to match an argument's."""
        ptr = self._find_place(nbytes) + offset
        self._top = ptr + nbytes
        if self._top + GAP_NBYTES >= self.range.ptr + RANGE_NBYTES:
            raise CaptureError(
                f"the function asks for memory {len(self.regions)} times in one call, which "
                f"uses up the addresses reserved for stand-ins; capture a smaller function"
            )
        self._clock += 1
        region = Region(ptr, nbytes, argument, born=self._clock)
        self.regions.append(region)
        self._at[ptr] = region
        return region

    def _find_place(self, nbytes: int) -> int:
        """Return an aligned address a gap away from the last region.

        The lower 32 bits keep away from both ends of their range: two 32-bit integers side
        by side can then not look like an address unless the first of them is huge.
        """
        ptr = (self._top + 2 * GAP_NBYTES + ALIGNMENT - 1) & -ALIGNMENT
        low = ptr & (_BLOCK - 1)
        if low >= _MARGIN and low + nbytes <= _BLOCK - _MARGIN:
            return ptr
        return ptr - low + _MARGIN + (_BLOCK if low >= _MARGIN else 0)

    def free(self, ptr: int) -> None:
        """Note that the memory of a region was given back at this point of the function."""
        region = self._at.get(ptr)
        if region is None or region.freed is not None:
            return
        for began, held in self._loops:
            if region.born <= began:
                held.append(ptr)  # the body's next run may read what this one overwrites
                return
        self._clock += 1
        region.freed = self._clock

    def live(self) -> list[Region]:
        """Return the regions that have not been given back."""
        return [region for region in self.regions if region.freed is None]

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Keep what was there before, for as long as a body that runs again is captured."""
        self._loops.append((self._clock, []))
        try:
            yield
        finally:
            _, held = self._loops.pop()
            for ptr in held:
                self.free(ptr)

    def find(self, ptr: int) -> Region | None:
        """Return the region that an address belongs to, gaps included."""
        i = bisect_right(self.regions, ptr + GAP_NBYTES, key=_ptr_of) - 1
        if i < 0:
            return None
        region = self.regions[i]
        return region if ptr < region.ptr + region.nbytes + GAP_NBYTES else None


class Lifetime(NamedTuple):
    """A block of scratch memory: its size and when it is in use."""

    nbytes: int
    born: int
    freed: int


def plan_scratch(blocks: list[Lifetime], *, reuse: bool) -> tuple[list[int], int]:
    """Place blocks in one scratch block; those in use at one time never overlap.

    Parameters
    ----------
    blocks : list of Lifetime
        In ascending order of ``born``.
    reuse : bool
        False gives every block its own place: with work on several streams the order in
        which Python asked for memory is not the order in which the GPU uses it.

    Returns
    -------
    byte_offsets : list of int
        One for each block, aligned to 512 bytes.
    nbytes : int
        Size of the scratch block.
    """
    free: list[tuple[int, int]] = []  # (byte_offset, nbytes), ascending
    in_use: list[tuple[int, int, int]] = []  # (freed, byte_offset, nbytes), a heap
    byte_offsets: list[int] = []
    top = 0
    for block_nbytes, born, freed in blocks:
        nbytes = -(-block_nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        while reuse and in_use and in_use[0][0] < born:
            _, byte_offset, ended_nbytes = heapq.heappop(in_use)
            _give_back(free, byte_offset, ended_nbytes)
        place = _take(free, nbytes)
        if place is None:
            place, top = _extend(free, top, nbytes)
        byte_offsets.append(place)
        heapq.heappush(in_use, (freed, place, nbytes))
    return byte_offsets, top


def _take(free: list[tuple[int, int]], nbytes: int) -> int | None:
    """Take the smallest free piece that is large enough."""
    best = -1
    for i, (_, size) in enumerate(free):
        if size >= nbytes and (best < 0 or size < free[best][1]):
            best = i
    if best < 0:
        return None
    byte_offset, size = free[best]
    if size == nbytes:
        del free[best]
    else:
        free[best] = (byte_offset + nbytes, size - nbytes)
    return byte_offset


def _extend(free: list[tuple[int, int]], top: int, nbytes: int) -> tuple[int, int]:
    """Grow the block; a free piece at its end is used first."""
    if free and sum(free[-1]) == top:
        top = free.pop()[0]
    return top, top + nbytes


def _give_back(free: list[tuple[int, int]], byte_offset: int, nbytes: int) -> None:
    """Insert a free piece and join it with its neighbours."""
    if not free:
        free.append((byte_offset, nbytes))
        return
    i = bisect_right(free, (byte_offset, 0))
    if i < len(free) and byte_offset + nbytes == free[i][0]:
        nbytes += free.pop(i)[1]
    if i > 0 and sum(free[i - 1]) == byte_offset:
        byte_offset, nbytes = free[i - 1][0], free[i - 1][1] + nbytes
        i -= 1
        free.pop(i)
    free.insert(i, (byte_offset, nbytes))
