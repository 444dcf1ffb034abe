"""One cache entry: a captured function, ready to be launched on other arrays.

Input: a call (arguments taken apart), the function, the watch of its implicit arguments.
Output: ``CacheEntry``: ``match`` says whether it serves a call, ``launch`` runs it.
Raises: what capture, analysis and instantiation raise; then nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphjit._adapters.interface import Adapter, ArraySpec, Memory
from graphjit._aliasing import alias_pattern, are_apart, same_objects
from graphjit._arguments import Call
from graphjit._dependencies import critical_path
from graphjit._draws import Draws
from graphjit._executable import Executable
from graphjit._externals import External
from graphjit._graph_info import GraphSource
from graphjit._hit import MISS, HitCounts, HitPlan
from graphjit._host_calls import raise_failure
from graphjit._nodes import CapturedGraph
from graphjit._outputs import OutputPlan
from graphjit._relocation import RelocationPlan
from graphjit._scalars import encode_all
from graphjit._segments import Segment, SegmentTree
from graphjit._signature import Signature
from graphjit._watch import Watch


@dataclass(slots=True)
class CacheEntry:
    """An executable graph and what its calls need."""

    signature: Signature
    adapter: Adapter
    watch: Watch
    specs: list[ArraySpec]
    """Of all arrays, arguments first."""
    aliasing: tuple[tuple[int, int, int], ...]
    identity: tuple[int, ...]
    """For each array the first place of the same object."""
    leaders: list[int]
    """The array whose address fills each of the first slots."""
    draws: Draws
    outputs: OutputPlan
    scratch_nbytes: int
    memory_nbytes: list[int]
    """Blocks allocated for each call: one for each output, and what else is needed."""
    scratch_offset: int
    """Where the scratch block is within the first of them; -1 if it is the last of them."""
    graph: CapturedGraph
    """What is launched; its handles are of a graph that is gone."""
    plan: RelocationPlan
    executable: Executable
    externals: list[External]
    constant_ranges: list[tuple[int, int]]
    """(address, bytes) of each constant."""
    node_counts: dict[str, int]
    capture_us: float
    instantiate_us: float
    kept: list[Any]
    """Objects of libraries that own kernels of the graph."""
    static_memory: list[Memory] | None = None
    """With ``outputs="static"``: the memory that every call writes its outputs to."""

    can_be_native: bool = True
    """False once the compiled hit has declined."""
    segment: Segment | None = None
    """With ``on_unsupported="split"``: the part of the function that this graph is."""
    segments: SegmentTree | None = None
    """All parts, in the entry of the first one."""

    @property
    def critical_path(self) -> int:
        """Return the number of nodes in the longest chain of dependencies."""
        return critical_path(self.graph)

    @property
    def counts(self) -> HitCounts:
        """Hits, patches, launches and last use."""
        return self.executable.counts

    def report(self) -> None:
        """Raise what functions raised that earlier launches have called, if this one calls some."""
        parts = [self]
        if self.segments is not None:
            parts = [segment.entry for segment in self.segments.segments()]
        if any(part.executable.host_calls for part in parts):
            raise_failure()

    def match(self, call: Call) -> list[Any] | None:
        """Return the arrays of a call, arguments and implicit ones; None if it does not fit."""
        if self.draws and not self.draws.serve():
            return None
        if call.scalar_index and encode_all(self.plan.scalar_slots, call.scalars) is None:
            return None
        arrays = call.arrays
        ptrs = call.array_ptrs
        if self.watch.steps:
            implicit = self.watch.read(call.leaves)
            if implicit is None:
                return None
            if implicit:
                arrays = arrays + implicit
                ptrs = ptrs + [self.adapter.device_ptr(a) for a in implicit]
        if self.static_memory is not None and self._takes_static_memory(ptrs):
            return None  # its own result would be overwritten while it is read
        if len(ptrs) < 2:
            return arrays
        if self.aliasing:
            is_like = alias_pattern(ptrs, self.specs) == self.aliasing
            return arrays if is_like and same_objects(arrays) == self.identity else None
        return arrays if are_apart(ptrs, self.specs) else None

    def _static_ranges(self) -> list[tuple[int, int]]:
        blocks = zip(self.static_memory or (), self.memory_nbytes, strict=False)
        return [(memory.ptr, memory.ptr + max(nbytes, 1)) for memory, nbytes in blocks]

    def _takes_static_memory(self, ptrs: list[int]) -> bool:
        ranges = self._static_ranges()
        return any(
            ptr + spec.low < end and begin < ptr + spec.high
            for ptr, spec in zip(ptrs, self.specs, strict=True)
            for begin, end in ranges
            if spec.low < spec.high
        )

    def launch(self, call: Call, arrays: list[Any]) -> Any:
        """Launch the graph on the caller's current stream; return the outputs.

        ``MISS`` if the entry has been evicted meanwhile.
        """
        if self.segments is not None:
            return self.segments.run(call, arrays)
        launched = self.launch_on(arrays, scalars=call.scalars)
        # A scratch block goes back now; the stream orders its next use after this launch.
        return MISS if launched is None else self.outputs.build(self.adapter, launched[0], arrays)

    def launch_on(
        self, arrays: list[Any], carried: Sequence[Memory] = (), scalars: Sequence[Any] = ()
    ) -> tuple[list[Memory], list[int]] | None:
        """Launch on arrays, on memory of earlier segments, and on memory made now.

        Return all that memory and the slots; None if the graph has been destroyed.
        """
        adapter = self.adapter
        memories = self.static_memory
        if memories is None:
            memories = [*carried, *(adapter.allocate(nbytes) for nbytes in self.memory_nbytes)]
        slots = self.slots(arrays, memories, scalars)
        draw = self.draws.make if self.draws else None
        launched = self.executable.launch(slots, adapter.current_stream(), draw)
        return (memories, slots) if launched else None

    def slots(
        self, arrays: list[Any], memories: list[Memory], scalars: Sequence[Any] = ()
    ) -> list[int]:
        """Return the address or the number for each slot; seeds are not drawn yet."""
        slots = [self.adapter.device_ptr(arrays[i]) for i in self.leaders]
        slots += [0] * len(self.draws.seeds)
        slots += [memory.ptr for memory in memories]
        if self.scratch_offset >= 0:
            slots.append(memories[0].ptr + self.scratch_offset)
        if scalars:
            slots += encode_all(self.plan.scalar_slots, scalars) or ()
        return slots

    def constant_at(self, ptr: int) -> tuple[int, int] | None:
        """Return the constant that an address is in, and the distance from its beginning."""
        for number, (begin, nbytes) in enumerate(self.constant_ranges):
            if begin <= ptr < begin + max(nbytes, 1):
                return number, ptr - begin
        return None

    def hit_plan(self, call: Call, arrays: Sequence[Any]) -> HitPlan:
        """Describe the entry for the compiled hit; ``arrays`` are those of a call it serves."""
        adapter, outputs, executable = self.adapter, self.outputs, self.executable
        static, result = self.static_memory, None
        if static is not None:
            result = outputs.build(adapter, static, arrays)
        return HitPlan(
            entry=self,
            executable=executable,
            graph_exec=int(executable.graph_exec or 0),  # none if it has just been evicted
            context=executable.driver.native_context(),
            spans=[(spec.low, spec.high) for spec in self.specs],
            leaders=self.leaders,
            memory_nbytes=[] if static is not None else self.memory_nbytes,
            scratch_offset=self.scratch_offset,
            patches=executable.native_patches(),
            templates=outputs.templates(adapter),
            is_tuple=outputs.is_plain_tuple,
            build=partial(_build_on_pointers, self),
            steps=self.watch.steps,
            scalars=[(call.scalar_index[word.scalar], word) for word in self.plan.scalar_slots],
            static_ranges=None if static is None else self._static_ranges(),
            static_result=result,
            keep=[array.dtype for array in arrays],
        )

    def graph_source(self) -> GraphSource:
        """Return what inspection makes a description of the graph of."""
        return GraphSource(
            graph=self.graph,
            plan=self.plan,
            signature=self.signature,
            implicit=tuple(self.watch.array_paths()),
            specs=self.specs,
            leaders=self.leaders,
            n_seeds=len(self.draws.seeds),
            outputs=self.outputs,
            scratch_nbytes=self.scratch_nbytes,
            constant_ranges=self.constant_ranges,
            externals=tuple(self.externals),
        )

    def close(self) -> None:
        """Free the graph, or all that follow from it, and everything they own."""
        if self.segments is not None:
            self.segments.close()
        else:
            self.close_graph()

    def close_graph(self) -> None:
        """Free the graph and everything it owns."""
        self.executable.close([*self.externals, *self.kept, *(self.static_memory or ())])
        self.static_memory = None
        self.externals = []
        self.kept = []


def _build_on_pointers(entry: CacheEntry, pointers: list[Any], arrays: list[Any]) -> Any:
    memories = [Memory(pointer.ptr, pointer) for pointer in pointers]
    return entry.outputs.build(entry.adapter, memories, arrays)
