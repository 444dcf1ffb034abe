"""Reads of the values that a function reaches without being given them, and their checks.

Input: steps, each a read from the value of an earlier step and what it must find.
Output: on every call the implicit arrays as they are now, or the path that has changed.
"""

from __future__ import annotations

import array
import collections
import enum
import operator
import types
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter
from graphjit._host_random import HostRandom
from graphjit._places import MISSING, Place
from graphjit._regions import alignment_class
from graphjit._signature import IdentityKey, static_key

VALUE_TYPES: tuple[type, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    np.generic,
    np.dtype,
    enum.Enum,
    slice,
    range,
)
"""Types whose values are compared, and returned, as they are."""
MAPPING_TYPES = (dict, types.MappingProxyType)
_CONTAINERS = (list, dict, set, collections.deque)
_BUFFERS = (np.ndarray, bytearray, array.array)
Check = Callable[[Any], bool]


@dataclass(slots=True)
class Step:
    """Read one value and check it."""

    parent: int
    place: Place
    check: Check
    path: str
    kind: str = "content"
    """``"value"`` (immutable: the same object needs no check), ``"object"`` (by identity),
    ``"array"``, ``"length"`` and ``"keys"`` of a container, or ``"content"`` (checked on every
    call)."""


@dataclass(slots=True)
class Watch:
    """The steps of one cache entry; parents come before what is read from them."""

    steps: list[Step]

    def read(self, leaves: Sequence[Any] = ()) -> list[Any] | None:
        """Return the arrays as they are now; None if anything else is not what it was.

        ``leaves`` are those of the call: objects among them are where some steps start.
        """
        values: list[Any] = []
        arrays: list[Any] = []
        for step in self.steps:
            value = step.place.read(values[step.parent] if step.parent >= 0 else leaves)
            if not step.check(value):
                return None
            values.append(value)
            if step.kind == "array":
                arrays.append(value)
        return arrays

    def first_change(self, leaves: Sequence[Any] = ()) -> str | None:
        """Return the path of the first value that is not what it was."""
        values: list[Any] = []
        for step in self.steps:
            value = step.place.read(values[step.parent] if step.parent >= 0 else leaves)
            if not step.check(value):
                return step.path
            values.append(value)
        return None

    def array_paths(self) -> list[str]:
        """Return the paths of the arrays, in the order of ``read``."""
        return [step.path for step in self.steps if step.kind == "array"]

    def snapshot(self, leaves: Sequence[Any] = ()) -> Snapshot:
        """Remember every value, to find and undo what a capture changes."""
        values: list[Any] = []
        for step in self.steps:
            values.append(step.place.read(values[step.parent] if step.parent >= 0 else leaves))
        contents = {id(v): (v, copy(v)) for v in values if isinstance(v, _CONTAINERS + _BUFFERS)}
        return Snapshot(self.steps, leaves, values, list(contents.values()), HostRandom(values))


@dataclass(slots=True)
class Snapshot:
    """The values of a watch at one moment."""

    steps: list[Step]
    leaves: Sequence[Any]
    values: list[Any]
    contents: list[tuple[Any, Any]]
    host_random: HostRandom

    def changes(self) -> list[str]:
        """Return the paths whose values are others now."""
        for container, before in self.contents:
            if isinstance(container, _CONTAINERS) and len(container) != len(before):
                return [self._path_of(container)]
        paths = []
        for i, step in enumerate(self.steps):
            now = step.place.read(self.values[step.parent] if step.parent >= 0 else self.leaves)
            # A counter in a NumPy array, or a set, changes in place.
            may_differ = now is not self.values[i] or step.kind in ("content", "length", "keys")
            if may_differ and (step.kind == "array" or not step.check(now)):
                paths.append(step.path)
        return paths

    def _path_of(self, container: Any) -> str:
        return next(s.path for s, v in zip(self.steps, self.values, strict=True) if v is container)

    def restore(self) -> None:
        """Put every value back."""
        self.host_random.restore()
        for container, before in self.contents:
            if not _holds_the_same(container, before):
                _refill(container, before)
        for i, step in enumerate(self.steps):
            parent = self.values[step.parent] if step.parent >= 0 else self.leaves
            if step.place.read(parent) is not self.values[i]:
                step.place.write(parent, self.values[i])


def _holds_the_same(container: Any, before: Any) -> bool:
    """Say whether a container holds the very same items, in the same order, as its copy."""
    if isinstance(container, _BUFFERS):
        return _bytes_of(container) == _bytes_of(before)
    if isinstance(container, set):
        return bool(container == before)
    pairs: list[tuple[Any, Any]] = [(container, before)]
    if isinstance(container, dict):
        pairs.append((container.values(), before.values()))
    return len(container) == len(before) and all(
        all(map(operator.is_, now, then)) for now, then in pairs
    )


def _bytes_of(buffer: Any) -> bytes:
    return bytes(buffer) if isinstance(buffer, bytearray) else buffer.tobytes()


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = before
        return
    if isinstance(container, _BUFFERS):
        container[:] = before
        return
    container.clear()
    add = container.update if isinstance(container, (dict, set)) else container.extend
    add(before)


class Opaque:
    """Base of objects that stay what they are: nothing in them is watched."""


# -- checks


def is_true(now: Any) -> bool:
    """Accept True."""
    return now is True


def is_missing(now: Any) -> bool:
    """Accept nothing: an attribute that is not there."""
    return now is MISSING


def same_type(value: Any) -> Check:
    """Accept an object of the same class; what the code names of it has steps of its own."""
    kind = type(value)
    return lambda now: type(now) is kind


def same_object(value: Any) -> Check:
    """Accept the very same object, without keeping it alive where that is possible."""
    key, kind = IdentityKey(value), type(value)  # an object can be given another class
    return lambda now: now is not None and key.get() is now and type(now) is kind


def same_array(value: Any, adapter: Adapter) -> Check:
    """Accept an array of the same type, shape, dtype, strides, device and alignment."""

    def key(array: Any) -> tuple[Any, ...]:
        return (*adapter.key(array), alignment_class(adapter.device_ptr(array)))

    before = key(value)
    return lambda now: adapter.is_array(now) and key(now) == before


def same_value(value: Any, path: str) -> Check:
    """Accept an equal value of the same type."""
    key: Hashable = static_key(value, path)
    kind = type(value)
    return lambda now: now is value or (type(now) is kind and static_key(now, path) == key)


def same_host_array(value: np.ndarray[Any, Any] | np.void) -> Check:
    """Accept a NumPy array with the same bytes: its contents may be part of the graph."""
    kept = value.copy()

    def check(now: Any) -> bool:
        return (
            isinstance(now, (np.ndarray, np.void))
            and now.dtype == kept.dtype
            and now.shape == kept.shape
            and now.tobytes() == kept.tobytes()
        )

    return check


def same_set(value: set[Any] | frozenset[Any]) -> Check:
    """Accept an equal set of members of the same types: 1 and 1.0 are equal, and differ."""
    kind, kept = type(value), {(type(member), member) for member in value}
    return lambda now: type(now) is kind and {(type(member), member) for member in now} == kept


def same_keys(value: Any) -> Check:
    """Accept a dictionary with the same keys, of the same types, in the same order."""
    kind, keys, kinds = type(value), list(value), list(map(type, value))
    return lambda now: type(now) is kind and list(now) == keys and list(map(type, now)) == kinds


def same_length(value: list[Any] | tuple[Any, ...]) -> Check:
    """Accept a sequence of the same type and length."""
    kind, n = type(value), len(value)
    return lambda now: type(now) is kind and len(now) == n


def same_bytes(value: Any) -> Check:
    """Accept the same bytes: a bytearray, an array.array."""
    kind, kept = type(value), bytes(value)
    return lambda now: type(now) is kind and bytes(now) == kept


def same_items(value: Any) -> Check:
    """Accept a container of the very same items: for those too large to watch one by one."""
    kind, is_dict = type(value), isinstance(value, MAPPING_TYPES)

    def items(container: Any) -> list[Any]:
        return [*container, *container.values()] if is_dict else list(container)

    kept = items(value)
    return lambda now: (
        type(now) is kind
        and len(items(now)) == len(kept)
        and all(map(operator.is_, items(now), kept))
    )
