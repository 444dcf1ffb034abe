"""Make a cache entry of a finished capture.

Input: the capture, what it was made from, the watch of implicit arguments.
Output: a ``CacheEntry``.
Raises: what analysis and instantiation raise; then nothing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from graphjit._adapters.interface import Adapter, Memory
from graphjit._capture import Capture, Captured
from graphjit._dependencies import (
    Access,
    drop_false_dependencies,
    find_accesses,
    may_write,
)
from graphjit._entry import CacheEntry
from graphjit._escapes import refuse_escapes
from graphjit._executable import Executable
from graphjit._externals import External, find_externals
from graphjit._host_calls import HostCall
from graphjit._instantiate import instantiate
from graphjit._nodes import CapturedGraph, EventNode, HostNode
from graphjit._outputs import OutputPlan, plan_outputs
from graphjit._probing import Analysed, find_scalars
from graphjit._regions import ALIGNMENT
from graphjit._relocation import RelocationPlan, find_relocations
from graphjit._replace import merge_fills, replace_copies_and_fills
from graphjit._segments import Segment, plan_segment
from graphjit._setup import Setup, Slots
from graphjit._signature import Signature
from graphjit._timing import with_events
from graphjit._turns import take_turns
from graphjit._watch import Watch

SHARED_SCRATCH_NBYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """How an entry is captured and launched."""

    outputs: str = "fresh"
    patch: str = "auto"
    mode: str = "thread_local"
    library_code: frozenset[str] = frozenset()
    """Modules of the array library that ran during the eager call."""
    optimize: bool = False
    """Merge small fills, and drop dependencies that are none."""
    is_block: bool = False
    """A capture block uses arrays where they are, and its variables outlive it."""
    split: bool = False
    """Make several graphs of a function that reads on the host."""
    profile: bool = False
    """Take the times of the nodes."""
    check: Callable[[CapturedGraph, RelocationPlan, list[External]], None] | None = None
    """Refuses what an explicit graph must not be."""


def finish(
    captured: Captured, setup: Setup, signature: Signature, watch: Watch, options: EntryOptions
) -> CacheEntry:
    """Turn a finished capture into an entry."""
    try:
        entry = _finish(captured, setup, signature, watch, options)
        if entry.segment is not None:
            entry.segment.entry = entry
        return entry
    except BaseException:
        setup.capture.free_constants()
        raise
    finally:
        captured.close()


def _finish(
    captured: Captured, setup: Setup, signature: Signature, watch: Watch, options: EntryOptions
) -> CacheEntry:
    capture, adapter = setup.capture, setup.capture.adapter
    segment, outputs = _results_of(captured, setup, options)
    graph, plan, slots = _analyse(captured, setup, outputs, options)
    memory_nbytes, scratch_offset = _blocks_of_a_call(outputs, slots.scratch_nbytes, segment)
    if segment is not None and segment.end is not None:
        segment.note(slots.target_of(segment.end.ptr), _changes_arguments(setup, graph, plan))
    externals = _checked_externals(capture, plan, graph, options)
    captured_at = time.perf_counter()
    executable = _instantiated(capture, graph, plan, slots.n_slots, options)
    return CacheEntry(
        signature=signature,
        adapter=adapter,
        watch=watch,
        specs=setup.specs,
        aliasing=setup.aliasing,
        identity=setup.identity,
        leaders=setup.leaders,
        draws=capture.draws,
        outputs=outputs,
        scratch_nbytes=slots.scratch_nbytes,
        memory_nbytes=memory_nbytes,
        scratch_offset=scratch_offset,
        graph=graph,
        plan=plan,
        executable=executable,
        externals=externals,
        constant_ranges=_give_constants(capture, executable),
        node_counts=captured.graph.count_by_kind(),
        capture_us=(captured_at - setup.started) * 1e6,
        instantiate_us=(time.perf_counter() - captured_at) * 1e6,
        kept=[*adapter.libraries_in_use(options.library_code), *capture.kept, *capture.owners],
        static_memory=_complete(
            executable, externals, adapter, memory_nbytes, options, _host_calls(capture, graph)
        ),
        can_be_native=_can_be_native(setup, options, outputs),
        segment=segment,
    )


def _instantiated(
    capture: Capture,
    graph: CapturedGraph,
    plan: RelocationPlan,
    n_slots: int,
    options: EntryOptions,
) -> Executable:
    driver, timing = capture.driver, None
    if options.profile:
        graph, plan, timing = with_events(driver, graph, plan)
    executable = instantiate(
        driver,
        graph,
        plan,
        n_slots,
        options.patch,
        use_node_priority=capture.use_node_priority,
    )
    executable.timing = timing
    return executable


def _checked_externals(
    capture: Capture, plan: RelocationPlan, graph: CapturedGraph, options: EntryOptions
) -> list[External]:
    externals = find_externals(capture, plan, graph, allow_arrays=options.is_block)
    if options.check is not None:
        options.check(graph, plan, externals)
    return externals


def _results_of(
    captured: Captured, setup: Setup, options: EntryOptions
) -> tuple[Segment | None, OutputPlan]:
    """Plan what a launch gives: the part of a function that is split, or its outputs."""
    segment = _segment_of(captured, setup, options)
    return segment, segment.layout if segment else _outputs_of(captured, setup, options)


def _host_calls(capture: Capture, graph: CapturedGraph) -> list[tuple[int, Callable[[], None]]]:
    """Return (number, function) of the host nodes; of a split function, those of this part."""
    numbers = {node.number for node in graph.nodes if isinstance(node, HostNode)}
    calls = [call for call in capture.kept if isinstance(call, HostCall)]
    return [(call.number, call.function) for call in calls if call.number in numbers]


def _segment_of(captured: Captured, setup: Setup, options: EntryOptions) -> Segment | None:
    """Plan the part of the function that was captured; None if it is the whole."""
    capture, replay = setup.capture, setup.capture.replay
    if replay is None or not replay.is_split:
        return None
    if capture.draws:
        raise capture.refuse(
            "it reads on the host and draws random numbers from a generator whose state is on "
            "the host"
        )
    outputs = None if replay.end is not None else _outputs_of(captured, setup, options)
    return plan_segment(capture.regions, replay.known, replay.carried, replay.end, outputs)


def _complete(
    executable: Executable,
    externals: list[External],
    adapter: Adapter,
    memory_nbytes: list[int],
    options: EntryOptions,
    host_calls: list[tuple[int, Callable[[], None]]],
) -> list[Memory] | None:
    """Order the launches with those of other graphs; return the memory of static outputs."""
    try:
        take_turns(executable, externals)
        if not options.profile:
            executable.host_calls = host_calls
        is_static = options.outputs == "static"
        return [adapter.allocate(nbytes) for nbytes in memory_nbytes] if is_static else None
    except BaseException:
        executable.close()
        raise


def _analysed(options: EntryOptions, captured: Captured, setup: Setup) -> Analysed:
    outputs = _outputs_of(captured, setup, options)
    graph, plan, _ = _analyse(captured, setup, outputs, options)
    return graph, plan, outputs


def _analyse(
    captured: Captured, setup: Setup, outputs: OutputPlan, options: EntryOptions
) -> tuple[CapturedGraph, RelocationPlan, Slots]:
    """Return the graph to launch, what is re-pointed in it, and where everything lies."""
    capture, graph = captured.capture, captured.graph
    if options.optimize:
        graph = merge_fills(capture.driver, graph)
    graph = replace_copies_and_fills(capture.driver, graph)
    slots = Slots(setup, outputs, reuse=not options.optimize)
    addresses = slots.address_map(graph)
    constants = [(c.device_ptr, c.data) for c in capture.constants]
    unwritten = partial(capture.adapter.unwritten_bytes, is_certain=True)
    plan = find_relocations(graph, addresses, constants, unwritten)
    if options.optimize:
        graph = drop_false_dependencies(graph, _accesses_of(capture, graph, plan))
    if setup.capture_again is not None:
        first = graph, plan, outputs
        words = find_scalars(setup, first, setup.capture_again, partial(_analysed, options))
        plan = plan.with_scalars(words, slots.n_slots)
    return graph, plan, slots


def _accesses_of(capture: Capture, graph: CapturedGraph, plan: RelocationPlan) -> list[Access]:
    return find_accesses(
        graph,
        plan,
        capture.constants,
        capture.adapter.read_only_params,
        capture.driver.mem_get_address_range,
    )


def _changes_arguments(setup: Setup, graph: CapturedGraph, plan: RelocationPlan) -> bool:
    """Say whether the graph may write to memory that the function did not ask for itself."""
    given = plan.memory[plan.table[:, 2] < len(setup.leaders)]
    accesses = _accesses_of(setup.capture, graph, plan)
    outside = (HostNode, EventNode)
    if setup.capture.host_memory or any(isinstance(node, outside) for node in graph.nodes):
        return True  # the host has seen something of the launch
    return bool(plan.words) or may_write(accesses, set(given.tolist()))


def _can_be_native(setup: Setup, options: EntryOptions, outputs: OutputPlan) -> bool:
    """Say whether the compiled hit has what the calls of an entry need."""
    if setup.aliasing or setup.capture.draws or setup.capture.kept:
        return False
    if options.is_block or (setup.capture.replay is not None and setup.capture.replay.is_split):
        return False
    return options.outputs != "static" or outputs.is_fresh


def _outputs_of(captured: Captured, setup: Setup, options: EntryOptions) -> OutputPlan:
    """Plan the outputs, let go of what the function returned, and look for what it kept."""
    objects = [leaf for i, leaf in enumerate(setup.call.leaves) if i not in setup.call.array_index]
    given = [*setup.stand_ins, *setup.implicit]
    outputs = plan_outputs(setup.capture, captured.result, given, objects)
    captured.result = None
    if not options.is_block:
        refuse_escapes(setup.capture, outputs.regions)
    return outputs


def _give_constants(capture: Capture, executable: Executable) -> list[tuple[int, int]]:
    """Hand the constants over to the executable; return their addresses and bytes."""
    ranges = [(c.device_ptr, len(c.data)) for c in capture.constants]
    executable.owned_ptrs += [ptr for ptr, _ in ranges]
    capture.constants.clear()
    return ranges


def _blocks_of_a_call(
    outputs: OutputPlan, scratch_nbytes: int, segment: Segment | None
) -> tuple[list[int], int]:
    """Return the sizes of the blocks that a call allocates, and where its scratch is.

    A small scratch block is put behind the first output: an allocation costs as much as a
    fifth of a hit, and what the output holds on to is little.
    """
    n_carried = len(segment.carried) if segment else 0
    blocks = [region.nbytes for region in outputs.regions[n_carried:]]
    if not scratch_nbytes:
        return blocks, -1
    if blocks and segment is None and scratch_nbytes <= SHARED_SCRATCH_NBYTES:
        offset = -(-blocks[0] // ALIGNMENT) * ALIGNMENT
        blocks[0] = offset + scratch_nbytes
        return blocks, offset
    return [*blocks, scratch_nbytes], -1
