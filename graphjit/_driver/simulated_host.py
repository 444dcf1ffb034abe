"""What a graph and the host do together on the simulated device.

Input / Output: as ``_driver/interface.py``.
Raises: ``DriverError`` with CUDA's names and codes.
Source: cuMemHostAlloc, cuLaunchHostFunc, cuGraphAddHostNode, cuEventRecordWithFlags.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from graphjit._driver import host_functions
from graphjit._driver.host_functions import owned_bytes
from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_graph import SimulatedNode
from graphjit._driver.simulated_memory import Bytes
from graphjit._driver.simulated_runtime import SimulatedRuntime


class SimulatedHost(SimulatedRuntime):
    """Page-locked memory, host functions and events that graphs record."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._times: dict[int, float] = {}
        """Event -> when a graph has recorded it."""

    # -- page-locked memory: kernels reach all memory, and so does the host

    def host_alloc(self, nbytes: int) -> int:
        return self.memory.allocate(nbytes)

    def host_free(self, ptr: int) -> None:
        self.memory.free(ptr)

    def host_view(self, ptr: int, nbytes: int, owner: object) -> Bytes:
        view = self.memory.view(ptr, nbytes)
        return owned_bytes(view.ctypes.data, nbytes, (owner, view))

    # -- host functions

    def launch_host_function(self, number: int, stream: int) -> None:
        capture = self._active_capture(stream, "cuLaunchHostFunc")
        if capture is not None:
            capture.append(stream, "host", None, {"number": number})
        else:
            self._call(number)

    def graph_add_host_node(self, graph: Any, number: int) -> SimulatedNode:
        return graph.add("host", number=number)  # type: ignore[no-any-return]

    # -- events

    def event_record_external(self, event: int, stream: int) -> None:
        capture = self._active_capture(stream, "cuEventRecordWithFlags")
        if capture is None:
            self.event_record(event, stream)
        else:
            self._recorded(event, "cuEventRecordWithFlags")
            capture.append(stream, "event_record", None, {"event": event})

    def stream_wait_event_external(self, stream: int, event: int) -> None:
        capture = self._active_capture(stream, "cuStreamWaitEvent")
        if capture is None:
            self.stream_wait_event(stream, event)
        else:
            self._recorded(event, "cuStreamWaitEvent")
            capture.append(stream, "event_wait", None, {"event": event})

    def graph_add_event_node(self, graph: Any, event: int, *, is_record: bool) -> SimulatedNode:
        if event not in self._events:
            raise failure("cuGraphAddNode", "INVALID_VALUE", f"event {event}")
        kind = "event_record" if is_record else "event_wait"
        return graph.add(kind, event=event)  # type: ignore[no-any-return]

    def execute_on_host(self, node: SimulatedNode) -> None:
        """Execute a node that is no work of the device's."""
        if node.kind == "host":
            self._call(node.fields["number"])
        else:
            event = node.fields["event"]
            self._recorded(event, "cuGraphLaunch")
            if node.kind == "event_record":
                self._times[event] = time.perf_counter()

    def _call(self, number: int) -> None:
        """Call a host function, as CUDA does: in another thread, which may use no CUDA."""

        def work() -> None:
            self._thread.runs_host_function = True
            host_functions.call(number)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def event_elapsed_us(self, begin: int, end: int) -> float:
        for event in (begin, end):
            if event not in self._times:
                raise failure("cuEventElapsedTime", "INVALID_HANDLE", f"event {event}")
        return 1e6 * (self._times[end] - self._times[begin])

    def event_destroy(self, event: int) -> None:
        super().event_destroy(event)
        self._times.pop(event, None)
