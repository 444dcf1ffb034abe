"""Nested containers -> leaves and back; plain dataclasses are containers too.

Input: any value. Output: its leaves and optree's description of what held them.
Source: optree, namespace ``"graphjit"``.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import optree

NAMESPACE = "graphjit"


def flatten(value: Any, is_array: Callable[[Any], bool]) -> tuple[list[Any], Any]:
    """Flatten nested containers; dictionaries keep the order of their keys."""
    with optree.dict_insertion_ordered(True, namespace=NAMESPACE):
        leaves, tree = optree.tree_flatten(value, none_is_leaf=True, namespace=NAMESPACE)
        if any(_register_dataclass(leaf) for leaf in leaves if not is_array(leaf)):
            return flatten(value, is_array)
        return leaves, tree


def unflatten(tree: Any, leaves: list[Any]) -> Any:
    """Put leaves back into the containers that ``flatten`` took them from."""
    return optree.tree_unflatten(tree, leaves)


def shared_containers(value: Any) -> tuple[int, ...]:
    """Say which lists and dictionaries are one object: for each the place of its first occurrence.

    Empty if no two are.
    """
    first: dict[int, int] = {}
    pattern: list[int] = []
    _append_pattern(value, first, pattern)
    return tuple(pattern) if len(first) < len(pattern) else ()


def _append_pattern(value: Any, first: dict[int, int], pattern: list[int]) -> None:
    kind = type(value)
    if kind is list or kind is dict:
        pattern.append(first.setdefault(id(value), len(pattern)))
    if kind is list or kind is tuple or kind is dict:
        for item in value.values() if kind is dict else value:
            _append_pattern(item, first, pattern)


def share_containers(value: Any, pattern: tuple[int, ...]) -> Any:
    """Make those lists and dictionaries one object that were, in a value built anew."""
    return _share(value, pattern, [])


def _share(value: Any, pattern: tuple[int, ...], met: list[Any]) -> Any:
    kind = type(value)
    if kind is list or kind is dict:
        place = len(met)
        met.append(value)
        for key in value if kind is dict else range(len(value)):
            value[key] = _share(value[key], pattern, met)
        return met[pattern[place]]
    return tuple([_share(item, pattern, met) for item in value]) if kind is tuple else value


def _register_dataclass(leaf: Any) -> bool:
    """Make a plain dataclass a container on first sight; True if that is news."""
    kind = type(leaf)
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return False
    names = tuple(f.name for f in dataclasses.fields(kind))
    if not names:
        return False

    def take_apart(value: Any) -> tuple[Any, Any, Any]:
        held = (*names, *(n for n in getattr(value, "__dict__", ()) if is_other(n)))
        return [getattr(value, name) for name in held], held, held

    def is_other(name: str) -> bool:
        """Say whether an attribute is no field, and is not computed from the fields."""
        return name not in names and not isinstance(
            getattr(kind, name, None), functools.cached_property
        )

    def put_together(held: Any, children: Any) -> Any:
        value = object.__new__(kind)
        for name, child in zip(held, children, strict=True):
            object.__setattr__(value, name, child)
        return value

    with _lock:
        if kind in _registered:
            return True  # another thread was faster
        try:
            optree.register_pytree_node(kind, take_apart, put_together, namespace=NAMESPACE)
        except ValueError:
            return False  # the class is a container already
        _registered.add(kind)
    return True


_lock = threading.Lock()
_registered: weakref.WeakSet[type] = weakref.WeakSet()


def plain_tuple(n: int) -> Any:
    """Return the tree of a tuple of n leaves."""
    return flatten((0,) * n, lambda _: False)[1]


def path_text(path: tuple[Any, ...], names: list[str]) -> str:
    """Return the path of a leaf of ``(args, kwargs)``; ``names`` are those of the parameters."""
    kind, *rest = path
    if kind == 0 and rest:
        index = rest.pop(0)
        n_single = len(names) - names[-1].startswith("*") if names else 0
        text = f"args[{index}]"
        if index < n_single:
            text = names[index]
        elif len(names) > n_single:
            text = f"{names[-1][1:]}[{index - n_single}]"
    else:
        text = str(rest.pop(0)) if rest else "arguments"
    return text + steps_text(rest)


def steps_text(steps: Iterable[Any]) -> str:
    """Return the steps into a container, such as ``['w'][0]``."""
    return "".join(f"[{step!r}]" for step in steps)
