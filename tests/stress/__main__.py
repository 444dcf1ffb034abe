"""The command: run random programs for a time, and watch what stays behind.

``python tests/stress --seconds 600`` runs on the GPU; ``--driver simulated`` without one. It
ends with 1 at the first difference, which is printed as a script, or when memory, graphs or
objects grow from the first third of the run to the last. ``--seed`` repeats a run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES_A_ROUND = 20


class Sample(NamedTuple):
    """What is alive between two rounds."""

    array_nbytes: int
    graph_execs: int
    other_nbytes: int
    objects: int


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python tests/stress", description=__doc__)
    parser.add_argument("--driver", choices=("cuda", "simulated"), default="cuda")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def growth(samples: list[Sample]) -> dict[str, tuple[int, int]]:
    """Return what is more in the last third than it ever was in the first two.

    Compilers and libraries keep what they made, and a program seen late can need more than
    any before: a leak grows from round to round.
    """
    third = len(samples) // 3
    if third < 3:
        return {}
    found = {}
    for name in Sample._fields:
        values = [getattr(sample, name) for sample in samples]
        parts = [values[:third], values[third : 2 * third], values[2 * third :]]
        lows = [min(part) for part in parts]
        if lows[0] < lows[1] < lows[2] and lows[2] > max(parts[0]):
            found[name] = (max(parts[0]), lows[2])
    return found


def run(options: argparse.Namespace) -> int:
    """Run rounds until the time is over."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from stress.backends import make_backend
    from stress.machine import make_machine
    from stress.worlds import Counts

    chosen = settings(
        max_examples=EXAMPLES_A_ROUND,
        stateful_step_count=15,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        print_blob=False,
    )
    backend, counts = make_backend(options.driver), Counts()
    machine = make_machine(backend, counts)
    samples: list[Sample] = []
    began, seed = time.monotonic(), options.seed
    while time.monotonic() - began < options.seconds:
        print(f"seed {seed}: {counts}", flush=True)
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=chosen)
        seed += 1
        held = backend.held()
        samples.append(Sample(*held, len(gc.get_objects())))
    print(f"{time.monotonic() - began:.0f} s: {counts}")
    print(f"first {samples[0]}\nlast  {samples[-1]}")
    grown = growth(samples)
    for name, (before, after) in grown.items():
        print(f"{name} grew: at most {before} in the first third, at least {after} in the last")
    return 1 if grown else 0


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if p != here)]
    sys.exit(run(parse(sys.argv[1:])))
