"""Checks of a driver: conditional nodes, their bodies, and patches in bodies.

Input: a ``Bench``. Output: nothing. Raises: ``AssertionError``.
Source: cuGraphConditionalHandleCreate, cuGraphAddNode, cudaGraphSetConditional (CUDA 12.4).
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from graphjit._driver.conformance_bench import Bench, Check, refused
from graphjit._driver.interface import (
    CONDITION_INDEX,
    CONDITION_IS_INDEX,
    CONDITION_LAYOUT,
    CONDITION_SIGNED,
    CONDITION_TRUTH,
    CUDA_WITH_SWITCH,
    KernelLaunch,
)


class Conditional:
    """A graph of a kernel that sets a condition, and the node that it decides."""

    def __init__(self, bench: Bench, kind: str, n_bodies: int, graph: Any = None) -> None:
        self.bench, self.driver = bench, bench.driver
        self.graph = bench.graph()[0] if graph is None else graph
        self.handle = self.driver.graph_conditional_handle_create(self.graph)
        self.node, self.bodies = self.driver.graph_add_conditional_node(
            self.graph, self.handle, kind, n_bodies
        )

    def set_from(self, ptr: int, form: int, mode: int, n: int = 0) -> None:
        """Let the node be decided by an integer in memory."""
        setter, _ = self.add_setter(self.graph, ptr, form, mode, n)
        self.driver.graph_add_dependencies(self.graph, [(setter, self.node, None)])

    def add_setter(self, graph: Any, ptr: int, form: int, mode: int, n: int = 0) -> tuple[Any, Any]:
        """Add a kernel that sets the condition; return it and its parameters."""
        function = self.driver.builtin_kernel("set_condition")
        launch = KernelLaunch(function, (1, 1, 1), (1, 1, 1), 0, CONDITION_LAYOUT)
        packed = struct.pack("<QQIIq", self.handle, ptr, form, mode, n)
        return self.add(graph, (launch, packed))

    def add(self, graph: Any, launch: tuple[KernelLaunch, bytes]) -> tuple[Any, Any]:
        """Add a kernel."""
        params = self.driver.kernel_node_params(*launch)
        return self.driver.graph_add_kernel_node(graph, params, None), params


def _marks(place: int) -> bytes:
    """Return three words of which one is marked."""
    return b"".join((b"A" if i == place else b".") * 8 for i in range(3))


def _has_switch(bench: Bench) -> bool:
    return bench.driver.version() >= CUDA_WITH_SWITCH


def an_integer_decides(bench: Bench) -> None:
    """IF runs its body if the condition is set; integers of all sizes are read as they are."""
    for nbytes in (1, 2, 4, 8):
        for value in (0, 1, (1 << 8 * nbytes) - 1):
            decider, dst = bench.memory(value.to_bytes(nbytes, "little")), bench.memory(b"." * 8)
            conditional = Conditional(bench, "if", 1)
            conditional.set_from(decider, nbytes, CONDITION_TRUTH)
            conditional.add(conditional.bodies[0], bench.fill(dst, 0x41, 8))
            graph_exec = bench.instantiate(conditional.graph)
            bench.run(graph_exec)
            assert bench.read(dst, 8) == (b"A" if value else b".") * 8
            bench.driver.memcpy_htod(dst, b"." * 8)
            bench.driver.memcpy_htod(decider, bytes(nbytes))
            bench.run(graph_exec)
            assert bench.read(dst, 8) == b"." * 8


def an_index_decides(bench: Bench) -> None:
    """An index is kept within the bodies, signed or not; ``IS_INDEX`` compares after that."""
    cases = [
        (struct.pack("<b", -3), 1 | CONDITION_SIGNED, 0),
        (struct.pack("<B", 253), 1, 2),
        (struct.pack("<h", 1), 2 | CONDITION_SIGNED, 1),
        (struct.pack("<i", -(1 << 31)), 4 | CONDITION_SIGNED, 0),
        (struct.pack("<q", 1 << 40), 8 | CONDITION_SIGNED, 2),
        (struct.pack("<Q", (1 << 64) - 1), 8, 2),
        (struct.pack("<I", 2), 4, 2),
    ]
    for data, form, expected in cases:
        decider, dst = bench.memory(data), bench.memory(b"." * 24)
        for wanted in range(3):
            conditional = Conditional(bench, "if", 1)
            conditional.set_from(decider, form, CONDITION_IS_INDEX | wanted << 8, 3)
            conditional.add(conditional.bodies[0], bench.fill(dst + 8 * wanted, 0x41, 8))
            bench.run(bench.instantiate(conditional.graph))
        assert bench.read(dst, 24) == _marks(expected)
        if _has_switch(bench):
            bench.driver.memcpy_htod(dst, b"." * 24)
            conditional = Conditional(bench, "switch", 3)
            conditional.set_from(decider, form, CONDITION_INDEX, 3)
            for i, body in enumerate(conditional.bodies):
                conditional.add(body, bench.fill(dst + 8 * i, 0x41, 8))
            bench.run(bench.instantiate(conditional.graph))
            written = bench.read(dst, 24)
            assert written == _marks(expected)


def else_is_the_second_body(bench: Bench) -> None:
    """IF with two bodies runs the second if the condition is zero."""
    if not _has_switch(bench):
        return
    for value in (b"\0", b"\1"):
        decider, dst = bench.memory(value), bench.memory(b"." * 8)
        conditional = Conditional(bench, "if", 2)
        conditional.set_from(decider, 1, CONDITION_TRUTH)
        for body, letter in zip(conditional.bodies, (0x54, 0x46), strict=True):
            conditional.add(body, bench.fill(dst, letter, 8))
        bench.run(bench.instantiate(conditional.graph))
        assert bench.read(dst, 8) == (b"T" if value == b"\1" else b"F") * 8


def while_repeats_its_body(bench: Bench) -> None:
    """WHILE runs its body until the body sets the condition to zero, and at every launch anew."""
    # A row of flags moves by one place in each pass, until the first is zero.
    flags, count = bench.memory(b"\1\1\1\0\0\0\0\0"), bench.memory(bytes(8))
    conditional = Conditional(bench, "while", 1)
    conditional.set_from(flags, 1, CONDITION_TRUTH)
    (body,) = conditional.bodies
    spare = bench.memory(bytes(8))
    steps = [
        conditional.add(body, bench.copy(spare, flags + 1, 7))[0],
        conditional.add(body, bench.copy(flags, spare, 7))[0],
        conditional.add(body, bench.copy(spare + 1, count, 7))[0],
        conditional.add(body, bench.fill(spare, 0x78, 1))[0],
        conditional.add(body, bench.copy(count, spare, 8))[0],
        conditional.add_setter(body, flags, 1, CONDITION_TRUTH)[0],
    ]
    edges = [(a, b, None) for a, b in pairwise(steps)]
    bench.driver.graph_add_dependencies(body, edges)
    graph_exec = bench.instantiate(conditional.graph)
    for n in (3, 0, 5):
        bench.driver.memcpy_htod(flags, b"\1" * n + bytes(8 - n))
        bench.driver.memcpy_htod(count, bytes(8))
        bench.run(graph_exec)
        assert bench.read(count, 8) == b"x" * n + bytes(8 - n)


def conditionals_nest(bench: Bench) -> None:
    """A body has conditional nodes of its own, with handles made for the body."""
    outer_decider, inner_decider = bench.memory(b"\1"), bench.memory(b"\1")
    dst = bench.memory(b"." * 8)
    outer = Conditional(bench, "if", 1)
    outer.set_from(outer_decider, 1, CONDITION_TRUTH)
    inner = Conditional(bench, "if", 1, outer.bodies[0])
    inner.set_from(inner_decider, 1, CONDITION_TRUTH)
    inner.add(inner.bodies[0], bench.fill(dst, 0x41, 8))
    graph_exec = bench.instantiate(outer.graph)
    for a, b in ((1, 1), (1, 0), (0, 1)):
        bench.driver.memcpy_htod(dst, b"." * 8)
        bench.driver.memcpy_htod(outer_decider, bytes([a]))
        bench.driver.memcpy_htod(inner_decider, bytes([b]))
        bench.run(graph_exec)
        assert bench.read(dst, 8) == (b"A" if a and b else b".") * 8


def nodes_in_bodies_are_patched(bench: Bench) -> None:
    """The host sets parameters of a node in a body, and a patch node outside writes into it."""
    driver = bench.driver
    for by_device in (False, True):
        if by_device and driver.missing_for_device_patch():
            return
        decider, first, second = bench.memory(b"\1"), bench.memory(b"." * 8), bench.memory(b"." * 8)
        conditional = Conditional(bench, "if", 1)
        setter, _ = conditional.add_setter(conditional.graph, decider, 1, CONDITION_TRUTH)
        driver.graph_add_dependencies(conditional.graph, [(setter, conditional.node, None)])
        node, params = conditional.add(conditional.bodies[0], bench.fill(first, 0x41, 8))
        changed, where, at = node, params, 0
        if by_device:
            target = driver.graph_node_make_device_updatable(node)
            rows, slots = [(target, 0, 0, 0)], [first, 0, 0, 0]
            changed, where = bench.patch(conditional.graph, rows, slots, setter)
            at = 16
        graph_exec = bench.instantiate(conditional.graph)
        bench.run(graph_exec)
        assert (bench.read(first, 8), bench.read(second, 8)) == (b"A" * 8, b"." * 8)
        driver.memcpy_htod(first, b"." * 8)
        struct.pack_into("<Q", where.buffer, at, second)
        driver.graph_exec_kernel_node_set_params(graph_exec, changed, where)
        bench.run(graph_exec)
        assert (bench.read(first, 8), bench.read(second, 8)) == (b"." * 8, b"A" * 8)


def wrong_bodies_are_refused(bench: Bench) -> None:
    """A node has as many bodies as its type allows, and a handle has one node."""
    graph = bench.graph()[0]
    handle = bench.driver.graph_conditional_handle_create(graph)
    for kind, n_bodies in (("while", 2), ("if", 3), ("if", 0)):
        assert (
            refused(lambda k=kind, n=n_bodies: _add(bench, graph, handle, k, n))  # type: ignore[misc]
            == "CUDA_ERROR_INVALID_VALUE"
        )
    bench.driver.graph_add_conditional_node(graph, handle, "if", 1)
    assert refused(lambda: _add(bench, graph, handle, "if", 1)) == "CUDA_ERROR_INVALID_VALUE"


def _add(bench: Bench, graph: Any, handle: int, kind: str, n_bodies: int) -> object:
    return bench.driver.graph_add_conditional_node(graph, handle, kind, n_bodies)


CHECKS: tuple[Check, ...] = (
    an_integer_decides,
    an_index_decides,
    else_is_the_second_body,
    while_repeats_its_body,
    conditionals_nest,
    nodes_in_bodies_are_patched,
    wrong_bodies_are_refused,
)
