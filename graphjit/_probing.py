"""Capture a function again and again, to find its dynamic scalars.

Once on scalars that refuse to be looked at (``_traced``), then with other values, which are
spread so that decisions show, and once with the same values. Nothing runs on the GPU.

Input: the first capture, and a way to make others. Output: ``ScalarWord`` with slots from 0.
Raises: ``DynamicScalarError``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graphjit._capture import Captured, current_capture
from graphjit._containers import flatten
from graphjit._dynamic import Probe, dynamic_error, find_scalar_words, probe_values
from graphjit._nodes import CapturedGraph
from graphjit._outputs import OutputPlan
from graphjit._relocation import RelocationPlan
from graphjit._scalars import Encoding, ScalarWord
from graphjit._setup import Setup
from graphjit._source import traceback_line
from graphjit._traced import Hooks, is_traced, make_traced, watched_calls
from graphjit.errors import DynamicScalarError

CaptureAgain = Callable[[Sequence[Any]], tuple[Captured, Setup]]
Analysed = tuple[CapturedGraph, RelocationPlan, OutputPlan]
Analyse = Callable[[Captured, Setup], Analysed]


def find_scalars(
    setup: Setup, analysed: Analysed, capture_again: CaptureAgain, analyse: Analyse
) -> tuple[ScalarWord, ...]:
    """Find the words of the graph that hold dynamic scalars."""
    function, names = setup.capture.function, _names(setup)
    if setup.capture.draws:
        what = "is used beside random numbers of a generator whose state is on the host"
        raise dynamic_error(function, names, what)
    base = _probe_of(setup, analysed)
    _trace(setup, capture_again)
    others: list[Probe] = []
    repeats: list[Probe] = []
    for values in probe_values(setup.call.scalars):
        *first, last = values
        own = setup.call.scalars
        try:
            others = [_probe(function, names, v, capture_again, analyse) for v in first]
            repeats = [_probe(function, names, own, capture_again, analyse)]
            others.append(_probe(function, names, last, capture_again, analyse))
            repeats.append(_probe(function, names, own, capture_again, analyse))
        except OverflowError:
            continue  # integers of a kernel's type: narrower ones
        break
    if not repeats:
        raise dynamic_error(function, names, "overflows with other values")
    unwritten = setup.capture.adapter.unwritten_bytes
    slots: dict[tuple[int, tuple[Encoding, ...]], int] = {}
    return tuple(
        replace(word, slot=slots.setdefault((word.scalar, word.encodings), len(slots)))
        for word in find_scalar_words(function, names, base, others, repeats, unwritten)
    )


def _names(setup: Setup) -> list[str]:
    paths = setup.call.paths or [f"argument {i}" for i in range(len(setup.call.leaves))]
    return [paths[i] for i in setup.call.scalar_index]


def _probe(
    function: str,
    names: list[str],
    values: Sequence[Any],
    capture_again: CaptureAgain,
    analyse: Analyse,
) -> Probe:
    """Capture with other values; nothing is kept but what the capture gave."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that the user has not chosen
            captured, setup = capture_again(values)
        try:
            return _probe_of(setup, analyse(captured, setup))
        finally:
            captured.close()
            setup.capture.free_constants()
    except OverflowError:
        raise
    except Exception as error:
        pairs = zip(names, values, strict=True)
        with_values = ", ".join(f"{name}={value!r}" for name, value in pairs)
        what = f"decides what is done: with {with_values} it is refused ({error})"
        raise dynamic_error(function, names, what) from error


def _probe_of(setup: Setup, analysed: Analysed) -> Probe:
    graph, plan, outputs = analysed
    capture = setup.capture
    regions = tuple((r.nbytes, r.argument, r.born, r.freed) for r in capture.regions.regions)
    constants = []
    for constant in capture.constants:
        data = bytearray(constant.data)
        for word in plan.words:
            at = word.device_ptr - constant.device_ptr
            if 0 <= at <= len(data) - 8:
                data[at : at + 8] = bytes(8)
        constants.append(bytes(data))
    return Probe(tuple(setup.call.scalars), graph, plan, outputs, tuple(constants), regions)


def _trace(setup: Setup, capture_again: CaptureAgain) -> None:
    """Capture on scalars that refuse to be looked at, and throw the capture away."""
    capture, names = setup.capture, _names(setup)
    modules = capture.adapter.library_modules

    def refuse(name: str, what: str) -> Exception:
        now = current_capture()
        error = now.failure = dynamic_error(now.function, [name], f"{what}, at {now.where()}")
        return error

    hooks = Hooks(capture.adapter.is_array, refuse)
    pairs = zip(setup.call.scalars, names, strict=True)
    traced = [make_traced(value, name, hooks) for value, name in pairs]
    try:
        with watched_calls():
            captured, its_setup = capture_again(traced)
    except DynamicScalarError:
        raise
    except Exception as error:
        where = traceback_line(error.__traceback__, modules)
        what = f"cannot be followed through the function, which raises {error!r} at {where}"
        raise dynamic_error(capture.function, names, what) from error
    returned = flatten(captured.result, capture.adapter.is_array)[0]
    captured.result = None
    captured.close()
    its_setup.capture.free_constants()
    if any(map(is_traced, returned)):
        raise dynamic_error(capture.function, names, "is returned")
