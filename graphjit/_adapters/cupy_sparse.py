"""CuPy's sparse matrices as containers of their arrays.

Input: a sparse matrix. Output: its arrays, and a matrix of the same kind on other arrays.
Source: CuPy 14, cupyx/scipy/sparse.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import cupy
import numpy as np
import optree

_SPARSE = ("csr_matrix", "csc_matrix", "coo_matrix", "dia_matrix")


def register_sparse() -> None:
    """Make CuPy's sparse matrices containers of their arrays."""
    with _lock:  # `cache` alone lets two threads in
        _register_once()


_lock = threading.Lock()


@cache
def _register_once() -> None:
    try:
        from cupyx.scipy import sparse
    except ImportError:  # SciPy is not installed; then there are no sparse matrices either
        return
    for name in _SPARSE:
        optree.register_pytree_node(
            getattr(sparse, name), _take_sparse_apart, _put_sparse_together, namespace="graphjit"
        )


_SPARSE_ARRAYS = ("data", "indices", "indptr", "row", "col", "offsets")


def _take_sparse_apart(matrix: Any) -> tuple[Any, Any, Any]:
    names = tuple(n for n in _SPARSE_ARRAYS if isinstance(getattr(matrix, n, None), cupy.ndarray))
    flags = tuple(
        (key, value)
        for key, value in sorted(vars(matrix).items())
        if isinstance(value, (bool, tuple, np.dtype))
    )
    return [getattr(matrix, n) for n in names], (type(matrix), names, flags), names


def _put_sparse_together(metadata: Any, children: Any) -> Any:
    kind, names, flags = metadata
    matrix = object.__new__(kind)
    vars(matrix).update(flags)
    for name, child in zip(names, children, strict=True):
        setattr(matrix, name, child)
    _restore_descriptor(matrix)
    return matrix


def _restore_descriptor(matrix: Any) -> None:
    from cupyx import cusparse

    if matrix.format in ("csr", "csc"):
        matrix._descr = cusparse.MatDescriptor.create()
