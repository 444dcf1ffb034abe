"""Helpers for tests, and a simulated device for machines without a GPU.

``simulated`` is a small NumPy-like array module: ``from graphjit.testing import simulated as xp``.
``assert_matches_eager`` compares a function with its graphed form, bit for bit;
``count_captures`` counts how often a graphed function was captured; ``check_driver`` is the
conformance suite that both drivers pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphjit._adapters import registry
from graphjit._adapters import simulated_array as simulated
from graphjit._adapters.simulated_array import Array
from graphjit._containers import flatten, unflatten
from graphjit._driver.conformance import CHECKS
from graphjit._driver.conformance_bench import Bench
from graphjit._driver.interface import Driver
from graphjit._driver.simulated import SimulatedDriver
from graphjit.errors import DriverError

__all__ = [
    "DRIVER_CHECKS",
    "Array",
    "SimulatedDriver",
    "assert_matches_eager",
    "check_driver",
    "count_captures",
    "simulated",
]

DRIVER_CHECKS: tuple[str, ...] = tuple(CHECKS)
"""Names of the checks that ``check_driver`` makes."""


def check_driver(
    driver: Driver,
    *,
    only: Iterable[str] | None = None,
    wait: Callable[[int, int], None] | None = None,
    prepare_thread: Callable[[], None] | None = None,
) -> None:
    """Assert that a driver does what graphjit relies on.

    Parameters
    ----------
    driver : Driver
        The simulated driver, or that of a CUDA device.
    only : iterable of str, optional
        Names out of ``DRIVER_CHECKS``; all if left out.
    wait : callable, optional
        ``wait(stream, other)`` lets a stream wait for the work of another. Without it, and
        with a driver that has no events, the two checks of forks are left out.
    prepare_thread : callable, optional
        Makes the device usable in a new thread, where the driver needs that.

    Raises
    ------
    AssertionError
        The driver does something else; a note names the check.

    Examples
    --------
    >>> from graphjit.testing import SimulatedDriver, check_driver
    >>> check_driver(SimulatedDriver())
    """
    if wait is None and isinstance(driver, SimulatedDriver):
        wait = driver.stream_wait_stream
    for name in DRIVER_CHECKS if only is None else only:
        check = CHECKS[name]
        try:
            with Bench(driver, wait, prepare_thread) as bench:
                check(bench)
        except (AssertionError, DriverError) as error:
            error.add_note(f"{name}: {check.__doc__}")
            raise


def count_captures(graphed: Any) -> int:
    """Return how many signatures of a graphed function have been captured.

    Parameters
    ----------
    graphed : callable
        What ``@graphed`` made.
    """
    info = graphed.cache_info()
    return int(info.current_entries + info.evictions)


def assert_matches_eager(
    fn: Callable[..., Any],
    make_args: Callable[[], tuple[Any, ...]],
    *,
    calls: int = 5,
    **options: Any,
) -> Any:
    """Assert that a function and its graphed form do the same, bit for bit.

    Parameters
    ----------
    fn : callable
        The plain function.
    make_args : callable
        Returns fresh arguments, with other contents and at other addresses each time.
    calls : int
        Calls after the first, all of which must be graph launches.
    **options
        Options of ``graphed``.

    Returns
    -------
    GraphedFunction
        The graphed form, for further questions.

    Raises
    ------
    AssertionError
        A result, or what became of an argument, differs from the eager call.

    Examples
    --------
    >>> import numpy as np
    >>> from graphjit.testing import assert_matches_eager, simulated as xp
    >>> graphed = assert_matches_eager(
    ...     lambda x: xp.sin(x) + 1, lambda: (xp.asarray(np.random.rand(4)),)
    ... )
    >>> graphed.cache_info().hits
    5
    """
    from graphjit import graphed as decorate

    graphed: Any = decorate(**options)(fn)
    held: list[Any] = []
    for call in range(calls + 1):
        args = make_args()
        held = [args, *held[:2]]  # so that the next arguments lie elsewhere
        leaves, tree = flatten(args, registry.is_array)
        adapter = registry.find(leaves)
        copies = [adapter.copy(v) if adapter.is_array(v) else v for v in leaves]
        expected = fn(*unflatten(tree, list(copies)))
        result = graphed(*args)
        _assert_equal(f"call {call}: output", expected, result)
        _assert_equal(f"call {call}: argument", copies, leaves)
    assert graphed.cache_info().hits == calls, f"not every call was a launch: {graphed!r}"
    return graphed


def _assert_equal(what: str, expected: Any, got: Any) -> None:
    left, left_tree = flatten(expected, registry.is_array)
    right, right_tree = flatten(got, registry.is_array)
    assert left_tree == right_tree, f"{what}: {right_tree} instead of {left_tree}"
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if registry.is_array(a):
            adapter = registry.find([a])
            assert adapter.equal_bits(a, b), f"{what} {i} differs: {b!r} instead of {a!r}"
        else:
            assert a == b or a != a, f"{what} {i}: {b!r} instead of {a!r}"
