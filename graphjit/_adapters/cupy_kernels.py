"""What is known of CuPy's kernels: their code, and whether they use nothing but their parameters.

Input: kernel nodes. Output: the code; the number of leading parameters that are inputs, or -1.
Raises: ``ExportError`` for code that is not known, or that is not all.
A name proves nothing, since users choose names; the function of a node is looked up among
those that CuPy's ufuncs have compiled. Elementwise kernels are not among them: CuPy and users
write some that store addresses, or follow them (batched products, long concatenations).
Source: CuPy 14, cupy/_core/_kernel.pyx; parameters are inputs, outputs, and an indexer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import cupy

from graphjit._adapters.cupy_modules import code_of_module
from graphjit._adapters.live_objects import live_objects
from graphjit._driver.cuda import CudaDriver
from graphjit._nodes import KernelNode
from graphjit.errors import ExportError

_UNKNOWN = (
    "graphjit does not have its code: it belongs to a library, such as cuBLAS, or was compiled "
    "before graphjit was imported"
)
_NO_CUBIN = "its code is not compiled for this GPU yet (PTX)"
_CHANGED = (
    "the variable {name} of its module holds something else than in the code, or cannot be read; "
    "pass what it holds as an array"
)


def kernel_code(driver: CudaDriver, node: KernelNode) -> bytes:
    """Return the cubin that a node's function is in."""
    handle = driver.module_of(node.function)
    code = None if handle is None else code_of_module(handle)
    if handle is None or code is None:
        raise ExportError(_UNKNOWN)
    if not code.startswith(b"\x7fELF"):
        raise ExportError(_NO_CUBIN)
    if name := driver.changed_variable(handle, code):
        raise ExportError(_CHANGED.format(name=name))
    return code


def read_only_params(nodes: Sequence[KernelNode]) -> list[int]:
    """Return the number of inputs of each kernel; -1 if it is none of a ufunc's."""
    n_inputs = _inputs_by_function()
    return [n_inputs.get(node.function[1], -1) for node in nodes]


def _inputs_by_function() -> dict[int, int]:
    """Return the number of inputs of every function that is compiled, by its CUfunction."""
    found: dict[int, int] = {}
    for maker in live_objects(cupy.ufunc):
        for key, function in getattr(maker, "_kernel_memo", {}).items():
            *_, has_where = key
            found[int(function.ptr)] = maker.nin + (has_where is True)
    return found


def is_elementwise(node: KernelNode) -> bool:
    """Say whether a kernel is one that CuPy has made of a ufunc or an ``ElementwiseKernel``.

    Their last parameter is a CIndexer, and no other is a struct that a user lays out.
    """
    handle = node.function[1]
    if handle in _inputs_by_function():
        return True
    makers = live_objects(cupy.ElementwiseKernel)
    memos = (getattr(maker, "_elementwise_kernel_memo", {}) for maker in makers)
    return any(int(function.ptr) == handle for memo in memos for function in memo.values())


def unwritten_bytes(node: KernelNode) -> Iterator[tuple[int, int]]:
    """Find the indices in CIndexer structs: (size, shape[n], index[n]), of which the host writes
    size and shape; the product of the shape is the size.
    """
    for offset, nbytes in node.param_layout:
        n_dims, rest = divmod(nbytes - 8, 16)
        if n_dims > 0 and rest == 0:
            size, *shape = struct.unpack_from(f"<{1 + n_dims}q", node.params, offset)
            if math.prod(shape) == size:
                yield offset + 8 + 8 * n_dims, offset + nbytes
