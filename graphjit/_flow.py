"""Control flow in a capture: the pieces of a function between its branches and loops.

A stream cannot capture a conditional node. So the capture ends where control flow begins, and
another begins for each body and for what follows; what the function holds are stand-ins, of
which nothing is lost. Afterwards the pieces are put together as one graph.

    piece, branch (body: piece, ...; body: piece, ...), piece, loop (body: piece, again), piece

Input: predicates and bodies, as ``control`` runs them. Output: ``CapturedGraph`` with bodies.
Raises: ``DriverError``.
Source: conditional nodes (CUDA 12.4; branches of two or more bodies in one node 12.8).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphjit._driver.interface import (
    CONDITION_INDEX,
    CONDITION_IS_INDEX,
    CONDITION_LAYOUT,
    CONDITION_TRUTH,
    CUDA_WITH_SWITCH,
    Driver,
)
from graphjit._joined import JoinedGraph
from graphjit._nodes import CapturedGraph, ConditionalNode, KernelNode

_SET_CONDITION = "graphjit_set_condition"


@dataclass(eq=False, slots=True)
class Integer:
    """An integer in device memory that decides."""

    ptr: int
    form: int
    """Its bytes, and CONDITION_SIGNED."""


@dataclass(eq=False, slots=True)
class Branch:
    """One of several bodies is run; with ``is_truth`` the first of two, if it is true."""

    on: Integer
    is_truth: bool
    bodies: list[list[Item]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Loop:
    """The body is run, time and again, while a predicate is true."""

    on: Integer
    body: list[Item] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Again:
    """The predicate of a loop at the end of its body."""

    loop: Loop
    on: Integer


@dataclass(eq=False, slots=True)
class Piece:
    """What was captured in one go, or the launch of a graph that had been captured before."""

    graph: Any
    """The driver's graph, or a ``CapturedGraph``."""

    def read(self, driver: Driver) -> CapturedGraph:
        """Return it as data."""
        is_read = isinstance(self.graph, CapturedGraph)
        return self.graph if is_read else driver.graph_read(self.graph)


Item = Piece | Branch | Loop | Again


class Flow:
    """The items of a capture, in the order of the program."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._stack = [self.items]
        self._pieces: list[Piece] = []

    @property
    def n_pieces(self) -> int:
        """Say how many pieces are complete."""
        return len(self._pieces)

    @property
    def is_in_body(self) -> bool:
        """Say whether a body is being captured."""
        return len(self._stack) > 1

    def add_piece(self, graph: Any) -> None:
        """Take over a graph of the driver's, or a ``CapturedGraph``."""
        self._pieces.append(Piece(graph))
        self._stack[-1].append(self._pieces[-1])

    def add(self, item: Item) -> None:
        """Add control flow behind the last piece."""
        self._stack[-1].append(item)

    @contextmanager
    def body(self, items: list[Item]) -> Iterator[None]:
        """Let what follows be part of a body."""
        self._stack.append(items)
        try:
            yield
        finally:
            self._stack.pop()

    def drop(self, driver: Driver) -> None:
        """Destroy the driver's graphs and forget everything."""
        while self._pieces:
            graph = self._pieces.pop().graph
            if not isinstance(graph, CapturedGraph):
                driver.graph_destroy(graph)
        self.items.clear()


def assemble(driver: Driver, flow: Flow, last: Any) -> tuple[CapturedGraph, list[int]]:
    """Put the pieces together; ``last`` is the graph behind the last of them.

    Also returns where each piece begins, as the index of its first node.
    """
    if not flow.items:
        return driver.graph_read(last), [0]
    return _Assembly(driver).graph([*flow.items, Piece(last)])


class _Assembly:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._has_switch = driver.version() >= CUDA_WITH_SWITCH
        self._whole = JoinedGraph()
        self._node_of: dict[Loop, int] = {}
        self._begins: list[int] = []

    def graph(self, items: Sequence[Item]) -> tuple[CapturedGraph, list[int]]:
        """Return the whole, and where each piece begins."""
        self._sequence(items, -1)
        return self._whole.graph(), self._begins

    def _sequence(self, items: Sequence[Item], scope: int) -> None:
        """Add items one behind the other."""
        whole, before = self._whole, list[int]()
        for item in items:
            if isinstance(item, Piece):
                self._begins.append(len(whole))
                before = whole.add_graph(item.read(self._driver), scope, before)
            elif isinstance(item, Branch):
                before = self._branch(item, scope, before)
            elif isinstance(item, Loop):
                setter = self._setter(item.on, CONDITION_TRUTH, 0, scope, before)
                self._node_of[item] = node = self._conditional("while", 1, scope, [setter])
                whole.add_setter(setter, node)
                self._sequence(item.body, whole.add_body(node, 0))
                before = [node]
            else:
                before = [self._setter(item.on, CONDITION_TRUTH, 0, scope, before)]
                whole.add_setter(before[0], self._node_of[item.loop])

    def _branch(self, branch: Branch, scope: int, before: list[int]) -> list[int]:
        """Add one conditional node, or one for each body where the driver has no others.

        All conditions are set before a body runs: it may write to the integer.
        """
        n = len(branch.bodies)
        if self._has_switch:
            mode = CONDITION_TRUTH if branch.is_truth else CONDITION_INDEX
            setters = [self._setter(branch.on, mode, n, scope, before)]
            kinds = [("if" if branch.is_truth else "switch", n)]
        else:
            setters = []
            for i in range(n):
                wanted = 1 - i if branch.is_truth else i
                mode = CONDITION_IS_INDEX | wanted << 8
                setters.append(self._setter(branch.on, mode, n, scope, setters[-1:] or before))
            kinds = [("if", 1)] * n
        before = setters[-1:]
        bodies = iter(branch.bodies)
        for setter, (kind, n_bodies) in zip(setters, kinds, strict=True):
            node = self._conditional(kind, n_bodies, scope, before)
            self._whole.add_setter(setter, node)
            for position in range(n_bodies):
                self._sequence(next(bodies), self._whole.add_body(node, position))
            before = [node]
        return before

    def _setter(self, on: Integer, mode: int, n: int, scope: int, before: list[int]) -> int:
        """Add the kernel that sets a condition; its handle is not known yet."""
        node = KernelNode(
            handle=None,
            name=_SET_CONDITION,
            function=self._driver.builtin_kernel("set_condition"),
            grid_dim=(1, 1, 1),
            block_dim=(1, 1, 1),
            shared_mem_bytes=0,
            params=struct.pack("<QQIIq", 0, on.ptr, on.form, mode, n),
            param_layout=CONDITION_LAYOUT,
            is_own=True,
        )
        return self._whole.add(node, scope, before)

    def _conditional(self, kind: str, n_bodies: int, scope: int, before: list[int]) -> int:
        return self._whole.add(ConditionalNode(None, kind, n_bodies), scope, before)
