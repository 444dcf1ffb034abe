"""What the functions of control flow are given and return: containers of new arrays.

Input: results of branches and bodies. Output: ``Values``: arrays in memory of their own, row by
row, in the same containers.
Raises: ``ControlFlowError`` if two results that must be alike are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import optree

from graphjit._adapters import registry
from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._capture import current_capture, is_capturing_here
from graphjit._containers import flatten, steps_text, unflatten
from graphjit._source import user_line
from graphjit.errors import CaptureError, ControlFlowError

R = TypeVar("R")
BODY = "what body_fn returns"
_NUMBERS = (bool, int, float, complex, np.generic)


@dataclass(slots=True)
class Values:
    """Leaves in their containers; ``arrays`` are those among them, all in memory of their own."""

    adapter: Adapter
    what: str
    leaves: list[Any]
    tree: Any

    @classmethod
    def copied(cls, value: Any, what: str) -> Values:
        """Copy a result."""
        leaves, tree = flatten(value, registry.is_array)
        adapter = registry.find(leaves)
        return cls(adapter, what, [copied_leaf(adapter, leaf) for leaf in leaves], tree)

    @property
    def arrays(self) -> list[Any]:
        """The arrays."""
        return [leaf for leaf in self.leaves if self.adapter.is_array(leaf)]

    def value(self) -> Any:
        """Return the leaves in their containers."""
        return unflatten(self.tree, self.leaves)

    def followed_by(self, value: Any, other: str) -> Values:
        """Copy a result that must be like this one."""
        leaves = [copied_leaf(self.adapter, leaf) for leaf in self.like(value, other)]
        return replace(self, leaves=leaves)

    def like(self, value: Any, other: str) -> list[Any]:
        """Return the leaves of a result that must be like this one; ``other`` says whose it is."""
        leaves, tree = flatten(value, registry.is_array)
        if tree != self.tree:
            raise self._unlike("", _tree_text(self.tree), other, _tree_text(tree))
        paths = optree.treespec_paths(self.tree)
        for path, mine, theirs in zip(paths, self.leaves, leaves, strict=True):
            forms = self._form(mine), self._form(theirs)
            if forms[0] != forms[1]:
                raise self._unlike(steps_text(path), _text(forms[0]), other, _text(forms[1]))
        return leaves

    def _unlike(self, path: str, mine: str, other: str, theirs: str) -> ControlFlowError:
        return ControlFlowError(
            f"{self.what}{path} is {mine}, and {other}{path} is {theirs}, at "
            f"{user_line(self.adapter.library_modules)}. Both must be the same containers, with "
            f"arrays of the same shapes and dtypes: convert with astype, or begin with the other "
            f"dtype."
        )

    def _form(self, leaf: Any) -> Any:
        """Return what must be the same: dtype and shape, or the value itself."""
        if self.adapter.is_array(leaf):
            return np.dtype(leaf.dtype), leaf.shape
        if isinstance(leaf, _NUMBERS):
            return np.asarray(leaf).dtype, ()
        return leaf


def check_like(value: Any, what: str, result: Any, other: str) -> None:
    """Refuse a result that is not like a value."""
    leaves, tree = flatten(value, registry.is_array)
    Values(registry.find(leaves), what, leaves, tree).like(result, other)


def _tree_text(tree: Any) -> str:
    text = str(tree).removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0]
    return "one array or number" if text == "*" else f"the container {text}"


def _text(form: Any) -> str:
    is_array = isinstance(form, tuple) and len(form) == 2 and isinstance(form[0], np.dtype)
    return f"{form[0]} {form[1]}" if is_array else repr(form)


def copied_leaf(adapter: Adapter, leaf: Any) -> Any:
    """Copy an array, or make one of a number; return anything else as it is."""
    if adapter.is_array(leaf):
        copy = _empty_like(adapter, leaf)
        adapter.assign(copy, leaf)
        return copy
    return adapter.scalar_array(leaf) if isinstance(leaf, _NUMBERS) else leaf


def _empty_like(adapter: Adapter, array: Any) -> Any:
    """Make an array of the shape and dtype, row by row, without contents."""
    return empty_like(adapter, adapter.spec(array))


def empty_like(adapter: Adapter, spec: ArraySpec) -> Any:
    """Make an array of a shape and dtype, row by row, without contents."""
    strides, step = [], np.dtype(spec.dtype).itemsize
    for n in reversed(spec.shape):
        strides.append(step)
        step *= max(n, 1)
    nbytes = step if 0 not in spec.shape else 0
    kind = adapter.array_types[0] if spec.array_type is np.ndarray else spec.array_type
    plain = replace(spec, array_type=kind, strides=tuple(reversed(strides)), low=0, high=nbytes)
    return adapter.make_array(plain, adapter.allocate(nbytes), 0)


def new_values(function: Callable[[], R]) -> R:
    """Call a function; return its result in new memory."""
    return Values.copied(function(), "the result").value()  # type: ignore[no-any-return]


def capture_of(what: str, *arrays: Any) -> Any:
    """Return graphjit's capture in progress, which ``what`` is to be part of; None without one."""
    if is_capturing_here():
        return current_capture()
    if registry.find(arrays).is_capturing():
        raise CaptureError(
            f"{what} cannot be part of a capture that graphjit has not begun. Use @graphed, or "
            f"graphjit.capture."
        )
    return None
