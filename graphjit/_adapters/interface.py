"""What graphjit asks of an array library.

One implementation a library: ``cupy.py``, ``simulated.py``. An adapter is the only place
that knows array classes, allocators and streams of its library.
Input / Output: addresses and sizes in bytes; ``ArraySpec`` describes an array without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphjit._driver.interface import Driver
from graphjit._nodes import KernelNode


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array without its address: everything that a captured graph may depend on."""

    array_type: type
    shape: tuple[int, ...]
    dtype: Any
    """The library's dtype; hashable, compares by value."""
    strides: tuple[int, ...]
    """Bytes."""
    device: int
    low: int
    """Lowest byte touched, relative to the array's address; <= 0."""
    high: int
    """One past the highest byte touched, relative to the array's address."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A block of device memory and the object that keeps it alive."""

    ptr: int
    owner: Any


class HostGenerator(Protocol):
    """A random generator of an array library, as far as its state is on the host."""

    identity: Any
    """Equal for two of the same generator."""

    def serves(self, n: int) -> bool:
        """Say whether a call would use this generator now, and get ``n`` numbers in a row."""

    def take(self, n: int) -> int:
        """Return the present seed, and advance it by ``n``."""


class CaptureHooks(Protocol):
    """What an adapter reports to the capture in progress."""

    hints: dict[str, Any]
    """What the adapter learned from earlier attempts at the same capture."""
    is_final: bool
    """No other attempt can follow: what could turn out to be needed has to be there."""

    def allocate(self, nbytes: int) -> int:
        """Give a temporary its address in the reserved range."""

    def free(self, ptr: int) -> None:
        """The library let go of what ``allocate`` gave."""

    def upload_constant(self, data: bytes) -> int:
        """Store host data for the life of the cache entry; return its device address."""

    def host_read(self, call: str, ptr: int, nbytes: int) -> bytes:
        """Return what ``call`` reads on the host, where that is known; raise otherwise."""

    def refuse(self, what: str) -> Exception:
        """Return the error to raise: ``what`` cannot be part of a graph."""

    def where(self) -> str:
        """Return the user's line that is being run."""

    def fill_before_launch(
        self, generator: HostGenerator, call: Callable[[int], None], ptr: int
    ) -> None:
        """Have ``call(address)`` fill the memory at a reserved address before every launch."""

    def seed_before_launch(self, generator: HostGenerator, n: int) -> int:
        """Have ``n`` numbers taken before every launch; return what stands for the first."""

    def keep_priorities(self) -> None:
        """Note that the function uses streams of different priorities."""

    def owns(self, ptr: int) -> bool:
        """True if the address lies in the reserved range."""

    def owned(self) -> list[tuple[int, int]]:
        """Return addresses and sizes in bytes of what is at reserved addresses now."""


class CapturedStream(Protocol):
    """The stream under capture."""

    def n_nodes(self) -> int:
        """Return how many nodes the graph has so far."""

    def end(self) -> Any:
        """Join the branches and end the capture; return the graph."""

    def restart(self) -> Any:
        """End the capture and begin another one, with the same branches; return the graph."""


class Adapter(Protocol):
    """An array library."""

    name: str
    array_types: tuple[type, ...]
    """Exact types that the fast path recognises; subclasses are found by ``is_array``."""
    library_modules: frozenset[str]
    """Top-level modules whose Python frames are the library's own, not the user's."""

    def driver(self) -> Driver:
        """Return the driver of the current device."""

    def is_array(self, obj: Any) -> bool: ...
    def spec(self, array: Any) -> ArraySpec: ...
    def device_ptr(self, array: Any) -> int: ...
    def key(self, array: Any) -> tuple[Any, ...]:
        """Return (array type, shape, dtype, strides, device), cheaply: part of every look-up."""

    def current_device(self) -> int: ...
    def current_stream(self) -> int:
        """Return the handle of the caller's current stream."""

    def is_capturing(self) -> bool:
        """True if the caller's current stream is capturing already."""

    def allocate(self, nbytes: int) -> Memory:
        """Allocate from the caller's current allocator, ordered on the current stream."""

    def native_library(self) -> Any:
        """Return the ``NativeLibrary`` for compiled hits on the current device, or None."""

    def make_array(self, spec: ArraySpec, memory: Memory, byte_offset: int) -> Any:
        """Build an array on ``memory``; it keeps ``memory.owner`` alive."""

    def scalar_array(self, value: Any) -> Any:
        """Make a 0-d array of a number, with NumPy's dtype."""

    def make_template(self, spec: ArraySpec) -> Any:
        """Build an array without memory that compiled hits make outputs like."""

    def view_of(self, base: Any, spec: ArraySpec, byte_offset: int) -> Any:
        """Build a view of ``base`` whose first element is ``byte_offset`` from base's."""

    def stand_in(self, spec: ArraySpec, ptr: int, hooks: CaptureHooks) -> Any:
        """Build an array at a reserved address; it must not be read on the host."""

    def capturing(self, hooks: CaptureHooks, mode: str) -> AbstractContextManager[CapturedStream]:
        """Begin capture on a stream of its own and make it current, with the allocator and
        the guards in place. Leaving the context restores everything, whatever happened.
        """

    def adjust(self, error: BaseException, hooks: CaptureHooks) -> bool:
        """Learn from a failed attempt, into ``hooks.hints``; True if another may succeed."""

    def explain_failure(self, error: BaseException) -> str | None:
        """Say in graphjit's words why the library refused during capture, or None."""

    def recover(self, error: BaseException) -> None:
        """Make libraries that failed during a capture usable again."""

    def libraries_in_use(self, modules: frozenset[str]) -> list[Any]:
        """Return what must outlive a graph made by these modules: plans that own kernels."""

    def memory_owners(self, ptrs: Iterable[int]) -> dict[int, tuple[Any, str, bool]]:
        """Find what holds the memory at the given addresses: (object to keep alive, what it is
        in words, whether it is a live array); addresses of unknown holders are left out.
        """

    def holders(self, ptr: int) -> str:
        """Say, in words, what keeps a live array at this address (an attribute, a list)."""

    def read_only_params(self, nodes: Sequence[KernelNode]) -> list[int]:
        """Return for each kernel how many of its first parameters point to memory that it only
        reads; -1 unless it is certain that the kernel uses no memory but what its parameters
        point to.
        """

    def unwritten_bytes(
        self, node: KernelNode, *, is_certain: bool = False
    ) -> Iterable[tuple[int, int]]:
        """Return (begin, end) of bytes in a kernel's parameters that the library never writes.

        With ``is_certain`` only of kernels that are the library's own beyond doubt.
        """

    def equal_bits(self, left: Any, right: Any) -> bool:
        """Compare two arrays bit for bit (NaN equals the same NaN)."""

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        """Wait for the current stream and return the contents as a NumPy array."""

    def event_handle(self, event: Any) -> int | None:
        """Return the CUevent of an event of the library's; None for anything else."""

    def time_range(self, text: str) -> AbstractContextManager[object]:
        """Return a context that is a range for profilers (nvtxRangePush, nvtxRangePop)."""

    def copy(self, array: Any) -> Any:
        """Return a copy, for ``verify``."""

    def assign(self, dst: Any, src: Any) -> None:
        """Copy the contents of ``src`` into ``dst``, for ``verify``."""

    def kernel_code(self, node: KernelNode) -> bytes:
        """Return code from which another process can make the function of a node.

        Raises ``ExportError`` that says why there is none.
        """
