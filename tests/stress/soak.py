"""Fuzz for a given time, then repeat what was run and see whether memory grows.

Input: a backend, seconds, a seed. Output: a report, and whether anything is wrong.
New programs compile kernels and fill caches, which takes memory for good. So the second part
repeats scripts that have run already: there, nothing may grow.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from stress.backends import Backend, Held
from stress.machine import make_machine
from stress.programs import Program
from stress.reduce import shorten
from stress.worlds import Counts, Difference, Partly, Worlds

_MAX_KEPT = 60
_N_BATCH = 10
_N_EXPLORED = 50
_MAX_OBJECTS = 500
"""Objects that the repetitions may leave; one leaked object a script would be more."""
_MAX_OTHER_NBYTES = 4 << 20
_MAX_RESIDENT_NBYTES = 64 << 20
_N_REPETITIONS = 4


@dataclass(frozen=True)
class Kept:
    """A script that ended well."""

    lines: tuple[str, ...]
    state: tuple[str, ...]
    may_be_refused: bool


@dataclass(frozen=True)
class Sample:
    """What is held at one moment, after a collection."""

    held: Held
    n_objects: int
    resident_nbytes: int

    def __str__(self) -> str:
        return (
            f"arrays {self.held.array_nbytes} B, graph execs {self.held.graph_execs}, other device "
            f"memory {self.held.other_nbytes} B, Python objects {self.n_objects}, resident "
            f"{self.resident_nbytes >> 20} MiB"
        )


def fuzz_settings(n_steps: int) -> settings:
    """Return settings of hypothesis; the lines of a failing script are dropped by ``reduce``."""
    return settings(
        max_examples=_N_BATCH,
        stateful_step_count=n_steps,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def take_sample(backend: Backend) -> Sample:
    """Collect, and look."""
    held = backend.held()
    with open("/proc/self/statm") as file:  # noqa: PTH123 - read often
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return Sample(held, len(gc.get_objects()), resident)


def replay(backend: Backend, counts: Counts, kept: Kept) -> None:
    """Run the lines of a script again."""
    worlds = Worlds(backend, counts, may_be_refused=kept.may_be_refused)
    try:
        for k, line in enumerate(kept.lines):
            worlds.run(line, compares=not line.startswith("x"))
            if not k:
                worlds.state = list(kept.state)
    except Partly:
        pass  # the rest of the script has nothing to compare
    finally:
        worlds.close()


def shortened(backend: Backend, found: Difference) -> Difference:
    """Return the difference of the shortest script that shows it."""
    shortest = found

    def fails(program: str, steps: list[str]) -> bool:
        nonlocal shortest
        n_graphed = found.lines[0].count("@graphed"), program.count("@graphed")
        if found.may_be_refused and n_graphed[0] != n_graphed[1]:
            return False  # the error of a refusal would bring the result of a part only
        try:
            replay(backend, Counts(), Kept((program, *steps), (), found.may_be_refused))
        except Difference as difference:
            if difference.kind == found.kind:
                shortest = difference
                return True
        return False

    shorten(found.lines[0], found.lines[1:], fails)
    return shortest


def fuzz(
    backend: Backend,
    counts: Counts,
    n_programs: int,
    first_seed: int = 0,
    *,
    n_steps: int = 20,
    keep: Callable[[Worlds, Program], None] | None = None,
) -> None:
    """Run random programs; raise the ``Difference`` of a short script.

    In small batches: hypothesis goes on to vary what it has, and new programs find more.
    """
    for number in range(first_seed, first_seed + -(-n_programs // _N_BATCH)):
        machine: Any = seed(number)(make_machine(backend, counts, number, keep))
        try:
            run_state_machine_as_test(machine, settings=fuzz_settings(n_steps))
        except Difference as difference:
            raise shortened(backend, difference) from difference.__cause__


class Soak:
    """One run of the command."""

    def __init__(self, backend: Backend, seconds: float, first_seed: int) -> None:
        self.backend = backend
        self.seconds = seconds
        self.first_seed = first_seed
        self.counts = Counts()
        self.kept: list[Kept] = []
        self.problems: list[str] = []

    def keep(self, worlds: Worlds, program: Program) -> None:
        """Remember a script for the second part."""
        if len(self.kept) < _MAX_KEPT:
            lines = tuple(worlds.lines)
            self.kept.append(Kept(lines, tuple(program.state), program.may_be_refused))

    def run(self) -> int:
        """Return 1 if there was a difference or a leak."""
        began = time.monotonic()
        gc.collect()
        gc.freeze()  # what was imported need not be looked at by every collection
        number = self.first_seed
        while time.monotonic() - began < 0.6 * self.seconds or number == self.first_seed:
            if not self.explore(number):
                break
            print(f"seed {number}: {self.counts}", flush=True)
            number += _N_EXPLORED // _N_BATCH
        if not self.problems:
            self.repeat(began + self.seconds)
        for problem in self.problems:
            print("PROBLEM:", problem)
        print(f"{self.counts}; {len(self.problems)} problems, {time.monotonic() - began:.0f} s")
        return bool(self.problems)

    def explore(self, number: int) -> bool:
        """Run fifty new programs of a seed; return False after a difference."""
        before = self.backend.held()
        try:
            fuzz(self.backend, self.counts, _N_EXPLORED, number, keep=self.keep)
        except Difference as difference:
            self.problems.append(f"seed {number}: {difference}")
            return False
        self.compare_held(before, self.backend.held(), f"seed {number}")
        return True

    def compare_held(self, before: Held, after: Held, where: str) -> None:
        """Everything that scripts made has to be gone with them."""
        if after.array_nbytes > before.array_nbytes or after.graph_execs > before.graph_execs:
            self.problems.append(f"{where}: before {before}, after {after}")

    def repeat(self, until: float) -> None:
        """Run the kept scripts over and over; nothing may grow."""
        samples = []
        while len(samples) <= _N_REPETITIONS or time.monotonic() < until:
            for kept in self.kept:
                replay(self.backend, self.counts, kept)
            samples.append(take_sample(self.backend))
            print(f"repetition {len(samples)}: {samples[-1]}", flush=True)
        first, last = samples[1], samples[-1]
        self.compare_held(first.held, last.held, "repetitions")
        n = len(samples) - 2
        for what, grown, limit in (
            (
                "other device memory",
                last.held.other_nbytes - first.held.other_nbytes,
                _MAX_OTHER_NBYTES,
            ),
            ("Python objects", last.n_objects - first.n_objects, _MAX_OBJECTS),
            ("resident bytes", last.resident_nbytes - first.resident_nbytes, _MAX_RESIDENT_NBYTES),
        ):
            print(f"growth of {what} in {n} repetitions of {len(self.kept)} scripts: {grown}")
            if grown > limit:
                self.problems.append(f"{what} grew by {grown} in {n} repetitions")
