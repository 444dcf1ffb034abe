"""Dropping false dependencies keeps every pair in order that shares memory one of them writes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit import _dependencies
from graphjit._dependencies import (
    Access,
    critical_path,
    drop_false_dependencies,
    find_accesses,
)
from graphjit._nodes import CapturedGraph, Edge, EmptyNode, KernelNode
from graphjit._relocation import RelocationPlan, WordRelocation

SETS = st.sets(st.integers(0, 5), max_size=3)
ACCESSES = st.lists(
    st.one_of(
        st.builds(Access, SETS, SETS), st.builds(Access, st.none(), st.just(set())), st.none()
    ),
    max_size=14,
)


def kernel(n_params=4) -> KernelNode:
    """Make a captured kernel node with parameters of 8 bytes."""
    layout = tuple((8 * i, 8) for i in range(n_params))
    return KernelNode(1, "k", None, (1, 1, 1), (1, 1, 1), 0, bytes(8 * n_params), layout)


def chain_of(nodes) -> CapturedGraph:
    """Put nodes one behind the other."""
    edges = tuple(Edge(i, i + 1) for i in range(len(nodes) - 1))
    return CapturedGraph(tuple(nodes), edges)


def conflict(a: Access, b: Access) -> bool:
    """Say whether two nodes have to stay in order."""
    if a.reads is None or b.reads is None:
        return True
    return bool(a.writes & (b.reads | b.writes) or b.writes & a.reads)


def reachable(edges, n) -> set[tuple[int, int]]:
    """Return the pairs that a path of edges puts in order."""
    behind: list[set[int]] = [set() for _ in range(n)]
    for edge in sorted(edges, key=lambda e: e.to):
        behind[edge.to] |= behind[edge.from_] | {edge.from_}
    return {(i, j) for j in range(n) for i in behind[j]}


@given(ACCESSES)
def test_exactly_the_conflicts_are_kept(accesses):
    """Pairs are ordered if and only if a chain of conflicts leads from one to the other."""
    n = len(accesses)
    graph = chain_of([kernel() if a is not None else EmptyNode(None) for a in accesses])
    found = drop_false_dependencies(graph, [a or Access() for a in accesses])
    wanted = [
        Edge(i, j)
        for j in range(n)
        for i in range(j)
        if accesses[i] and accesses[j] and conflict(accesses[i], accesses[j])
    ]
    assert reachable(found.edges, n) == reachable(wanted, n)
    for edge in found.edges:
        others = [e for e in found.edges if e is not edge]
        assert (edge.from_, edge.to) not in reachable(others, n), "an edge that others imply"
    assert found.nodes is graph.nodes


@given(ACCESSES)
def test_large_graphs_keep_implied_edges(accesses):
    """Above the limit edges may be implied by others, but the order is the same."""
    graph = chain_of([kernel() if a is not None else EmptyNode(None) for a in accesses])
    known = [a or Access() for a in accesses]
    reduced = drop_false_dependencies(graph, known)
    limit, _dependencies.MAX_REDUCED_NODES = _dependencies.MAX_REDUCED_NODES, -1
    try:
        whole = drop_false_dependencies(graph, known)
    finally:
        _dependencies.MAX_REDUCED_NODES = limit
    assert reachable(whole.edges, len(known)) == reachable(reduced.edges, len(known))


def test_programmatic_edges_are_left_alone():
    """A graph with edge data is returned as it is."""
    graph = CapturedGraph((kernel(), kernel()), (Edge(0, 1, bytes(8)),))
    assert drop_false_dependencies(graph, [Access(), Access()]) is graph


def plan_of(rows, memory, words=(), candidates=()) -> RelocationPlan:
    """Make a plan from (node, param_offset) and the memory of each."""
    table = np.array([(n, at, 0, 0) for n, at in rows], np.int64).reshape(-1, 4)
    return RelocationPlan(table, np.array(memory, np.int64), tuple(words), tuple(candidates))


def test_inputs_are_reads_and_the_rest_are_writes():
    """The first parameters are read as far as that is known."""
    plan = plan_of([(0, 0), (0, 8), (0, 16), (1, 0)], [7, 8, 9, 7])
    graph = chain_of([kernel(), kernel()])
    first, second = find_accesses(graph, plan, [], lambda nodes: [2, 0], lambda word: None)
    assert (first.reads, first.writes) == ({7, 8}, {9})
    assert (second.reads, second.writes) == (set(), {7})


@pytest.mark.parametrize(
    "kind", ["library memory", "table of pointers", "nothing known", "other kernel"]
)
def test_what_may_use_any_memory_is_a_barrier(kind):
    """Memory of a library, pointers in a constant, or no memory at all: ordered with all."""
    constant = SimpleNamespace(device_ptr=0x7000_0000_0000, data=bytes(64))
    words, candidates, rows = (), (), [(0, 0), (1, 0), (2, 0)]
    if kind == "library memory":
        candidates = ((1, 0x7100_0000_0000),)
    elif kind == "table of pointers":
        candidates = ((1, constant.device_ptr),)
        words = (WordRelocation(constant.device_ptr + 8, 0, 0),)
    elif kind == "nothing known":
        rows = [(0, 0), (2, 0)]
    known = [0, -1 if kind == "other kernel" else 0, 0]
    plan = plan_of(rows, range(len(rows)), words, candidates)
    graph = chain_of([kernel() for _ in range(3)])
    accesses = find_accesses(graph, plan, [constant], lambda nodes: known, lambda word: word)
    assert [a.reads is None for a in accesses] == [False, True, False]
    assert drop_false_dependencies(graph, accesses).edges == graph.edges


def test_copies_and_fills_of_graphjit_are_known():
    """They use what their parameters point to, and nothing else."""
    plan = plan_of([(0, 0), (1, 0)], [0, 1])
    graph = chain_of([replace(kernel(), is_own=True) for _ in range(2)])
    accesses = find_accesses(graph, plan, [], lambda nodes: [-1, -1], lambda word: None)
    assert drop_false_dependencies(graph, accesses).edges == ()


def test_plain_constants_are_no_barrier():
    """A constant without addresses is only read, by whoever copies it."""
    constant = SimpleNamespace(device_ptr=0x7000_0000_0000, data=bytes(64))
    plan = plan_of([(0, 0), (1, 0)], [0, 1], (), [(1, constant.device_ptr + 8), (0, 1 << 40)])
    graph = chain_of([kernel(), kernel()])
    accesses = find_accesses(
        graph, plan, [constant], lambda nodes: [0, 0], lambda word: word > 1 << 41 or None
    )
    assert drop_false_dependencies(graph, accesses).edges == ()


def test_the_critical_path():
    """The longest chain counts."""
    nodes = tuple(kernel() for _ in range(5))
    edges = (Edge(0, 1), Edge(1, 4), Edge(0, 2), Edge(2, 3), Edge(3, 4))
    assert critical_path(CapturedGraph(nodes, edges)) == 4
    assert critical_path(CapturedGraph((), ())) == 0
