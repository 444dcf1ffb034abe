"""The calls that graphjit makes of a CUDA driver, in CUDA's names, and nothing else.

``_driver/cuda.py`` answers them with cuda.bindings, ``_driver/simulated.py`` in plain
Python. ``graphjit.testing.check_driver`` is the conformance suite for both.
Input / Output: addresses and sizes are ``int`` (bytes); handles are opaque.
Raises: ``DriverError`` with the CUDA function, the name of the error and its code.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from graphjit._driver.code_interface import CodeInterface
from graphjit._nodes import CapturedGraph, Dim3, KernelNode, ParamLayout

CAPTURE_MODES = ("global", "thread_local", "relaxed")

# The kernels that graphjit brings along, and the layout of their parameters as
# (offset, size) pairs. `patch_<n>` carries n slots by value.
PATCH_SLOT_CLASSES = (4, 8, 32, 128, 448)
PATCH_TABLE_ENTRY_NBYTES = 24
"""``{u64 target; u32 param_offset; u32 slot; u64 delta}``; see ``_patch_kernel.cu``."""
PATCH_MEMORY_WORD = 0xFFFF_FFFF
"""``param_offset`` that says: ``target`` is the address of a word in device memory."""
PATCH_SIZE_SHIFT = 24
"""The upper byte of ``param_offset`` is the number of bytes to write; 0 stands for 8."""
COPY_LAYOUT = tuple((8 * i, 8) for i in range(9))
"""dst, src, width, height, depth, dst_pitch, src_pitch, dst_slice_pitch, src_slice_pitch."""
COPY_SRC_OFFSET = COPY_LAYOUT[1][0]
FILL_LAYOUT = tuple((8 * i, 8) for i in range(6))
"""dst, value, element_size, width, height, pitch."""
MAX_FILLS = 16
FILLS_LAYOUT = ((0, 48 * MAX_FILLS),)
"""One fill after the other; block i of the grid does the i-th."""
CONDITION_LAYOUT = ((0, 8), (8, 8), (16, 4), (20, 4), (24, 8))
"""handle, address of an integer, its form, mode, n. ``CONDITION_*`` are forms and modes."""
CONDITION_SIGNED = 1 << 8
"""Added to the bytes of the integer, 1, 2, 4 or 8, in the form."""
CONDITION_TRUTH, CONDITION_INDEX, CONDITION_IS_INDEX = range(3)
"""Modes: 0 or 1; the integer, at least 0 and less than n; 1 if that is ``mode >> 8``, else 0."""
CONDITIONAL_TYPES = ("if", "while", "switch")
"""CU_GRAPH_COND_TYPE_*"""
CUDA_WITH_SWITCH = 12080
"""Version from which ``"if"`` may have two bodies, and ``"switch"`` exists."""

CUDA_WITH_FLOW_IN_CHILDREN = 13000
"""Version from which conditional nodes in child graphs are known to work."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """What a kernel node launches, apart from the contents of its parameters."""

    function: Any
    grid_dim: Dim3
    block_dim: Dim3
    shared_mem_bytes: int
    param_layout: ParamLayout


Launch = KernelLaunch | KernelNode
"""A captured node says what it launches, too."""


class KernelNodeParams(Protocol):
    """A CUDA_KERNEL_NODE_PARAMS that stays alive, and the packed bytes it points at."""

    buffer: bytearray | Any
    """Writable buffer of ``params`` bytes; the driver reads it at every use."""


class Driver(CodeInterface, Protocol):
    """One CUDA context of one device, as graphjit sees it."""

    name: str
    """``"cuda"`` or ``"simulated"``."""

    # -- what this driver is and can do
    def version(self) -> int:
        """Return the driver's CUDA version, such as 13000 (cuDriverGetVersion)."""

    def device_name(self, device: int) -> str:
        """Return the name of a device (cuDeviceGetName)."""

    def missing_for_device_patch(self) -> str:
        """Say what the device patch lacks here and how to get it; empty if nothing."""

    def missing_for_conditionals(self) -> str:
        """Say what conditional nodes lack here and how to get it; empty if nothing."""

    # -- memory
    def mem_address_reserve(self, nbytes: int) -> int:
        """Reserve addresses that hold no memory (cuMemAddressReserve)."""

    def mem_alloc(self, nbytes: int) -> int:
        """Allocate device memory; legal while a stream of this thread is capturing (cuMemAlloc)."""

    def mem_free(self, ptr: int) -> None:
        """Free what ``mem_alloc`` gave, once work that may use it is done (cuMemFree)."""

    def memcpy_htod(self, dst_ptr: int, data: bytes) -> None:
        """Copy to the device and wait; legal while a stream of this thread is capturing."""

    def memcpy_dtoh(self, src_ptr: int, nbytes: int) -> bytes:
        """Copy from the device and wait."""

    def host_alloc(self, nbytes: int) -> int:
        """Allocate page-locked memory, at an address that kernels use, too (cuMemHostAlloc)."""

    def host_free(self, ptr: int) -> None:
        """Free what ``host_alloc`` gave, once work that may use it is done (cuMemFreeHost)."""

    def host_view(self, ptr: int, nbytes: int, owner: object) -> npt.NDArray[np.uint8]:
        """Return page-locked memory as bytes, which keep ``owner`` alive."""

    def wait_for_device(self) -> None:
        """Wait for all work; legal while any stream is capturing."""

    def mem_get_address_range(self, ptr: int) -> tuple[int, int] | None:
        """Return (base, nbytes) of the allocation around ``ptr``, or None.

        cuMemGetAddressRange.
        """

    # -- streams and capture
    def stream_create(self, *, priority: int = 0) -> int:
        """Create a stream that does not wait for the legacy stream (cuStreamCreateWithPriority).

        Lower numbers are higher priorities.
        """

    def stream_priority(self, stream: int) -> int:
        """Return the priority of a stream (cuStreamGetPriority)."""

    def stream_destroy(self, stream: int) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...
    def stream_begin_capture(self, stream: int, mode: str) -> None:
        """``mode`` is one of CAPTURE_MODES (cuStreamBeginCapture)."""

    def stream_end_capture(self, stream: int) -> Any:
        """Return the captured graph (cuStreamEndCapture)."""

    def stream_abandon_capture(self, stream: int) -> None:
        """End a capture whose graph nobody wants, invalidated or not; never raises for that."""

    def relaxed(self) -> AbstractContextManager[None]:
        """Let this thread load kernels and allocate memory while it captures.

        cuThreadExchangeStreamCaptureMode.
        """

    def stream_is_capturing(self, stream: int) -> bool:
        """True while active *or invalidated* (cuStreamIsCapturing)."""

    def stream_count_captured(self, stream: int) -> int:
        """Return how many nodes the graph has that a stream captures; 0 if it is invalidated.

        cuStreamGetCaptureInfo, cuGraphGetNodes.
        """

    # -- events
    def event_create(self, *, timing: bool = False) -> int:
        """Create an event, by default one that takes no time (cuEventCreate)."""

    def event_elapsed_us(self, begin: int, end: int) -> float:
        """Return the time between two events that have been recorded (cuEventElapsedTime)."""

    def event_destroy(self, event: int) -> None:
        """Destroy an event; who waits for it goes on waiting (cuEventDestroy)."""

    def event_record(self, event: int, stream: int) -> None:
        """Note what the stream has been given so far (cuEventRecord)."""

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Let what the stream is given next wait for what was noted (cuStreamWaitEvent)."""

    def event_record_external(self, event: int, stream: int) -> None:
        """Record an event, by a node of its own if the stream captures.

        cuEventRecordWithFlags with CU_EVENT_RECORD_EXTERNAL.
        """

    def stream_wait_event_external(self, stream: int, event: int) -> None:
        """Wait for an event, by a node of its own if the stream captures.

        cuStreamWaitEvent with CU_EVENT_WAIT_EXTERNAL.
        """

    # -- host functions
    def launch_host_function(self, number: int, stream: int) -> None:
        """Call what is armed under a number in stream order, or add a node that does.

        cuLaunchHostFunc; see ``host_functions.py``.
        """

    # -- work on streams
    def launch_kernel(self, launch: KernelLaunch, params: bytes, stream: int) -> None:
        """Launch a kernel on a stream, capturing or not (cuLaunchKernel)."""

    # -- graphs
    def graph_read(self, graph: Any) -> CapturedGraph:
        """Copy nodes, parameters and edges out of a graph; child graphs are inlined."""

    def graph_create(self) -> Any: ...
    def graph_destroy(self, graph: Any) -> None: ...
    def kernel_node_params(self, launch: Launch, params: bytes) -> Any:
        """Build ``KernelNodeParams`` that own a copy of ``params``."""

    def graph_add_kernel_node(
        self, graph: Any, params: Any, attributes_of: KernelNode | None
    ) -> Any:
        """Add a kernel node without dependencies, with the attributes of a captured node."""

    def graph_add_empty_node(self, graph: Any) -> Any: ...
    def graph_add_host_node(self, graph: Any, number: int) -> Any:
        """Add a node that calls a function (cuGraphAddHostNode)."""

    def graph_add_event_node(self, graph: Any, event: int, *, is_record: bool) -> Any:
        """Add a node that records an event, or waits for one.

        cuGraphAddEventRecordNode, cuGraphAddEventWaitNode.
        """

    def graph_add_dependencies(self, graph: Any, edges: list[tuple[Any, Any, Any]]) -> None:
        """Add edges (from node, to node, edge data or None) (cuGraphAddDependencies)."""

    def graph_conditional_handle_create(self, graph: Any) -> int:
        """Create the handle of a conditional node of the graph, 0 at the beginning of a launch.

        cuGraphConditionalHandleCreate.
        """

    def graph_add_conditional_node(
        self, graph: Any, handle: int, kind: str, n_bodies: int
    ) -> tuple[Any, list[Any]]:
        """Add a conditional node without dependencies; return it and its empty body graphs.

        ``kind`` is one of CONDITIONAL_TYPES (cuGraphAddNode).
        """

    def graph_add_child_graph_node(self, graph: Any) -> tuple[Any, Any]:
        """Add a child graph node without dependencies; return it and its empty graph.

        cuGraphAddChildGraphNode, cuGraphChildGraphNodeGetGraph.
        """

    def graph_node_make_device_updatable(self, node: Any) -> int:
        """Set CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE; return the device node handle."""

    def graph_instantiate(self, graph: Any, *, use_node_priority: bool = False) -> Any:
        """Instantiate a graph (cuGraphInstantiate).

        Its nodes have the priority of the stream that it is launched on, or each that of the
        stream that it was captured on (CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY).
        """

    def graph_upload(self, graph_exec: Any, stream: int) -> None: ...
    def graph_launch(self, graph_exec: Any, stream: int) -> None: ...
    def graph_exec_kernel_node_set_params(
        self, graph_exec: Any, node: Any, params: Any
    ) -> None: ...
    def graph_exec_destroy(self, graph_exec: Any) -> None:
        """Destroy once launches in flight are done; returns at once (cuGraphExecDestroy)."""

    # -- for the compiled hit; a driver without addresses has none
    def entry_points(self) -> dict[str, int] | None:
        """Return addresses of the driver functions that a hit calls (cuGetProcAddress)."""

    def native_params(self, params: Any) -> tuple[int, int]:
        """Return the addresses of CUDA_KERNEL_NODE_PARAMS and of its bytes."""

    def native_context(self) -> int:
        """Return the address of the CUcontext."""

    def error(self, call: str, status: int) -> Exception:
        """Return the error of a call that gave ``status``."""
