"""Find where the kernels of a graph hold dynamic scalars.

The function is captured again with other values. What differs between the captures must be a
scalar, in one of the forms in which a kernel can be given it, in all of them; anything else means
that the function computes with the scalar on the host, or decides by it.

Input: what the captures gave. Output: ``ScalarWord``: bytes of a node's parameters <- scalar.
A pure function of data.
Raises: ``DynamicScalarError`` naming the node and the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphjit._nodes import CapturedGraph, KernelNode
from graphjit._outputs import OutputPlan, StaticOutput
from graphjit._relocation import RelocationPlan
from graphjit._scalars import Encoding, ScalarWord, encodings, is_real
from graphjit.errors import DynamicScalarError

_REALS = (0, -7.126354e29, 1, 3.318764211e-21, -1, 6.02214076e23, 2, 1.6180339887, 0.5)
"""Spread out, so that a decision by a threshold, and a limit, show; and numbers for which
libraries have ways of their own, as for squares and square roots."""
_FRACTIONS = (0, -0.91234567, 1, 0.83456789, -1, 0.12345678, 2, 0.00123456, 3)
"""The same for integers; what is no whole number is a part of their range."""
_SPECIAL = (0, 1, -1, 2, 3, 0.5)
_INTEGER_TYPES = ("i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1")
_ADVICE = (
    "A graph launch runs no Python: only the value itself may reach the kernels. Do it before the "
    "call and pass the result as a dynamic argument of its own, do it on the device, or leave the "
    "argument out of @graphed(dynamic=...)."
)


@dataclass(frozen=True, slots=True)
class Probe:
    """One capture: the values of the dynamic scalars, and what came of it."""

    values: tuple[Any, ...]
    graph: CapturedGraph
    plan: RelocationPlan
    outputs: OutputPlan
    constants: tuple[bytes, ...]
    """With zeros in the places of addresses."""
    regions: tuple[tuple[Any, ...], ...]
    """(bytes, argument, born, freed) of each region."""


def probe_values(values: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield lists of values to capture with, the widest first; a list too wide overflows.

    Numbers of many different bytes come last: they are what a capture with the call's own
    numbers, made after them, may find in parameters that nobody writes.
    """
    n = len(_REALS)
    turns = sorted(range(n), key=lambda turn: _n_dense(turn, len(values)))
    for dtype in _INTEGER_TYPES:
        yield [
            tuple(_probe(value, turn + 2 * i, 1 - i / 256, dtype) for i, value in enumerate(values))
            for turn in turns
        ]
        if not any(type(value) is int for value in values):
            return


def _n_dense(turn: int, n_values: int) -> int:
    return sum(_REALS[(turn + 2 * i) % len(_REALS)] not in _SPECIAL for i in range(n_values))


def _probe(value: Any, turn: int, scale: float, dtype: str) -> Any:
    """Return another number of the same type; ``scale`` makes it differ from other scalars'."""
    kind = type(value)
    if kind is int or isinstance(value, np.integer):
        info = np.iinfo(dtype if kind is int else kind)
        part = _FRACTIONS[turn % len(_FRACTIONS)]
        if part in _SPECIAL:
            return kind(max(int(part), info.min))
        most = info.max >> (kind is int and dtype == "u8")  # CuPy has another type for more
        return kind(int((part if info.min else abs(part)) * scale * most))
    with np.errstate(all="ignore"):
        if is_real(value):
            return kind(_real(turn, scale))
        return kind(complex(_real(turn, scale), _real(turn + 3, scale)))


def _real(turn: int, scale: float) -> float:
    number = _REALS[turn % len(_REALS)]
    return float(number) if number in _SPECIAL else number * scale


def find_scalar_words(
    function: str,
    names: Sequence[str],
    base: Probe,
    others: Sequence[Probe],
    repeats: Sequence[Probe],
    unwritten: Callable[[KernelNode], Iterable[tuple[int, int]]],
) -> list[ScalarWord]:
    """Compare captures with different values; ``repeats`` were made with those of ``base``.

    Bytes that differ between these, or that the library never writes, mean nothing. A byte that
    nobody writes is what an earlier capture left there, so that each repeat has another before it.
    """
    search = _Search(function, names, base, [*others], repeats)
    search.unwritten = unwritten
    for other in [*others, *repeats]:
        search.compare(other)
    return [word for i in range(len(base.graph.nodes)) for word in search.words_of(i)]


class _Search:
    def __init__(
        self,
        function: str,
        names: Sequence[str],
        base: Probe,
        others: list[Probe],
        repeats: Sequence[Probe],
    ) -> None:
        self.function, self.names = function, names
        self.base, self.others, self.repeats = base, others, repeats
        self._addresses = base.plan.table[:, :2]
        self.unwritten: Callable[[KernelNode], Iterable[tuple[int, int]]] = lambda node: ()

    def compare(self, other: Probe) -> None:
        """Refuse if anything but parameters is different."""
        base = self.base
        for i, (node, its) in enumerate(zip(base.graph.nodes, other.graph.nodes, strict=False)):
            if _shape(node) != _shape(its):
                raise self._decides(other, f"node {i} is {_name(node)} or {_name(its)}")
        pairs = (
            ("nodes", len(base.graph.nodes), len(other.graph.nodes)),
            ("dependencies", base.graph.edges, other.graph.edges),
            ("memory that it asks for", base.regions, other.regions),
            ("addresses in parameters", base.plan.table.tolist(), other.plan.table.tolist()),
            ("returned values", _leaves(base.outputs), _leaves(other.outputs)),
        )
        for what, before, now in pairs:
            if before != now:
                raise self._decides(other, f"the {what} differ")
        if base.constants != other.constants:
            raise self._error(
                "is part of host data that the function copies to the device, as cupy.asarray does"
            )

    def words_of(self, index: int) -> list[ScalarWord]:
        """Explain every byte of a node's parameters that differs."""
        node = self.base.graph.nodes[index]
        if not isinstance(node, KernelNode):
            return []
        rows = [self._params(probe, index) for probe in (self.base, *self.others)]
        differs = (np.stack(rows) != rows[0]).any(axis=0)
        for repeat in self.repeats:
            differs &= self._params(repeat, index) == rows[0]
        for begin, end in self.unwritten(node):
            differs[begin:end] = False
        found: list[ScalarWord] = []
        while differs.any():
            at = int(np.flatnonzero(differs)[0])
            word = self._word_at(index, node, rows, at)
            if word is None:
                param = next(k for k, (o, n) in enumerate(node.param_layout) if o <= at < o + n)
                raise self._error(
                    f"is used in a derived form: parameter {param} of kernel {node.name} (node "
                    f"{index}) depends on it, and is not the value itself"
                )
            found.append(word)
            differs[word.param_offset : word.param_offset + word.nbytes] = False
        return found

    def _params(self, probe: Probe, index: int) -> np.ndarray[Any, Any]:
        """Return the bytes of a node's parameters, with zeros in the places of addresses."""
        params = np.frombuffer(probe.graph.nodes[index].params, np.uint8).copy()  # type: ignore[union-attr]
        for at in self._addresses[self._addresses[:, 0] == index, 1]:
            params[at : at + 8] = 0
        return params

    def _word_at(
        self, index: int, node: KernelNode, rows: list[np.ndarray[Any, Any]], at: int
    ) -> ScalarWord | None:
        """Return the scalar that the bytes at a place are, in every capture."""
        begin, size = next((o, n) for o, n in node.param_layout if o <= at < o + n)
        probes = (self.base, *self.others)
        for nbytes in (8, 4, 2, 1):
            offset = begin + (at - begin) // nbytes * nbytes
            if offset + nbytes > begin + size:
                continue
            words = [row[offset : offset + nbytes].tobytes() for row in rows]
            for scalar, value in enumerate(self.base.values):
                fitting = tuple(
                    encoding
                    for encoding in encodings(value)
                    if encoding.nbytes == nbytes and _fits(encoding, scalar, probes, words)
                )
                if fitting:
                    return ScalarWord(index, offset, scalar, fitting)
        return None

    def _decides(self, other: Probe, what: str) -> DynamicScalarError:
        values = ", ".join(
            f"{name}={mine!r} or {its!r}"
            for name, mine, its in zip(self.names, self.base.values, other.values, strict=True)
        )
        return self._error(f"decides what is launched: with {values} {what}")

    def _error(self, what: str) -> DynamicScalarError:
        return dynamic_error(self.function, self.names, what)


def dynamic_error(function: str, names: Sequence[str], what: str) -> DynamicScalarError:
    """Return the error that refuses dynamic scalars."""
    which = " or ".join(f"`{name}`" for name in names)
    return DynamicScalarError(
        f"{function} cannot be captured with dynamic scalars: {which} {what}. {_ADVICE}"
    )


def _fits(encoding: Encoding, scalar: int, probes: Sequence[Probe], words: list[bytes]) -> bool:
    try:
        return all(
            encoding.encode(probe.values[scalar]) == word
            for probe, word in zip(probes, words, strict=True)
        )
    except (OverflowError, TypeError, ValueError):
        return False


def _shape(node: Any) -> tuple[Any, ...]:
    """Return all of a node but its parameters."""
    if not isinstance(node, KernelNode):
        return (node.kind,)
    return (
        node.name,
        node.function,
        node.grid_dim,
        node.block_dim,
        node.shared_mem_bytes,
        node.param_layout,
    )


def _name(node: Any) -> str:
    return f"kernel {node.name}" if isinstance(node, KernelNode) else f"a {node.kind} node"


def _leaves(outputs: OutputPlan) -> list[Any]:
    """Return the outputs in a form in which a NaN equals itself."""
    leaves = [
        repr(leaf.value) if isinstance(leaf, StaticOutput) else leaf for leaf in outputs.leaves
    ]
    return [*leaves, outputs.tree]
