"""Call one public function, eagerly and graphed, on arguments from the recipes; say what it is.

Input: a qualified name, and a ``Library``. Output: a ``Row``: the outcome, and what is wrong.
Nothing is asserted here: a row with a ``fault`` is one.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from helpers.api_recipes import GENERIC, NOT_APPLICABLE, RECIPES, SPECIAL, SUBJECTS

from graphjit import GraphjitError, HostReadError, graphed

N_CALLS = 3
GRAPH = "graph"
HOST_READ = "host read needed"
LIBRARY = "library cannot capture"
REFUSED = "refused by graphjit"
NOT_CALLED = "no arguments found"
NOTHING = "not applicable"
OUTCOMES = (GRAPH, HOST_READ, LIBRARY, REFUSED, NOT_CALLED, NOTHING)
_LIBRARY_REASONS = ("CuPy refuses", "CUDA or a library", "invalidated", "cannot be captured: node")


@dataclasses.dataclass
class Row:
    """What became of a function."""

    name: str
    outcome: str
    reason: str = ""
    arguments: str = ""
    nodes: int = 0
    comparison: str = "bits"
    fault: str = ""


class Library:
    """An array library: here, the simulated one; ``CuPy`` is the other."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.names: dict[str, Any] = {"xp": xp, "np": np}

    def asarray(self, host: np.ndarray) -> Any:
        """Return a new array on the device."""
        return self.xp.asarray(host)

    def is_array(self, value: Any) -> bool:
        """Say whether a value is an array of the library."""
        return isinstance(value, self.xp.ndarray)

    def get(self, array: Any) -> np.ndarray:
        """Copy to the host."""
        return array.get()

    def reset(self, seed: int) -> None:
        """Make what a function draws the same as in its other world: many do that look innocent."""

    def poison(self) -> None:
        """Let new arrays hold garbage."""

    def check(self) -> str:
        """Return what is wrong with the device, or an empty string."""
        host = np.arange(5.0)
        value = self.get(self.asarray(host) * 2 + 1)
        return "" if value.tolist() == (host * 2 + 1).tolist() else f"a kernel gives {value}"


# -- arguments


class Makers:
    """The makers of arrays that recipes name; the same seed gives the same numbers."""

    def __init__(self, library: Library, seed: int) -> None:
        self.library = library
        self.rng = np.random.default_rng(seed)

    def names(self) -> dict[str, Any]:
        """Return what a recipe may name."""
        own = {name: getattr(self, name) for name in dir(self) if not name.startswith("_")}
        return {**own, "c2": self.conjugates, "knots": self.knots(), **self.library.names}

    def _new(self, host: Any) -> Any:
        return self.library.asarray(np.ascontiguousarray(host))

    def f(self, *shape: int) -> Any:
        return self._new(self.rng.standard_normal(shape))

    def u(self, *shape: int) -> Any:
        return self._new(self.rng.uniform(0.05, 0.95, shape))

    def p(self, *shape: int) -> Any:
        return self._new(self.rng.uniform(0.5, 4.0, shape))

    def i(self, *shape: int, high: int = 5) -> Any:
        return self._new(self.rng.integers(0, high, shape))

    def b(self, *shape: int) -> Any:
        return self._new(self.rng.integers(0, 2, shape).astype(bool))

    def c(self, *shape: int) -> Any:
        return self._new(self.rng.standard_normal(shape) + 1j * self.rng.standard_normal(shape))

    def u1(self, *shape: int) -> Any:
        return self._new(self.rng.integers(0, 2, shape).astype(np.uint8))

    def s(self, *shape: int) -> Any:
        return self._new(np.cumsum(self.rng.uniform(0.1, 1.0, shape)))

    def perm(self, n: int, k: int) -> Any:
        return self._new(self.rng.permutation(n)[:k])

    def spd(self, n: int) -> Any:
        a = self.rng.standard_normal((n, n))
        return self._new(a @ a.T + n * np.eye(n))

    def low(self, n: int) -> Any:
        return self._new(np.tril(self.rng.standard_normal((n, n))) + 3 * np.eye(n))

    def conjugates(self, n: int) -> Any:
        """Return complex numbers in conjugate pairs."""
        half = self.rng.standard_normal(n // 2) + 1j * self.rng.uniform(0.5, 2, n // 2)
        return self._new(np.concatenate([half, half.conj()]))

    def knots(self) -> Any:
        return self._new(np.array([0.0] * 4 + [0.5] + [1.0] * 4))

    def lu(self, n: int) -> Any:
        return self._new(self.rng.standard_normal((n, n)) + n * np.eye(n)), self._new(
            np.arange(n, dtype=np.int32)
        )

    def _sparse(self, dense: np.ndarray) -> Any:
        return self.library.names["sparse"].csr_matrix(self._new(dense))

    def csr(self, n: int) -> Any:
        keep = np.random.default_rng(3).random((n, n)) < 0.5  # one structure: its size is static
        return self._sparse(self.rng.standard_normal((n, n)) * (keep | np.eye(n, dtype=bool)))

    def csr_spd(self, n: int) -> Any:
        a = self.rng.standard_normal((n, n))
        return self._sparse(a @ a.T + n * np.eye(n))

    def csr_low(self, n: int) -> Any:
        return self._sparse(np.tril(self.rng.uniform(0.5, 1, (n, n))) + 3 * np.eye(n))


def candidates(name: str) -> list[str]:
    """Return the texts of arguments to try for a function."""
    other = SPECIAL if ".special." in name else GENERIC
    text = SUBJECTS[name][1] if name in SUBJECTS else RECIPES.get(name, other)
    return [part.strip() for part in text.split("|")]


def make(library: Library, text: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make fresh arguments."""
    space = {**Makers(library, seed).names(), "pack": lambda *args, **kwargs: (args, kwargs)}
    return eval(f"pack({text})", space)


# -- functions


def public_functions(library: Library, modules: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each public callable of modules once: its name, and of what it is an alias."""
    seen: dict[int, str] = {}
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for attribute in sorted(dir(module)):
            name = f"{module_name}.{attribute}"
            value = getattr(module, attribute, None)
            if attribute.startswith("_") or not callable(value) or isinstance(value, type(np)):
                continue
            first = seen.setdefault(id(value), name)
            yield name, "" if first == name else first
    for name in SUBJECTS:
        if name.startswith(tuple(f"{m.split('.')[0]}." for m in modules)):
            yield name, ""


def find(library: Library, name: str) -> Any:
    """Return the function of a name."""
    if name in SUBJECTS:
        return eval(SUBJECTS[name][0], dict(Makers(library, 1).names()))
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def as_users(function: Any, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], list[int]]:
    """Wrap a function as a user would: what cannot be an argument of a signature is kept.

    Returns the user's function, and the positions of what it is given.
    """
    kept = {k: a for k, a in enumerate(arguments) if callable(a) or _is_host(a)}
    if not kept:

        def user(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return user, list(range(len(arguments)))
    given = [k for k in range(len(arguments)) if k not in kept]
    template = tuple(kept.get(k) for k in range(len(arguments)))

    def user_of_some(*args: Any, **kwargs: Any) -> Any:
        whole = list(template)
        for k, value in zip(given, args, strict=True):
            whole[k] = value
        return function(*whole, **kwargs)

    return user_of_some, given


def _is_host(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_host, value))
    return isinstance(value, np.ndarray)


# -- comparison


def leaves(library: Library, value: Any, depth: int = 0) -> list[Any]:
    """List the arrays and plain values of a result; objects are opened."""
    if library.is_array(value) or isinstance(value, (np.ndarray, np.generic)):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, map, zip)):
        return [leaf for item in value for leaf in leaves(library, item, depth)]
    if isinstance(value, (int, float, complex, str, bytes, type(None), np.dtype)) or depth > 3:
        return [value]
    if callable(value) and not hasattr(value, "__dict__"):
        return []
    if isinstance(value, type) or callable(value):
        return []
    return [
        leaf
        for key, item in sorted(getattr(value, "__dict__", {}).items())
        if not key.startswith("__")
        for leaf in leaves(library, item, depth + 1)
    ]


def snapshot(library: Library, value: Any) -> list[Any]:
    """Copy the leaves of a value to the host."""
    return [
        library.get(leaf) if library.is_array(leaf) else leaf for leaf in leaves(library, value)
    ]


def equal_bits(left: list[Any], right: list[Any]) -> bool:
    """Say whether two snapshots are equal bit for bit."""
    pairs = itertools.zip_longest(left, right, fillvalue="nothing")
    return all(itertools.starmap(_equal, pairs))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (np.ndarray, np.generic)) and isinstance(b, (np.ndarray, np.generic)):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    plain = isinstance(a, (int, float, complex, str, bytes, type(None), np.dtype))
    return not plain or a == b or a != a


def close(left: list[Any], right: list[Any], tolerance: float) -> bool:
    """Say whether the arrays of two snapshots are equal within a tolerance."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if isinstance(a, np.ndarray):
            if not isinstance(b, np.ndarray) or (a.shape, a.dtype) != (b.shape, b.dtype):
                return False
            if a.dtype.kind in "fc" and not np.allclose(a, b, tolerance, tolerance, equal_nan=True):
                return False
            if a.dtype.kind not in "fc" and not np.array_equal(a, b):
                return False
    return True


# -- one function


class Trial:
    """One function, tried."""

    def __init__(self, library: Library, name: str) -> None:
        self.library = library
        self.row = Row(name, NOT_CALLED)
        self.text = ""

    def run(self) -> Row:
        """Fill the row."""
        if self.row.name in NOT_APPLICABLE:
            return self.ends(NOTHING, NOT_APPLICABLE[self.row.name])
        try:
            function = find(self.library, self.row.name)
        except Exception as error:  # noqa: BLE001 - reported
            return self.ends(NOT_CALLED, _words(error))
        if isinstance(function, type) and self.row.name not in RECIPES:
            return self.ends(NOTHING, "a type; what its objects do is tried under their methods")
        if not self.find_arguments(function):
            return self.row
        self.row.arguments = self.text
        return self.compare(function)

    def ends(self, outcome: str, reason: str, fault: str = "") -> Row:
        self.row.outcome, self.row.reason = outcome, reason
        self.row.fault = self.row.fault or fault
        return self.row

    def find_arguments(self, function: Any) -> bool:
        """Find the first arguments that the function takes."""
        errors = []
        for text in candidates(self.row.name):
            try:
                args, kwargs = make(self.library, text, 0)
                snapshot(self.library, function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - the next arguments may fit
                errors.append(_words(error))
                continue
            self.text = text
            return True
        gone = next((e for e in errors if "removed" in e or "deprecated" in e), "")
        self.ends(NOTHING if gone else NOT_CALLED, gone or (errors[-1] if errors else ""))
        return False

    def call(self, user: Any, given: list[int], seed: int) -> tuple[list[Any], list[Any], Any]:
        """Call on fresh arguments; return the result and the arguments, as snapshots."""
        args, kwargs = make(self.library, self.text, seed)
        self.library.reset(seed)
        error = None
        try:
            result = user(*[args[k] for k in given], **kwargs)
        except GraphjitError as refusal:
            error, result = refusal, refusal.eager_result
        return snapshot(self.library, result), snapshot(self.library, (args, kwargs)), error

    def compare(self, function: Any) -> Row:
        library = self.library
        args, _ = make(library, self.text, 0)
        eager, given = as_users(function, args)
        first = self.call(eager, given, 1)
        before = snapshot(library, make(library, self.text, 1))
        has_arrays = any(isinstance(leaf, np.ndarray) for leaf in first[0])
        does_nothing = not has_arrays and equal_bits(before, first[1])
        if ".Generator." in self.row.name:  # one generator for each world, in the same state
            function = find(library, self.row.name)
            eager, _ = as_users(find(library, self.row.name), args)
        else:
            self.choose_comparison(first, self.call(eager, given, 1))
        user, given = as_users(function, args)
        graphed_fn = graphed(user)
        try:
            row = self.compare_calls(eager, graphed_fn, given)
        except Exception as error:  # noqa: BLE001 - eager calls raised nothing
            return self.ends(REFUSED, "", f"graphed it raises {_words(error)}")
        finally:
            graphed_fn.cache_clear()
        if does_nothing and row.outcome != LIBRARY and row.outcome != HOST_READ:
            return self.ends(NOTHING, "returns no arrays")
        return row

    def choose_comparison(self, first: Any, second: Any) -> None:
        """Compare two eager calls on equal arguments: what is not equal there is no fault."""
        if equal_bits(first[0], second[0]) and equal_bits(first[1], second[1]):
            return
        self.row.comparison = "none: eager calls differ"
        for tolerance in (1e-12, 1e-6, 1e-3):
            if close(first[0], second[0], tolerance):
                self.row.comparison = f"within {tolerance:g}: eager calls differ by less"
                return

    def agree(self, expected: Any, got: Any) -> bool:
        if self.row.comparison == "bits":
            return equal_bits(expected[0], got[0]) and equal_bits(expected[1], got[1])
        if self.row.comparison.startswith("within"):
            return close(expected[0], got[0], 100 * float(self.row.comparison.split()[1][:-1]))
        return [np.shape(a) for a in expected[0]] == [np.shape(a) for a in got[0]]

    def compare_calls(self, eager: Any, graphed_fn: Any, given: list[int]) -> Row:
        for seed in range(10, 11 + N_CALLS):
            try:
                expected = self.call(eager, given, seed)
            except Exception as error:  # noqa: BLE001 - these numbers do not suit the function
                if seed == 10:
                    return self.ends(NOT_CALLED, f"on other numbers: {_words(error)}")
                continue
            self.library.poison()
            got = self.call(graphed_fn, given, seed)
            if not self.agree(expected, got):
                return self.ends(GRAPH, "", f"call {seed - 9} differs from eager")
            if got[2] is not None:
                return self.refused(got[2])
        return self.graph(graphed_fn)

    def graph(self, graphed_fn: Any) -> Row:
        info = graphed_fn.cache_info()
        entries = graphed_fn.cache_entries()
        self.row.nodes = sum(entries[0].nodes.values()) if entries else 0
        if info.misses > 1:
            return self.ends(GRAPH, f"captured {info.misses} times in {1 + N_CALLS} calls")
        return self.ends(GRAPH, "" if self.row.nodes else "launches nothing: a view, or a constant")

    def refused(self, error: GraphjitError) -> Row:
        text = str(error)
        if isinstance(error, HostReadError) or "on the host" in text.split(", at ")[0]:
            outcome = HOST_READ
        elif any(reason in text for reason in _LIBRARY_REASONS):
            outcome = LIBRARY
        else:
            outcome = REFUSED
        fault = ""
        if "cannot build anew" in text:  # what it returns is at fault, and no line of it
            return self.ends(REFUSED, text[:220])
        if not re.search(r"(api_walk\.py|<string>):\d+", text):
            fault = f"the refusal names no line of the user's: {text[:300]}"
        elif not re.search(r"cu[A-Zp]|CU|numpy|graphjit\.testing|cannot be captured", text):
            fault = f"the refusal names no call: {text[:300]}"
        kind = "" if outcome == HOST_READ else f"{type(error).__name__}: "
        return self.ends(outcome, kind + text.split(", at ")[0][:220], fault)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")


def try_function(library: Library, name: str) -> Row:
    """Try a function, and see that it left the device usable."""
    trial = Trial(library, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = trial.run()
        try:
            wrong = library.check()
        except Exception as error:  # noqa: BLE001 - reported
            wrong = _words(error)
    if wrong:
        row.fault = f"the device is not usable afterwards: {wrong}"
    return row
