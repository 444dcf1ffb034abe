"""Relocation finds every planted address, at any offset and with any delta, and nothing else."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit._nodes import CapturedGraph, Edge, EmptyNode, KernelNode, MemAllocNode, MemFreeNode
from graphjit._regions import GAP_NBYTES, RANGE_NBYTES, Lifetime, Regions, ReservedRange
from graphjit._relocation import (
    AddressMap,
    RealRange,
    Relocation,
    Target,
    WordRelocation,
    find_relocations,
)
from graphjit._setup import workspace_blocks
from graphjit.errors import AmbiguousPointerError

RANGE = ReservedRange(0x70 << 40)
REAL = RealRange(0x7F12_3456_7000, 4096, Target(7, 64))


def kernel(params: bytes, layout) -> KernelNode:
    """Make a kernel node of packed parameters."""
    return KernelNode(None, "kernel", None, (1, 1, 1), (1, 1, 1), 0, params, tuple(layout))


def graph_of(*nodes) -> CapturedGraph:
    """Make a graph without edges."""
    return CapturedGraph(tuple(nodes), ())


def address_map(sizes, real=()) -> tuple[AddressMap, list]:
    """Place regions; region i is slot i + 10 with a delta of 1000 i."""
    regions = Regions(RANGE)
    placed = [regions.place(nbytes) for nbytes in sizes]
    targets = {region.ptr: Target(i + 10, 1000 * i) for i, region in enumerate(placed)}
    return AddressMap(regions, targets, real), placed


# What fills parameters beside addresses: integers, floats, sizes, never-written bytes.
FILLERS = st.one_of(
    st.integers(-(1 << 28), (1 << 28) - 1).map(lambda v: struct.pack("<i", v)),
    st.floats(width=32).map(lambda v: struct.pack("<f", v)),
    st.floats().map(lambda v: struct.pack("<d", v)),
    st.integers(0, 1 << 40).map(lambda v: struct.pack("<Q", v)),
    st.binary(min_size=1, max_size=9).map(lambda v: v.replace(b"\x70", b"\x71")),
)


@given(
    st.lists(st.integers(1, 1 << 30), min_size=1, max_size=4),
    st.lists(
        st.lists(
            st.one_of(
                FILLERS,
                st.tuples(st.integers(0, 3), st.floats(0, 1), st.just("stand-in")),
                st.tuples(st.just(0), st.floats(0, 0.999), st.just("real")),
            ),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_every_planted_address_is_found_and_nothing_else(sizes, structs):
    """Structs of integers, floats, garbage and addresses in any mixture, packed without gaps."""
    addresses, placed = address_map(sizes, [REAL])
    params, layout, expected = b"", [], []
    for fields in structs:
        begin = len(params)
        for field in fields:
            if isinstance(field, bytes):
                params += field
                continue
            which, part, kind = field
            if kind == "real":
                delta = int(part * REAL.nbytes)
                expected.append(Relocation(0, len(params), 7, 64 + delta))
                params += struct.pack("<Q", REAL.ptr + delta)
            else:
                i = which % len(placed)
                delta = int(part * placed[i].nbytes)
                expected.append(Relocation(0, len(params), i + 10, 1000 * i + delta))
                params += struct.pack("<Q", placed[i].ptr + delta)
        layout.append((begin, len(params) - begin))
    plan = find_relocations(graph_of(kernel(params, layout)), addresses, [])
    assert list(plan.relocations) == expected
    assert plan.touched_nodes == ((0,) if expected else ())


def test_an_address_never_spans_two_parameters():
    """Bytes that form an address across the border of two parameters are no address."""
    addresses, (region,) = address_map([100])
    word = struct.pack("<Q", region.ptr)
    split = kernel(word, [(0, 4), (4, 4)])
    whole = kernel(word, [(0, 8)])
    assert find_relocations(graph_of(split), addresses, []).relocations == ()
    plan = find_relocations(graph_of(EmptyNode(None), whole), addresses, [])
    assert plan.relocations == (Relocation(1, 0, 10, 0),)


def test_overlapping_words_of_one_array():
    """The same address in several places of several nodes: each place is found."""
    addresses, (region,) = address_map([100])
    node = kernel(struct.pack("<QQ4xQ", region.ptr, region.ptr + 5, region.ptr), [(0, 28)])
    plan = find_relocations(graph_of(node, node), addresses, [])
    assert [(r.node, r.param_offset, r.delta) for r in plan.relocations] == [
        (0, 0, 0),
        (0, 8, 5),
        (0, 20, 0),
        (1, 0, 0),
        (1, 8, 5),
        (1, 20, 0),
    ]
    assert plan.touched_nodes == (0, 1)


@given(st.integers(1, GAP_NBYTES - 1), st.booleans())
def test_an_aligned_word_near_a_region_is_an_address(distance, before):
    """One before the begin or far past the end, as kernels of libraries hold them."""
    addresses, (region,) = address_map([1000])
    delta = -distance if before else 1000 + distance
    node = kernel(struct.pack("<iiQ", 1, 2, region.ptr + delta), [(0, 16)])
    plan = find_relocations(graph_of(node), addresses, [])
    assert plan.relocations == (Relocation(0, 8, 10, delta),)


@pytest.mark.parametrize(
    ("word_of", "packed"),
    [
        (lambda region: region.ptr - 64, "<iQ"),
        (lambda region: region.ptr + 2000, "<iQ"),
        (lambda region: REAL.ptr + REAL.nbytes, "<xxxxxxxxQ"),
    ],
    ids=["unaligned, before", "unaligned, behind", "end of a real array"],
)
def test_a_word_that_may_be_an_address_is_refused(word_of, packed):
    """Outside of the memory and not where a compiler puts addresses: no guess is made."""
    addresses, (region,) = address_map([1000], [REAL])
    values = (1, word_of(region)) if "i" in packed else (word_of(region),)
    params = struct.pack(packed, *values)
    with pytest.raises(AmbiguousPointerError, match=r"parameter 0 of kernel kernel \(node 0\)"):
        find_relocations(graph_of(kernel(params, [(0, len(params))])), addresses, [])


def test_a_word_of_bytes_that_nobody_writes_is_no_address():
    """What was on the stack may look like the end of an array, or lie across the border."""
    addresses, _ = address_map([1000], [REAL])
    params = bytes(4) + struct.pack("<Q", REAL.ptr + REAL.nbytes) + bytes(4)
    graph = graph_of(kernel(params, [(0, 16)]))
    for begin, end in [(0, 16), (11, 16), (0, 5)]:
        plan = find_relocations(graph, addresses, [], lambda node, r=(begin, end): [r])
        assert plan.relocations == ()
    for begin, end in [(12, 16), (0, 4)]:
        with pytest.raises(AmbiguousPointerError):
            find_relocations(graph, addresses, [], lambda node, r=(begin, end): [r])


def test_leftovers_of_another_capture_are_no_addresses():
    """A reserved address that belongs to no region of this capture is left alone."""
    addresses, (region,) = address_map([1000])
    far = (region.ptr - RANGE.ptr + RANGE_NBYTES // 2) % RANGE_NBYTES + RANGE.ptr
    node = kernel(struct.pack("<QQ", far, region.ptr), [(0, 16)])
    plan = find_relocations(graph_of(node), addresses, [])
    assert [r.param_offset for r in plan.relocations] == [8]


def test_addresses_in_host_data():
    """Aligned words within an array are addresses; unaligned ones and neighbours are data."""
    addresses, (region,) = address_map([1000])
    data = struct.pack("<QQQ4xQ", 5, region.ptr + 8, region.ptr + 2000, region.ptr)
    plan = find_relocations(graph_of(), addresses, [(0x5000, data)])
    assert plan.words == (WordRelocation(0x5008, 10, 8),)


def test_other_addresses_are_candidates():
    """Words that look like addresses of other memory are listed, small numbers are not."""
    addresses, (region,) = address_map([1000])
    outside = 0x7FAA_0000_0000
    small = kernel(struct.pack("<QQ", outside, outside), [(0, 16)])
    large = kernel(struct.pack("<Q", outside) + bytes(248) + struct.pack("<Q", 5), [(0, 264)])
    own = kernel(struct.pack("<Q", region.ptr), [(0, 8)])
    plan = find_relocations(graph_of(small, large, own), addresses, [])
    assert plan.candidates == ((0, outside), (1, outside))


@given(st.integers(0, 6), st.data())
def test_linear_graphs_are_chains(n, data):
    """A graph is linear exactly when its edges are those of one chain."""
    every = [(a, b) for a in range(n) for b in range(a + 1, n)]
    chosen = data.draw(st.sets(st.sampled_from(every)) if every else st.just(set()))
    graph = CapturedGraph(
        tuple(EmptyNode(None) for _ in range(n)), tuple(Edge(a, b) for a, b in chosen)
    )
    assert graph.is_linear == (chosen == {(i, i + 1) for i in range(n - 1)})


# -- allocation nodes


def test_allocation_nodes_at_one_address_share_a_place():
    """An address that is freed and allocated again is one block, as long as both are in use."""
    nodes = (
        MemAllocNode(None, 0x1000, 256),
        MemAllocNode(None, 0x9000, 64),
        MemFreeNode(None, 0x1000),
        MemAllocNode(None, 0x1000, 512),
        EmptyNode(None),
        MemFreeNode(None, 0x1000),
    )
    assert workspace_blocks(graph_of(*nodes)) == [
        (0x1000, Lifetime(512, 0, 5)),
        (0x9000, Lifetime(64, 1, 6)),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=8, unique_by=lambda p: p[0])
)
def test_allocation_nodes_that_overlap_are_joined(pieces):
    """The blocks are apart, cover every node, and are in the order of their birth."""
    nodes = [MemAllocNode(None, 0x1000 + 16 * at, 16 * n) for at, n in pieces]
    blocks = workspace_blocks(graph_of(*nodes))
    ranges = sorted((ptr, ptr + lifetime.nbytes) for ptr, lifetime in blocks)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    for i, node in enumerate(nodes):
        (holding,) = [
            lifetime
            for ptr, lifetime in blocks
            if ptr <= node.device_ptr and node.device_ptr + node.nbytes <= ptr + lifetime.nbytes
        ]
        assert holding.born <= i < holding.freed == len(nodes)
    births = [lifetime.born for _, lifetime in blocks]
    assert births == sorted(births)
