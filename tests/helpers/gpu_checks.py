"""What the tests on a real GPU share: bitwise comparison, used memory, the state of the device."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

from graphjit import GraphedFunction

_SIZES = (128, 1 << 10, 9216, 1 << 14, 1 << 16, 1 << 18)


def normal(*shape: int, dtype: Any = np.float32) -> cp.ndarray:
    """Return fresh random numbers at a new address."""
    return cp.random.standard_normal(shape).astype(dtype)


def poison_free_memory() -> None:
    """Fill what the pool will hand out next with NaN: an output that is not written shows."""
    blocks = [cp.full(size, cp.nan, np.float32) for size in _SIZES for _ in range(4)]
    del blocks


def leaves(value: Any) -> list[Any]:
    """List the arrays and values of nested containers."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    if dataclasses.is_dataclass(value):
        return leaves([getattr(value, f.name) for f in dataclasses.fields(value)])
    if hasattr(value, "indptr"):
        return [value.data, value.indices, value.indptr]
    return [value]


def same_bits(left: Any, right: Any) -> bool:
    """Say whether two values are equal bit for bit, arrays in shape, dtype and contents."""
    pairs = list(itertools.zip_longest(leaves(left), leaves(right)))
    return all(_same(a, b) for a, b in pairs)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if not isinstance(left, (cp.ndarray, np.ndarray)):
        return left == right or left != left
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return cp.asnumpy(left).tobytes() == cp.asnumpy(right).tobytes()


def close(left: Any, right: Any, tolerance: float) -> bool:
    """Say whether the arrays of two values are equal within a relative tolerance."""
    pairs = itertools.zip_longest(leaves(left), leaves(right))
    return all(bool(cp.allclose(a, b, rtol=tolerance, atol=tolerance)) for a, b in pairs)


def copy_arrays(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy the arrays among some arguments, strides included."""
    return tuple(
        a.copy(order="K")
        if isinstance(a, cp.ndarray)
        else a.copy()
        if hasattr(a, "copy") and not isinstance(a, type)
        else a
        for a in arguments
    )


def agrees(
    graphed_fn: Callable[..., Any], fn: Callable[..., Any], *arguments: Any, **keywords: Any
) -> bool:
    """Call both, each on arguments of its own; compare the results, and the arguments."""
    copies = copy_arrays(arguments)
    copied_keywords = dict(zip(keywords, copy_arrays(tuple(keywords.values())), strict=True))
    expected = fn(*copies, **copied_keywords)
    poison_free_memory()
    got = graphed_fn(*arguments, **keywords)
    for what, left, right in (
        ("results", expected, got),
        ("arguments", copies, arguments),
        ("keywords", copied_keywords, keywords),
    ):
        if not same_bits(left, right):
            sys.stdout.write(f"{what}: eager\n{left!r}\ngraphed\n{right!r}\n")
            return False
    return True


def hits(graphed_fn: GraphedFunction) -> int:
    """Return how many calls were served by a graph."""
    return graphed_fn.cache_info().hits


def n_entries(graphed_fn: GraphedFunction) -> int:
    """Return how many graphs a function has."""
    return graphed_fn.cache_info().current_entries


def check_libraries() -> None:
    """Use the stream and each library once, on new data; a broken one raises or is wrong."""
    a = normal(16, 16, dtype=np.float64) + 16 * cp.eye(16)
    b = normal(16, dtype=np.float64)
    x = cp.linalg.solve(a, b)
    np.testing.assert_allclose((a @ x).get(), b.get(), atol=1e-9)
    values = cp.linalg.eigvalsh(a + a.T).get()
    np.testing.assert_allclose(values, np.linalg.eigvalsh((a + a.T).get()), atol=1e-8)
    np.testing.assert_allclose(cp.fft.ifft(cp.fft.fft(b)).real.get(), b.get(), atol=1e-12)
    assert cp.random.random(3).shape == (3,)


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)`` to ``work(n - 1)`` at once; raise the first error that one of them had."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(n)

    def run(k: int) -> None:
        try:
            barrier.wait(60)
            work(k)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
