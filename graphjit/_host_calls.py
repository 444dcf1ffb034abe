"""Python functions that a graph calls, with copies of arrays.

A launch copies the arrays into page-locked memory of the call's own and then has a thread of the
driver's call the function. Launches of one graph exec never overlap, so that one piece of memory
is enough.

Input: a function and its arguments. Output: ``record`` adds the call to the capture.
Raises: ``CaptureError`` where a call cannot be; ``HostCallbackError``, later, for what the function
raised.
Source: cuLaunchHostFunc, cuGraphAddHostNode.
"""

from __future__ import annotations

import atexit
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._capture import Capture
from graphjit._containers import flatten, unflatten
from graphjit._driver import host_functions
from graphjit._driver.interface import Driver
from graphjit._host_memory import HostMemory
from graphjit.errors import HostCallbackError

_IN_BODY = (
    "it calls a host function in a branch or a loop of graphjit.control, and CUDA allows no host "
    "nodes there"
)
_DYNAMIC = "it calls a host function and has dynamic scalars: a launch would give it the old ones"
_FAILED = (
    "{name}, called by a graph of {function} at {where}, raised {error}. The work behind it has "
    "been carried out nevertheless: a graph launch cannot be stopped."
)
_MAX_FAILURES = 100
_failures: deque[HostCallbackError] = deque()
"""What functions raised and nobody has been told yet, the oldest first."""


class HostCall:
    """What a graph calls: a number, and the function that each launch arms it with."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.number = host_functions.new_number()
        self.function = function
        weakref.finalize(self, host_functions.forget, self.number).atexit = False


class _Staged(NamedTuple):
    """An array on its way to the host."""

    memory: HostMemory
    spec: ArraySpec

    def copy(self) -> np.ndarray[Any, Any]:
        return self.memory.view(self.spec).copy(order="C")  # as `get` gives it


class _Invocation:
    """A function and its arguments; calling it calls the function."""

    def __init__(
        self, fn: Callable[..., Any], leaves: Sequence[Any], tree: Any, place: tuple[str, str]
    ) -> None:
        self._fn, self._leaves, self._tree = fn, leaves, tree
        self._place = place

    def __str__(self) -> str:
        return f"{_name(self._fn)}, at {self._place[1]}"

    def __call__(self) -> None:
        try:
            given = [leaf.copy() if type(leaf) is _Staged else leaf for leaf in self._leaves]
            self._fn(*unflatten(self._tree, given))
        except BaseException as error:  # noqa: BLE001 - a thread of the driver's cannot raise it
            _note_failure(self._fn, self._place, error)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def _note_failure(fn: Callable[..., Any], place: tuple[str, str], error: BaseException) -> None:
    """Keep what a function raised until somebody asks; the first ones, if there are too many."""
    if len(_failures) >= _MAX_FAILURES:
        return
    try:
        what = repr(error)
    except Exception:  # noqa: BLE001 - it says no more than its class
        what = type(error).__name__
    text = _FAILED.format(name=_name(fn), function=place[0], where=place[1], error=what)
    failure = HostCallbackError(text)
    failure.__cause__ = error
    _failures.append(failure)


def record(capture: Capture, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Add a call to a capture."""
    if capture.flow.is_in_body:
        raise capture.refuse(_IN_BODY)
    if capture.has_scalars:
        raise capture.refuse(_DYNAMIC)
    adapter, driver = capture.adapter, capture.driver
    leaves, tree = flatten(args, adapter.is_array)
    staged = [_stage(driver, adapter, x) if adapter.is_array(x) else x for x in leaves]
    place = capture.function, capture.where()
    call = HostCall(_Invocation(fn, staged, tree, place))
    _wait_at_exit(driver.wait_for_device)
    capture.kept.append(call)
    driver.launch_host_function(call.number, adapter.current_stream())


def _stage(driver: Driver, adapter: Adapter, array: Any) -> _Staged:
    spec = adapter.spec(array)
    memory = HostMemory(driver, spec.high - spec.low)
    memory.copy_in(adapter, array, spec)
    return _Staged(memory, spec)


@cache
def _wait_at_exit(wait_for_device: Callable[[], None]) -> None:
    """Let launches end before Python does: no function can be called after that."""
    atexit.register(_report_the_last, wait_for_device)


def _report_the_last(wait_for_device: Callable[[], None]) -> None:
    """Wait, and print what nobody has been told."""
    wait_for_device()
    while _failures:
        traceback.print_exception(_failures.popleft())


def has_failures() -> bool:
    """Say whether there is something to report."""
    return bool(_failures)


def raise_failure() -> None:
    """Raise what a function raised in an earlier launch, the oldest first."""
    try:
        failure = _failures.popleft()
    except IndexError:
        return
    if _failures:
        failure.add_note(f"{len(_failures)} more are raised at the next synchronisation points.")
    raise failure
