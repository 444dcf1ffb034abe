"""Code of kernels on a CUDA device: that of graphjit's own, and that of kernels in files.

Input / Output: as ``_driver/interface.py``.
Raises: ``DriverError``.
Source: cuModuleLoadData, cuModuleGetFunction, cuFuncGetModule, cuModuleGetGlobal,
cuGraphKernelNodeGetAttribute; cubins are ELF files, read with pyelftools.
"""

from __future__ import annotations

import ctypes
import io
import struct
import threading
from collections.abc import Iterator
from typing import Any

from cuda.bindings import driver as cu

from graphjit._driver import cuda_kernels
from graphjit._driver.cuda_check import check
from graphjit._driver.cuda_host import CudaHost
from graphjit._driver.interface import PATCH_SLOT_CLASSES
from graphjit.errors import ExportError

_NEED_DEVICE_RUNTIME = (*(f"patch_{n}" for n in PATCH_SLOT_CLASSES), "set_condition")
_SHARED_MEM_NBYTES = 48 << 10
"""What every kernel may have without asking."""
_ATTRIBUTES = {
    "COOPERATIVE": "<i",
    "CLUSTER_DIMENSION": "<3I",
    "PRIORITY": "<i",
}
"""What a node from a file is given again, and how it lies in a CUlaunchAttributeValue."""
_WITHOUT = ((0,), (0, 0, 0), (1, 1, 1))
"""Values that say nothing; clusters of one block are none."""
_VALUE_NBYTES = 64
_COMPILERS_OWN = ("__cudart_", "$str", ".nv.")
"""Tables and texts that the compiler adds; no program changes them."""
_NEEDS_ELFTOOLS = "Variables in a kernel's code are found with pyelftools: pip install pyelftools"


class CudaCode(CudaHost):
    """Modules and functions of one device."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    def target(self) -> str:
        attributes = cu.CUdevice_attribute
        major, minor = (
            check(cu.cuDeviceGetAttribute(attribute, self._cu_device), "cuDeviceGetAttribute")
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        return f"sm_{major}{minor}"

    # -- the kernels that graphjit brings along

    def builtin_kernel(self, name: str) -> Any:
        with self._lock:
            if name not in self._functions:
                self._load(patch=name in _NEED_DEVICE_RUNTIME)
            return self._functions[name]

    def builtin_name(self, function: Any) -> str | None:
        with self._lock:
            handles = {known[1]: name for name, known in self._functions.items()}
        return handles.get(function[1])

    def _load(self, *, patch: bool) -> None:
        module = self.load_code(cuda_kernels.load_cubin(self.target(), patch=patch))
        for name in _NEED_DEVICE_RUNTIME if patch else ("copy", "fill", "fills"):
            self._functions[name] = self.code_function(module, f"graphjit_{name}", 0)
        self._modules.append(module)

    # -- code in files

    def load_code(self, code: bytes) -> Any:
        with self.relaxed():
            return check(cu.cuModuleLoadData(code), "cuModuleLoadData")

    def unload_code(self, module: Any) -> None:
        self.wait_for_device()
        with self.relaxed():
            check(cu.cuModuleUnload(module), "cuModuleUnload")

    def code_function(self, module: Any, name: str, shared_mem_bytes: int) -> Any:
        with self.relaxed():
            function = check(cu.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction")
            if shared_mem_bytes > _SHARED_MEM_NBYTES:
                limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                check(
                    cu.cuFuncSetAttribute(function, limit, shared_mem_bytes), "cuFuncSetAttribute"
                )
        return "func", int(function), 0

    def module_of(self, function: Any) -> int | None:
        kind, handle, _ = function
        if kind != "func":
            return None
        error, module = cu.cuFuncGetModule(handle)
        return int(module) if error == cu.CUresult.CUDA_SUCCESS else None

    def changed_variable(self, module: int, code: bytes) -> str | None:
        for name, nbytes, initial in _variables(code):
            error, ptr, found_nbytes = cu.cuModuleGetGlobal(module, name.encode())
            if error != cu.CUresult.CUDA_SUCCESS or int(found_nbytes) != nbytes:
                return name  # a static one: nobody can say what it holds
            if self.memcpy_dtoh(int(ptr), nbytes) != initial:
                return name
        return None

    # -- attributes of kernel nodes

    def kernel_node_attributes(self, node: Any) -> tuple[tuple[str, bytes], ...]:
        found = []
        for name, form in _ATTRIBUTES.items():
            call = "cuGraphKernelNodeGetAttribute"
            value = check(cu.cuGraphKernelNodeGetAttribute(node, _attribute(name)), call)
            data = ctypes.string_at(int(value.getPtr()), struct.calcsize(form))
            if struct.unpack(form, data) not in _WITHOUT:
                found.append((name, data))
        return tuple(found)

    def graph_kernel_node_set_attributes(
        self, node: Any, attributes: tuple[tuple[str, bytes], ...]
    ) -> None:
        for name, data in attributes:
            value = cu.CUkernelNodeAttrValue()
            ctypes.memmove(int(value.getPtr()), data.ljust(_VALUE_NBYTES, b"\0"), _VALUE_NBYTES)
            call = "cuGraphKernelNodeSetAttribute"
            check(cu.cuGraphKernelNodeSetAttribute(node, _attribute(name), value), call)


def _attribute(name: str) -> Any:
    return getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")


def _variables(code: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Find the variables in a cubin: their names, sizes and initial contents."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise ExportError(_NEEDS_ELFTOOLS) from None
    file = ELFFile(io.BytesIO(code))
    for symbol in file.get_section_by_name(".symtab").iter_symbols():
        place = symbol["st_shndx"]
        if symbol["st_info"]["type"] != "STT_OBJECT" or not isinstance(place, int):
            continue
        section = file.get_section(place)
        is_variable = section.name.startswith((".nv.global", ".nv.constant"))
        if is_variable and not symbol.name.startswith(_COMPILERS_OWN):
            begin, nbytes = symbol["st_value"], symbol["st_size"]
            is_empty = section["sh_type"] == "SHT_NOBITS"
            data = bytes(nbytes) if is_empty else section.data()[begin : begin + nbytes]
            yield symbol.name, nbytes, data
