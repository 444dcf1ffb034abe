"""Point an executable graph at other arrays, and launch it.

Input: the slots of a call.
Output: ``Executable``: patch and launch in O(1) driver calls (device patch) or one call a
touched node (host patch).
Raises: ``DriverError``.
Source: cuGraphExecKernelNodeSetParams, cuGraphLaunch, cuGraphExecDestroy, cuStreamWaitEvent,
cuEventRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphjit._driver import host_functions
from graphjit._driver.interface import Driver
from graphjit._hit import TURNS, HitCounts, Lock
from graphjit._timing import Timing
from graphjit.errors import DriverError

_U64 = (1 << 64) - 1


@dataclass(slots=True)
class HostPatch:
    """The relocations of one node, written into its parameters by the host."""

    node: Any
    params: Any
    words: list[tuple[int, int, int, int]]
    """(param_offset, slot, delta, bytes to write)"""


@dataclass(slots=True)
class DevicePatch:
    """One patch node: a piece of the relocation table and up to 448 slots."""

    node: Any
    params: Any
    first_slot: int
    n_slots: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Executable:
    """A CUgraphExec and everything that must live as long as it does."""

    driver: Driver
    graph: Any
    graph_exec: Any
    n_slots: int
    patch_kind: str
    """``"host"``, ``"device"`` or ``"none"`` for a graph without relocations."""
    nodes: list[Any] = field(default_factory=list)
    """The driver's, one for each node of the entry's graph."""
    use_node_priority: bool = False
    """Each node has the priority of the stream that it was captured on."""
    host_patches: list[HostPatch] = field(default_factory=list)
    device_patches: list[DevicePatch] = field(default_factory=list)
    owned_ptrs: list[int] = field(default_factory=list)
    table_nbytes: int = 0
    counts: HitCounts = field(default_factory=HitCounts)
    native: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)
    turns: list[int] = field(default_factory=list)
    """Events of memory that other graphs work in, too; see ``_turns``."""
    timing: Timing | None = None
    """Of a graph that takes the times of its nodes."""
    host_calls: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """(number, function) of what a launch calls on the host."""
    library_memory: list[Any] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    """Code that was loaded for this graph."""
    is_to_close: bool = False
    """It was closed in the middle of a launch by the same thread, which closes it at its end."""
    keep: Sequence[Any] = ()
    """What launches in flight may still use of a graph that is closed."""

    def launch(
        self, slots: list[int], stream: int, draw: Callable[[list[int]], None] | None = None
    ) -> bool:
        """Point the graph at ``slots`` (addresses) and launch it; one caller at a time.

        ``draw`` is called with the slots before that. False, and nothing done, if the graph
        cannot be had.
        """
        if self.host_calls:
            host_functions.run_deferred()
        with self.held() as is_mine:
            if is_mine:
                if draw is not None:
                    draw(slots)
                if not self.counts.points_at(slots):
                    self._patch(slots)
                self._launch(stream)
                self.counts.launches += 1
        return is_mine

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep the graph from being destroyed and from being launched by other threads.

        False if it has been destroyed meanwhile, or if a finaliser or a signal handler asks in
        the middle of a launch by the same thread.
        """
        if self.lock.is_held_here() or TURNS.is_held_here():
            yield False
            return
        try:
            with self.lock:
                yield self.graph_exec is not None
        finally:
            if self.is_to_close:
                self._close()

    def _launch(self, stream: int) -> None:
        if not self.turns:
            self._launch_armed(stream)
            return
        with TURNS:
            for event in self.turns:
                self.driver.stream_wait_event(stream, event)
            self._launch_armed(stream)
            for event in self.turns:
                self.driver.event_record(event, stream)

    def _launch_armed(self, stream: int) -> None:
        """Launch; the functions of the host are kept until it has called them."""
        for number, function in self.host_calls:
            host_functions.arm(number, function)
        try:
            self.driver.graph_launch(self.graph_exec, stream)
        except DriverError:  # nothing else says that it has not been launched
            for number, _ in self.host_calls:
                host_functions.disarm(number)
            raise

    def take_turns(self, event: int) -> None:
        """From the next launch on, wait for an event before it and record the event behind it."""
        with self.lock:
            self.turns.append(event)

    def _patch(self, slots: Sequence[int]) -> None:
        self.counts.set_slots(None)  # half a patch is no state to skip from
        for host in self.host_patches:
            buffer = host.params.buffer
            for param_offset, slot, delta, nbytes in host.words:
                word = struct.pack("<Q", (slots[slot] + delta) & _U64)[:nbytes]
                struct.pack_into(f"<{nbytes}s", buffer, param_offset, word)
            self.driver.graph_exec_kernel_node_set_params(self.graph_exec, host.node, host.params)
        for patch in self.device_patches:
            part = slots[patch.first_slot : patch.first_slot + patch.n_slots]
            struct.pack_into(f"<{len(part)}Q", patch.params.buffer, 16, *part)
            self.driver.graph_exec_kernel_node_set_params(self.graph_exec, patch.node, patch.params)
        self.counts.set_slots(slots)
        self.counts.patches += 1

    def fail(self, call: str, status: int) -> None:
        """Raise the error of a driver call that the compiled hit made."""
        raise self.driver.error(call, status)

    def native_patches(self) -> list[Any]:
        """Return the patches as addresses, for ``HitPlan``."""
        native = self.driver.native_params
        found: list[Any] = [
            (
                int(h.node),
                *native(h.params),
                [(o, s, d & _U64, n) for o, s, d, n in h.words],
                0,
                0,
                h,
            )
            for h in self.host_patches
        ]
        found += [
            (int(p.node), *native(p.params), None, p.first_slot, p.n_slots, p)
            for p in self.device_patches
        ]
        return found

    def open_native(self, entry: Any) -> None:
        """Let the compiled hit launch the graph, unless another thread has just destroyed it."""
        with self.held() as is_mine:
            if is_mine and not entry.is_open:
                self.native.append(entry)
                entry.is_open = True

    def close(self, keep: Sequence[Any] = ()) -> None:
        """Destroy the graph once its launches are done, and free what it owned.

        ``keep`` is kept until then.
        """
        self.keep = self.keep or keep
        host_functions.later(self._close)

    def _close(self) -> None:
        if self.lock.is_held_here():
            self.is_to_close = True
            return
        with self.lock:
            graph_exec, self.graph_exec = self.graph_exec, None
            for entry in self.native:
                entry.is_open = False
            self.native.clear()
        if graph_exec is None:
            return
        self.driver.wait_for_device()  # for what launches in flight have still to call, or to use
        self.library_memory.clear()
        self.host_calls.clear()
        self.driver.graph_exec_destroy(graph_exec)
        self.driver.graph_destroy(self.graph)
        for ptr in self.owned_ptrs:
            self.driver.mem_free(ptr)
        self.owned_ptrs.clear()
        self.modules.clear()
        self.keep = ()
