"""The fast front of a call, chosen here and only here: compiled if built, else plain Python.

``GRAPHJIT_PURE_PYTHON=1`` in the environment asks for the plain one.
Input: arguments. Output: what the function returns, or ``MISS``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

IS_COMPILED = False
if TYPE_CHECKING or os.environ.get("GRAPHJIT_PURE_PYTHON", "") not in ("", "0"):
    from graphjit._hit_python import (
        MISS,
        TURNS,
        Clock,
        FastHits,
        HitCounts,
        Lock,
        NativeLibrary,
        call_graphed,
        pause_hits,
        set_call_slot,
    )
else:
    try:
        from graphjit._hit_cython import (
            MISS,
            TURNS,
            Clock,
            FastHits,
            HitCounts,
            Lock,
            NativeLibrary,
            call_graphed,
            pause_hits,
            set_call_slot,
        )

        IS_COMPILED = True
    except ImportError:  # the extension is optional: no C compiler at install time
        from graphjit._hit_python import (
            MISS,
            TURNS,
            Clock,
            FastHits,
            HitCounts,
            Lock,
            NativeLibrary,
            call_graphed,
            pause_hits,
            set_call_slot,
        )

__all__ = [
    "IS_COMPILED",
    "MISS",
    "TURNS",
    "Clock",
    "FastHits",
    "HitCounts",
    "HitPlan",
    "Lock",
    "NativeLibrary",
    "call_graphed",
    "pause_hits",
    "set_call_slot",
]


@dataclass(slots=True)
class HitPlan:
    """What a native hit needs of one entry: addresses of handles, sizes in bytes."""

    entry: Any
    executable: Any
    graph_exec: int
    context: int
    spans: list[tuple[int, int]]
    """Bytes that each array touches, relative to its address."""
    leaders: list[int]
    memory_nbytes: list[int]
    scratch_offset: int
    """Place of the scratch block within the first output's memory; -1 if it has its own."""
    patches: list[tuple[int, int, int, list[tuple[int, int, int, int]] | None, int, int, Any]]
    """(node, CUDA_KERNEL_NODE_PARAMS, buffer, words of a host patch, first slot, slots, keep)"""
    templates: list[Any] | None
    """An array like each output; None if the outputs are built in Python."""
    is_tuple: bool
    build: Any
    steps: list[Any]
    """Of the watch."""
    scalars: list[tuple[int, Any]] = field(default_factory=list)
    """(leaf, ``ScalarWord``) of each slot that is a dynamic scalar."""
    static_ranges: list[tuple[int, int]] | None = None
    """Begin and end of the memory of static outputs; an argument may not lie in it."""
    static_result: Any = None
    keep: Any = field(default=None)
