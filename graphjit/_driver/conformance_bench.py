"""What the checks of a driver work with: a stream, and graphs and memory that go away again.

Input: a driver. Only the kernels that graphjit brings along are used.
Output: ``Bench``, which a check is given.
Raises: ``AssertionError`` when a driver allows what it should refuse.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from graphjit._driver.interface import COPY_LAYOUT, FILL_LAYOUT, Driver, KernelLaunch
from graphjit._nodes import CapturedGraph, KernelNode
from graphjit.errors import DriverError

Check = Callable[["Bench"], None]


@dataclass(slots=True)
class Bench:
    """A driver, a stream, and what a check made on them."""

    driver: Driver
    wait: Callable[[int, int], None] | None = None
    """Lets a stream wait for the work of another (cuEventRecord, cuStreamWaitEvent)."""
    prepare_thread: Callable[[], None] | None = None
    """Makes the device usable in a new thread (cuCtxSetCurrent)."""
    stream: int = 0
    _ptrs: list[int] = field(default_factory=list)
    _streams: list[int] = field(default_factory=list)
    _execs: list[Any] = field(default_factory=list)
    _graphs: list[Any] = field(default_factory=list)

    def __enter__(self) -> Bench:
        self.stream = self.new_stream()
        return self

    def __exit__(self, *error: object) -> None:
        driver = self.driver
        for stream in self._streams:
            driver.stream_abandon_capture(stream)
            driver.stream_synchronize(stream)
        for graph_exec in self._execs:
            driver.graph_exec_destroy(graph_exec)
        for graph in self._graphs:
            driver.graph_destroy(graph)
        for stream in self._streams:
            driver.stream_destroy(stream)
        for ptr in self._ptrs:
            driver.mem_free(ptr)

    def new_stream(self, priority: int = 0) -> int:
        """Create a stream for the time of the check."""
        self._streams.append(self.driver.stream_create(priority=priority))
        return self._streams[-1]

    def memory(self, data: bytes) -> int:
        """Allocate memory with given contents."""
        self._ptrs.append(self.driver.mem_alloc(len(data)))
        self.driver.memcpy_htod(self._ptrs[-1], data)
        return self._ptrs[-1]

    def read(self, ptr: int, nbytes: int) -> bytes:
        """Wait for the stream and read memory."""
        self.driver.stream_synchronize(self.stream)
        return self.driver.memcpy_dtoh(ptr, nbytes)

    def fill(self, dst_ptr: int, value: int, nbytes: int) -> tuple[KernelLaunch, bytes]:
        """Return a launch that fills bytes."""
        packed = struct.pack("<6Q", dst_ptr, value, 1, nbytes, 1, nbytes)
        return self._launch("fill", FILL_LAYOUT), packed

    def copy(self, dst_ptr: int, src_ptr: int, nbytes: int) -> tuple[KernelLaunch, bytes]:
        """Return a launch that copies bytes."""
        packed = struct.pack("<9Q", dst_ptr, src_ptr, nbytes, 1, 1, 0, 0, 0, 0)
        return self._launch("copy", COPY_LAYOUT), packed

    def _launch(self, name: str, layout: tuple[tuple[int, int], ...]) -> KernelLaunch:
        function = self.driver.builtin_kernel(name)
        return KernelLaunch(function, (1, 1, 1), (256, 1, 1), 0, layout)

    def refused_in_other_thread(self, call: Callable[[], object]) -> str:
        """Return the name of the error that a call raises in another thread."""
        names: list[str] = []

        def work() -> None:
            if self.prepare_thread is not None:
                self.prepare_thread()
            names.append(refused(call))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert names, "the driver allowed what it should refuse"
        return names[0]

    def capture(
        self, *launches: tuple[KernelLaunch, bytes], mode: str = "thread_local"
    ) -> CapturedGraph:
        """Capture launches, in order, on the stream."""
        self.driver.stream_begin_capture(self.stream, mode)
        for launch in launches:
            self.driver.launch_kernel(*launch, self.stream)
        return self.end_capture()

    def end_capture(self) -> CapturedGraph:
        """End the capture and read its graph."""
        self._graphs.append(self.driver.stream_end_capture(self.stream))
        return self.driver.graph_read(self._graphs[-1])

    def graph(self, *launches: tuple[KernelLaunch, bytes]) -> tuple[Any, list[Any], list[Any]]:
        """Build a chain; return the graph, its nodes, and their parameters."""
        graph = self.driver.graph_create()
        self._graphs.append(graph)
        params = [self.driver.kernel_node_params(*launch) for launch in launches]
        nodes = [self.driver.graph_add_kernel_node(graph, p, None) for p in params]
        edges = [(a, b, None) for a, b in pairwise(nodes)]
        self.driver.graph_add_dependencies(graph, edges)
        return graph, nodes, params

    def instantiate(
        self, graph: Any, *, upload: bool = True, use_node_priority: bool = False
    ) -> Any:
        """Instantiate a graph, and upload it."""
        graph_exec = self.driver.graph_instantiate(graph, use_node_priority=use_node_priority)
        self._execs.append(graph_exec)
        if upload:
            self.driver.graph_upload(graph_exec, self.stream)
        return graph_exec

    def run(self, graph_exec: Any) -> None:
        """Launch and wait."""
        self.driver.graph_launch(graph_exec, self.stream)
        self.driver.stream_synchronize(self.stream)

    def patch(
        self, graph: Any, rows: list[tuple[int, int, int, int]], slots: list[int], before: Any
    ) -> tuple[Any, Any]:
        """Add a patch node; rows are (target, param_offset, slot, delta)."""
        u64 = (1 << 64) - 1
        table = b"".join(struct.pack("<QIIQ", t, o, s, d & u64) for t, o, s, d in rows)
        layout = ((0, 8), (8, 4), (16, 32))
        packed = struct.pack("<QII4Q", self.memory(table), len(rows), 0, *slots)
        params = self.driver.kernel_node_params(self._launch("patch_4", layout), packed)
        node = self.driver.graph_add_kernel_node(graph, params, None)
        self.driver.graph_add_dependencies(graph, [(node, before, None)])
        return node, params


def refused(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    try:
        call()
    except DriverError as error:
        return error.name
    raise AssertionError("the driver allowed what it should refuse")


def kernel_nodes(graph: CapturedGraph) -> list[KernelNode]:
    """Return the kernel nodes of a graph that has no others."""
    nodes = [node for node in graph.nodes if isinstance(node, KernelNode)]
    assert len(nodes) == len(graph.nodes)
    return nodes
