"""Control flow on NumPy arrays: what ``graphjit.control`` means, in the plainest form.

Raises: ``ValueError`` for what does not fit, so that no program gets the statement.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return np.array(value, order="C")


def _like(value: Any, other: Any) -> Any:
    """Copy a result that must be like another."""
    if isinstance(value, tuple):
        return tuple(_like(a, b) for a, b in zip(value, other, strict=True))
    copy = np.array(value, order="C")
    if (copy.dtype, copy.shape) != (np.asarray(other).dtype, np.shape(other)):
        raise ValueError("it does not stay the same")
    return copy


def cond(pred: Any, true_fn: Any, false_fn: Any, *operands: Any) -> Any:
    """Call one of two functions."""
    return switch(int(not pred), [true_fn, false_fn], *operands)


def switch(index: Any, branches: Any, *operands: Any) -> Any:
    """Call one of several functions; the others on copies, to see that they return the like."""
    k = min(max(int(index), 0), len(branches) - 1)
    others = [branch(*map(np.array, operands)) for i, branch in enumerate(branches) if i != k]
    result = _copied(branches[k](*operands))
    for other in others:
        _like(other, result)
    return result


def while_loop(cond_fn: Any, body_fn: Any, init: Any) -> Any:
    """Call a function on its own result."""
    carry = _copied(init)
    _like(body_fn(_copied(carry)), carry)  # a capture runs it, too, if the loop is not entered
    while cond_fn(carry):
        carry = _like(body_fn(carry), carry)
    return carry


def fori_loop(lower: Any, upper: Any, body_fn: Any, init: Any) -> Any:
    """Call a function for the integers of a range."""
    carry = _copied(init)
    _like(body_fn(np.asarray(0), _copied(carry)), carry)
    for i in range(int(lower), int(upper)):
        carry = _like(body_fn(np.asarray(i), carry), carry)
    return carry


def host_callback(fn: Any, *args: Any) -> None:
    """Do nothing: the function changes nothing that a program sees."""


def pinned(arrays: tuple[Any, ...]) -> Any:
    """Return a copy, row by row."""
    return np.array(arrays[0], order="C")


NUMPY_CONTROL = {
    "host_callback": host_callback,
    "note": None,
    "pinned": pinned,
    "cond": cond,
    "switch": switch,
    "while_loop": while_loop,
    "fori_loop": fori_loop,
}
