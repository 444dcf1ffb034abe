"""Write the table of CuPy functions: which become graphs, and how they were checked.

Input: the path of the page, and ``tests/helpers/cupy_cases.py``; a GPU.
Output: one row a function: outcome, nodes, relocations, patch, calls equal to eager.
Command: ``python tests/gpu/function_table.py docs/generated/functions.md``
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import cupy as cp  # noqa: E402 - the paths come first
from helpers.cupy_cases import CASES, Case  # noqa: E402
from helpers.gpu_checks import close, copy_arrays, poison_free_memory, same_bits  # noqa: E402

from graphjit import GraphjitError, graphed  # noqa: E402

N_CALLS = 5
_HEAD = "| function | outcome | nodes | relocations | patch | calls equal to eager |"
_LINE = "|---|---|---|---:|---|---|"


def count_equal_calls(case: Case, fn) -> int:
    """Call a function on fresh arguments; count the calls that are equal to eager."""
    n_equal = 0
    kept = []
    fn(*case.make())  # captures; the calls that count are launches
    for _ in range(N_CALLS):
        arguments = case.make()
        kept.append(arguments)
        copies = copy_arrays(arguments)
        expected = case.fn(*copies)
        poison_free_memory()
        got = fn(*arguments)
        equal = close(expected, got, case.tolerance) if case.tolerance else same_bits(expected, got)
        n_equal += equal and same_bits(copies, arguments)
    if fn.cache_info().hits != N_CALLS:
        raise SystemExit(f"{case.name}: {fn.cache_info()}: not every call was a launch")
    return n_equal


def row(case: Case) -> tuple[str, bool]:
    """Return the row of a function, and whether the outcome is the expected one."""
    fn = graphed(case.fn)
    try:
        n_equal = count_equal_calls(case, fn)
    except GraphjitError as error:
        reason = str(error).split(". ")[0].split(", at ")[0].replace("<lambda>", "the function")
        reason = reason.replace("|", "\\|").replace("\n", " ")
        as_expected = case.expected != "graph" and case.expected in str(error)
        return f"| {case.name} | refused: {reason} | | | | |", as_expected
    (entry,) = fn.cache_entries()
    nodes = ", ".join(f"{n} {kind}" for kind, n in entry.nodes.items())
    equal = f"{n_equal} of {N_CALLS}" + (
        f", within {case.tolerance:g}: {case.reason}" if case.tolerance else ""
    )
    text = f"| {case.name} | graph | {nodes} | {entry.relocations} | {entry.patch_kind} | {equal} |"
    return text, case.expected == "graph" and n_equal == N_CALLS


def head(n_graphs: int, n_refused: int) -> str:
    """Say where the table was made."""
    properties = cp.cuda.runtime.getDeviceProperties(cp.cuda.runtime.getDevice())
    runtime = cp.cuda.runtime.runtimeGetVersion()
    driver = cp.cuda.runtime.driverGetVersion()
    return (
        f"Made by `python tests/gpu/function_table.py` on an {properties['name'].decode()}: CUDA "
        f"runtime {_cuda(runtime)}, driver for CUDA {_cuda(driver)}, CuPy {cp.__version__}, "
        f"cuda-bindings {version('cuda-bindings')}, Python {sys.version.split()[0]}. "
        f"{n_graphs} functions are graphs, {n_refused} are refused."
    )


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def main() -> int:
    """Write the page; return 1 if a function did not do what is expected of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page
    rows, surprises = [], []
    for case in CASES.values():
        text, as_expected = row(case)
        rows.append(text)
        if not as_expected:
            surprises.append(text)
    n_refused = sum("| refused: " in text for text in rows)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        "\n".join([head(len(rows) - n_refused, n_refused), "", _HEAD, _LINE, *rows, ""])
    )
    for text in surprises:
        print("not as expected:", text, file=sys.stderr)
    return bool(surprises)


if __name__ == "__main__":
    sys.exit(main())
