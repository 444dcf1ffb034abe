"""Memory that a graph uses and that cannot be re-pointed: listed, and kept alive.

Input: words of kernel parameters that look like addresses of nobody's memory.
Output: ``External``: the address, the size in bytes and what holds it.
Raises: ``AnalysisError`` when the memory is an array that the function reached unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphjit._capture import Capture
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit._relocation import RelocationPlan
from graphjit.errors import AnalysisError

_PAGE_LOCKED = "page-locked memory of the host"


@dataclass(frozen=True, slots=True)
class External:
    """A piece of memory that the graph keeps using where it is."""

    device_ptr: int
    nbytes: int
    holder: str
    """What owns it, in words."""
    kernel: str
    """Name of the first kernel that is given its address."""
    owner: Any
    """Keeps the memory alive; None if the owner is not known."""
    kind: str
    """``"array"`` of the user's, ``"library"`` or ``"page-locked"``."""

    @property
    def is_shared(self) -> bool:
        """Say whether the launches of graphs that use it have to take turns."""
        return self.kind == "library" or getattr(self.owner, "is_shared", False)

    def holds(self, ptr: int) -> bool:
        """Say whether an address is in it."""
        return self.device_ptr <= ptr < self.device_ptr + max(self.nbytes, 1)


def find_externals(
    capture: Capture, plan: RelocationPlan, graph: CapturedGraph, *, allow_arrays: bool
) -> list[External]:
    """Find the memory behind the words that no region and no implicit argument explains."""
    kernels: dict[int, str] = {}
    for index, word in plan.candidates:
        node = graph.nodes[index]
        assert isinstance(node, KernelNode)
        kernels.setdefault(word, node.name)
    externals: dict[int, External] = {}
    for memory in capture.host_memory:
        words = [w for w in kernels if memory.ptr <= w < memory.ptr + memory.nbytes]
        for name in [kernels.pop(word) for word in words][:1]:
            externals[memory.ptr] = External(
                memory.ptr, memory.nbytes, _PAGE_LOCKED, name, memory, kind="page-locked"
            )
    constants = [(c.device_ptr, c.device_ptr + max(len(c.data), 1)) for c in capture.constants]
    ranges = {
        word: found
        for word in kernels
        if not any(begin <= word < end for begin, end in constants)
        and (found := capture.driver.mem_get_address_range(word))
    }
    owners = capture.adapter.memory_owners(ranges) if ranges else {}
    for word, (base_ptr, nbytes) in ranges.items():
        owner, holder, is_array = owners.get(word, (None, "a library", False))
        if is_array and not allow_arrays and word not in capture.in_place:
            raise AnalysisError(
                f"{capture.function} uses {holder}, at 0x{word:x} (kernel {kernels[word]}), "
                f"which is no argument and which no global, closure variable or attribute named "
                f"in its code holds: graphjit could not see it being replaced. Pass it as an "
                f"argument, or read it by a plain attribute."
            )
        kind = "array" if is_array else "library"
        external = External(base_ptr, nbytes, holder, kernels[word], owner, kind)
        externals.setdefault(base_ptr if owner is None else word, external)
    return list(externals.values())
