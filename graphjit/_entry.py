"""One cache entry: a captured function, ready to be launched on other arrays.

Input: a call (arguments taken apart), the function, the watch of its implicit arguments.
Output: ``CacheEntry``: ``match`` says whether it serves a call, ``launch`` runs it.
Raises: what capture, analysis and instantiation raise; then nothing is kept.

Arrays are numbered through: first those of the arguments, then the implicit ones. The slots
of the graph are, in order: one for each group of arrays that share memory, one for each
block of output memory, and one for the scratch block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphjit._adapters.interface import Adapter, ArraySpec, Memory
from graphjit._arguments import Call, alias_pattern
from graphjit._capture import (
    Capture,
    Captured,
    CaptureRetryError,
    capturing,
    find_escaped,
    make_stand_ins,
    new_capture,
)
from graphjit._executable import Executable, instantiate, replace_copies_and_fills
from graphjit._externals import External, find_externals
from graphjit._nodes import CapturedGraph, MemAllocNode, MemFreeNode
from graphjit._outputs import OutputPlan, plan_outputs
from graphjit._regions import Lifetime, plan_scratch
from graphjit._relocation import (
    AddressMap,
    RealRange,
    RelocationPlan,
    Target,
    find_relocations,
    is_linear,
)
from graphjit._signature import Signature
from graphjit._watch import Watch
from graphjit.errors import CaptureError


_CHANGES = (
    "{function} cannot be captured: it changes {path}. A graph launch runs no Python, so that "
    "later calls would not change it. Return the value instead, or use "
    "@graphed(on_unsupported='eager') to run the function uncaptured."
)


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
    plan: RelocationPlan
    executable: Executable
    externals: list[External]
    constant_nbytes: int
    node_counts: dict[str, int]
    capture_us: float
    instantiate_us: float
    static_memory: list[Memory] | None = None
    """With ``outputs="static"``: the memory that every call writes its outputs to."""
    n_hits: int = 0
    last_use: float = field(default_factory=time.time)

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
        """Launch the graph on the caller's current stream; return the outputs."""
        adapter = self.adapter
        slots = [adapter.device_ptr(arrays[i]) for i in self.leaders]
        memories = self.static_memory
        if memories is None:
            memories = [adapter.allocate(region.nbytes) for region in self.outputs.regions]
        slots += [memory.ptr for memory in memories]
        if self.scratch_nbytes:
            scratch = adapter.allocate(self.scratch_nbytes)
            slots.append(scratch.ptr)
        self.executable.launch(slots, adapter.current_stream())
        # The scratch block goes back now; the stream orders its next use after this launch.
        return self.outputs.build(adapter, memories, arrays)

    def close(self) -> None:
        """Free the graph and everything it owns."""
        self.executable.close()
        self.static_memory = None
        self.externals = []


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """How an entry is captured and launched."""

    outputs: str = "fresh"
    patch: str = "auto"
    mode: str = "thread_local"
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
        captured.result = fn(*args, **kwargs)
    return captured


class Setup:
    """The arrays of the call to be captured, numbered through."""

    def __init__(self, call: Call, implicit: list[Any], capture: Capture) -> None:
        adapter = call.adapter
        self.capture = capture
        self.started = time.perf_counter()
        self.call = call
        self.implicit = implicit
        self.n_arguments = len(call.arrays)
        self.arrays = [*call.arrays, *implicit]
        self.specs = [adapter.spec(array) for array in self.arrays]
        self.ptrs = [*call.array_ptrs, *(adapter.device_ptr(array) for array in implicit)]
        self.aliasing = alias_pattern(self.ptrs, self.specs)
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
        for region in capture.regions.regions:
            if region.argument is not None:
                region.argument = virtual[region.argument]
        return [
            made[position[i]] if i in position else self.arrays[i] for i in range(self.n_arguments)
        ]


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
    addresses, scratch_nbytes = _Slots(setup, outputs).address_map(graph)
    plan = find_relocations(graph, addresses, [(c.device_ptr, c.data) for c in capture.constants])
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
        plan=plan,
        executable=executable,
        externals=externals,
        constant_nbytes=constant_nbytes,
        node_counts=captured.graph.count_by_kind(),
        capture_us=(captured_at - setup.started) * 1e6,
        instantiate_us=(time.perf_counter() - captured_at) * 1e6,
        static_memory=_static_memory(adapter, outputs) if options.outputs == "static" else None,
    )


def _static_memory(adapter: Adapter, outputs: OutputPlan) -> list[Memory]:
    return [adapter.allocate(region.nbytes) for region in outputs.regions]


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


class _Slots:
    """Gives every region and every piece of real memory its slot."""

    def __init__(self, setup: Setup, outputs: OutputPlan) -> None:
        self.setup = setup
        self.outputs = outputs
        self.capture = setup.capture
        self.slot_of = {leader: slot for slot, leader in enumerate(setup.leaders)}
        self.first_output = len(setup.leaders)
        self.scratch_slot = self.first_output + len(outputs.regions)

    def address_map(self, graph: CapturedGraph) -> tuple[AddressMap, int]:
        """Return the map of addresses and the size of the scratch block."""
        adapter = self.capture.adapter
        targets: dict[int, Target] = {}
        output_slots = {id(r): self.first_output + i for i, r in enumerate(self.outputs.regions)}
        temporaries = []
        for region in self.capture.regions.regions:
            if region.argument is not None:
                base_ptr = adapter.device_ptr(self.setup.stand_ins[region.argument])
                targets[region.ptr] = Target(self.slot_of[region.argument], region.ptr - base_ptr)
            elif id(region) in output_slots:
                targets[region.ptr] = Target(output_slots[id(region)], 0)
            else:
                temporaries.append(region)
        reuse = is_linear(graph)
        end = len(self.capture.regions.regions) * 2 + 1
        blocks = [Lifetime(r.nbytes, r.born, r.freed or end) for r in temporaries]
        byte_offsets, nbytes = plan_scratch(blocks, reuse=reuse)
        for region, byte_offset in zip(temporaries, byte_offsets, strict=True):
            targets[region.ptr] = Target(self.scratch_slot, byte_offset)
        workspaces, total = self._workspaces(graph, nbytes, reuse)
        real = [*self._real_arrays(), *workspaces]
        return AddressMap(self.capture.regions, targets, real), total

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
