"""What the tests of graphs in files share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def names_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, by which a loaded graph is launched."""
    return fn.__code__.co_varnames[: fn.__code__.co_argcount]
