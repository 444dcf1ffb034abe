"""Graphed functions that a captured function calls: each call is a child graph.

Nothing of the capture depends on it: the nodes that a call recorded are put together, whatever
streams they were recorded on, and what waited for one of them waits for all.

Input: a ``CapturedGraph`` and the calls, as ranges of its nodes.
Output: the graph with child graph nodes, whose bodies hold what the calls recorded.
A pure function of data.
Source: cuGraphAddChildGraphNode, cuGraphChildGraphNodeGetGraph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from graphjit._joined import JoinedGraph
from graphjit._nodes import Body, CapturedGraph, ChildGraphNode, ConditionalNode, Edge, Node

Position = tuple[int, int]
"""(pieces that are complete, nodes of the present one)"""


class ChildCall(NamedTuple):
    """A call, and the nodes that were recorded from its beginning to its end."""

    name: str
    begin: int
    end: int


class Calls:
    """The calls of graphed functions in a capture."""

    def __init__(self) -> None:
        self._open: list[Any] = []
        self._ended: list[tuple[str, Position, Position]] = []
        self._n_drops = 0

    def is_open(self, function: Any) -> bool:
        """Say whether a function is being called, be it as the one that is captured."""
        return any(other is function for other in self._open)

    @contextmanager
    def enter(self, function: Any) -> Iterator[None]:
        """Call the function that is captured."""
        self._open.append(function)
        try:
            yield
        finally:
            self._open.pop()

    @contextmanager
    def note(self, function: Any, name: str, position: Callable[[], Position]) -> Iterator[None]:
        """Call a function inside it; one that fails, or that a read splits, is no child graph."""
        begin, n_drops = position(), self._n_drops
        with self.enter(function):
            yield
        if n_drops == self._n_drops:
            self._ended.append((name, begin, position()))

    def drop(self) -> None:
        """Forget the calls so far, and those that have begun: their nodes are not kept."""
        self._ended.clear()
        self._n_drops += 1

    def within(self, begins: Sequence[int]) -> list[ChildCall]:
        """Return the calls, given the index of the first node of each piece."""
        return [
            ChildCall(name, begins[i] + at, begins[j] + end)
            for name, (i, at), (j, end) in self._ended
        ]


def nest(graph: CapturedGraph, calls: Sequence[ChildCall], *, flow: bool) -> CapturedGraph:
    """Make a child graph of each call that recorded nodes.

    Without ``flow`` the driver allows no conditional nodes in child graphs: a call with control
    flow on the device stays where it is, and the calls inside it are nested nevertheless.
    """
    chosen = [c for c in calls if c.begin < c.end and (flow or not _has_flow(graph, c))]
    return _Nesting(graph, chosen).nested() if chosen else graph


def _has_flow(graph: CapturedGraph, call: ChildCall) -> bool:
    return any(isinstance(node, ConditionalNode) for node in graph.nodes[call.begin : call.end])


class _Open(NamedTuple):
    """A call whose nodes are being placed."""

    end: int
    around: int
    """The scope that it was made in."""
    child: int
    """Its child graph node."""
    scope: int
    """The body of that."""


class _Nesting:
    def __init__(self, graph: CapturedGraph, calls: Sequence[ChildCall]) -> None:
        self._graph = graph
        # Of two calls with the same nodes the inner one has ended first.
        order = sorted(enumerate(calls), key=lambda at: (-at[1].begin, at[1].end, at[0]))
        self._calls = [call for _, call in order]
        """The next one to begin is last; of two that begin at a node, the outer one."""
        self._nodes: list[Node] = []
        self._scopes: list[int] = []
        self._children: list[int] = []
        """The child graph nodes, whose bodies come behind those of the graph, in this order."""
        self._index: list[int] = []
        """Of each node of the graph, in the new one."""
        self._around: list[tuple[int, ...]] = []
        """The child graph nodes that each node of the graph is in, from the outside."""

    def nested(self) -> CapturedGraph:
        graph = self._graph
        self._place_nodes()
        bodies = [Body(self._index[body.node], body.position) for body in graph.bodies]
        bodies += [Body(child, 0) for child in self._children]
        setters = [(self._index[i], self._index[j]) for i, j in graph.setters]
        return CapturedGraph(
            tuple(self._nodes), self._edges(), tuple(bodies), tuple(self._scopes), tuple(setters)
        )

    def _place_nodes(self) -> None:
        open_calls: list[_Open] = []
        for index, node in enumerate(self._graph.nodes):
            while open_calls and open_calls[-1].end <= index:
                open_calls.pop()
            around = self._graph.scope(index)
            scope = _scope(around, open_calls)
            while self._calls and self._calls[-1].begin == index:
                call = self._calls.pop()
                child = self._add(ChildGraphNode(None, call.name), scope)
                scope = len(self._graph.bodies) + len(self._children)
                self._children.append(child)
                open_calls.append(_Open(call.end, around, child, scope))
            self._index.append(self._add(node, scope))
            self._around.append(tuple(call.child for call in open_calls))

    def _add(self, node: Node, scope: int) -> int:
        self._nodes.append(node)
        self._scopes.append(scope)
        return len(self._nodes) - 1

    def _edges(self) -> tuple[Edge, ...]:
        """Let edges into and out of a child graph begin and end at its node."""
        edges: dict[tuple[int, int], Edge] = {}
        for i, j, data in self._graph.edges:
            from_ = (*self._around[i], self._index[i])
            to = (*self._around[j], self._index[j])
            depth = next(k for k, (a, b) in enumerate(zip(from_, to, strict=False)) if a != b)
            pair = from_[depth], to[depth]
            is_whole = pair == (from_[-1], to[-1])
            edges.setdefault(pair, Edge(*pair, data if is_whole else None))
        return tuple(edges.values())


def _scope(around: int, open_calls: Sequence[_Open]) -> int:
    """Return where a node of a scope goes: the bodies of conditional nodes stay bodies."""
    calls = [call.scope for call in open_calls if call.around == around]
    return calls[-1] if calls else around


def side_by_side(parts: Sequence[tuple[str, CapturedGraph, Iterable[int]]]) -> CapturedGraph:
    """Make one graph of several: name, graph, and the parts that a part waits for.

    A child graph node for each part, and behind them what is in it.
    """
    whole = JoinedGraph()
    for name, _, after in parts:
        whole.add(ChildGraphNode(None, name), -1, sorted(after))
    scopes = [whole.add_body(number, 0) for number in range(len(parts))]
    for (_, graph, _), scope in zip(parts, scopes, strict=True):
        whole.add_graph(graph, scope)
    return whole.graph()
