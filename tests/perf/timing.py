"""Samples of time, taken in turn from all subjects, so that drift meets them alike.

Input: subjects. Output: ``Times`` in microseconds a call.
The collector is off while samples are taken, the device is idle when each begins, and the
results of a sample are let go after its clock has stopped.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from time import perf_counter_ns
from typing import Any

from perf.subjects import Subject

N_WARMUPS = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds a call: the median of the samples and its quartiles."""

    median: float
    lower: float
    upper: float
    n_samples: int


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from running, and restore it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def measure_host(
    subjects: Sequence[Subject], synchronize: Callable[[], None], n_samples: int, n_calls: int = 1
) -> dict[str, Any]:
    """Measure the time until a call returns.

    Parameters
    ----------
    subjects : sequence of Subject
    synchronize : callable
        Waits for the device; called before each sample.
    n_samples : int
        Samples of each subject.
    n_calls : int
        Calls in a row in each sample; one is the time of a call while the device is idle.

    Returns
    -------
    dict of str to dict
        Name of the subject -> ``Times`` as a dictionary.
    """
    return _measure(subjects, _host_sample, synchronize, n_samples, n_calls)


def measure_end_to_end(
    subjects: Sequence[Subject], synchronize: Callable[[], None], n_samples: int
) -> dict[str, Any]:
    """Measure the time of a call and of waiting for its result; as ``measure_host``."""
    return _measure(subjects, _end_to_end_sample, synchronize, n_samples, 1)


def _measure(
    subjects: Sequence[Subject],
    sample: Callable[..., float],
    synchronize: Callable[[], None],
    n_samples: int,
    n_calls: int,
) -> dict[str, Any]:
    order = list(subjects)
    shuffle = random.Random(0).shuffle
    batches = {s.name: cycle(_batches(s, min(n_calls, s.max_calls))) for s in subjects}
    samples: dict[str, list[float]] = {s.name: [] for s in subjects}
    with collector_off():
        for turn in range(N_WARMUPS + n_samples):
            shuffle(order)  # so that no subject always runs behind the same other one
            for subject in order:
                batch = next(batches[subject.name])
                synchronize()
                elapsed = sample(subject.call, batch, synchronize)
                if turn >= N_WARMUPS:
                    samples[subject.name].append(elapsed)
        synchronize()
    return {name: asdict(summarize(values)) for name, values in samples.items()}


def _batches(subject: Subject, n_calls: int) -> list[list[tuple[Any, ...]]]:
    """Lay the arguments out so that consecutive calls, also across batches, differ in them."""
    given = subject.arguments
    n = len(given)
    return [[given[(turn * n_calls + i) % n] for i in range(n_calls)] for turn in range(n)]


def _host_sample(
    call: Callable[..., Any], batch: list[tuple[Any, ...]], synchronize: Callable[[], None]
) -> float:
    result = None
    begin = perf_counter_ns()
    for arguments in batch:
        result = call(*arguments)
    end = perf_counter_ns()
    del result
    return (end - begin) / (1000 * len(batch))


def _end_to_end_sample(
    call: Callable[..., Any], batch: list[tuple[Any, ...]], synchronize: Callable[[], None]
) -> float:
    (arguments,) = batch
    begin = perf_counter_ns()
    result = call(*arguments)
    synchronize()
    end = perf_counter_ns()
    del result
    return (end - begin) / 1000


def summarize(values: Sequence[float]) -> Times:
    """Return median and quartiles."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Times(round(median, 3), round(lower, 3), round(upper, 3), len(values))
