"""What a hit in plain Python is made of: each stage called by itself, on the real objects.

Input: the device. Output: a table of medians in microseconds. The stages are those of
``State.run`` and ``CacheEntry.launch``; "the rest" is the whole less their sum: calls between
them, the decorator, and what a stage gains when it runs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphjit import graphed
from graphjit._aliasing import alias_pattern
from graphjit._capture import is_capturing_here
from graphjit._options import is_disabled
from perf.devices import Device
from perf.settings import Settings
from perf.subjects import Subject
from perf.timing import measure_host
from perf.workloads import make_chain, pairs

WHOLE = "whole hit"
PARTS = "  of it: "
"""Begins the name of a stage that is part of the one above it."""
N_CALLS = 20
Stage = tuple[str, Callable[..., Any], list[tuple[Any, ...]]]


def profile(device: Device, settings: Settings) -> str:
    """Return the table for every size of chain."""
    return "\n".join(_profile_chain(device, settings, n) for n in settings.sizes)


def _profile_chain(device: Device, settings: Settings, n_kernels: int) -> str:
    arguments = pairs(device.xp.asarray, settings.n_inputs, settings.chain_elements)
    call: Any = graphed(make_chain(n_kernels))
    for pair in arguments:
        call(*pair)
    stages = [(WHOLE, call, arguments), *_front(call, arguments), *_launch(call, arguments)]
    subjects = [Subject(*stage) for stage in stages]
    found = measure_host(subjects, device.synchronize, settings.other_samples, N_CALLS)
    medians = {name: times["median"] for name, times in found.items()}
    known = sum(time for name, time in medians.items() if name != WHOLE and PARTS not in name)
    medians["the rest"] = medians[WHOLE] - known
    (entry,) = call.cache_entries()
    title = f"chain of {n_kernels}, {entry.patch_kind} patch, {entry.relocations} relocations"
    lines = [f"  {name:<52} {time:8.3f} us" for name, time in medians.items()]
    return "\n".join([title, *lines, ""])


def _front(call: Any, arguments: list[tuple[Any, ...]]) -> list[Stage]:
    """Return the stages that find the entry."""
    state = call._self_state
    calls = [state.reader.read(pair, {}) for pair in arguments]
    adapter = calls[0].adapter
    (entry,) = state.cache.entries()
    one_array = [(x,) for x, _ in arguments]
    nothing: list[tuple[Any, ...]] = [()]
    return [
        ("is_capturing_here, is_disabled", lambda: is_capturing_here() or is_disabled(), nothing),
        ("reader.read", state.reader.read, [(pair, {}) for pair in arguments]),
        (f"{PARTS}adapter.key of one array", adapter.key, one_array),
        (f"{PARTS}adapter.device_ptr of one array", adapter.device_ptr, one_array),
        ("adapter.is_capturing", adapter.is_capturing, nothing),
        ("cache.find", state.cache.find, [(c,) for c in calls]),
        (f"{PARTS}entry.match", entry.match, [(c,) for c in calls]),
        (f"{PARTS}watch.read", entry.watch.read, nothing),
        (f"{PARTS}alias_pattern", alias_pattern, [(c.array_ptrs, entry.specs) for c in calls]),
        ("cache.count_hit", state.cache.count_hit, [(entry,)]),
    ]


def _launch(call: Any, arguments: list[tuple[Any, ...]]) -> list[Stage]:
    """Return the stages that point the graph at the arrays and launch it."""
    (entry,) = call._self_state.cache.entries()
    adapter, executable, driver = entry.adapter, entry.executable, entry.executable.driver
    nothing: list[tuple[Any, ...]] = [()]
    stream = adapter.current_stream()
    memories = [adapter.allocate(nbytes) for nbytes in entry.memory_nbytes]
    slots = [_slots(entry, arrays, memories) for arrays in arguments]

    def gather(*arrays: Any) -> list[int]:
        return [adapter.device_ptr(arrays[i]) for i in entry.leaders]

    def allocate() -> list[Any]:
        return [adapter.allocate(nbytes) for nbytes in entry.memory_nbytes]

    patches = [*executable.host_patches, *executable.device_patches]
    set_params = [(executable.graph_exec, patch.node, patch.params) for patch in patches]
    return [
        ("addresses of the arrays", gather, arguments),
        ("adapter.allocate, all blocks of a call", allocate, nothing),
        ("adapter.current_stream", adapter.current_stream, nothing),
        ("executable.launch", executable.launch, [(s, stream) for s in slots]),
        (f"{PARTS}the same addresses: no patch", executable.launch, [(slots[0], stream)]),
        (
            f"{PARTS}cuGraphExecKernelNodeSetParams, one",
            driver.graph_exec_kernel_node_set_params,
            set_params,
        ),
        (f"{PARTS}cuGraphLaunch", driver.graph_launch, [(executable.graph_exec, stream)]),
        ("outputs.build", entry.outputs.build, [(adapter, memories, a) for a in arguments]),
    ]


def _slots(entry: Any, arrays: tuple[Any, ...], memories: list[Any]) -> list[int]:
    """Return what ``CacheEntry.launch`` writes into the graph."""
    slots = [entry.adapter.device_ptr(arrays[i]) for i in entry.leaders]
    slots += [memory.ptr for memory in memories]
    if entry.scratch_offset >= 0:
        slots.append(memories[0].ptr + entry.scratch_offset)
    return slots
