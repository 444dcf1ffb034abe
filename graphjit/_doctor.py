"""Examine a machine: driver, CUDA, device, CuPy, guards, patch kinds.

Input: nothing. Output: findings, each with its state and the cure for what is missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphjit._hit import IS_COMPILED


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    state: str
    is_good: bool = True
    cure: str = ""


def examine() -> list[Finding]:
    """Examine everything that graphjit needs on a GPU."""
    return [*_packages(), *_gpu()]


def _packages() -> Iterator[Finding]:
    import graphjit

    yield Finding("graphjit", graphjit.__version__)
    built = "built" if IS_COMPILED else "not built, or turned off by GRAPHJIT_PURE_PYTHON"
    cure = "" if IS_COMPILED else "install a C compiler, then graphjit again"
    yield Finding("compiled hit", built, IS_COMPILED, cure)
    for module, names, cure in (
        ("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "pip install cupy-cuda13x[ctk]"),
        ("cuda.bindings", ("cuda-bindings",), "pip install cuda-bindings"),
        ("cuda.core", ("cuda-core",), "pip install cuda-core"),
    ):
        version = next((v for name in names if (v := _version(name))), None)
        if version is not None and _can_be_found(module):
            yield Finding(module, version)
        else:
            yield Finding(module, "missing", False, cure)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _gpu() -> Iterator[Finding]:
    try:
        import cupy

        n_devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # noqa: BLE001 - any reason means: no GPU; it is shown
        yield Finding(
            "device",
            f"none: {error}".splitlines()[0],
            False,
            "install the NVIDIA driver; without a GPU use graphjit.testing's simulated arrays",
        )
        return
    yield from _driver_findings(n_devices)


def _driver_findings(n_devices: int) -> Iterator[Finding]:
    from graphjit._adapters import cupy_guards
    from graphjit._adapters.registry import cupy_adapter

    driver: Any = cupy_adapter().driver()
    version = driver.version()
    yield Finding("driver", f"for CUDA {version // 1000}.{version % 1000 // 10}")
    for device in range(n_devices):
        yield Finding(f"device {device}", driver.device_name(device))
    missing = cupy_guards.missing()
    yield Finding(
        "CuPy's guards",
        f"not found for {', '.join(missing)}" if missing else "can be lifted",
        not missing,
        "use CuPy 14; calls of these libraries cannot be captured with this version"
        * bool(missing),
    )
    yield Finding("host patch", "available")
    lacking = driver.missing_for_device_patch()
    yield Finding("device patch", "not available" if lacking else "available", not lacking, lacking)
