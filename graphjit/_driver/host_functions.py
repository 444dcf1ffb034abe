"""Python functions that launches in flight have still to call, and memory of the host as bytes.

A graph holds a number. Each launch arms it with the function, which is kept until it has been
called: so nothing is lost when a graph is destroyed with launches in flight, and nothing is kept
for a graph that is not launched any more. The thread that calls is the driver's, and may make no
call of the driver: what is let go of there is freed by others.

Input: functions. Output: numbers.
Raises: nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

_numbers = itertools.count(1)
_armed: dict[int, deque[Callable[[], None]]] = {}
_deferred: deque[Callable[[], None]] = deque()
"""What a thread of the driver's has left to others: it may make no call of the driver."""
_here = threading.local()


def new_number() -> int:
    """Return a number that no graph holds."""
    return next(_numbers)


def arm(number: int, function: Callable[[], None]) -> None:
    """Keep a function for one more call; more calls than are made do no harm."""
    _armed.setdefault(number, deque()).append(function)


def disarm(number: int) -> None:
    """Take back what was armed last: the launch has failed."""
    _armed[number].pop()


def call(number: int) -> None:
    """Call a function for a launch. Launches of one graph exec follow each other."""
    _here.is_calling = True
    try:
        waiting = _armed[number]
        try:
            waiting[0]()
        finally:
            waiting.popleft()
    finally:
        _here.is_calling = False


def is_calling() -> bool:
    """Say whether this thread is calling a function for a launch."""
    return getattr(_here, "is_calling", False)


def later(function: Callable[..., None], *args: object) -> None:
    """Call a function that uses the driver: now, or in a thread that may."""
    if is_calling():
        _deferred.append(partial(function, *args))
    else:
        function(*args)


def run_deferred() -> None:
    """Do what has been left over, in a thread that may."""
    while _deferred and not is_calling():
        try:
            function = _deferred.popleft()
        except IndexError:  # another thread was faster
            return
        function()


def n_armed() -> int:
    """Return how many calls are still to be made."""
    return sum(map(len, list(_armed.values())))


def forget(number: int) -> None:
    """Forget a number of a graph that is gone, unless a launch is in flight."""
    if not _armed.get(number):
        _armed.pop(number, None)


def owned_bytes(address: int, nbytes: int, owner: object) -> npt.NDArray[np.uint8]:
    """Return memory as an array; it, and every view of it, keeps ``owner`` alive."""
    octets = (ctypes.c_uint8 * nbytes).from_address(address)
    octets.owner = owner  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(octets)
