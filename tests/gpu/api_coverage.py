"""Walk CuPy's public functions, call each eagerly and graphed, and write what came of it.

``python tests/gpu/api_coverage.py docs/generated/api.md`` needs a GPU and about two minutes: the
functions are shared out among processes, so that one that dies takes no other with it.
Input: generated arguments (``helpers.api_recipes``). Output: a page of tables.
It ends with 1 if a function gave other bits than the eager call, died, left the stream in
capture, or was refused without its name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = (
    "cupy",
    "cupy.linalg",
    "cupy.fft",
    "cupy.random",
    "cupyx",
    "cupyx.scipy.fft",
    "cupyx.scipy.interpolate",
    "cupyx.scipy.linalg",
    "cupyx.scipy.ndimage",
    "cupyx.scipy.signal",
    "cupyx.scipy.signal.windows",
    "cupyx.scipy.sparse.linalg",
    "cupyx.scipy.spatial.distance",
    "cupyx.scipy.special",
    "cupyx.scipy.stats",
)
NOT_FUNCTIONS = {
    "show_config": "prints", "get_include": "prints", "info": "prints", "load": "reads a file",
    "loadtxt": "reads a file", "genfromtxt": "reads a file", "fromfile": "reads a file",
    "save": "writes a file", "savez": "writes a file", "savez_compressed": "writes a file",
    "savetxt": "writes a file", "asnumpy": "returns host data", "seed": "seeds",
    "get_random_state": "no GPU work", "set_random_state": "no GPU work",
    "reset_states": "no GPU work", "default_rng": "makes a generator", "fuse": "a decorator",
    "memoize": "a decorator", "clear_memo": "no GPU work", "print": "prints",
    "show_runtime": "prints", "set_allocator": "no GPU work", "using_allocator": "no GPU work",
    "get_default_memory_pool": "no GPU work", "get_default_pinned_memory_pool": "no GPU work",
    "set_pinned_memory_allocator": "no GPU work", "disable_experimental_feature_warning": "-",
    "is_available": "no GPU work", "allow_synchronize": "no GPU work", "errstate": "no GPU work",
    "geterr": "no GPU work", "seterr": "no GPU work", "from_dlpack": "takes another library's",
    "empty": "returns what nobody wrote", "empty_like": "returns what nobody wrote",
    "fromfunction": "takes a function", "apply_along_axis": "takes a function",
    "apply_over_axes": "takes a function", "vectorize": "takes a function",
    "generic_filter": "takes a function", "generic_filter1d": "takes a function",
    "generic_laplace": "takes a function", "generic_gradient_magnitude": "takes a function",
}  # fmt: skip
GOOD = ("graph", "host read", "cannot capture", "not applicable", "no arguments found")
SECONDS_A_FUNCTION = 60.0
_HEAD = (
    "| module | graph | host read | cannot capture | not applicable | no arguments found | "
    "graphs of those without host reads |"
)


def functions() -> list[str]:
    """Return the dotted names of the public functions."""
    found: dict[int, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names warn when they are looked up
        for module_name in MODULES:
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue
            for name in sorted(getattr(module, "__all__", None) or dir(module)):
                value = getattr(module, name, None)
                if not name.startswith("_") and _is_function(value):
                    found.setdefault(id(value), f"{module_name}.{name}")
    return sorted(found.values())


def _is_function(value: Any) -> bool:
    home = str(getattr(value, "__module__", "cupy")).partition(".")[0]
    return callable(value) and not isinstance(value, type) and home not in {"numpy", "typing"}


def resolve(dotted: str) -> Any:
    """Return the function of a dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


# -- one function, in a worker


def arrays_of(value: Any) -> list[Any]:
    """Return the arrays of nested containers."""
    import cupy

    if isinstance(value, cupy.ndarray):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [array for item in value for array in arrays_of(item)]


def find_recipe(dotted: str) -> tuple[Any, str]:
    """Return the first recipe that the plain call accepts, and the last error if there is none."""
    import cupy
    from helpers.api_recipes import Maker, recipes_for

    fn, error, has_run = resolve(dotted), "no recipe", False
    for recipe in recipes_for(dotted.rpartition(".")[2]):
        try:
            args, kwargs = recipe(Maker(cupy, 1))
            result = fn(*args, **kwargs)
            cupy.cuda.Device().synchronize()
        except Exception as problem:  # noqa: BLE001 - the next recipe may fit
            error = f"{type(problem).__name__}: {problem}"
        else:
            if arrays_of(result) or (result is None and arrays_of(args)):
                return recipe, ""
            has_run = True
    return None, "returns no arrays" if has_run else error


def bits(values: Any) -> list[tuple[Any, ...]]:
    """Return what is compared of a result."""
    return [(a.shape, str(a.dtype), a.get().tobytes()) for a in arrays_of(values)]


def close(left: Any, right: Any) -> bool:
    """Say whether arrays are equal up to the order of additions."""
    import numpy as np

    pairs = zip(arrays_of(left), arrays_of(right), strict=True)
    return all(
        a.shape == b.shape and np.allclose(a.get(), b.get(), 1e-5, 1e-6, equal_nan=True)
        for a, b in pairs
    )


def examine(dotted: str) -> dict[str, str]:
    """Call a function eagerly and graphed; return outcome and detail."""
    import cupy
    from helpers.api_recipes import Maker

    from graphjit import GraphjitError, HostReadError, graphed

    name = dotted.rpartition(".")[2]
    if name in NOT_FUNCTIONS:
        return {"outcome": "not applicable", "detail": NOT_FUNCTIONS[name]}
    recipe, error = find_recipe(dotted)
    if recipe is None:
        kind = "not applicable" if error == "returns no arrays" else "no arguments found"
        return {"outcome": kind, "detail": error[:150]}
    fn = resolve(dotted)

    def run(call: Any, seed: int) -> tuple[Any, Any]:
        args, kwargs = recipe(Maker(cupy, seed))
        cupy.random.seed(seed)
        result = call(*args, **kwargs)
        cupy.cuda.Device().synchronize()
        return result, args

    is_exact = bits(run(fn, 2)) == bits(run(fn, 2))
    call = graphed(lambda *args, **kwargs: fn(*args, **kwargs))
    try:
        for seed in (2, 3, 4, 5):
            expected = run(fn, seed)
            got = run(call, seed)
            if bits(got) != bits(expected) and (is_exact or not close(got, expected)):
                return {"outcome": "WRONG", "detail": f"call {seed - 1} differs"}
    except HostReadError as problem:
        return {"outcome": "host read", "detail": _reason(problem, "reads the contents")}
    except GraphjitError as problem:
        return {"outcome": "cannot capture", "detail": _reason(problem, "cannot be captured")}
    entries = call.cache_entries()
    if call.cache_info().misses > 1:
        return {"outcome": "cannot capture", "detail": f"captured anew: {call.cache_info()}"}
    nodes = ", ".join(f"{n} {kind}" for kind, n in entries[0].nodes.items())
    if not nodes:
        return {"outcome": "not applicable", "detail": "no GPU work: a view"}
    return {"outcome": "graph", "detail": nodes + ("" if is_exact else "; within 1e-5")}


def _reason(problem: Exception, words: str) -> str:
    """Return what was refused and why, without the place: that is this file."""
    text = str(problem)
    if Path(__file__).name not in text or words not in text:
        return f"UNNAMED: {text}"[:160]
    text = re.sub(r"examine\.<locals>\.<lambda>", "the function", text.partition(", at ")[0])
    return text.replace("|", "/")[:160]


def check_device() -> str:
    """Say what is wrong with the stream or the device after a function."""
    import cupy

    if cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
        return "the stream is left in capture"
    x = cupy.arange(100, dtype="f4")
    return "" if float((x * 2).sum()) == 9900.0 else "a kernel gives a wrong result"


def work(target: Path) -> None:
    """Examine the functions named on standard input; write a line before and after each."""
    warnings.simplefilter("ignore")
    with target.open("a") as out:
        for line in sys.stdin:
            dotted = line.strip()
            print(json.dumps({"begin": dotted}), file=out, flush=True)
            try:
                found = examine(dotted)
            except Exception as error:  # noqa: BLE001 - an outcome like the others
                found = {"outcome": "ERROR", "detail": f"{type(error).__name__}: {error}"[:200]}
            if problem := check_device():
                found = {"outcome": "POISONED", "detail": problem}
            print(json.dumps({"name": dotted, **found}), file=out, flush=True)


# -- the walk


class Worker:
    """A process that examines functions one after the other, and begins anew if it dies."""

    def __init__(self, names: list[str], folder: Path, number: int) -> None:
        self.names = names
        self.target = folder / f"{number}.jsonl"
        self.target.touch()
        self.found: dict[str, dict[str, str]] = {}
        self.process: Any = None
        self.begin_time = time.monotonic()

    def start(self) -> None:
        """Start with what has not been examined yet."""
        rest = [name for name in self.names if name not in self.found]
        command = [sys.executable, __file__, "--worker", str(self.target)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )
        self.process.stdin.write("\n".join(rest) + "\n")
        self.process.stdin.close()
        self.begin_time = time.monotonic()

    def poll(self) -> bool:
        """Read what there is; True when all is done."""
        n_before = len(self.found)
        whole_lines = self.target.read_text().split("\n")[:-1]
        lines = [json.loads(line) for line in whole_lines]
        self.found |= {line["name"]: line for line in lines if "name" in line}
        begun = [line["begin"] for line in lines if "begin" in line]
        if len(self.found) > n_before:
            self.begin_time = time.monotonic()
        if len(self.found) == len(self.names):
            self.process.wait()
            return True
        is_late = time.monotonic() - self.begin_time > SECONDS_A_FUNCTION
        if is_late:
            self.process.kill()
        if is_late or self.process.poll() is not None:
            last = begun[-1] if begun else self.names[0]
            outcome = {"outcome": "LATE" if is_late else "DIED", "detail": "the process ended"}
            self.found.setdefault(last, {"name": last, **outcome})
            with self.target.open("a") as out:
                print(json.dumps(self.found[last]), file=out)
            self.start()
        return False


def walk(n_workers: int, seconds: float) -> dict[str, dict[str, str]]:
    """Examine every function."""
    names = functions()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(names[i::n_workers], Path(folder), i) for i in range(min(n_workers, len(names)))
        ]
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds
        waiting = list(workers)
        while waiting and time.monotonic() < end:
            time.sleep(0.3)
            waiting = [worker for worker in waiting if not worker.poll()]
        for worker in waiting:
            worker.process.kill()
    found = {name: line for worker in workers for name, line in worker.found.items()}
    for name in names:
        found.setdefault(name, {"outcome": "not reached", "detail": "the time was over"})
    return found


def page(found: dict[str, dict[str, str]], head: str) -> str:
    """Return the tables."""
    lines = [head, "", _HEAD, "|---|---:|---:|---:|---:|---:|---:|"]
    by_module: dict[str, Counter[str]] = {}
    for name, line in found.items():
        by_module.setdefault(name.rpartition(".")[0], Counter())[line["outcome"]] += 1
    total = sum(by_module.values(), Counter())
    for module, counts in [*sorted(by_module.items()), ("all", total)]:
        asked = counts["graph"] + sum(n for k, n in counts.items() if k not in GOOD or k == GOOD[2])
        share = f"{100 * counts['graph'] / asked:.0f} %" if asked else "-"
        cells = " | ".join(str(counts[kind]) for kind in GOOD)
        lines.append(f"| {module} | {cells} | {share} |")
    lines += ["", "| function | outcome | detail |", "|---|---|---|"]
    lines += [f"| {n} | {v['outcome']} | {v['detail']} |" for n, v in sorted(found.items())]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 4, 15))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--commit", help="what was tried, where git cannot tell")
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options.worker)
        return 0
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    found = walk(options.workers, options.seconds)
    version = cupy.__version__
    at = f" at {options.commit}" if options.commit else ""
    head = f"Made by `python tests/gpu/api_coverage.py`{at} on an {device} with CuPy {version}."
    options.out.write_text(page(found, head))
    bad = {n: v for n, v in found.items() if v["outcome"] not in GOOD or "UNNAMED" in v["detail"]}
    counts = Counter(line["outcome"] for line in found.values())
    print(dict(counts))
    for name, line in sorted(bad.items()):
        print(name, line["outcome"], line["detail"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    sys.exit(main(sys.argv[1:]))
