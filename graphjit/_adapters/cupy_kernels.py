"""Which of CuPy's kernels use nothing but their parameters, and which of those they only read.

Input: kernel nodes. Output: for each the number of leading parameters that are inputs, or -1.
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

from graphjit._adapters.live_objects import live_objects
from graphjit._nodes import KernelNode


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
