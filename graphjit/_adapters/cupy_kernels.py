"""Which memory CuPy's own kernels only read.

Input: kernel nodes. Output: for each the number of leading parameters that are inputs.
A name proves nothing, since users choose names; the function of a node is looked up among
those that CuPy's ufuncs and elementwise kernels have compiled. Their inputs are const.
Source: CuPy 14, cupy/_core/_kernel.pyx; parameters are inputs, outputs, and an indexer.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import takewhile

import cupy

from graphjit._nodes import KernelNode


def read_only_params(nodes: Sequence[KernelNode]) -> list[int]:
    """Return the number of inputs of each kernel; 0 if CuPy does not know it."""
    n_inputs = _inputs_by_function()
    return [n_inputs.get(node.function[1], 0) for node in nodes]


def _inputs_by_function() -> dict[int, int]:
    """Return the number of inputs of every function that is compiled, by its CUfunction."""
    found: dict[int, int] = {}
    for maker in gc.get_objects():
        if isinstance(maker, cupy.ufunc):
            for key, function in getattr(maker, "_kernel_memo", {}).items():
                *_, has_where = key
                found[int(function.ptr)] = maker.nin + (has_where is True)
        elif isinstance(maker, cupy.ElementwiseKernel):
            # A parameter may be declared `_non_const`.
            n = sum(1 for _ in takewhile(lambda param: param.is_const, maker.params))
            for function in getattr(maker, "_elementwise_kernel_memo", {}).values():
                found[int(function.ptr)] = n
    return found
