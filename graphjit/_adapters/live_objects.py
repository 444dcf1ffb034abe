"""The objects of a type that are alive, as far as the garbage collector knows them.

The collector's list also holds tuples that other threads are still filling, and Python refuses
to finish a tuple that somebody else holds: their ``tuple(...)`` raises SystemError. The compiled
form lets no other thread go on while it holds the list; the plain one cannot promise that.
Input: a type. Output: its objects.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any


def live_objects_python(kind: type) -> list[Any]:
    """Return the objects of a type and of types derived from it."""
    return [obj for obj in gc.get_objects() if issubclass(type(obj), kind)]


live_objects = live_objects_python
if not TYPE_CHECKING and os.environ.get("GRAPHJIT_PURE_PYTHON", "") in ("", "0"):
    try:
        from graphjit._adapters.live_objects_cython import live_objects
    except ImportError:
        pass  # the extension is optional: no C compiler at install time

__all__ = ["live_objects", "live_objects_python"]
