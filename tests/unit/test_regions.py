"""Reserved addresses and the plan of the scratch block, as pure data."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjit._regions import (
    ALIGNMENT,
    GAP_NBYTES,
    RANGE_NBYTES,
    Lifetime,
    Regions,
    ReservedRange,
    alignment_class,
    plan_scratch,
    reserved_range,
)
from graphjit.errors import CaptureError
from graphjit.testing import SimulatedDriver

RANGE = ReservedRange(0x70 << 40)


@st.composite
def lifetimes(draw) -> list[Lifetime]:
    """Blocks in the order in which they are born; clocks are all different."""
    n = draw(st.integers(0, 25))
    clocks = draw(st.permutations(range(1, 2 * n + 1)))
    pairs = sorted(sorted(clocks[2 * i : 2 * i + 2]) for i in range(n))
    sizes = draw(st.lists(st.integers(0, 5000), min_size=n, max_size=n))
    return [Lifetime(size, *pair) for size, pair in zip(sizes, pairs, strict=True)]


def places(blocks, *, reuse):
    """Return (begin, end, block) of each block, and the size of the whole."""
    byte_offsets, nbytes = plan_scratch(blocks, reuse=reuse)
    assert len(byte_offsets) == len(blocks)
    placed = [(o, o + max(b.nbytes, 1), b) for o, b in zip(byte_offsets, blocks, strict=True)]
    return placed, nbytes


@given(lifetimes())
def test_blocks_in_use_at_one_time_never_overlap(blocks):
    """Two blocks share bytes only if one is freed before the other is born."""
    placed, nbytes = places(blocks, reuse=True)
    for i, (begin, end, block) in enumerate(placed):
        assert begin % ALIGNMENT == 0
        assert end <= nbytes
        for other_begin, other_end, other in placed[:i]:
            if other.freed > block.born:
                assert end <= other_begin or other_end <= begin


@given(lifetimes())
def test_without_reuse_no_two_blocks_overlap(blocks):
    """With work on several streams every block has a place of its own."""
    placed, nbytes = places(blocks, reuse=False)
    placed.sort(key=lambda place: place[:2])
    for (_, end, _), (begin, _, _) in pairwise(placed):
        assert end <= begin
    assert nbytes >= sum(block.nbytes for block in blocks)


@given(lifetimes())
def test_reuse_never_takes_more(blocks):
    """The scratch block with reuse is no larger than without it."""
    assert plan_scratch(blocks, reuse=True)[1] <= plan_scratch(blocks, reuse=False)[1]


@given(st.integers(1, 100_000), st.integers(1, 30))
def test_blocks_one_after_another_take_the_place_of_one(nbytes, n):
    """Temporaries that are used in turn need the memory of one."""
    blocks = [Lifetime(nbytes, 2 * i, 2 * i + 1) for i in range(n)]
    assert plan_scratch(blocks, reuse=True)[1] == -(-nbytes // ALIGNMENT) * ALIGNMENT


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=10))
def test_freed_neighbours_are_joined(sizes):
    """A block as large as several freed ones together takes their place."""
    sizes = [size * ALIGNMENT for size in sizes]
    n = len(sizes)
    blocks = [Lifetime(size, i, n + i) for i, size in enumerate(sizes)]
    blocks.append(Lifetime(sum(sizes), 3 * n, 3 * n + 1))
    byte_offsets, nbytes = plan_scratch(blocks, reuse=True)
    assert (byte_offsets[-1], nbytes) == (0, sum(sizes))


# -- regions


PLACEMENTS = st.lists(
    st.tuples(st.integers(0, 1 << 31), st.integers(0, 255)), min_size=1, max_size=12
)


@given(PLACEMENTS, st.data())
def test_a_word_belongs_to_the_region_that_it_is_near(placements, data):
    """An address in a region, or in the gap around it, finds that region and no other."""
    regions = Regions(RANGE)
    placed = [regions.place(nbytes, offset=offset) for nbytes, offset in placements]
    region = data.draw(st.sampled_from(placed))
    distance = data.draw(st.integers(-GAP_NBYTES, region.nbytes + GAP_NBYTES - 1))
    assert regions.find(region.ptr + distance) is region
    assert RANGE.holds(region.ptr + distance)
    inside = 0 <= distance <= region.nbytes
    assert region.holds(region.ptr + distance) == inside


@given(PLACEMENTS)
def test_regions_keep_the_alignment_that_was_asked_for(placements):
    """``offset`` is what is left when the address is divided by 512."""
    regions = Regions(RANGE)
    for nbytes, offset in placements:
        assert regions.place(nbytes, offset=offset).ptr % ALIGNMENT == offset


@given(PLACEMENTS, st.integers(-(1 << 28), (1 << 28) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
def test_two_small_integers_are_no_address(placements, low, high):
    """Two 32-bit integers side by side belong to no region unless the first is huge."""
    regions = Regions(RANGE)
    for nbytes, offset in placements:
        regions.place(nbytes, offset=offset)
    word = (high % (1 << 32)) << 32 | low % (1 << 32)
    assert not RANGE.holds(word) or regions.find(word) is None


def test_captures_use_different_addresses():
    """What an earlier capture left behind in uninitialised bytes is no address of the next."""
    first, second = Regions(RANGE).place(1000), Regions(RANGE).place(1000)
    assert abs(first.ptr - second.ptr) > 1 << 32


def test_the_range_ends():
    """A function that asks for more than the addresses that are left is refused."""
    regions = Regions(RANGE)
    regions.place(RANGE_NBYTES // 4)
    with pytest.raises(CaptureError, match="1 times in one call"):
        regions.place(RANGE_NBYTES)


def test_freeing_is_noted_once():
    """The first free counts; freeing an unknown address does nothing."""
    regions = Regions(RANGE)
    region = regions.place(10)
    regions.free(region.ptr)
    freed = region.freed
    regions.place(10)
    regions.free(region.ptr)
    regions.free(RANGE.ptr + RANGE_NBYTES - 1)
    assert region.freed == freed == 2


def test_a_driver_has_one_range_aligned_to_its_size():
    """The upper 24 bits of an address tell whether it is a stand-in's."""
    driver = SimulatedDriver()
    found = reserved_range(driver)
    assert reserved_range(driver) is found
    assert found.ptr % RANGE_NBYTES == 0
    assert found.holds(found.ptr)
    assert not found.holds(found.ptr + RANGE_NBYTES)


@given(st.integers(0, 1 << 48))
def test_alignment_class_is_a_power_of_two_that_divides(ptr):
    """The largest one, at most 256."""
    found = alignment_class(ptr)
    assert found in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert ptr % found == 0
    assert found == 256 or ptr % (2 * found) != 0
