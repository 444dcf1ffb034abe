"""What was promised, beside what was measured.

Input: the results of a run. Output: one ``Row`` for each bar; a bar whose measure is not in
the results is "not measured", never "pass".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perf.costs import MANY, ONE
from perf.peers import BARE, TORCH_GRAPH
from perf.subjects import EAGER, FRESH, STATIC

Results = dict[str, Any]
FIRST_CALL_US, FIRST_CALL_US_A_NODE = 5000.0, 20.0


@dataclass(frozen=True, slots=True)
class Row:
    """One bar."""

    measure: str
    at: str
    """What it was measured at: a number of kernels, of signatures."""
    measured: float | None
    bar: float
    is_upper: bool
    """True if the bar is the most that is allowed."""

    @property
    def verdict(self) -> str:
        """Say whether the bar is reached."""
        if self.measured is None:
            return "not measured"
        reached = self.measured <= self.bar if self.is_upper else self.measured >= self.bar
        return "pass" if reached else "fail"


def rows(results: Results) -> list[Row]:
    """Compare a run with every bar."""
    sections = (_host_rows, _end_to_end_rows, _memory_rows, _signature_rows, _first_call_rows)
    return [row for section in sections for row in section(results)]


def kernels(n: int | str) -> str:
    """Write a number of kernels."""
    return f"{n} kernel{'' if int(n) == 1 else 's'}"


def median(results: Results, *path: str) -> float | None:
    """Return a median of the results; None if it was not measured."""
    found: Any = results
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found["median"] if isinstance(found, dict) else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Divide, if both were measured."""
    return None if numerator is None or denominator is None else numerator / denominator


def _chain(results: Results, n: str, kind: str, above: str, below: str) -> float | None:
    return ratio(
        median(results, "chains", n, kind, above), median(results, "chains", n, kind, below)
    )


def _host_rows(results: Results) -> Iterator[Row]:
    sizes = list(results.get("chains", {})) or ["1", "10", "100", "1000"]
    for name, bar, text in (
        (FRESH, 3.0, "host time of a hit / bare launch of a CuPy graph"),
        (STATIC, 1.8, 'the same with `outputs="static"`'),
    ):
        for n in sizes:
            measured = _chain(results, n, "host", name, BARE)
            yield Row(text, kernels(n), measured, bar, True)
        if name == FRESH:
            found = [_chain(results, n, "host", FRESH, BARE) for n in sizes]
            known = [measured for measured in found if measured is not None]
            spread = ratio(max(known), min(known)) if len(known) == len(sizes) > 1 else None
            yield Row("the largest of these / the smallest", "all sizes", spread, 1.6, True)
    for n in sizes:
        measured = _chain(results, n, "host", TORCH_GRAPH, FRESH)
        yield Row(f"host time of {TORCH_GRAPH} / graphjit", kernels(n), measured, 3.0, False)


def _end_to_end_rows(results: Results) -> Iterator[Row]:
    adds = ratio(
        median(results, "adds", "end_to_end", EAGER), median(results, "adds", "end_to_end", FRESH)
    )
    text = "end to end, 100 dependent additions of 2^20 float32 and one wait, eager / graphjit"
    yield Row(text, kernels(100), adds, 8.0, False)
    for n, bar in (("10", 3.0), ("100", 6.0), ("1000", 8.0)):
        measured = _chain(results, n, "end_to_end", EAGER, FRESH)
        yield Row("end to end, eager / graphjit", kernels(n), measured, bar, False)
    for n in ("100", "1000"):
        measured = _chain(results, n, "end_to_end", FRESH, BARE)
        text = "end to end, graphjit / static buffers and no patch"
        yield Row(text, kernels(n), measured, 1.08, True)


def _memory_rows(results: Results) -> Iterator[Row]:
    memory = results.get("memory", {})
    own = memory.get("held", {}).get(FRESH)
    nbytes = None if own is None else float(own["pool_nbytes"])
    at = f"{memory.get('n_signatures', 64)} signatures"
    yield Row("bytes of arrays held by graphs of a network, beyond constants", at, nbytes, 0, True)


def _signature_rows(results: Results) -> Iterator[Row]:
    found = results.get("signatures", {})
    measured = ratio(
        median(results, "signatures", "host", MANY), median(results, "signatures", "host", ONE)
    )
    at = f"{found.get('n_signatures', 1000)} signatures"
    yield Row("host time of a hit, many cached signatures / one", at, measured, 1.1, True)


def _first_call_rows(results: Results) -> Iterator[Row]:
    text = "capture and instantiation / (5 ms + 20 us a node)"
    for n in results.get("first-call", {}) or ["10", "100", "1000"]:
        parts = [median(results, "first-call", n, part) for part in ("capture", "instantiate")]
        known = [part for part in parts if part is not None]
        total = sum(known) if len(known) == len(parts) else None
        allowed = FIRST_CALL_US + FIRST_CALL_US_A_NODE * int(n)
        yield Row(text, kernels(n), ratio(total, allowed), 1.0, True)
