"""Memory of the simulated device: every access to what is not allocated traps.

Input: addresses and sizes in bytes. Output: NumPy views of allocated bytes.
Raises: ``DriverError`` with CUDA_ERROR_ILLEGAL_ADDRESS for reserved, freed, straddling and
unknown addresses; CUDA_ERROR_OUT_OF_MEMORY past the device's size.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from typing import Any

import numpy as np

from graphjit._driver.simulated_errors import failure

POISON = 0xCB
"""What memory holds before anything is written to it."""
_FIRST_PTR = 0x7F00_0000_0000
_FIRST_RESERVED = 0x7000_0000_0000
_ALIGNMENT = 512
_PAGE = 2 << 20

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the bytes that an array touches, relative to its address: (low, high)."""
    if 0 in shape:
        return 0, 0
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), itemsize + sum(r for r in reach if r > 0)


class SimulatedMemory:
    """Allocations at addresses that are never used twice, and reserved ranges without memory.

    Parameters
    ----------
    capacity : int
        Bytes that can be allocated at one time.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live_nbytes = 0
        self._next_ptr = _FIRST_PTR
        self._next_reserved = _FIRST_RESERVED
        self._reserved: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._blocks: dict[int, Bytes] = {}
        # Re-entrant: the garbage collector may run a finaliser that frees memory in here.
        self._lock = threading.RLock()

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses that hold nothing."""
        with self._lock:
            ptr = self._next_reserved
            self._next_reserved += -(-nbytes // _PAGE) * _PAGE
            self._reserved.append((ptr, ptr + nbytes))
        return ptr

    def allocate(self, nbytes: int) -> int:
        """Allocate bytes that hold a poison pattern."""
        if nbytes <= 0:
            raise failure("cuMemAlloc", "INVALID_VALUE", f"{nbytes} bytes")
        with self._lock:
            if self.live_nbytes + nbytes > self.capacity:
                raise failure("cuMemAlloc", "OUT_OF_MEMORY", f"{nbytes} bytes")
            ptr = self._next_ptr
            # A hole between blocks makes an access past the end a trap, not a neighbour's bytes.
            self._next_ptr = -(-(ptr + nbytes + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT
            self._insert(ptr, nbytes)
        return ptr

    def map(self, ptr: int, nbytes: int) -> None:
        """Put memory behind reserved addresses, as an allocation node does when it runs."""
        with self._lock:
            if ptr in self._blocks:
                raise failure("cuGraphLaunch", "INVALID_VALUE", f"0x{ptr:x} was never freed")
            self._insert(ptr, nbytes)

    def _insert(self, ptr: int, nbytes: int) -> None:
        # Aligned on the host as on the device: how NumPy and BLAS sum may depend on it.
        memory = np.full(nbytes + _ALIGNMENT, POISON, np.uint8)
        skipped = (ptr - memory.ctypes.data) % _ALIGNMENT
        self._blocks[ptr] = memory[skipped : skipped + nbytes]
        insort(self._starts, ptr)
        self.live_nbytes += nbytes

    def free(self, ptr: int) -> None:
        """Free a block; its addresses trap from now on."""
        with self._lock:
            block = self._blocks.get(ptr)
            if block is None:
                raise failure("cuMemFree", "INVALID_VALUE", f"0x{ptr:x}")
            del self._starts[bisect_right(self._starts, ptr) - 1]
            del self._blocks[ptr]
            self.live_nbytes -= block.size

    def find(self, ptr: int) -> tuple[int, int] | None:
        """Return (base, nbytes) of the block around an address, or None."""
        with self._lock:
            i = bisect_right(self._starts, ptr) - 1
            if i < 0:
                return None
            base = self._starts[i]
            nbytes = self._blocks[base].size
            return (base, nbytes) if ptr < base + nbytes else None

    def view(self, ptr: int, nbytes: int) -> Bytes:
        """Return allocated bytes as a view; trap if any of them is not allocated."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        with self._lock:
            found = self.find(ptr)
            if found is None or ptr + nbytes > found[0] + found[1]:
                raise failure("cuLaunchKernel", "ILLEGAL_ADDRESS", self._explain(ptr, nbytes))
            offset = ptr - found[0]
            return self._blocks[found[0]][offset : offset + nbytes]

    def array(
        self, ptr: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        """Return allocated memory as a NumPy array; trap if a byte of it is not allocated.

        Parameters
        ----------
        ptr : int
            Address of the first element.
        shape : tuple of int
        dtype : dtype
        strides : tuple of int, optional
            In bytes; C order if left out.
        """
        dtype = np.dtype(dtype)
        if strides is None:
            strides = np.empty(shape, np.uint8).strides
            strides = tuple(s * dtype.itemsize for s in strides)
        low, high = extent(shape, strides, dtype.itemsize)
        memory = self.view(ptr + low, high - low)
        return np.ndarray(shape, dtype, memory, -low, strides)

    def _explain(self, ptr: int, nbytes: int) -> str:
        where = f"{nbytes} bytes at 0x{ptr:x}"
        if any(begin <= ptr < end for begin, end in self._reserved):
            return f"{where}: a reserved address, which holds no memory"
        return f"{where}: freed, never allocated, or past the end of a block"
