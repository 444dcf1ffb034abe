"""Memory of the simulated device: every access to what is not allocated traps.

Input: addresses and sizes in bytes. Output: NumPy views of allocated bytes.
Raises: ``DriverError`` with CUDA_ERROR_ILLEGAL_ADDRESS for reserved, freed, straddling and
unknown addresses; CUDA_ERROR_OUT_OF_MEMORY past the device's size.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from graphjit.errors import DriverError

_FIRST_PTR = 0x7F00_0000_0000
_FIRST_RESERVED = 0x7000_0000_0000
_ALIGNMENT = 512
_POISON = 0xCB


class SimulatedMemory:
    """Allocations at addresses that are never used twice, and reserved ranges without memory."""

    def __init__(self, nbytes: int) -> None:
        self.capacity = nbytes
        self.live_nbytes = 0
        self._next_ptr = _FIRST_PTR
        self._next_reserved = _FIRST_RESERVED
        self._reserved: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._blocks: dict[int, np.ndarray[Any, Any]] = {}

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses that hold nothing."""
        ptr, self._next_reserved = self._next_reserved, self._next_reserved + nbytes
        self._reserved.append((ptr, ptr + nbytes))
        return ptr

    def allocate(self, nbytes: int) -> int:
        """Allocate bytes that hold a poison pattern."""
        if self.live_nbytes + nbytes > self.capacity:
            raise DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", 2)
        ptr = self._next_ptr
        # A hole between blocks makes an access past the end a trap, not a neighbour's bytes.
        self._next_ptr = -(-(ptr + max(nbytes, 1) + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT
        self._blocks[ptr] = np.full(max(nbytes, 1), _POISON, np.uint8)
        self._starts.append(ptr)
        self.live_nbytes += nbytes
        return ptr

    def free(self, ptr: int) -> None:
        """Free a block; its addresses trap from now on."""
        block = self._blocks.pop(ptr, None)
        if block is None:
            raise DriverError("cuMemFree", "CUDA_ERROR_INVALID_VALUE", 1, f"0x{ptr:x}")
        self._starts.remove(ptr)
        self.live_nbytes -= block.size

    def find(self, ptr: int) -> tuple[int, int] | None:
        """Return (base, nbytes) of the block around an address, or None."""
        i = bisect_right(self._starts, ptr) - 1
        if i < 0:
            return None
        base = self._starts[i]
        nbytes = self._blocks[base].size
        return (base, nbytes) if ptr < base + nbytes else None

    def view(self, ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return allocated bytes as a view; trap if any of them is not allocated."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        found = self.find(ptr)
        if found is None or ptr + nbytes > found[0] + found[1]:
            raise DriverError(
                "a kernel", "CUDA_ERROR_ILLEGAL_ADDRESS", 700, self._explain(ptr, nbytes)
            )
        offset = ptr - found[0]
        return self._blocks[found[0]][offset : offset + nbytes]

    def _explain(self, ptr: int, nbytes: int) -> str:
        where = f"{nbytes} bytes at 0x{ptr:x}"
        if any(begin <= ptr < end for begin, end in self._reserved):
            return f"{where}: a stand-in address, which holds no memory"
        return f"{where}: freed, never allocated, or past the end of a block"
