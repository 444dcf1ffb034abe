"""Compile, link, cache on disk and load the kernels that graphjit adds to graphs.

Input: ``_kernels.cu`` and the architecture of the current device.
Output: CUfunction handles by name; cubins in ``$GRAPHJIT_CACHE_DIR`` (default
``$XDG_CACHE_HOME/graphjit`` or ``~/.cache/graphjit``).
Raises: ``DriverError`` when NVRTC, the linker or the loader refuse.
Source: NVRTC and nvJitLink through cuda.core ``Program`` and ``Linker``; the patch kernels
need ``cudaGraphKernelNodeSetParam`` of libcudadevrt (CUDA 12.4).
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import sys
from pathlib import Path
from typing import Any

from graphjit._whole_file import whole_file
from graphjit.errors import GraphjitError

_NEEDS_LIBRARY = (
    "need the static library libcudadevrt.a, which was not found; install it with `pip install "
    "nvidia-cuda-runtime` (or the CUDA toolkit, and set CUDA_HOME)."
)
PATCH_MISSING = f"Device patches {_NEEDS_LIBRARY} Until then graphs are patched from the host."
CONDITIONALS_MISSING = f"Conditional nodes {_NEEDS_LIBRARY}"


def cache_directory() -> Path:
    """Return the folder of compiled kernels; it may not exist yet."""
    if explicit := os.environ.get("GRAPHJIT_CACHE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "graphjit"


def find_device_runtime() -> Path | None:
    """Find libcudadevrt.a in installed wheels or a CUDA toolkit."""
    from cuda import pathfinder

    find = getattr(pathfinder, "find_static_lib", None)
    if find is not None:
        try:
            return Path(find("cudadevrt"))
        except Exception:  # noqa: BLE001 - several types mean "not here"; look further
            pass
    places = [Path(p) / "nvidia" for p in sys.path if p]
    places += [Path(os.environ[k]) for k in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(k)]
    places.append(Path("/usr/local/cuda"))
    for place in places:
        for found in place.glob("**/libcudadevrt.a") if place.is_dir() else ():
            return found
    return None


def load_cubin(arch: str, *, patch: bool) -> bytes:
    """Return the cubin of the patch kernels or of the copy and fill kernels."""
    source = importlib.resources.files("graphjit._driver").joinpath("_kernels.cu").read_text()
    library = find_device_runtime() if patch else None
    if patch and library is None:
        raise GraphjitError(PATCH_MISSING)
    version = _toolchain_version()
    key = hashlib.sha256(f"{source}|{arch}|{patch}|{version}".encode()).hexdigest()[:32]
    path = cache_directory() / f"{'patch' if patch else 'copy'}-{arch}-{key}.cubin"
    if path.is_file():
        return path.read_bytes()
    cubin = _compile(source, arch, library)
    _write_atomically(path, cubin)
    return cubin


def _toolchain_version() -> str:
    from cuda.bindings import nvrtc

    return str(nvrtc.nvrtcVersion()[1:])


def _compile(source: str, arch: str, device_runtime: Path | None) -> bytes:
    from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions

    if device_runtime is None:
        return bytes(Program(source, "c++", ProgramOptions(arch=arch)).compile("cubin").code)
    options = ProgramOptions(
        arch=arch, relocatable_device_code=True, define_macro=["GRAPHJIT_PATCH"]
    )
    compiled = Program(source, "c++", options).compile("cubin")
    library = ObjectCode.from_library(str(device_runtime))
    linker: Any = Linker(compiled, library, options=LinkerOptions(arch=arch))
    return bytes(linker.link("cubin").code)


def _write_atomically(path: Path, data: bytes) -> None:
    """Write so that another process sees the whole file or none; a read-only place is fine."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            # Code that processes run: nobody else's to write, whatever the umask.
            partial.touch(mode=0o600, exist_ok=False)
            partial.write_bytes(data)
    except OSError:
        pass  # the cache saves 50 ms a process, nothing depends on it
