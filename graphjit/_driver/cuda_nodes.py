"""The driver calls that are made once a node, chosen here: compiled if built, else plain Python.

A graph of 1,000 kernels is read and built by some 6,000 driver calls; through cuda.bindings
each costs several Python objects. ``GRAPHJIT_PURE_PYTHON=1`` asks for the plain form.
Input / Output / Raises: as ``cuda_nodes_python.py``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("GRAPHJIT_PURE_PYTHON", "") not in ("", "0"):
    from graphjit._driver.cuda_nodes_python import KernelNodeParams, NodeCalls
else:
    try:
        from graphjit._driver.cuda_nodes_cython import KernelNodeParams, NodeCalls
    except ImportError:  # the extension is optional: no C compiler at install time
        from graphjit._driver.cuda_nodes_python import KernelNodeParams, NodeCalls

__all__ = ["KernelNodeParams", "NodeCalls"]
