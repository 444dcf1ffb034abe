"""What the tests of the flow share: fresh arrays, bitwise comparison, what the device holds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from graphjit._adapters import registry
from graphjit._adapters import simulated_device as device
from graphjit._containers import flatten
from graphjit.testing import simulated as xp

_random = np.random.default_rng(1)


class Held(NamedTuple):
    """What is alive on the simulated device."""

    graphs: int
    graph_execs: int
    array_nbytes: int
    other_nbytes: int
    """Constants, patch tables: what the pool did not hand out."""


def held_on_device() -> Held:
    """Return what is alive on the simulated device."""
    driver = device.driver()
    return Held(
        driver.counts["live_graphs"],
        driver.counts["live_graph_execs"],
        device.pool.used_nbytes,
        driver.memory.live_nbytes - device.pool.allocated_nbytes,
    )


def normal(*shape: int, dtype: Any = np.float64) -> xp.Array:
    """Return fresh random numbers."""
    return xp.asarray(_random.standard_normal(shape).astype(dtype))


def same_bits(left: Any, right: Any) -> bool:
    """Say whether two values are equal bit for bit, arrays in shape, dtype and contents."""
    (a, tree_a), (b, tree_b) = flatten(left, registry.is_array), flatten(right, registry.is_array)
    return tree_a == tree_b and all(itertools.starmap(_same, zip(a, b, strict=True)))


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if not isinstance(left, xp.Array):
        return bool(left is right or left == right or left != left)
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    return left.get().tobytes() == right.get().tobytes()


def copy_arrays(value: Any) -> Any:
    """Copy nested containers and the arrays in them, strides included."""
    if isinstance(value, xp.Array):
        return value.copy(order="K")
    if isinstance(value, dict):
        return type(value)((key, copy_arrays(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(copy_arrays, value))
    return value


def agrees(
    graphed_fn: Callable[..., Any], fn: Callable[..., Any], *arguments: Any, **keywords: Any
) -> bool:
    """Call both, each on arguments of its own; compare the results, and the arguments."""
    copies, copied_keywords = copy_arrays(arguments), copy_arrays(keywords)
    expected = fn(*copies, **copied_keywords)
    got = graphed_fn(*arguments, **keywords)
    return (
        same_bits(expected, got)
        and same_bits(copies, arguments)
        and same_bits(copied_keywords, keywords)
    )


def counted(name: str, call: Callable[[], Any]) -> int:
    """Return how many driver calls of a kind a call makes, such as ``"graph_launches"``."""
    before = device.driver().counts[name]
    call()
    return device.driver().counts[name] - before


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
