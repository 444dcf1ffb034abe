"""Drawings of a run: host time and end-to-end time over the number of kernels.

Input: the results and a folder. Output: the names of the SVG files written; none without
matplotlib or without chains of several lengths.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perf.bars import Results, median
from perf.peers import BARE, CUPY_GRAPH, TORCH_GRAPH
from perf.subjects import EAGER, FRESH, STATIC

DRAWINGS = {
    "host": ("host-time.svg", "host time of a call [us]"),
    "end_to_end": ("end-to-end.svg", "time of a call and its result [us]"),
}
STYLES = {
    EAGER: ("#7f7f7f", "o"),
    TORCH_GRAPH: ("#d95f02", "s"),
    CUPY_GRAPH: ("#7570b3", "D"),
    FRESH: ("#1b9e77", "o"),
    STATIC: ("#66c2a5", "^"),
    BARE: ("#000000", "x"),
}


def write(results: Results, folder: Path) -> list[str]:
    """Write the drawings."""
    chains: Results = results.get("chains", {})
    if len(chains) < 2 or find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl

    # Without it every run would name the same parts of a drawing differently.
    with mpl.rc_context({"svg.hashsalt": "graphjit"}):
        return [_write(results, kind, folder) for kind in DRAWINGS]


def _write(results: Results, kind: str, folder: Path) -> str:
    from matplotlib.figure import Figure

    name, label = DRAWINGS[kind]
    chains = results["chains"]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes: Any = figure.subplots()
    for subject, (color, marker) in STYLES.items():
        times = {int(n): median(chains, n, kind, subject) for n in chains}
        points = [(n, time) for n, time in times.items() if time is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=subject)
    axes.set(xscale="log", yscale="log", xlabel="kernels in the graph", ylabel=label)
    axes.set_title(results["environment"]["device"], fontsize=10)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(folder / name, metadata={"Date": None})
    return name
