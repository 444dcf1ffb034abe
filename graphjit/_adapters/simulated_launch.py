"""Launch NumPy functions as kernels of the simulated device, on arrays and scalars.

Input: a NumPy function, arrays (address, shape, strides, dtype) and scalars.
Output: one kernel launch on the current stream. The parameters are packed as libraries pack
them: structs, with addresses first or behind smaller fields, with padding and fields that
nobody writes. The kernel learns addresses, shapes, strides and scalars from its parameters.
Source: the parameters of CuPy's (CArray, CIndexer), CUB's and cuBLAS's kernels.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._driver.interface import KernelLaunch
from graphjit._driver.simulated_kernels import Run, SimulatedFunction
from graphjit._driver.simulated_memory import SimulatedMemory

PLAIN = "plain"
"""One struct for each array: address, size, shape, strides, and an index nobody writes."""
PACKED = "packed"
"""One large struct for all: 32-bit numbers before each address, with random padding."""
RAW = "raw"
"""Addresses as parameters of their own, as cuBLAS's kernels have them."""

_RESERVED_NBYTES = 256
_padding = random.Random(1)


class OnDevice(Protocol):
    """What a launch has to know of an array."""

    device_ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Operand:
    """The part of an operand that the kernel is compiled for."""

    kind: str
    """``"array"``, ``"python"`` for a Python scalar or ``"numpy"`` for a NumPy scalar."""
    dtype: np.dtype[Any]
    ndim: int = 0

    def struct(self, style: str) -> list[tuple[Any, ...]]:
        """Return the fields that carry the operand."""
        n = (self.ndim,)
        if self.kind != "array":
            return [("value", self.dtype)]
        if style == PLAIN:
            fields = [("ptr", "u8"), ("size", "i8"), ("shape", "i8", n), ("strides", "i8", n)]
            return [*fields, ("index", "i8", n), ("ndim", "i4")]
        fields = [("ndim", "i4"), ("padding", "u4"), ("n", "i4"), ("ptr", "u8")]
        return [*fields, ("shape", "i8", n), ("strides", "i8", n)]


def is_array(value: Any) -> bool:
    """Say whether an operand is an array on the device."""
    return hasattr(value, "device_ptr")


def is_operand(value: Any) -> bool:
    """Say whether a kernel can be given a value: an array on the device, or a number."""
    return is_array(value) or isinstance(value, (bool, int, float, complex, np.generic))


def operand_of(value: Any) -> Operand:
    """Describe an operand; a Python scalar stays one, so that NumPy's promotion applies."""
    if is_array(value):
        return Operand("array", value.dtype, len(value.shape))
    kind = "numpy" if isinstance(value, np.generic) else "python"
    return Operand(kind, np.asarray(value).dtype)


@cache
def params_dtype(operands: tuple[Operand, ...], style: str) -> np.dtype[Any]:
    """Return the layout of the parameters, with the alignment that a C compiler gives."""
    structs = [
        (f"p{i}", np.dtype(operand.struct(style), align=True)) for i, operand in enumerate(operands)
    ]
    if style == PACKED:
        whole = np.dtype(
            [("mode", "i4"), *structs, ("reserved", "u1", _RESERVED_NBYTES)], align=True
        )
        return np.dtype([("all", whole)], align=True)
    if style == RAW:
        ptrs = [(f"ptr{i}", "u8") for i, o in enumerate(operands) if o.kind == "array"]
        return np.dtype([*ptrs, *structs], align=True)
    return np.dtype(structs, align=True)


def layout_of(dtype: np.dtype[Any]) -> tuple[tuple[int, int], ...]:
    """Return (offset, size) of each field, as the parameters of a kernel."""
    fields: Any = dtype.fields or {}
    return tuple((fields[n][1], fields[n][0].itemsize) for n in dtype.names or ())


class _Stack(threading.local):
    """What earlier launches left behind; parameters are put together on top of it."""

    def __init__(self) -> None:
        self.bytes = bytearray(1 << 16)


_stack = _Stack()


def pack(values: Sequence[Any], operands: tuple[Operand, ...], style: str) -> bytes:
    """Pack operands into parameters; what a plain kernel's structs have besides keeps the bytes of
    earlier launches, see ``unwritten_bytes``.
    """
    dtype = params_dtype(operands, style)
    buffer = _stack.bytes[: dtype.itemsize] if style == PLAIN else bytearray(dtype.itemsize)
    record = np.ndarray((), dtype, buffer)
    structs: Any = record["all"] if style == PACKED else record
    for i, (value, operand) in enumerate(zip(values, operands, strict=True)):
        fields: Any = structs[f"p{i}"]
        if operand.kind != "array":
            fields["value"] = value
            continue
        ptr = value.device_ptr
        if style == RAW:
            record[f"ptr{i}"], ptr = ptr, 0
        fields["ptr"], fields["shape"], fields["strides"] = ptr, value.shape, value.strides
        fields["ndim"] = operand.ndim
        if style == PLAIN:
            fields["size"] = math.prod(value.shape)
        else:
            fields["padding"] = _padding.getrandbits(32)
    _stack.bytes[: len(buffer)] = buffer
    return bytes(buffer)


def unwritten_bytes(function: SimulatedFunction) -> Iterator[tuple[int, int]]:
    """Return (begin, end) of the bytes in a kernel's parameters that ``pack`` does not write."""
    *_, operands, style = function.made_by or ((), None)
    if style == PLAIN:
        fields: Any = params_dtype(operands, style).fields
        for i, operand in enumerate(operands):
            struct, begin, *_ = fields[f"p{i}"]
            if operand.kind == "array":
                kind, offset, *_ = struct.fields["index"]
                yield begin + offset, begin + offset + kind.itemsize


def _unpack(
    memory: SimulatedMemory, params: bytes, operands: tuple[Operand, ...], style: str
) -> list[Any]:
    """Open the operands; an array's memory traps if it is not allocated."""
    dtype = params_dtype(operands, style)
    record = np.frombuffer(params.ljust(dtype.itemsize, b"\0"), dtype, 1)[0]
    structs = record["all"] if style == PACKED else record
    values = []
    for i, operand in enumerate(operands):
        fields = structs[f"p{i}"]
        if operand.kind == "array":
            ptr = int(record[f"ptr{i}"] if style == RAW else fields["ptr"])
            shape, strides = map(int, fields["shape"]), map(int, fields["strides"])
            values.append(memory.array(ptr, tuple(shape), operand.dtype, tuple(strides)))
        else:
            value = fields["value"]
            values.append(value.item() if operand.kind == "python" else value)
    return values


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel computes: ``function(*operands, **static)``.

    With ``in_place`` the function writes to its operands by itself; otherwise its result is
    stored in the last operand, which is not given to it.
    """

    function: Callable[..., Any]
    static: tuple[tuple[str, Any], ...] = ()
    in_place: bool = False

    def __call__(self, *values: Any) -> None:
        # A GPU raises nothing for a division by zero, and NumPy must not warn of it.
        with np.errstate(all="ignore"):
            if self.in_place:
                self.function(*values, **dict(self.static))
            else:
                values[-1][...] = self.function(*values[:-1], **dict(self.static))


@cache
def _function(
    name: str, work: Work, operands: tuple[Operand, ...], style: str
) -> SimulatedFunction:
    """Compile a kernel for given kinds of operands, as a template is."""

    def body(run: Run, params: bytes) -> None:
        work(*_unpack(run.memory, params, operands, style))

    n_inputs = -1 if work.in_place or style != PLAIN else len(operands) - 1
    made_by = (_function, name, work, operands, style)
    layout = layout_of(params_dtype(operands, style))
    return SimulatedFunction(name, layout, body, n_inputs, made_by)


def launch(name: str, work: Work, values: Sequence[Any], style: str = PLAIN) -> None:
    """Launch a kernel on the current stream."""
    operands = tuple(operand_of(value) for value in values)
    function = _function(name, work, operands, style)
    launch_function(function, pack(values, operands, style))


def launch_function(function: SimulatedFunction, params: bytes) -> None:
    """Launch a kernel with packed parameters on the current stream."""
    settings = KernelLaunch(function, (1, 1, 1), (128, 1, 1), 0, function.param_layout)
    device.driver().launch_kernel(settings, params, device.current_stream().handle)
