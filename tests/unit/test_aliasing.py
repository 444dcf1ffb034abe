"""Which arrays share memory, against a comparison of every byte."""

from hypothesis import example, given
from hypothesis import strategies as st

from graphjit._adapters.interface import ArraySpec
from graphjit._aliasing import alias_pattern

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(-8, 0), st.integers(0, 12)), min_size=0, max_size=7
)


def spec(low, high) -> ArraySpec:
    """Describe an array that touches the bytes from low to high."""
    return ArraySpec(object, (high - low,), "u1", (1,), 0, low, high)


def groups_by_bytes(ptrs, specs) -> list[set[int]]:
    """Join arrays that have a byte in common, directly or through others."""
    groups: list[tuple[set[int], set[int]]] = []
    for i, (ptr, s) in enumerate(zip(ptrs, specs, strict=True)):
        members, touched = {i}, set(range(ptr + s.low, ptr + s.high))
        apart = []
        for other_members, other_bytes in groups:
            if touched & other_bytes:
                members |= other_members
                touched |= other_bytes
            else:
                apart.append((other_members, other_bytes))
        groups = [*apart, (members, touched)]
    return [members for members, _ in groups]


@given(SPANS)
@example([(0, 0, 10), (5, 0, 0), (6, 0, 4)])  # an empty array between two that overlap
def test_groups_are_those_with_common_bytes(spans):
    """Two arrays are in a group exactly when a chain of common bytes leads from one to the other,
    and the distance is that of their addresses.
    """
    ptrs = [100 + ptr for ptr, _, _ in spans]
    specs = [spec(low, high) for _, low, high in spans]
    pattern = alias_pattern(ptrs, specs)
    expected = sorted(
        (i, min(group), ptrs[i] - ptrs[min(group)])
        for group in groups_by_bytes(ptrs, specs)
        for i in group - {min(group)}
    )
    assert pattern == tuple(expected)


def test_neighbours_are_apart():
    """Arrays that touch without a common byte, and arrays without bytes, share nothing."""
    assert alias_pattern([0, 8, 8], [spec(0, 8), spec(0, 8), spec(0, 0)]) == ()


def test_the_same_array_twice_is_shared():
    """f(x, x) differs from f(x, y), and from f of two views that begin elsewhere."""
    assert alias_pattern([0, 0], [spec(0, 8), spec(0, 8)]) == ((1, 0, 0),)
    assert alias_pattern([4, 0], [spec(0, 8), spec(0, 8)]) == ((1, 0, -4),)
