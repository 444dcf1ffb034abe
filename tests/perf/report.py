"""A run as a page of Markdown, which docs/benchmarks.md includes.

Input: the results and the names of the drawings. Output: text. Addresses of drawings are
relative to ``docs``, where the page is included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perf import bars
from perf.bars import Results, median, ratio
from perf.subjects import EAGER, FRESH

NOTHING = "-"


def page(results: Results, drawings: Sequence[str] = ()) -> str:
    """Return the page."""
    sections = [
        _environment(results),
        _bars(results),
        *(f"![{name.partition('.')[0]}](generated/{name})\n" for name in drawings),
        *_chains(results),
        *_other_times(results),
        *_memory(results),
        *_signatures(results),
        *_first_calls(results),
        *_missing(results),
    ]
    return "\n".join(sections)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are figures."""
    lines = [f"| {' | '.join(cells)} |" for cells in [header, *rows]]
    lines.insert(1, f"|---|{'---:|' * (len(header) - 1)}")
    return "\n".join(lines) + "\n"


def figure(value: float | None) -> str:
    """Write a number with three digits that mean something."""
    if value is None:
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def nbytes_text(nbytes: int) -> str:
    """Write a size in the unit that suits it."""
    if abs(nbytes) < 1 << 10:
        return f"{nbytes} B"
    return f"{nbytes / 2**10:.1f} KiB" if abs(nbytes) < 1 << 20 else f"{nbytes / 2**20:.1f} MiB"


def bar_text(row: bars.Row) -> str:
    """Write a bar as a condition."""
    return f"{'at most' if row.is_upper else 'at least'} {row.bar:g}"


def _environment(results: Results) -> str:
    rows = [(key, value) for key, value in results["environment"].items()]
    command = f"Command: `{results['command']}`\n"
    return f"## Machine and versions\n\n{command}\n{table(('', ''), rows)}"


def _bars(results: Results) -> str:
    rows = [
        (row.measure, row.at, bar_text(row), figure(row.measured), row.verdict)
        for row in bars.rows(results)
    ]
    note = (
        "Ratios of medians, all from this run. A bar is what the project asks of itself; one that "
        "is not reached is listed like the others.\n"
    )
    if results["environment"]["device"].startswith("simulated"):
        note += "The times of the simulated device say nothing, and neither do these verdicts.\n"
    return f"## Bars\n\n{note}\n{table(('measure', 'at', 'bar', 'measured', ''), rows)}"


CHAIN_TABLES = (
    ("host", "Host time of one call while the device is idle"),
    ("queued", "Host time of a call among several in a row"),
    ("end_to_end", "A call and the wait for its result"),
)


def _chains(results: Results) -> Iterator[str]:
    chains: Results = results.get("chains", {})
    if not chains:
        return
    names = list(dict.fromkeys(name for chain in chains.values() for name in chain["host"]))
    yield (
        "## Chains of small kernels\n\nTwo inputs, other ones at every call, and one output; "
        "float32 additions of a few elements. Medians in microseconds.\n"
    )
    for kind, title in CHAIN_TABLES:
        rows = [(name, *(figure(median(chains, n, kind, name)) for n in chains)) for name in names]
        header = ("", *(bars.kernels(n) for n in chains))
        yield f"### {title}\n\n{table(header, rows)}"
    kinds = [(n, chain["patch"].get(FRESH, NOTHING)) for n, chain in chains.items()]
    chosen = ", ".join(f"{bars.kernels(n)}: {kind}" for n, kind in kinds)
    yield f"The patch that graphjit chose by itself: {chosen}.\n"


def _other_times(results: Results) -> Iterator[str]:
    for name, title in (
        ("adds", "100 dependent additions of long vectors"),
        ("branches", "Chains that share their inputs only"),
        ("mlp", "A network with matrix products"),
    ):
        found = results.get(name)
        if found is None:
            continue
        eager = median(found, "end_to_end", EAGER)
        rows = []
        for subject in found["end_to_end"]:
            time = median(found, "end_to_end", subject)
            host = median(found, "host", subject)
            rows.append((subject, figure(host), figure(time), figure(ratio(eager, time))))
        header = ("", "host us", "end to end us", "eager / this")
        nodes = ", ".join(f"{n} {kind}" for kind, n in found.get("nodes", {}).items())
        note = f"Captured nodes: {nodes}.\n\n" if nodes else ""
        if "critical_path" in found:
            note = note.replace(".\n", f"; at most {found['critical_path']} wait for each other.\n")
        yield f"## {title}\n\n{note}{table(header, rows)}"


def _memory(results: Results) -> Iterator[str]:
    memory = results.get("memory")
    if memory is None:
        return
    header = ("", "bytes of arrays", "bytes of the device")
    rows = [
        (name, nbytes_text(held["pool_nbytes"]), nbytes_text(held["device_nbytes"]))
        for name, held in memory["held"].items()
    ]
    own = memory["held"][FRESH]
    yield (
        f"## Memory held after {memory['n_signatures']} signatures\n\n"
        "The network above with other numbers of rows; the arrays of all callers are gone. Bytes "
        "of arrays are those that pools keep for the graphs. Bytes of the device are what the "
        "driver counts as used: its own part of each graph is in them, and it rounds up.\n\n"
        f"{table(header, rows)}\n"
        f"graphjit's graphs own {nbytes_text(own['constant_nbytes'])} of constants and "
        f"{nbytes_text(own['table_nbytes'])} of patch tables, and keep "
        f"{nbytes_text(own['external_nbytes'])} of others' memory alive.\n"
    )


def _signatures(results: Results) -> Iterator[str]:
    found = results.get("signatures")
    if found is None:
        return
    rows = [
        (name, figure(median(found, "host", name)), figure(median(found, "queued", name)))
        for name in found["host"]
    ]
    header = ("", "one call, us", "several in a row, us")
    yield f"## Hits among {found['n_signatures']} signatures\n\n{table(header, rows)}"


def _first_calls(results: Results) -> Iterator[str]:
    found = results.get("first-call")
    if found is None:
        return
    rows = []
    for n, first in found.items():
        parts = first["capture"]["median"], first["instantiate"]["median"]
        a_node = sum(parts) / int(n)
        cells = (*parts, sum(parts), a_node, first["beyond_eager"])
        rows.append((n, *(figure(cell) for cell in cells)))
    header = ("kernels", "capture", "instantiate", "both", "both, a node", "first call - eager")
    yield f"## First calls\n\nMedians in microseconds.\n\n{table(header, rows)}"


def _missing(results: Results) -> Iterator[str]:
    """List what could not be measured, with the reason."""
    reasons: dict[str, Any] = dict(results.get("failed", {}))
    for found in results.values():
        if isinstance(found, dict):
            parts = [found, *(part for part in found.values() if isinstance(part, dict))]
            for part in parts:
                reasons |= part["missing"] if isinstance(part.get("missing"), dict) else {}
    if reasons:
        lines = "\n".join(f"- {name}: {reason}" for name, reason in reasons.items())
        yield f"## Not measured\n\n{lines}\n"
