"""What a script needs of an array library: arrays from seeds, streams, memory, bits.

Input: the name ``"simulated"`` or ``"cuda"``. Output: a ``Backend``.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from stress.operations import CONTROL, CUDA, HOST, REFUSED, SHARED, Operation


class Held(NamedTuple):
    """What is alive: memory of arrays, graphs, and other memory of the device."""

    array_nbytes: int
    graph_execs: int
    other_nbytes: int


class Backend:
    """The simulated arrays."""

    name = "simulated"
    operations: tuple[Operation, ...] = (*SHARED, *CONTROL, *HOST, *REFUSED)

    def __init__(self) -> None:
        from graphjit.testing import simulated

        self.xp: Any = simulated
        self.streams = [simulated.Stream(non_blocking=True) for _ in range(2)]
        self.array_type: type = simulated.Array

    def extras(self) -> dict[str, Any]:
        """Return the names that a script may use besides ``xp``."""
        return {}

    def get(self, array: Any) -> np.ndarray:
        """Copy to the host."""
        return array.get()

    def synchronize(self) -> None:
        """Wait for the device."""
        self.xp.synchronize()

    def synchronize_stream(self) -> None:
        """Wait for the current stream."""
        self.xp.synchronize()

    @contextmanager
    def on_stream(self, k: int):
        """Make another stream current; what comes before and after is ordered with it."""
        self.synchronize()
        with self.streams[k]:
            yield
        self.synchronize()

    def lost(self) -> str:
        """Return the error that the device cannot recover from, if there is one."""
        return ""

    def poison(self) -> None:
        """Let new arrays hold garbage; the simulated pool does that by itself."""

    def held(self) -> Held:
        """Return what is alive, after a collection."""
        from helpers.flow_checks import held_on_device

        gc.collect()
        held = held_on_device()
        return Held(held.array_nbytes, held.graph_execs, held.other_nbytes)


class CudaBackend(Backend):
    """CuPy."""

    name = "cuda"
    operations = (*SHARED, *CONTROL, *HOST, *REFUSED, *CUDA, *CUDA)

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        self.array_type = cupy.ndarray
        self.fused = cupy.fuse()(_fused)

    def extras(self) -> dict[str, Any]:
        return {"rng": self.xp.random.default_rng(5), "fused": self.fused}

    def get(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)

    def synchronize(self) -> None:
        self.xp.cuda.Device().synchronize()

    def synchronize_stream(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def lost(self) -> str:
        try:
            self.xp.cuda.runtime.streamQuery(0)  # does not wait, so that launches may overlap
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            return str(error)
        return ""

    def poison(self) -> None:
        """Fill what the pool will hand out next with the bits of a NaN."""
        cupy = self.xp
        blocks = [cupy.empty(nbytes, "u1") for nbytes in (512, 1024, 2048, 4096) for _ in range(6)]
        for block in blocks:
            block.data.memset_async(0xFF, block.nbytes)

    def held(self) -> Held:
        """Return what is alive; the memory of the driver that the pool does not have is last."""
        cupy = self.xp
        gc.collect()
        self.synchronize()
        cupy.fft.config.get_plan_cache().clear()  # plans hold memory of the pool
        pool = cupy.get_default_memory_pool()
        used = pool.used_bytes()
        pool.free_all_blocks()
        free, total = cupy.cuda.runtime.memGetInfo()
        return Held(used, live_executables(), total - free - pool.total_bytes())


def live_executables() -> int:
    """Return how many executable graphs Python objects hold."""
    return sum(type(item).__name__ == "Executable" for item in gc.get_objects())


def _fused(x: Any, y: Any) -> Any:
    return x * 2 + y * y


def make_backend(name: str) -> Backend:
    """Return the backend of a name."""
    return {"simulated": Backend, "cuda": CudaBackend}[name]()


def host_data(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return random numbers, the same for the same seed."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    values = rng.standard_normal(shape) * 2
    if kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    if kind in "iu":
        values = rng.integers(-5, 6, shape)
    if kind == "b":
        values = rng.integers(0, 2, shape)
    return np.asarray(values).astype(dtype)


LAYOUTS = ("C", "F", "step", "reverse", "offset", "broadcast")


def lay_out(to_device: Any, host: np.ndarray, layout: str) -> Any:
    """Put host data into an array of a layout."""
    if not host.ndim or layout == "C":
        return to_device(host)
    if layout == "F":
        return to_device(np.ascontiguousarray(host.T)).T
    if layout == "step":
        return to_device(np.repeat(host, 2, 0))[::2]
    if layout == "reverse":
        return to_device(np.ascontiguousarray(host[::-1]))[::-1]
    if layout == "offset":
        return to_device(np.concatenate([host.ravel()[:1], host.ravel()]))[
            -host.size or 1 :
        ].reshape(host.shape)
    return to_device(host)
