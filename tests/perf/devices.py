"""The device that is measured: CUDA through CuPy, or the simulated one.

Output: ``Device``: an array module, one stream that everything runs on, bytes in use, and
what the report has to say about the machine. Sizes are bytes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import graphjit

ROOT = Path(__file__).parents[2]
PACKAGES = ("cupy", "cupy-cuda12x", "cupy-cuda13x", "torch", "numpy", "cuda-bindings", "cuda-core")


class Device(Protocol):
    """A device with an array module."""

    name: str
    xp: Any
    """The array module."""
    synchronize: Callable[[], None]
    """Waits for the stream."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Make the stream of the measurements current."""

    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...
    def used_nbytes(self) -> int:
        """Bytes that arrays hold in the library's pool."""

    def device_used_nbytes(self) -> int:
        """Bytes of the device that are in use, after the pool gave back what it does not use."""

    def describe(self, commit: str | None) -> dict[str, str]:
        """Name the device, the driver and all versions."""


class CudaDevice:
    """The current CUDA device, through CuPy."""

    name = "cuda"

    def __init__(self) -> None:
        import cupy

        self.xp: Any = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.synchronize: Callable[[], None] = self.stream.synchronize

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.stream:
            yield
            self.synchronize()

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = array.get()
        return host

    def used_nbytes(self) -> int:
        return int(self.xp.get_default_memory_pool().used_bytes())

    def device_used_nbytes(self) -> int:
        self.xp.cuda.runtime.deviceSynchronize()
        self.xp.get_default_memory_pool().free_all_blocks()
        free, total = self.xp.cuda.runtime.memGetInfo()
        return int(total - free)

    def describe(self, commit: str | None) -> dict[str, str]:
        runtime = self.xp.cuda.runtime
        device_name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        driver = f"{_driver_release()}, CUDA {_cuda(runtime.driverGetVersion())}"
        runtime_version = f"CUDA {_cuda(runtime.runtimeGetVersion())}"
        return {"device": device_name, "driver": driver, "runtime": runtime_version} | _host(commit)


class SimulatedDevice:
    """The device of ``graphjit.testing``; its times say nothing."""

    name = "simulated"

    def __init__(self) -> None:
        from graphjit.testing import simulated

        self.xp: Any = simulated
        self.stream = simulated.Stream(non_blocking=True)
        self.synchronize: Callable[[], None] = self.stream.synchronize

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.stream:
            yield

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = self.xp.asnumpy(array)
        return host

    def used_nbytes(self) -> int:
        from graphjit._adapters.simulated_device import pool

        return pool.used_nbytes

    def device_used_nbytes(self) -> int:
        from graphjit._adapters.simulated_device import driver

        return int(driver().memory.live_nbytes)

    def describe(self, commit: str | None) -> dict[str, str]:
        return {"device": "simulated device (its times say nothing)"} | _host(commit)


def make_device(name: str) -> Device:
    """Return the device of that name."""
    if name == "cuda":
        return CudaDevice()
    return SimulatedDevice()


def _host(commit: str | None) -> dict[str, str]:
    """Describe what is the same for both devices."""
    from graphjit._hit import IS_COMPILED

    found = {
        "processor": _processor(),
        "Python": platform.python_version(),
        "graphjit": graphjit.__version__,
        "commit": commit or _commit(),
        "hit path": "compiled" if IS_COMPILED else "Python",
    }
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver_release() -> str:
    """Return the release of the kernel module, such as 580.95."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"(\d{3}\.\d+(\.\d+)?)", path.read_text()) if path.is_file() else None
    return found[1] if found else "unknown release"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", path.read_text()) if path.is_file() else None
    return f"{found[1] if found else platform.machine()}, {os.cpu_count()} threads"


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "graphjit")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
