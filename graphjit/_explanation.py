"""Whether a call would hit, and if not, what differs.

Input: a call, a cache. Output: ``Explanation``, plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphjit._arguments import ArgumentReader, Call
from graphjit._signature import Signature

if TYPE_CHECKING:
    from graphjit._cache import Cache
    from graphjit._entry import CacheEntry


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a call would hit.

    Attributes
    ----------
    hit : bool
    differences : tuple of str
        For a miss: what differs from the closest entry, by path.
    closest : Signature or None
        Signature of that entry; None if the cache is empty.
    refusal : str or None
        Why calls of this signature run eagerly, if they do.
    """

    hit: bool
    differences: tuple[str, ...]
    closest: Signature | None
    refusal: str | None = None

    def __bool__(self) -> bool:
        return self.hit

    def __str__(self) -> str:
        if self.hit:
            return "hit"
        if self.refusal is not None:
            return f"runs eagerly: {self.refusal}"
        if self.closest is None:
            return "miss: nothing has been captured yet"
        return "miss: " + "; ".join(self.differences)


def explain_call(reader: ArgumentReader, cache: Cache, call: Call) -> Explanation:
    """Compare a call with the entries of a cache."""
    if cache.find(call) is not None:
        return Explanation(True, (), None)
    refusal = cache.refusal(call.key)
    signature = reader.describe(call, [call.adapter.spec(array) for array in call.arrays])
    best: tuple[list[str], CacheEntry] | None = None
    for entry in cache.entries():
        lines = entry.signature.difference(signature)
        if best is None or len(lines) < len(best[0]):
            best = (lines, entry)
    if best is None:
        return Explanation(False, (), None, refusal)
    lines, entry = best
    if not lines:
        changed = entry.watch.first_change(call.leaves)
        lines = [f"{changed}: is not what it was"] if changed else ["memory is shared differently"]
    return Explanation(False, tuple(lines), entry.signature, refusal)
