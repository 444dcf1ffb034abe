"""The objects of a type that are alive.

Input: a type. Output: its objects, as far as the garbage collector knows them.

The collector's list also holds tuples that other threads are still filling, and Python refuses
to finish a tuple that somebody else holds (SystemError). So the list lives within one call
of functions in C, between whose steps no other thread can go on.
"""

from __future__ import annotations

import gc
from functools import partial
from itertools import chain, islice
from typing import Any


def live_objects(kind: type) -> list[Any]:
    """Return the objects of a type and of types derived from it."""
    is_one = partial(type.__instancecheck__, kind)
    # `gc.get_objects` is called by `islice` when `list` asks for the first object.
    return list(filter(is_one, chain.from_iterable(islice(iter(gc.get_objects, None), 1))))
