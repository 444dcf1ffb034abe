"""Ranges for Nsight Systems and other profilers, with ``GRAPHJIT_NVTX=1`` in the environment.

Input: what is done, and the function. Output: a context that is a range.
The variable is read once, when graphjit is imported; the compiled hit, which makes no ranges, is
not used then.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from graphjit._adapters.interface import Adapter

IS_ANNOTATING = os.environ.get("GRAPHJIT_NVTX", "") not in ("", "0")


def annotated(adapter: Adapter, what: str, name: str) -> AbstractContextManager[object]:
    """Return a range such as ``graphjit launch step``."""
    return adapter.time_range(f"graphjit {what} {name}") if IS_ANNOTATING else nullcontext()
