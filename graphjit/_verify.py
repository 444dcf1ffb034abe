"""``verify=True``: run the eager call beside the graph and compare bit for bit.

Input: a call and the entry that serves it. Output: what the graph returned.
Raises: ``VerificationError`` naming the first output or argument that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphjit._containers import flatten
from graphjit._entry import CacheEntry
from graphjit._hit import MISS
from graphjit.errors import VerificationError


def verify_launch(
    name: str,
    eager_call: Callable[[], Any],
    launch: Callable[[], Any],
    entry: CacheEntry,
    arrays: list[Any],
) -> Any:
    """Run eagerly, put the arrays back, launch, compare results and the arrays themselves."""
    adapter = entry.adapter
    before = [adapter.copy(array) for array in arrays]
    expected = flatten(eager_call(), adapter.is_array)[0]
    expected = [adapter.copy(v) if adapter.is_array(v) else v for v in expected]
    expected_arrays = [adapter.copy(array) for array in arrays]
    for array, saved in zip(arrays, before, strict=True):
        adapter.assign(array, saved)
    result = launch()
    if result is MISS:
        return MISS  # evicted meanwhile: the call begins anew
    got = flatten(result, adapter.is_array)[0]
    for what, pairs in (
        ("output", zip(expected, got, strict=True)),
        ("array", zip(expected_arrays, arrays, strict=True)),
    ):
        for i, (left, right) in enumerate(pairs):
            if adapter.is_array(left) and not adapter.equal_bits(left, right):
                raise VerificationError(
                    f"{name}: {what} {i} of the graph differs from the eager call. The function "
                    f"depends on something that graphjit does not see (host state, a library "
                    f"with atomics); find it, or run it with {name}.eager(...)."
                )
    return result
