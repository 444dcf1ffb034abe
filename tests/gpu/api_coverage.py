"""Walk through CuPy's public functions and write which of them become graphs.

Input: the path of the page; a GPU. Output: a summary by module, and a row a function.
Workers are processes of their own: one that dies, or takes too long, costs its function only.
Exits with 1 if there was a wrong result, a crash, a device left unusable, or a refusal that
does not name the call and the user's line.
Command: ``python tests/gpu/api_coverage.py OUT.md [--workers 12] [--seconds 60] [--only TEXT]``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.api_walk import (  # noqa: E402 - the paths come first
    GRAPH,
    HOST_READ,
    NOT_CALLED,
    NOTHING,
    OUTCOMES,
    Row,
    public_functions,
    try_function,
)

_MARK = "row: "
_START_SECONDS = 120


# -- one worker


def work() -> None:
    """Read names from standard input, try each, and write a row a line."""
    from helpers.api_cupy import CuPy

    library = CuPy()
    print(_MARK + "ready", flush=True)
    for line in sys.stdin:
        row = try_function(library, line.strip())
        print(_MARK + json.dumps(dataclasses.asdict(row)), flush=True)
        if row.fault.startswith("the device"):
            return  # a new process has a new context


class Worker:
    """A process that tries functions; started anew when it is gone."""

    def __init__(self, command: list[str], seconds: float) -> None:
        self.command = command
        self.seconds = seconds
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.log: list[str] = []
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        if self.answer(_START_SECONDS) != "ready":
            raise SystemExit("a worker does not start:\n" + "\n".join(self.log[-20:]))

    def answer(self, seconds: float) -> str | None:
        """Return the next answer; None if the process dies or takes too long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ready, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            line = self.process.stdout.readline() if ready else ""
            if not line:
                return None
            if line.startswith(_MARK):
                return line[len(_MARK) :].strip()
            self.log = [*self.log[-50:], line.rstrip()]
        return None

    def try_name(self, name: str) -> Row:
        """Let the process try a function."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        began = time.monotonic()
        self.log = []
        try:
            self.process.stdin.write(name + "\n")
            answer = self.answer(self.seconds)
        except BrokenPipeError:
            answer = None
        if answer is not None:
            row = Row(**json.loads(answer))
            if row.fault.startswith("the device"):
                self.stop()
            return row
        is_slow = time.monotonic() - began >= self.seconds - 0.5
        self.stop()
        what = f"took more than {self.seconds:g} s" if is_slow else "the process died"
        return Row(name, NOT_CALLED, fault=f"{what}: {' / '.join(self.log[-3:])[:300]}")

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # what was left to send went down with the process
            self.process = None


def walk(
    names: list[str], command: list[str], n_workers: int, seconds: float,
    report: Callable[[Row, float], None],
) -> list[Row]:  # fmt: skip
    """Try all functions, some at a time."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    rows: dict[str, Row] = {}

    def serve() -> None:
        worker = Worker(command, seconds)
        try:
            while True:
                name = waiting.get_nowait()
                began = time.monotonic()
                rows[name] = worker.try_name(name)
                report(rows[name], time.monotonic() - began)
        except queue.Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows.get(name) or Row(name, NOT_CALLED, fault="no worker started") for name in names]


# -- the page


def module_of(name: str) -> str:
    """Return what a row of the summary is about."""
    return name.rpartition(".")[0]


def share(counts: Counter[str]) -> str:
    """Return which part of the functions that could be graphs are."""
    could = sum(n for k, n in counts.items() if k not in (HOST_READ, NOT_CALLED, NOTHING))
    return f"{100 * counts[GRAPH] / could:.0f} %" if could else ""


def summary(rows: list[Row]) -> list[str]:
    """Return the table of modules."""
    modules: dict[str, Counter[str]] = {}
    for row in rows:
        modules.setdefault(module_of(row.name), Counter())[row.outcome] += 1
    modules["all"] = sum(modules.values(), Counter())
    heads = ["module", *OUTCOMES, "graphs among those that read nothing on the host"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, counts in modules.items():
        cells = [name, *(str(counts[o]) for o in OUTCOMES), share(counts)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table(rows: list[Row]) -> list[str]:
    """Return a row a function; those that need no graph are left to the summary."""
    lines = ["| function | arguments | outcome | nodes | equal to eager | remark |"]
    lines.append("|---|---|---|---:|---|---|")
    for row in rows:
        remark = (row.fault or row.reason).replace("|", "\\|").replace("\n", " ")
        arguments = f"`{row.arguments}`".replace("|", "\\|") if row.arguments else ""
        nodes = row.nodes if row.outcome == GRAPH else ""
        equal = row.comparison if row.outcome != NOTHING else ""
        lines.append(f"| {row.name} | {arguments} | {row.outcome} | {nodes} | {equal} | {remark} |")
    return lines


def page(rows: list[Row], aliases: int) -> str:
    """Return the page."""
    import cupy as cp

    properties = cp.cuda.runtime.getDeviceProperties(0)
    head = (
        f"Made by `python tests/gpu/api_coverage.py` on an {properties['name'].decode()}, CuPy "
        f"{cp.__version__}, driver for CUDA {cp.cuda.runtime.driverGetVersion()}, Python "
        f"{sys.version.split()[0]}. {len(rows)} functions; {aliases} other names are aliases."
    )
    return "\n".join([head, "", *summary(rows), "", *table(rows), ""])


def main() -> int:
    """Write the page; return 1 if a row has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=60, help="limit of one function")
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return 0
    from helpers.api_cupy import MODULES, CuPy

    began = time.monotonic()
    found = list(public_functions(CuPy(), MODULES))
    names = [name for name, alias_of in found if not alias_of and options.only in name]
    slowest: list[tuple[float, str]] = []

    def report(row: Row, seconds: float) -> None:
        slowest.append((seconds, row.name))
        if row.fault:
            print(f"FAULT {row.name}({row.arguments}): {row.fault}", flush=True)

    command = [sys.executable, __file__, "--worker"]
    rows = walk(names, command, options.workers, options.seconds, report)
    text = page(rows, len(found) - sum(not alias for _, alias in found))
    if options.page is not None:
        options.page.write_text(text)
    print("\n".join(summary(rows)))
    for row in rows:
        if row.outcome == NOT_CALLED:
            print(f"{row.outcome}: {row.name}: {row.reason}")
    print("slowest:", ", ".join(f"{name} {s:.0f} s" for s, name in sorted(slowest)[:-11:-1]))
    faults = [row for row in rows if row.fault]
    print(f"{len(rows)} functions, {len(faults)} faults, {time.monotonic() - began:.0f} s")
    for row in faults:
        print(f"FAULT {row.name}({row.arguments}): {row.outcome}: {row.fault}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
