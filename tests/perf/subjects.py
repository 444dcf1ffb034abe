"""A way of running a workload: what is called, with which arguments, and what it must return.

Input: a workload and sets of arguments. Output: ``Subject``. ``check_subjects`` compares what
each returns with its reference, bit for bit, before anything is timed.
Raises: ``AssertionError`` for a result that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graphjit import graphed
from perf.workloads import Function

Arguments = Sequence[tuple[Any, ...]]
EAGER = "eager"
FRESH = "graphjit"
STATIC = "graphjit, static outputs"
HOST_PATCH = "graphjit, host patch"
DEVICE_PATCH = "graphjit, device patch"
OPTIMIZED = "graphjit, optimize=True"
SAME_ADDRESSES = "graphjit, static outputs, same arrays"
VARIANTS: dict[str, dict[str, Any]] = {
    FRESH: {},
    STATIC: {"outputs": "static"},
    HOST_PATCH: {"patch": "host"},
    DEVICE_PATCH: {"patch": "device"},
}
OPTIONS = {**VARIANTS, OPTIMIZED: {"optimize": True}}


@dataclass(frozen=True, slots=True)
class Subject:
    """A callable and the arguments that its calls go through in turn."""

    name: str
    call: Callable[..., Any]
    arguments: Arguments
    read: Callable[[Any], np.ndarray[Any, Any]] | None = None
    """Copies a result to the host; None if the call returns none."""
    reference: str = EAGER
    """The subject whose results are to be the same."""
    max_calls: int = 1_000_000
    """Calls that one sample may make: slow ones need no more than one."""


@dataclass(slots=True)
class Subjects:
    """All ways of running one workload, and why others are missing."""

    found: list[Subject]
    missing: dict[str, str]

    def add(self, name: str, make: Callable[[], Subject]) -> None:
        """Add a subject, or note why it cannot be had."""
        self.extend(name, lambda: [make()])

    def extend(self, name: str, make: Callable[[], list[Subject]]) -> None:
        """Add several subjects, or note under one name why they cannot be had."""
        try:
            self.found += make()
        except Exception as error:  # noqa: BLE001 - libraries have their own; the report says it
            self.missing[name] = f"{type(error).__name__}: {error}"


def own_subjects(
    fn: Function,
    arguments: Arguments,
    read: Callable[[Any], np.ndarray[Any, Any]],
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    max_eager_calls: int = 1_000_000,
) -> Subjects:
    """Return the eager function and graphjit's variants of it."""
    subjects = Subjects([Subject(EAGER, fn, arguments, read, max_calls=max_eager_calls)], {})
    for name in variants:
        subjects.add(name, partial(_graphed, name, fn, arguments, read))
    return subjects


def _graphed(
    name: str, fn: Function, arguments: Arguments, read: Callable[[Any], np.ndarray[Any, Any]]
) -> Subject:
    call = graphed(**OPTIONS[name])(fn)
    call(*arguments[0])
    return Subject(name, call, arguments, read)


def same_addresses(fn: Function, arguments: Arguments) -> Subject:
    """Return graphjit with nothing to patch: the same arrays at every call."""
    call = graphed(outputs="static")(fn)
    for _ in range(3):
        call(*arguments[0])
    return Subject(SAME_ADDRESSES, call, arguments[:1])


def check_subjects(subjects: Sequence[Subject]) -> None:
    """Compare every subject's results with those of its reference, on all arguments."""
    by_name = {subject.name: subject for subject in subjects}
    expected: dict[str, list[bytes]] = {}
    for subject in subjects:
        if subject.read is None:
            continue
        results = _results(subject)
        if subject.reference not in expected:
            expected[subject.reference] = _results(by_name[subject.reference])
        assert results == expected[subject.reference], (
            f"{subject.name} does not return what {subject.reference} returns"
        )


def _results(subject: Subject) -> list[bytes]:
    assert subject.read is not None
    for arguments in subject.arguments:
        subject.call(*arguments)  # the first calls may compile and capture
    return [subject.read(subject.call(*a)).tobytes() for a in subject.arguments]


def check_all_hits(subjects: Sequence[Subject]) -> dict[str, str]:
    """Assert that graphjit's subjects captured once; return how each is patched."""
    kinds = {}
    for subject in subjects:
        info = getattr(subject.call, "cache_info", None)
        if info is not None:
            assert (info().misses, info().eager_calls) == (1, 0), f"{subject.name}: {info()}"
            kinds[subject.name] = subject.call.cache_entries()[0].patch_kind  # type: ignore[attr-defined]
    return kinds
