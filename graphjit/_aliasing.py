"""Which arrays of a call share memory: part of what a graph is captured for.

Input: addresses and ``ArraySpec``s. Output: groups as (index, leader, byte offset).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from graphjit._adapters.interface import ArraySpec


def same_objects(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Return, for each array, the first place of the same object: code can ask ``x is y``."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(array), i) for i, array in enumerate(arrays))


def are_apart(ptrs: list[int], specs: list[ArraySpec]) -> bool:
    """Say whether no two arrays share memory: the case of nearly every call."""
    spans = sorted(
        (ptr + spec.low, ptr + spec.high)
        for ptr, spec in zip(ptrs, specs, strict=True)
        if spec.high > spec.low
    )
    return all(left[1] <= right[0] for left, right in pairwise(spans))


def alias_pattern(ptrs: list[int], specs: list[ArraySpec]) -> tuple[tuple[int, int, int], ...]:
    """Find arrays that share memory.

    Returns
    -------
    tuple of (index, leader, byte_offset)
        For each array whose memory touches that of another: the first array of its group
        and the distance between their addresses. Empty if all are apart.
    """
    n = len(ptrs)
    if n < 2:
        return ()
    spans = sorted(
        (ptrs[i] + specs[i].low, ptrs[i] + specs[i].high, i)
        for i in range(n)
        if specs[i].high > specs[i].low
    )
    groups: list[list[int]] = []
    end = -1
    for low, high, i in spans:
        if low < end:
            groups[-1].append(i)
        else:
            groups.append([i])
        end = max(end, high)
    pattern = [
        (i, min(group), ptrs[i] - ptrs[min(group)])
        for group in groups
        if len(group) > 1
        for i in group
        if i != min(group)
    ]
    return tuple(sorted(pattern))
