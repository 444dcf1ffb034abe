"""A captured graph in the making, put together of nodes and of whole graphs.

Input: nodes, edges, ``CapturedGraph``. Output: one ``CapturedGraph``.
A pure function of data.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphjit._nodes import Body, CapturedGraph, Edge, Node


class JoinedGraph:
    """Nodes by number, in the order in which they are added; the graph itself is scope -1."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._bodies: list[Body] = []
        self._scopes: list[int] = []
        self._setters: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: Node, scope: int, before: Iterable[int] = ()) -> int:
        """Add a node behind others; return its number."""
        number = len(self._nodes)
        self._nodes.append(node)
        self._scopes.append(scope)
        self._edges += [Edge(i, number) for i in before]
        return number

    def add_body(self, node: int, position: int) -> int:
        """Add a body of a node; return the scope that it is."""
        self._bodies.append(Body(node, position))
        return len(self._bodies) - 1

    def add_setter(self, kernel: int, conditional: int) -> None:
        """Let a kernel set the condition of a node."""
        self._setters.append((kernel, conditional))

    def add_graph(self, graph: CapturedGraph, scope: int, before: Iterable[int] = ()) -> list[int]:
        """Add a graph behind some nodes; return its last nodes, ``before`` if it has none."""
        first, first_body = len(self._nodes), len(self._bodies)
        own = graph.scopes or (-1,) * len(graph.nodes)
        self._nodes += graph.nodes
        self._scopes += [scope if of < 0 else first_body + of for of in own]
        self._edges += [Edge(first + i, first + j, data) for i, j, data in graph.edges]
        self._bodies += [Body(first + body.node, body.position) for body in graph.bodies]
        self._setters += [(first + i, first + j) for i, j in graph.setters]
        top = {first + i for i, of in enumerate(own) if of < 0}
        roots = sorted(top - {first + edge.to for edge in graph.edges})
        self._edges += [Edge(i, j) for i in before for j in roots]
        return sorted(top - {first + edge.from_ for edge in graph.edges}) or list(before)

    def graph(self) -> CapturedGraph:
        """Return the whole."""
        return CapturedGraph(
            tuple(self._nodes),
            tuple(self._edges),
            tuple(self._bodies),
            tuple(self._scopes) if self._bodies else (),
            tuple(self._setters),
        )
