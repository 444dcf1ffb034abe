"""Memory that a function keeps after it returned: it would be overwritten by later calls.

Input: a finished capture, and the memory of what was returned.
Output: nothing. Raises: ``CaptureError`` naming what holds the memory.
"""

from __future__ import annotations

import gc

from graphjit._capture import Capture
from graphjit._regions import Region
from graphjit.errors import CaptureError

_ESCAPED = (
    "{function} cannot be captured: it keeps {n} array(s) that it made ({sizes}) after it "
    "returned, in {holders}. They would be overwritten by later calls. Return them instead, or "
    "use @graphed(on_unsupported='eager') to run the function uncaptured."
)


def refuse_escapes(capture: Capture, returned: tuple[Region, ...]) -> None:
    """Refuse a function that keeps memory which it does not return."""
    escaped = _held(capture, returned)
    if escaped:
        gc.collect()  # a reference cycle, such as an exception's, is not an escape
        escaped = _held(capture, returned)
    if escaped:
        sizes = ", ".join(f"{region.nbytes} bytes" for region in escaped[:3])
        holders = capture.adapter.holders(escaped[0].ptr)
        raise CaptureError(
            _ESCAPED.format(function=capture.function, n=len(escaped), sizes=sizes, holders=holders)
        )


def _held(capture: Capture, returned: tuple[Region, ...]) -> list[Region]:
    kept = {region.ptr for region in returned}
    return [
        region
        for region in capture.regions.regions
        if region.argument is None and region.freed is None and region.ptr not in kept
    ]
