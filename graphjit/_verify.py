"""``verify=True``: run the eager call beside the graph and compare bit for bit.

Input: a call and the entry that serves it. Output: what the graph returned.
Raises: ``VerificationError`` naming the first output or argument that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphjit._adapters.interface import Adapter
from graphjit._containers import flatten
from graphjit._entry import CacheEntry
from graphjit._hit import MISS
from graphjit._scalars import SCALARS
from graphjit.errors import VerificationError

_DIFFERS = (
    "{name}: {what} of the graph differs from the eager call. The function depends on something "
    "that graphjit does not see (host state, a library with atomics); find it, or run it with "
    "{name}.eager(...)."
)


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
    for what, left, right in (
        ("output", expected, got),
        ("array", expected_arrays, arrays),
    ):
        if len(left) != len(right):
            raise VerificationError(_DIFFERS.format(name=name, what=f"the number of {what}s"))
        for i, pair in enumerate(zip(left, right, strict=True)):
            if not _is_same(adapter, *pair):
                raise VerificationError(_DIFFERS.format(name=name, what=f"{what} {i}"))
    return result


def _is_same(adapter: Adapter, left: Any, right: Any) -> bool:
    if adapter.is_array(left):
        return adapter.is_array(right) and adapter.equal_bits(left, right)
    if type(left) in SCALARS:
        return type(left) is type(right) and bool(left == right or left != left)
    return True  # an object of the user's, which may not compare
