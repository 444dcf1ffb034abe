"""One cache entry: a captured function, ready to be launched on other arrays.

Input: a call (arguments taken apart), the function, the watch of its implicit arguments.
Output: ``CacheEntry``: ``match`` says whether it serves a call, ``launch`` runs it.
Raises: what capture, analysis and instantiation raise; then nothing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphjit._adapters.interface import Adapter, ArraySpec, Memory
from graphjit._aliasing import alias_pattern
from graphjit._arguments import Call
from graphjit._capture import (
    Capture,
    Captured,
    CaptureRetryError,
    capturing,
    find_escaped,
    new_capture,
)
from graphjit._containers import flatten
from graphjit._executable import Executable, instantiate
from graphjit._externals import External, find_externals
from graphjit._hit import MISS, HitCounts, HitPlan
from graphjit._outputs import OutputPlan, plan_outputs
from graphjit._regions import ALIGNMENT
from graphjit._relocation import (
    RelocationPlan,
    find_relocations,
)
from graphjit._replace import replace_copies_and_fills
from graphjit._setup import Setup, Slots
from graphjit._signature import Signature
from graphjit._watch import Watch
from graphjit.errors import CaptureError

SHARED_SCRATCH_NBYTES = 16 << 10
_CHANGES = (
    "{function} cannot be captured: it changes {path}. A graph launch runs no Python, so that "
    "later calls would not change it. Return the value instead, or use "
    "@graphed(on_unsupported='eager') to run the function uncaptured."
)
_CONTAINER = "a container that it is given as an argument"


@dataclass(slots=True)
class CacheEntry:
    """An executable graph and what its calls need."""

    signature: Signature
    adapter: Adapter
    watch: Watch
    specs: list[ArraySpec]
    """Of all arrays, arguments first."""
    aliasing: tuple[tuple[int, int, int], ...]
    leaders: list[int]
    """The array whose address fills each of the first slots."""
    outputs: OutputPlan
    scratch_nbytes: int
    memory_nbytes: list[int]
    """Blocks allocated for each call: one for each output, and what else is needed."""
    scratch_offset: int
    """Where the scratch block is within the first of them; -1 if it is the last of them."""
    plan: RelocationPlan
    executable: Executable
    externals: list[External]
    constant_nbytes: int
    node_counts: dict[str, int]
    capture_us: float
    instantiate_us: float
    kept: list[Any]
    """Objects of libraries that own kernels of the graph."""
    static_memory: list[Memory] | None = None
    """With ``outputs="static"``: the memory that every call writes its outputs to."""

    can_be_native: bool = True
    """False once the compiled hit has declined."""

    @property
    def counts(self) -> HitCounts:
        """Hits, patches, launches and last use."""
        return self.executable.counts

    def match(self, call: Call) -> list[Any] | None:
        """Return the arrays of a call, arguments and implicit ones; None if it does not fit."""
        arrays = call.arrays
        ptrs = call.array_ptrs
        if self.watch.steps:
            implicit = self.watch.read()
            if implicit is None:
                return None
            if implicit:
                arrays = arrays + implicit
                ptrs = ptrs + [self.adapter.device_ptr(a) for a in implicit]
        if len(ptrs) > 1 and alias_pattern(ptrs, self.specs) != self.aliasing:
            return None
        return arrays

    def launch(self, arrays: Sequence[Any]) -> Any:
        """Launch the graph on the caller's current stream; return the outputs.

        ``MISS`` if the entry has been evicted meanwhile.
        """
        adapter = self.adapter
        slots = [adapter.device_ptr(arrays[i]) for i in self.leaders]
        memories = self.static_memory
        if memories is None:
            memories = [adapter.allocate(nbytes) for nbytes in self.memory_nbytes]
        slots += [memory.ptr for memory in memories]
        if self.scratch_offset >= 0:
            slots.append(memories[0].ptr + self.scratch_offset)
        if not self.executable.launch(slots, adapter.current_stream()):
            return MISS
        # A scratch block goes back now; the stream orders its next use after this launch.
        return self.outputs.build(adapter, memories, arrays)

    def hit_plan(self, arrays: Sequence[Any]) -> HitPlan:
        """Describe the entry for the compiled hit; ``arrays`` are those of a call it serves."""
        adapter, outputs, executable = self.adapter, self.outputs, self.executable
        static, result = self.static_memory, None
        if static is not None:
            result = outputs.build(adapter, static, arrays)
        return HitPlan(
            entry=self,
            executable=executable,
            graph_exec=int(executable.graph_exec),
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
            static_ptrs=None if static is None else [memory.ptr for memory in static],
            static_result=result,
            keep=[array.dtype for array in arrays],
        )

    def close(self) -> None:
        """Free the graph and everything it owns."""
        self.executable.close()
        self.static_memory = None
        self.externals = []
        self.kept = []


def _build_on_pointers(entry: CacheEntry, pointers: list[Any], arrays: list[Any]) -> Any:
    memories = [Memory(pointer.ptr, pointer) for pointer in pointers]
    return entry.outputs.build(entry.adapter, memories, arrays)


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """How an entry is captured and launched."""

    outputs: str = "fresh"
    patch: str = "auto"
    mode: str = "thread_local"
    library_code: frozenset[str] = frozenset()
    """Modules of the array library that ran during the eager call."""
    is_block: bool = False
    """A capture block uses arrays where they are, and its variables outlive it."""


def build_entry(
    fn: Callable[..., Any],
    name: str,
    call: Call,
    signature: Signature,
    watch: Watch,
    options: EntryOptions,
) -> CacheEntry:
    """Capture a function for the signature of a call. Nothing runs on the GPU.

    Values that the function changes in what it reaches (attributes, globals, lists) are put
    back if the capture is refused.
    """
    implicit = watch.read()
    if implicit is None:
        raise CaptureError(
            f"{name} cannot be captured: {watch.first_change()} changes while nobody calls it"
        )
    snapshot = watch.snapshot()
    hints: dict[str, Any] = {}
    while True:
        try:
            setup = Setup(call, implicit, new_capture(call.adapter, name, hints))
            captured = _capture_function(fn, setup, options)
            if changed := snapshot.changes():
                captured.close()
                raise CaptureError(_CHANGES.format(function=name, path=changed[0]))
            return finish(captured, setup, signature, watch, options)
        except CaptureRetryError:
            snapshot.restore()
        except BaseException:
            snapshot.restore()
            raise


def _capture_function(fn: Callable[..., Any], setup: Setup, options: EntryOptions) -> Captured:
    with capturing(setup.capture, options.mode) as captured:
        args, kwargs = setup.call.rebuild(setup.stand_ins)
        given = flatten((args, kwargs), setup.call.adapter.is_array)
        captured.result = fn(*args, **kwargs)
        left = flatten((args, kwargs), setup.call.adapter.is_array)
        if given[1] != left[1] or any(a is not b for a, b in zip(given[0], left[0], strict=True)):
            raise CaptureError(_CHANGES.format(function=setup.capture.function, path=_CONTAINER))
    return captured


def finish(
    captured: Captured, setup: Setup, signature: Signature, watch: Watch, options: EntryOptions
) -> CacheEntry:
    """Turn a finished capture into an entry."""
    try:
        return _finish(captured, setup, signature, watch, options)
    except BaseException:
        setup.capture.free_constants()
        raise
    finally:
        captured.close()


def _finish(
    captured: Captured, setup: Setup, signature: Signature, watch: Watch, options: EntryOptions
) -> CacheEntry:
    capture, adapter = setup.capture, setup.capture.adapter
    objects = [leaf for i, leaf in enumerate(setup.call.leaves) if i not in setup.call.array_index]
    given = [*setup.stand_ins, *setup.implicit]
    outputs = plan_outputs(capture, captured.result, given, objects)
    captured.result = None
    if not options.is_block:
        _refuse_escapes(capture, outputs)
    graph = replace_copies_and_fills(capture.driver, captured.graph)
    addresses, scratch_nbytes = Slots(setup, outputs).address_map(graph)
    plan = find_relocations(graph, addresses, [(c.device_ptr, c.data) for c in capture.constants])
    memory_nbytes, scratch_offset = _blocks_of_a_call(outputs, scratch_nbytes)
    externals = find_externals(capture, plan, graph, allow_arrays=options.is_block)
    captured_at = time.perf_counter()
    n_slots = len(setup.leaders) + len(outputs.regions) + bool(scratch_nbytes)
    executable = instantiate(capture.driver, graph, plan, n_slots, options.patch)
    constant_nbytes = sum(len(c.data) for c in capture.constants)
    executable.owned_ptrs += [c.device_ptr for c in capture.constants]
    capture.constants.clear()  # the executable owns them now
    return CacheEntry(
        signature=signature,
        adapter=adapter,
        watch=watch,
        specs=setup.specs,
        aliasing=setup.aliasing,
        leaders=setup.leaders,
        outputs=outputs,
        scratch_nbytes=scratch_nbytes,
        memory_nbytes=memory_nbytes,
        scratch_offset=scratch_offset,
        plan=plan,
        executable=executable,
        externals=externals,
        constant_nbytes=constant_nbytes,
        node_counts=captured.graph.count_by_kind(),
        capture_us=(captured_at - setup.started) * 1e6,
        instantiate_us=(time.perf_counter() - captured_at) * 1e6,
        kept=adapter.libraries_in_use(options.library_code),
        static_memory=(
            [adapter.allocate(nbytes) for nbytes in memory_nbytes]
            if options.outputs == "static"
            else None
        ),
        can_be_native=not setup.aliasing and not options.is_block,
    )


def _blocks_of_a_call(outputs: OutputPlan, scratch_nbytes: int) -> tuple[list[int], int]:
    """Return the sizes of the blocks that a call allocates, and where its scratch is.

    A small scratch block is put behind the first output: an allocation costs as much as a
    fifth of a hit, and what the output holds on to is little.
    """
    blocks = [region.nbytes for region in outputs.regions]
    if not scratch_nbytes:
        return blocks, -1
    if blocks and scratch_nbytes <= SHARED_SCRATCH_NBYTES:
        offset = -(-blocks[0] // ALIGNMENT) * ALIGNMENT
        blocks[0] = offset + scratch_nbytes
        return blocks, offset
    return [*blocks, scratch_nbytes], -1


def _refuse_escapes(capture: Capture, outputs: OutputPlan) -> None:
    escaped = find_escaped(capture, [region.ptr for region in outputs.regions])
    if escaped:
        sizes = ", ".join(f"{region.nbytes} bytes" for region in escaped[:3])
        raise CaptureError(
            f"{capture.function} cannot be captured: it keeps {len(escaped)} array(s) that it "
            f"made ({sizes}) after it returned, in {capture.adapter.holders(escaped[0].ptr)}. "
            f"They would be overwritten by later calls. Return them instead, or use "
            f"@graphed(on_unsupported='eager') to run the function uncaptured."
        )
