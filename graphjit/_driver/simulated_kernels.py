"""Kernels of the simulated device: Python functions over the bytes of their parameters.

Input: packed parameters, and device memory through ``Run``.
Output: changed device memory, and parameters of other nodes (patch kernels).
Raises: ``DriverError`` for an access that traps.
Source: ``_kernels.cu``, whose kernels are the built-in ones here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from graphjit._driver.interface import (
    CONDITION_INDEX,
    CONDITION_IS_INDEX,
    CONDITION_LAYOUT,
    CONDITION_SIGNED,
    CONDITION_TRUTH,
    COPY_LAYOUT,
    FILL_LAYOUT,
    FILLS_LAYOUT,
    PATCH_MEMORY_WORD,
    PATCH_SIZE_SHIFT,
    PATCH_SLOT_CLASSES,
    PATCH_TABLE_ENTRY_NBYTES,
)
from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_memory import SimulatedMemory

_COPY_FIELDS = (
    "dst_ptr", "src_ptr", "width", "height", "depth",
    "dst_pitch", "src_pitch", "dst_slice_pitch", "src_slice_pitch",
)  # fmt: skip
_FILL_FIELDS = ("dst_ptr", "value", "element_size", "width", "height", "pitch")


class Run:
    """One execution of a graph, or of a single kernel, as kernels see it."""

    def __init__(
        self,
        memory: SimulatedMemory,
        updatable: dict[int, bytearray] | None = None,
        conditions: Iterable[int] = (),
    ) -> None:
        self.memory = memory
        self._updatable = updatable or {}
        self.conditions = dict.fromkeys(conditions, 0)
        """Conditional handle -> its value."""

    def set_param(self, device_node: int, param_offset: int, value: bytes) -> None:
        """Write into the parameters of a node of this execution (cudaGraphKernelNodeSetParam)."""
        call = "cudaGraphKernelNodeSetParam"
        buffer = self._updatable.get(device_node)
        if buffer is None:
            raise failure(call, "INVALID_HANDLE", f"0x{device_node:x} is no updatable node")
        if param_offset + len(value) > len(buffer):
            raise failure(call, "INVALID_VALUE", f"byte {param_offset} of {len(buffer)}")
        buffer[param_offset : param_offset + len(value)] = value

    def set_condition(self, handle: int, value: int) -> None:
        """Set the value of a conditional handle (cudaGraphSetConditional)."""
        if handle not in self.conditions:
            raise failure("cudaGraphSetConditional", "INVALID_HANDLE", f"0x{handle:x}")
        self.conditions[handle] = value


@dataclass(frozen=True, eq=False, slots=True)
class SimulatedFunction:
    """A kernel: the sizes of its parameters, and what it does with their bytes."""

    name: str
    param_layout: tuple[tuple[int, int], ...]
    body: Callable[[Run, bytes], None]
    n_inputs: int = -1
    """So many of the first parameters lead to memory that is only read; -1 if the kernel may
    use any memory."""
    made_by: tuple[Any, ...] = ()
    """(function, its arguments) that make the same kernel in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.made_by:
            raise TypeError(f"the kernel {self.name} is a function of this program")
        make, *arguments = self.made_by
        return make, tuple(arguments)

    @property
    def params_nbytes(self) -> int:
        """Bytes of the packed parameters."""
        return max((offset + size for offset, size in self.param_layout), default=0)


def copy_box(
    memory: SimulatedMemory,
    *,
    dst_ptr: int,
    src_ptr: int,
    width: int,
    height: int = 1,
    depth: int = 1,
    dst_pitch: int = 0,
    src_pitch: int = 0,
    dst_slice_pitch: int = 0,
    src_slice_pitch: int = 0,
) -> None:
    """Copy a box of bytes row by row."""
    for z in range(depth):
        for y in range(height):
            src = memory.view(src_ptr + z * src_slice_pitch + y * src_pitch, width)
            dst = memory.view(dst_ptr + z * dst_slice_pitch + y * dst_pitch, width)
            dst[:] = src.copy()


def fill_rows(
    memory: SimulatedMemory,
    *,
    dst_ptr: int,
    value: int,
    element_size: int,
    width: int,
    height: int,
    pitch: int,
) -> None:
    """Fill rows with elements of 1, 2 or 4 bytes."""
    pattern = list((value & (1 << 8 * element_size) - 1).to_bytes(element_size, "little"))
    for y in range(height):
        row = memory.view(dst_ptr + y * pitch, width * element_size)
        row.reshape(-1, element_size)[:] = pattern


def _copy(run: Run, params: bytes) -> None:
    copy_box(run.memory, **dict(zip(_COPY_FIELDS, struct.unpack("<9Q", params), strict=True)))


def _fill(run: Run, params: bytes) -> None:
    fill_rows(run.memory, **dict(zip(_FILL_FIELDS, struct.unpack("<6Q", params), strict=True)))


def _fills(run: Run, params: bytes) -> None:
    """Do the fills of the table; those that are not used are empty."""
    for row in struct.iter_unpack("<6Q", params):
        fields = dict(zip(_FILL_FIELDS, row, strict=True))
        if fields["width"] and fields["height"]:
            fill_rows(run.memory, **fields)


def _patch(run: Run, params: bytes) -> None:
    """Read the table from device memory, and write slot + delta where each row says."""
    table_ptr, n = struct.unpack_from("<QI", params)
    slots = struct.unpack_from(f"<{(len(params) - 16) // 8}Q", params, 16)
    table = run.memory.view(table_ptr, PATCH_TABLE_ENTRY_NBYTES * n).tobytes()
    for target, param_offset, slot, delta in struct.iter_unpack("<QIIQ", table):
        value = ((slots[slot] + delta) & (1 << 64) - 1).to_bytes(8, "little")
        if param_offset == PATCH_MEMORY_WORD:
            run.memory.view(target, 8)[:] = list(value)
        else:
            nbytes = param_offset >> PATCH_SIZE_SHIFT or 8
            offset = param_offset & (1 << PATCH_SIZE_SHIFT) - 1
            run.set_param(target, offset, value[:nbytes])


def _set_condition(run: Run, params: bytes) -> None:
    handle, ptr, form, mode, n = struct.unpack("<QQIIq", params)
    data = run.memory.view(ptr, form & 0xFF).tobytes()
    value = int.from_bytes(data, "little", signed=bool(form & CONDITION_SIGNED))
    index = min(max(value, 0), n - 1)
    kind, wanted = mode & 0xFF, mode >> 8
    if kind == CONDITION_TRUTH:
        run.set_condition(handle, int(value != 0))
    elif kind == CONDITION_INDEX:
        run.set_condition(handle, index)
    else:
        assert kind == CONDITION_IS_INDEX
        run.set_condition(handle, int(index == wanted))


def builtin_functions() -> dict[str, SimulatedFunction]:
    """Return the kernels that graphjit brings along, by name."""
    functions = {
        "copy": SimulatedFunction("graphjit_copy", tuple(COPY_LAYOUT), _copy),
        "fill": SimulatedFunction("graphjit_fill", tuple(FILL_LAYOUT), _fill),
        "fills": SimulatedFunction("graphjit_fills", FILLS_LAYOUT, _fills),
        "set_condition": SimulatedFunction(
            "graphjit_set_condition", CONDITION_LAYOUT, _set_condition
        ),
    }
    for n in PATCH_SLOT_CLASSES:
        layout = ((0, 8), (8, 4), (16, 8 * n))
        functions[f"patch_{n}"] = SimulatedFunction(f"graphjit_patch_{n}", layout, _patch)
    return functions
