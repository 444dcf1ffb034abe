"""The arrays of a call about to be captured, and the slots that their addresses get.

Input: a call and its implicit arrays. Output: stand-ins; after the capture the map of
addresses: region or real memory -> slot + delta, and the size of the scratch block in bytes.

Arrays are numbered through: first those of the arguments, then the implicit ones. The slots
are, in order: one for each group of arrays that share memory, one for each random generator
that gives seeds, one for each block of output memory, and one for the scratch block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from graphjit._aliasing import alias_pattern, same_objects
from graphjit._arguments import Call
from graphjit._capture import Capture
from graphjit._nodes import CapturedGraph, MemAllocNode, MemFreeNode
from graphjit._outputs import OutputPlan
from graphjit._regions import Lifetime, plan_scratch, reserved_range
from graphjit._relocation import AddressMap, RealRange, Target
from graphjit._stand_ins import make_stand_ins
from graphjit.errors import SignatureError


def refuse_stand_ins(call: Call) -> None:
    """Refuse arrays that hold no memory before anything is launched on them."""
    addresses = reserved_range(call.adapter.driver())
    for array, ptr in zip(call.arrays, call.array_ptrs, strict=True):
        if addresses.holds(ptr):
            spec = call.adapter.spec(array)
            raise SignatureError(
                f"an argument {spec.dtype} {spec.shape} is a stand-in array of a capture, which "
                f"holds no memory: it escaped from a function, or from a capture block, while "
                f"that was captured. Pass what the function or the block returned instead."
            )


class Setup:
    """The arrays of the call to be captured, numbered through."""

    def __init__(self, call: Call, implicit: list[Any], capture: Capture) -> None:
        adapter = call.adapter
        self.capture = capture
        capture.has_scalars = bool(call.scalar_index)
        self.started = time.perf_counter()
        self.call = call
        self.implicit = implicit
        self.n_arguments = len(call.arrays)
        self.arrays = [*call.arrays, *implicit]
        self.specs = [adapter.spec(array) for array in self.arrays]
        self.ptrs = [*call.array_ptrs, *(adapter.device_ptr(array) for array in implicit)]
        self.aliasing = alias_pattern(self.ptrs, self.specs)
        self.identity = same_objects(self.arrays)
        followers = {i: leader for i, leader, _ in self.aliasing}
        self.leaders = [i for i in range(len(self.arrays)) if i not in followers]
        self.group_of = [followers.get(i, i) for i in range(len(self.arrays))]
        # A group with an implicit array keeps its real addresses: the function finds the
        # implicit one by itself, and CuPy must see that the two overlap.
        self.is_real = [
            any(
                self.group_of[j] == self.group_of[i]
                for j in range(self.n_arguments, len(self.arrays))
            )
            for i in range(len(self.arrays))
        ]
        self.stand_ins = self._make_stand_ins(capture)
        self.capture_again: Callable[[Sequence[Any]], tuple[Any, Setup]] | None = None
        """Captures the function with other dynamic scalars; None if it has none."""

    def _make_stand_ins(self, capture: Capture) -> list[Any]:
        """Make what the function is captured on, for each array of the arguments."""
        virtual = [i for i in range(self.n_arguments) if not self.is_real[i]]
        position = {i: k for k, i in enumerate(virtual)}
        aliasing = tuple(
            (position[i], position[leader], offset)
            for i, leader, offset in self.aliasing
            if i in position
        )
        made = make_stand_ins(
            capture, [self.ptrs[i] for i in virtual], [self.specs[i] for i in virtual], aliasing
        )
        for i, stand_in in zip(virtual, made, strict=True):
            if held := getattr(self.arrays[i], "__dict__", None):
                vars(stand_in).update(held)  # of a class derived from the library's
        for region in capture.regions.regions:
            if region.argument is not None:
                region.argument = virtual[region.argument]
        # An array that is given twice is one object, and so is its stand-in.
        return [
            made[position[self.identity[i]]] if i in position else self.arrays[i]
            for i in range(self.n_arguments)
        ]


class Slots:
    """Gives every region and every piece of real memory its slot."""

    def __init__(self, setup: Setup, outputs: OutputPlan, *, reuse: bool) -> None:
        self._may_reuse = reuse
        self.setup = setup
        self.outputs = outputs
        self.capture = setup.capture
        self.slot_of = {leader: slot for slot, leader in enumerate(setup.leaders)}
        self.first_seed = len(setup.leaders)
        self.first_output = self.first_seed + len(self.capture.draws.seeds)
        self.scratch_slot = self.first_output + len(outputs.regions)
        self.scratch_nbytes = 0
        self.targets: dict[int, Target] = {}

    @property
    def n_slots(self) -> int:
        """Number of slots; the scratch block has one only if there is any."""
        return self.scratch_slot + bool(self.scratch_nbytes)

    def address_map(self, graph: CapturedGraph) -> AddressMap:
        """Return the map of addresses, and plan the scratch block."""
        adapter = self.capture.adapter
        targets = self.capture.draws.targets_of_seeds(self.first_seed)
        output_slots = {id(r): self.first_output + i for i, r in enumerate(self.outputs.regions)}
        temporaries = []
        for region in self.capture.regions.regions:
            if region.argument is not None:
                base_ptr = adapter.device_ptr(self.setup.stand_ins[region.argument])
                targets[region.ptr] = Target(self.slot_of[region.argument], region.ptr - base_ptr)
            elif id(region) in output_slots:
                targets[region.ptr] = Target(output_slots[id(region)], 0)
            elif region.ptr not in targets:
                temporaries.append(region)
        temporaries.sort(key=lambda region: region.born)
        reuse = self._may_reuse and graph.is_linear
        end = len(self.capture.regions.regions) * 2 + 1
        blocks = [Lifetime(r.nbytes, r.born, r.freed or end) for r in temporaries]
        byte_offsets, nbytes = plan_scratch(blocks, reuse=reuse)
        for region, byte_offset in zip(temporaries, byte_offsets, strict=True):
            targets[region.ptr] = Target(self.scratch_slot, byte_offset)
        for fill in self.capture.draws.fills:
            found = self.capture.regions.find(fill.ptr)
            assert found is not None
            slot, delta = targets[found.ptr]
            fill.target = Target(slot, delta + fill.ptr - found.ptr)
        workspaces, self.scratch_nbytes = self._workspaces(graph, nbytes, reuse)
        real = [*self._real_arrays(), *workspaces]
        self.targets = targets
        return AddressMap(self.capture.regions, targets, real)

    def target_of(self, ptr: int) -> Target:
        """Return where an address in a region leads."""
        region = self.capture.regions.find(ptr)
        assert region is not None
        slot, delta = self.targets[region.ptr]
        return Target(slot, delta + ptr - region.ptr)

    def _real_arrays(self) -> list[RealRange]:
        """One range for each group of arrays that keep their real addresses."""
        setup = self.setup
        ranges = []
        for leader in setup.leaders:
            if setup.is_real[leader]:
                members = [i for i, of in enumerate(setup.group_of) if of == leader]
                low = min(setup.ptrs[i] + setup.specs[i].low for i in members)
                high = max(setup.ptrs[i] + setup.specs[i].high for i in members)
                target = Target(self.slot_of[leader], low - setup.ptrs[leader])
                ranges.append(RealRange(low, high - low, target))
        return ranges

    def _workspaces(
        self, graph: CapturedGraph, first_byte: int, reuse: bool
    ) -> tuple[list[RealRange], int]:
        """Place the libraries' own allocation nodes behind the temporaries."""
        blocks = workspace_blocks(graph)
        lifetimes = [lifetime for _, lifetime in blocks]
        byte_offsets, nbytes = plan_scratch(lifetimes, reuse=reuse)
        ranges = [
            RealRange(ptr, lifetime.nbytes, Target(self.scratch_slot, first_byte + byte_offset))
            for (ptr, lifetime), byte_offset in zip(blocks, byte_offsets, strict=True)
        ]
        return ranges, first_byte + nbytes


def workspace_blocks(graph: CapturedGraph) -> list[tuple[int, Lifetime]]:
    """Join the allocation nodes whose addresses overlap: one address, one place in scratch."""
    freed: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node, MemFreeNode):
            freed[node.device_ptr] = index
    joined: list[tuple[int, int, int, int]] = []  # (begin, end, born, freed)
    allocs = [
        (n.device_ptr, i, n) for i, n in enumerate(graph.nodes) if isinstance(n, MemAllocNode)
    ]
    for ptr, index, node in sorted(allocs, key=lambda a: a[:2]):
        end, last = ptr + node.nbytes, freed.get(ptr, len(graph.nodes))
        if joined and ptr < joined[-1][1]:
            begin, before_end, born, before_last = joined.pop()
            joined.append((begin, max(before_end, end), min(born, index), max(before_last, last)))
        else:
            joined.append((ptr, end, index, last))
    joined.sort(key=lambda block: block[2])
    return [(begin, Lifetime(end - begin, born, last)) for begin, end, born, last in joined]
