"""Leaves of a call -> a hashable signature, and the difference of two signatures.

Input: leaves (arrays and static values) and the structure that held them.
Output: ``static_key`` for values, ``Signature`` for people; sizes and strides in bytes.
Raises: ``SignatureError`` naming the path of a value that has no key.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphjit._adapters import registry
from graphjit._adapters.interface import ArraySpec
from graphjit.errors import SignatureError

_SIMPLE = frozenset({bool, int, str, bytes, type(None)})


class IdentityKey:
    """Stands for one object, by identity, without keeping it alive where that is possible."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, value: Any) -> None:
        try:
            self._ref: Any = weakref.ref(value)
        except TypeError:
            self._ref = lambda: value
        self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey):
            return NotImplemented
        mine = self._ref()
        return mine is not None and mine is other._ref()

    def get(self) -> Any:
        """Return the object, or None if it is gone."""
        return self._ref()

    def __repr__(self) -> str:
        value = self._ref()
        if value is None:
            return "an object that is gone"
        name = getattr(value, "__qualname__", None)
        return name or f"{type(value).__qualname__} object at 0x{self._hash:x}"


class EqualityKey(IdentityKey):
    """Stands for one object that holds arrays, by its own equality, without keeping it alive.

    Equal objects share a bucket of the cache; what they hold is read from each call's own.
    """

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EqualityKey):
            return NotImplemented
        mine, its = self._ref(), other._ref()
        alive = mine is not None and its is not None
        return alive and type(mine) is type(its) and bool(mine == its)


def static_key(value: Any, path: str, *, by_content: bool = False) -> Hashable:
    """Return a key that is equal exactly when graphjit may treat two values as the same.

    ``True``, ``1`` and ``1.0`` differ, ``0.0`` and ``-0.0`` differ, a NaN equals itself.
    With ``by_content``, NumPy arrays and containers are keyed by what they hold.
    """
    kind = type(value)
    if kind in _SIMPLE:
        return kind, value
    if kind is float:
        return kind, float_bits(value)
    if kind is complex:
        return kind, float_bits(value.real), float_bits(value.imag)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return kind, *(static_key(part, path, by_content=by_content) for part in parts)
    if by_content and (key := _content_key(value, path)) is not None:
        return key
    return _hashable_key(value, path)


def attribute_keys(array: Any) -> list[Hashable]:
    """Return keys of the attributes that an array of a derived class has."""
    held: dict[str, Any] = getattr(array, "__dict__", {})
    return [
        (name, static_key(value, f"the attribute {name!r} of an array"))
        for name, value in held.items()
    ]


def float_bits(value: float) -> bytes:
    """Return what tells -0.0 from 0.0, and equal NaNs from others."""
    return struct.pack("<d", value)


def is_kept_by_identity(kind: type) -> bool:
    """Say whether objects of a type are equal only to themselves, as far as Python knows."""
    hash_function: Any = kind.__hash__
    return hash_function is object.__hash__


def _content_key(value: Any, path: str) -> Hashable | None:
    if isinstance(value, np.ndarray):
        return np.ndarray, value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, (list, tuple)):
        items = (static_key(v, f"{path}[{i}]", by_content=True) for i, v in enumerate(value))
        return type(value), *items
    if isinstance(value, dict):
        return dict, *(
            (static_key(k, path), static_key(v, f"{path}[{k!r}]", by_content=True))
            for k, v in value.items()
        )
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(static_key(v, path) for v in value)
    return None


def _hashable_key(value: Any, path: str) -> Hashable:
    if isinstance(value, np.ndarray):
        raise SignatureError(
            f"{path} is a NumPy array {_numpy_text(value)}: its contents would be frozen into "
            f"the graph. Pass cupy.asarray({path}) instead; or, if it rarely changes, name it "
            f"in @graphed(static=...), which captures anew for every other content."
        )
    if is_kept_by_identity(type(value)):
        return IdentityKey(value)
    try:
        hash(value)
    except TypeError:
        raise SignatureError(
            f"{path} is of type {type(value).__qualname__}, which cannot be hashed and is no "
            f"container of arrays: graphjit cannot tell whether it changed. Pass the arrays "
            f"and numbers that it holds, register it as a pytree with optree in the namespace "
            f"'graphjit', or name it in @graphed(static=...) if it holds plain data."
        ) from None
    if any(registry.is_array(held) for held in getattr(value, "__dict__", {}).values()):
        return EqualityKey(value)  # a cached graph keeps no arrays alive
    return type(value), value


def _numpy_text(value: np.ndarray[Any, Any]) -> str:
    return f"{value.dtype} {value.shape}"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a cache entry was captured for; for reading, the cache looks up plain tuples.

    Attributes
    ----------
    arrays : dict of str to tuple
        Path of each array argument -> (dtype, shape, strides in bytes, alignment, device).
    static : dict of str to Hashable
        Path of each other argument -> its key.
    structure : str
        The containers that the arguments came in.
    aliasing : dict of str to str
        Arrays that share memory with an earlier one: path -> ``"path + bytes"``.
    implicit : dict of str to str
        Arrays and values reached through globals, closures and attributes.
    """

    arrays: dict[str, tuple[Any, ...]]
    static: dict[str, Any]
    structure: str
    aliasing: dict[str, str]
    implicit: dict[str, str]

    def difference(self, other: Signature) -> list[str]:
        """Say, path by path, what is different in ``other``: "now ..., before ...".

        Returns
        -------
        list of str
            Empty if the two are equal.
        """
        lines = _differences(self.arrays, other.arrays, _array_text)
        lines += _differences(self.static, other.static, static_text)
        lines += _differences(self.aliasing, other.aliasing, str)
        lines += _differences(self.implicit, other.implicit, str)
        if self.structure != other.structure and not lines:
            lines.append(f"structure: now {other.structure}, before {self.structure}")
        return lines

    def __str__(self) -> str:
        parts = [f"{path}: {_array_text(value)}" for path, value in self.arrays.items()]
        parts += [f"{path} = {static_text(value)}" for path, value in self.static.items()]
        parts += [f"{path} is {value}" for path, value in self.aliasing.items()]
        parts += [f"{path}: {value}" for path, value in self.implicit.items()]
        return ", ".join(parts) or "no arguments"


def _differences(
    before: dict[str, Any], now: dict[str, Any], text: Callable[[Any], str]
) -> list[str]:
    return [
        f"{path}: now {text(now[path]) if path in now else 'absent'}, "
        f"before {text(before[path]) if path in before else 'absent'}"
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
    ]


def _array_text(value: tuple[Any, ...]) -> str:
    dtype, shape, strides, alignment, device = value
    return f"{dtype} {shape} strides {strides} aligned to {alignment} on device {device}"


def static_text(key: Any) -> str:
    """Return a value as it is written in Python; numbers are keyed by their bits."""
    if not isinstance(key, tuple) or len(key) < 2:
        return repr(key)
    kind, *bits = key
    if kind in (float, complex):
        numbers = [struct.unpack("<d", part)[0] for part in bits]
        return repr(numbers[0] if kind is float else complex(*numbers))
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return repr(np.frombuffer(bits[1], bits[0])[0])
    if kind is slice:
        return f"slice({', '.join(map(static_text, bits))})"
    return repr(bits[-1])


def array_text(spec: ArraySpec) -> str:
    """Return ``float32 (8, 4)``."""
    return f"{spec.dtype} {spec.shape}"
