"""The same workloads with CUDA graphs as users of CuPy and of torch write them.

Each graph has static buffers and a memory pool of its own, as in the libraries' manuals.
Input: a workload and its arguments as CuPy arrays. Output: subjects.
Raises: ``ImportError`` where torch is not installed.
"""

from __future__ import annotations

from typing import Any

from perf.devices import CudaDevice
from perf.subjects import Arguments, Subject
from perf.workloads import Function

BARE = "bare cupy.cuda.Graph.launch"
CUPY_GRAPH = "CuPy graph, copies in and out"
TORCH_EAGER = "torch, eager"
TORCH_GRAPH = "torch.cuda.CUDAGraph, copy_ in and clone out"
TORCH_REPLAY = "torch.cuda.CUDAGraph.replay"


class CupyGraph:
    """A graph captured by CuPy, with static inputs and output."""

    def __init__(self, device: CudaDevice, fn: Function, inputs: tuple[Any, ...]) -> None:
        import cupy

        from graphjit._adapters import cupy_guards

        self.stream = device.stream
        self.pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(self.pool.malloc):
            self.inputs = [x.copy() for x in inputs]
            fn(*self.inputs)
            device.synchronize()
            # Without this CuPy refuses cuBLAS during capture, and the peer would not exist.
            with cupy_guards.lifted():
                self.stream.begin_capture()
                try:
                    self.output = fn(*self.inputs)
                finally:
                    self.graph = self.stream.end_capture()

    def with_copies(self) -> Function:
        """Return a function that takes fresh inputs and returns a fresh output."""
        launch, stream, output = self.graph.launch, self.stream, self.output
        first, nbytes = self.inputs[0].data, self.inputs[0].nbytes

        def call_with_one(x: Any) -> Any:
            first.copy_from_device_async(x.data, nbytes, stream)
            launch(stream)
            return output.copy()

        if len(self.inputs) == 1:
            return call_with_one
        second = self.inputs[1].data

        def call_with_two(x: Any, y: Any) -> Any:
            first.copy_from_device_async(x.data, nbytes, stream)
            second.copy_from_device_async(y.data, nbytes, stream)
            launch(stream)
            return output.copy()

        return call_with_two


class TorchGraph:
    """A graph captured by torch, with static inputs and output."""

    def __init__(self, fn: Function, inputs: tuple[Any, ...]) -> None:
        import torch

        self.inputs = [x.clone() for x in inputs]
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(3):
                fn(*self.inputs)
        current.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = fn(*self.inputs)

    def with_copies(self) -> Function:
        """Return a function that takes fresh inputs and returns a fresh output."""
        replay, output = self.graph.replay, self.output
        first = self.inputs[0]

        def call_with_one(x: Any) -> Any:
            first.copy_(x)
            replay()
            return output.clone()

        if len(self.inputs) == 1:
            return call_with_one
        second = self.inputs[1]

        def call_with_two(x: Any, y: Any) -> Any:
            first.copy_(x)
            second.copy_(y)
            replay()
            return output.clone()

        return call_with_two


def cupy_peers(device: CudaDevice, fn: Function, arguments: Arguments) -> list[Subject]:
    """Return the bare launch of a CuPy graph, and the same graph fed with copies."""
    graph = CupyGraph(device, fn, arguments[0])
    launch, stream = graph.graph.launch, device.stream
    return [
        Subject(BARE, launch, [(stream,)]),
        Subject(CUPY_GRAPH, graph.with_copies(), arguments, device.to_host),
    ]


def prepare_torch(device: CudaDevice) -> Any:
    """Import torch and let it run on the stream of the measurements, without autograd."""
    import torch

    torch.set_grad_enabled(False)
    torch.cuda.set_stream(torch.cuda.ExternalStream(device.stream.ptr))
    return torch


def to_torch(torch: Any, arguments: Arguments) -> Arguments:
    """Return the same memory as tensors."""
    return [tuple(torch.from_dlpack(x) for x in xs) for xs in arguments]


def torch_peers(
    device: CudaDevice,
    fn: Function,
    arguments: Arguments,
    max_eager_calls: int = 1_000_000,
) -> list[Subject]:
    """Return torch eager, its graph fed with copies, and the bare replay.

    ``fn`` works on tensors; ``arguments`` are CuPy arrays.
    """
    torch = prepare_torch(device)
    tensors = to_torch(torch, arguments)
    graph = TorchGraph(fn, tensors[0])

    def read(tensor: Any) -> Any:
        return tensor.cpu().numpy()

    return [
        Subject(TORCH_EAGER, fn, tensors, read, TORCH_EAGER, max_eager_calls),
        Subject(TORCH_GRAPH, graph.with_copies(), tensors, read, TORCH_EAGER),
        Subject(TORCH_REPLAY, graph.graph.replay, [()]),
    ]
