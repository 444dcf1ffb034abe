"""The nodes of an explicit graph.

Input: functions, what they were captured as. Output: ``GraphNode``, for users; ``Part``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphjit._capture import Captured
from graphjit._flow import Flow
from graphjit._launcher import EntryLauncher


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GraphNode:
    """A node of a ``Graph``; compared by identity.

    Attributes
    ----------
    name : str
        The function, and which node of the graph it is.
    result : object
        What the function returned: stand-ins for arrays, to be given to other nodes.
    after : frozenset of GraphNode
        The nodes that it waits for.
    """

    name: str
    result: Any
    after: frozenset[GraphNode]

    def __repr__(self) -> str:
        return f"<node {self.name}>"


@dataclass(slots=True)
class Part:
    """What is kept of a node until the graph is complete."""

    node: GraphNode
    captured: Captured
    flow: Flow
    after: frozenset[int]


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function, for its node."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, EntryLauncher):
        return f"{type(owner).__qualname__}.launch"
    return getattr(fn, "__qualname__", type(fn).__qualname__)
