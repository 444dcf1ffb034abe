"""Arrays that hold no memory, in the places of the arguments of a call.

Input: addresses and specs of the arrays, and which of them share memory. Output: stand-ins at
reserved addresses that overlap and are aligned as the arrays are.
Raises: ``CaptureError`` when the reserved range is used up.
"""

from __future__ import annotations

from typing import Any

from graphjit._adapters.interface import ArraySpec
from graphjit._capture import Capture
from graphjit._regions import MAX_ALIGNMENT_CLASS, alignment_class


def make_stand_ins(
    capture: Capture,
    ptrs: list[int],
    specs: list[ArraySpec],
    aliasing: tuple[tuple[int, int, int], ...],
) -> list[Any]:
    """Make one stand-in for each array; arrays that share memory share a region."""
    leader_of = {i: (leader, offset) for i, leader, offset in aliasing}
    placed: dict[int, int] = {}
    for leader in range(len(specs)):
        if leader in leader_of:
            continue
        members = [(leader, 0)]
        members += [(i, offset) for i, (of, offset) in leader_of.items() if of == leader]
        low = min(offset + specs[i].low for i, offset in members)
        high = max(offset + specs[i].high for i, offset in members)
        region = capture.regions.place(
            high - low, offset=(ptrs[leader] + low) % MAX_ALIGNMENT_CLASS, argument=leader
        )
        placed[leader] = region.ptr - low
    stand_ins = []
    for i, spec in enumerate(specs):
        leader, offset = leader_of.get(i, (i, 0))
        ptr = placed[leader] + offset
        assert alignment_class(ptr) == alignment_class(ptrs[i])
        stand_ins.append(capture.adapter.stand_in(spec, ptr, capture))
    return stand_ins
