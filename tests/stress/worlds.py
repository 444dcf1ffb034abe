"""One script in two worlds: in one ``graphed`` does nothing, in the other it is graphjit's.

Input: the lines of a script. After each line every variable of the two worlds has to be equal
bit for bit: results, arguments that were changed in place, state, results of earlier calls.
Raises: ``Difference``, with the whole script as Python source; ``DeviceLost`` likewise.
"""

from __future__ import annotations

import dataclasses
import gc
import linecache
import re
import threading
import warnings
from typing import Any

import numpy as np
from hypothesis.errors import UnsatisfiedAssumption

from graphjit import (
    CacheGrowthWarning,
    ControlFlowError,
    GraphjitError,
    PinnedArray,
    control,
    host_callback,
)
from graphjit import graphed as real_graphed
from stress.backends import Backend, host_data, lay_out
from stress.programs import first


class Difference(AssertionError):  # noqa: N818 - a finding, not a failure of the program
    """The two worlds are not equal: what differs, and the script that shows it."""

    def __init__(self, what: str, worlds: Worlds) -> None:
        super().__init__(f"{what}\n\nThe script:\n\n{worlds.script()}")
        self.what = what
        self.kind = re.split(r"[:(]", what)[0] if what.startswith("refused") else ""
        self.lines = list(worlds.lines)
        self.state = list(worlds.state)
        self.may_be_refused = worlds.may_be_refused


class DeviceLost(KeyboardInterrupt):  # nothing can be run after it, so all ends
    """The context of the device is in an error that stays: what it is, and the script."""


@dataclasses.dataclass
class Counts:
    """What the scripts did."""

    scripts: int = 0
    lines: int = 0
    calls: int = 0
    hits: int = 0
    refusals: dict[str, int] = dataclasses.field(default_factory=dict)


def collect() -> None:
    """Collect cycles; how many there are is nobody's business."""
    gc.collect()


def through_page_locked_memory(arrays: tuple[Any, ...]) -> Any:
    """Copy an array to the host and back."""
    (array,) = arrays
    memory = PinnedArray(array.shape, array.dtype, like=array)
    memory.copy_from(array)
    return memory.to_device()


class Namespace:
    """The variables of one world."""

    def __init__(
        self, backend: Backend, name: str, *, is_graphed: bool, may_be_refused: bool = False
    ) -> None:
        self.backend = backend
        self.may_be_refused = may_be_refused
        self.is_graphed = is_graphed
        self.filename = f"<{name}, {'graphed' if is_graphed else 'eager'}>"
        self.text = ""
        self.functions: list[Any] = []
        self.noted: set[Any] = set()
        """What host functions were given; a set, because ``verify`` calls them twice."""
        self.helpers = {
            "xp": backend.xp,
            "np": np,
            "data": self.data,
            "graphed": self.graphed,
            "first": first,
            **{name: getattr(control, name) for name in control.__all__},
            "host_callback": host_callback,
            "note": self.make_note(),
            "pinned": through_page_locked_memory,
            "clear": self.clear,
            "collect": collect,
            "on_stream": backend.on_stream,
            "in_threads": self.in_threads,
            **{name: getattr(control, name) for name in control.__all__},
            **backend.extras(),
        }
        self.variables: dict[str, Any] = {"__name__": "fuzzed_program", **self.helpers}

    def data(self, shape: Any, dtype: str, seed: int, layout: str = "C") -> Any:
        host = host_data(shape, dtype, seed)
        if layout == "broadcast" and len(shape):
            return self.backend.xp.broadcast_to(self.backend.xp.asarray(host[:1]), shape)
        return lay_out(self.backend.xp.asarray, host, layout)

    def graphed(self, fn: Any = None, **options: Any) -> Any:
        def decorate(fn: Any) -> Any:
            wrapped = real_graphed(**options)(fn) if self.is_graphed else fn
            self.functions += [wrapped] * self.is_graphed
            return wrapped

        return decorate if fn is None else decorate(fn)

    def make_note(self) -> Any:
        """Return a function of the host's that keeps what it is given."""
        noted = self.noted

        def note(value: Any) -> None:
            for host in value if isinstance(value, list) else [value]:
                noted.add((host.shape, str(host.dtype), host.strides, host.tobytes()))

        return note

    def clear(self, fn: Any) -> None:
        if hasattr(fn, "cache_clear"):
            fn.cache_clear()

    def in_threads(self, fn: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        """Make calls at once, in threads; in the eager world one after the other."""
        results: list[Any] = [None] * len(calls)
        self.backend.synchronize()  # CuPy's threads may have streams of their own

        def work(k: int) -> None:
            try:
                results[k] = fn(*calls[k])
                self.backend.synchronize_stream()  # others may be capturing: not the device
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                results[k] = error

        threads = [threading.Thread(target=work, args=(k,)) for k in range(len(calls))]
        for k, thread in enumerate(threads):
            if self.is_graphed:
                thread.start()
            else:
                work(k)
        for thread in threads * self.is_graphed:
            thread.join(120)
        for result in results:
            if isinstance(result, GraphjitError) and self.may_be_refused and not _is_partly(result):
                continue
            if isinstance(result, BaseException):
                raise result
        return [r.eager_result if isinstance(r, GraphjitError) else r for r in results]

    def run(self, line: str) -> BaseException | None:
        """Execute a piece of the script; return what it raised."""
        begin = self.text.count("\n")
        self.text += line + "\n"
        # So that messages of graphjit's, which name a line, show it.
        linecache.cache[self.filename] = (
            len(self.text),
            None,
            self.text.splitlines(keepends=True),
            self.filename,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CacheGrowthWarning)  # small caches are the point
                warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of a mean of nothing
                exec(compile("\n" * begin + line, self.filename, "exec"), self.variables)
        except Exception as error:  # noqa: BLE001 - compared with the other world's
            return error
        return None

    def own(self) -> dict[str, Any]:
        """Return the variables of the script's own."""
        return {
            name: value
            for name, value in self.variables.items()
            if name not in self.helpers and not name.startswith("__")
        }

    def close(self) -> None:
        """Let go of everything."""
        linecache.cache.pop(self.filename, None)
        self.variables.clear()
        self.helpers.clear()
        self.functions.clear()


def _is_partly(error: GraphjitError) -> bool:
    """Say whether a call has been carried out partly; it has no eager result then."""
    notes = getattr(error, "__notes__", ())
    return any("carried out up to" in n or "not come to its end" in n for n in notes)


class Partly(UnsatisfiedAssumption):
    """A call has been carried out partly, and says so: the worlds cannot be alike again."""


class Worlds:
    """Two worlds that a script runs in."""

    def __init__(self, backend: Backend, counts: Counts, *, may_be_refused: bool = False) -> None:
        self.backend = backend
        self.counts = counts
        self.may_be_refused = may_be_refused
        self.lines: list[str] = []
        self.state: list[str] = []
        counts.scripts += 1
        name = f"script {counts.scripts}"
        self.eager = Namespace(backend, name, is_graphed=False)
        self.graphed = Namespace(backend, name, is_graphed=True, may_be_refused=may_be_refused)

    def run(self, line: str, *, compares: bool = True) -> bool:
        """Run a line in both worlds and compare them; return whether it raised in both."""
        self.lines.append(line)
        self.counts.lines += 1
        expected = self.eager.run(line)
        self.backend.poison()
        got = self.graphed.run(line)
        lost = self.backend.lost()
        if lost:
            raise DeviceLost(f"{lost}; after {got!r}\n\nThe script:\n\n{self.script()}")
        if isinstance(got, GraphjitError) and expected is None:
            self._accept_refusal(line, got)
            got = None
        if expected is None and isinstance(got, (ValueError, IndexError)) and self._has_branches():
            raise Partly from got  # a branch that only the capture runs, on shapes that do not fit
        if type(expected) is not type(got):
            self.fail(f"eager: {expected!r}; graphed: {got!r}", got or expected)
        if compares:
            self.compare()
        return expected is not None

    def _has_branches(self) -> bool:
        return any(name in self.lines[0] for name in ("cond(", "switch(", "_loop("))

    def _accept_refusal(self, line: str, error: GraphjitError) -> None:
        kind = type(error).__name__
        self.counts.refusals[kind] = self.counts.refusals.get(kind, 0) + 1
        if _is_partly(error) or isinstance(error, ControlFlowError):
            raise Partly from error  # only a capture sees that two branches differ
        name = line.split("= ")[0].strip().split()[-1]
        if not self.may_be_refused:
            self.fail(f"refused: {kind}: {error}", error)
        if self.graphed.filename not in str(error):
            self.fail(f"the refusal names no line of the program: {error}", error)
        self.graphed.variables[name] = error.eager_result

    def compare(self) -> None:
        """Compare all variables."""
        mine, theirs = self.eager.own(), self.graphed.own()
        if set(mine) != set(theirs):
            self.fail(f"variables {sorted(set(mine) ^ set(theirs))} exist in one world only")
        for name in mine:
            self._compare(name, mine[name], theirs[name])
        if self.eager.noted != self.graphed.noted:
            lost = self.eager.noted - self.graphed.noted
            more = self.graphed.noted - self.eager.noted
            self.fail(f"host functions: only eager {lost}; only graphed {more}")
        for text in self.state:
            self._compare(
                text, eval(text, self.eager.variables), eval(text, self.graphed.variables)
            )

    def _compare(self, path: str, a: Any, b: Any) -> None:
        if isinstance(a, self.backend.array_type):
            self._compare_arrays(path, a, b)
        elif isinstance(a, dict):
            if not isinstance(b, dict) or list(a) != list(b):
                self.fail(f"{path}: {a!r} and {b!r}")
            for key in a:
                self._compare(f"{path}[{key!r}]", a[key], b[key])
        elif isinstance(a, (list, tuple)):
            if type(a) is not type(b) or len(a) != len(b):
                self.fail(f"{path}: {type(a)} and {type(b)}")
            for k, (left, right) in enumerate(zip(a, b, strict=True)):
                self._compare(f"{path}[{k}]", left, right)
        elif isinstance(a, (int, float, complex, str, type(None))) and (
            type(a) is not type(b) or (a != b and a == a)
        ):
            self.fail(f"{path}: eager {a!r}, graphed {b!r}")

    def _compare_arrays(self, path: str, a: Any, b: Any) -> None:
        if type(a) is not type(b):
            self.fail(f"{path}: eager {type(a)}, graphed {type(b)}")
        for fact in ("shape", "dtype"):
            if getattr(a, fact) != getattr(b, fact):
                self.fail(f"{path}.{fact}: eager {getattr(a, fact)}, graphed {getattr(b, fact)}")
        if a.size > 1 and a.strides != b.strides:
            self.fail(f"{path}.strides: eager {a.strides}, graphed {b.strides}")
        left, right = self.backend.get(a), self.backend.get(b)
        if left.tobytes() != right.tobytes():
            self.fail(f"{path}: eager\n{left}\ngraphed\n{right}")

    def fail(self, what: str, cause: BaseException | None = None) -> None:
        """Raise with the whole script."""
        raise Difference(what, self) from cause

    def script(self) -> str:
        """Return the script as Python source."""
        return "\n".join(self.lines)

    def close(self) -> None:
        """Count, and let go of everything."""
        for fn in self.graphed.functions:
            info = fn.cache_info()
            self.counts.calls += info.hits + info.misses + info.eager_calls
            self.counts.hits += info.hits
        self.eager.close()
        self.graphed.close()
