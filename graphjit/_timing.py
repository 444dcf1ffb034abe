"""A graph that takes the time of its nodes: one after the other, with an event between two.

Nodes of child graphs are timed, too. CUDA allows no events in the bodies of conditional nodes, so
that these are timed as a whole. Host functions and events of the program's own are left out.

Input: a graph and its ``RelocationPlan``. Output: the same with events, and ``Timing``.
Raises: ``DriverError``.
Source: cuGraphAddEventRecordNode, cuEventElapsedTime.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from graphjit._driver.interface import Driver
from graphjit._nodes import (
    Body,
    CapturedGraph,
    ChildGraphNode,
    Edge,
    EmptyNode,
    EventNode,
    HostNode,
    Node,
)
from graphjit._relocation import RelocationPlan


@dataclass(slots=True, eq=False, weakref_slot=True)
class Timing:
    """The events around nodes."""

    driver: Driver
    graph: CapturedGraph
    """Without events."""
    plan: RelocationPlan
    around: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node -> the events before and behind it."""

    def read(self) -> dict[int, tuple[float, float]]:
        """Return (begin, end) of each node in the last launch, in us from the first event."""
        elapsed = self.driver.event_elapsed_us
        first = next(iter(self.around.values()), (0, 0))[0]
        return {
            index: (elapsed(first, before), elapsed(first, behind))
            for index, (before, behind) in self.around.items()
        }


def with_events(
    driver: Driver, graph: CapturedGraph, plan: RelocationPlan
) -> tuple[CapturedGraph, RelocationPlan, Timing]:
    """Return a graph whose launches take the times of its nodes."""
    timing = Timing(driver, graph, plan)

    def new_event() -> int:
        event = driver.event_create(timing=True)
        weakref.finalize(timing, driver.event_destroy, event).atexit = False
        return event

    timed = _Timed(graph, new_event)
    timed_graph = timed.build()
    timing.around = timed.around
    return timed_graph, _moved(plan, timed.index), timing


class _Timed:
    def __init__(self, graph: CapturedGraph, new_event: Callable[[], int]) -> None:
        self._graph, self._new_event = graph, new_event
        self._nodes: list[Node] = []
        self._scopes: list[int] = []
        self._edges: list[Edge] = []
        self._last: dict[int, int] = {}
        """Timed scope -> the node that the next one waits for."""
        self._open: dict[int, int] = {}
        """Timed scope -> the node whose end is not timed yet."""
        self._begun: dict[int, int] = {}
        """Node -> the event before it."""
        self.index: list[int] = []
        """Of each node, in the new graph."""
        self.around: dict[int, tuple[int, int]] = {}

    def build(self) -> CapturedGraph:
        graph = self._graph
        timed = {-1, *(s for s, body in enumerate(graph.bodies) if self._is_timed(body))}
        for index, node in enumerate(graph.nodes):
            scope = graph.scope(index)
            if scope in timed:
                self._event(scope)
                self._open[scope] = index
                self._begun[index] = self._nodes[-1].event  # type: ignore[union-attr]
            left_out = isinstance(node, (HostNode, EventNode))
            self.index.append(self._add(EmptyNode(None) if left_out else node, scope))
            if scope in timed:
                self._chain(scope)
        for scope in sorted(timed & {-1, *graph.scopes}):
            self._event(scope)
        for i, j, data in graph.edges:
            if graph.scope(i) not in timed:
                self._edges.append(Edge(self.index[i], self.index[j], data))
        self.around = dict(sorted(self.around.items()))
        bodies = tuple(Body(self.index[body.node], body.position) for body in graph.bodies)
        setters = tuple((self.index[i], self.index[j]) for i, j in graph.setters)
        scopes = tuple(self._scopes) if bodies else ()
        return CapturedGraph(tuple(self._nodes), tuple(self._edges), bodies, scopes, setters)

    def _is_timed(self, body: Body) -> bool:
        """Say whether a body is the graph of a child graph node that is in no body itself."""
        scope = self._graph.scope(body.node)
        is_child = isinstance(self._graph.nodes[body.node], ChildGraphNode)
        return is_child and (scope < 0 or self._is_timed(self._graph.bodies[scope]))

    def _event(self, scope: int) -> None:
        """Add an event behind the last node of a scope."""
        event = self._new_event()
        self._add(EventNode(None, True, event), scope)
        self._chain(scope)
        if scope in self._open:
            node = self._open.pop(scope)
            self.around[node] = self._begun[node], event

    def _add(self, node: Node, scope: int) -> int:
        self._nodes.append(node)
        self._scopes.append(scope)
        return len(self._nodes) - 1

    def _chain(self, scope: int) -> None:
        """Let the node added last wait for the one before it in its scope."""
        this = len(self._nodes) - 1
        if scope in self._last:
            self._edges.append(Edge(self._last[scope], this))
        self._last[scope] = this


def _moved(plan: RelocationPlan, index: list[int]) -> RelocationPlan:
    """Return the plan for a graph in which the nodes have other indices."""
    table = plan.table.copy()
    table[:, 0] = np.array(index, np.int64)[table[:, 0]]
    return replace(
        plan,
        table=table,
        candidates=tuple((index[i], word) for i, word in plan.candidates),
        scalars=tuple(replace(word, node=index[word.node]) for word in plan.scalars),
    )
