"""Capture a function for one signature, as often as it takes.

Input: a call (arguments taken apart), the function, the watch of its implicit arguments.
Output: a ``CacheEntry``.
Raises: what capture, analysis and instantiation raise; then nothing is kept, and what the
function changed in what it reaches is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from graphjit._arguments import Call
from graphjit._build import EntryOptions, finish
from graphjit._capture import Captured, capturing, new_capture
from graphjit._capture_errors import CaptureRetryError
from graphjit._containers import flatten
from graphjit._entry import CacheEntry
from graphjit._replay import KnownRead, Replay
from graphjit._second_attempt import naming_the_line
from graphjit._segments import Segment, SegmentTree
from graphjit._setup import Setup
from graphjit._signature import Signature
from graphjit._watch import Watch
from graphjit.errors import CaptureError

_CHANGES = (
    "{function} cannot be captured: it changes {path}. A graph launch runs no Python, so that "
    "later calls would not change it. {cure}, or use @graphed(on_unsupported='eager') to run the "
    "function uncaptured."
)
_RETURN_IT, _DRAW_IT = "Return the value instead", "Draw by cupy.random"
_CONTAINER = "a container that it is given as an argument"


def build_entry(
    fn: Callable[..., Any],
    name: str,
    call: Call,
    signature: Signature,
    watch: Watch,
    options: EntryOptions,
) -> CacheEntry:
    """Capture a function for the signature of a call. Nothing runs on the GPU.

    Values that the function changes in what it reaches (attributes, globals, lists) are put
    back if the capture is refused.
    """
    implicit = watch.read(call.leaves)
    if implicit is None:
        path = watch.first_change(call.leaves)
        raise CaptureError(f"{name} cannot be captured: {path} changes while nobody calls it")
    recipe = Recipe(fn, name, signature, watch, options)
    captured, setup = recipe.capture(call, implicit, call.scalars)
    if call.scalar_index:
        setup.capture_again = partial(recipe.capture, call, implicit)
    entry = finish(captured, setup, signature, watch, options)
    if entry.segment is not None:
        entry.segments = SegmentTree(entry.segment, recipe.capture_next)
    return entry


@dataclass(frozen=True, slots=True)
class Recipe:
    """What it takes to capture a function again."""

    fn: Callable[..., Any]
    name: str
    signature: Signature
    watch: Watch
    options: EntryOptions
    hints: dict[str, Any] = field(default_factory=dict)

    def capture(
        self,
        call: Call,
        implicit: list[Any],
        scalars: Sequence[Any],
        known: Sequence[KnownRead] = (),
        carried: Sequence[int] = (),
    ) -> tuple[Captured, Setup]:
        """Capture the function; what it changes in what it reaches is refused, and put back."""
        given = call, implicit, scalars, known, carried
        return naming_the_line(self._captured, self.fn, *given)

    def _captured(
        self,
        fn: Callable[..., Any],
        call: Call,
        implicit: list[Any],
        scalars: Sequence[Any],
        known: Sequence[KnownRead],
        carried: Sequence[int],
    ) -> tuple[Captured, Setup]:
        snapshot = self.watch.snapshot(call.leaves)
        while True:
            with suppress(CaptureRetryError):
                try:
                    capture = new_capture(call.adapter, self.name, self.hints)
                    capture.replay = Replay(known, carried) if self.options.split else None
                    setup = Setup(call.with_scalars(scalars), implicit, capture)
                    captured = _capture_function(fn, setup, self.options)
                    changed, cure = snapshot.changes(), _RETURN_IT
                    if not changed:
                        changed, cure = snapshot.host_random.changes(), _DRAW_IT
                    if changed:
                        captured.close()
                        raise _changes_error(self.name, changed[0], cure)
                except BaseException:
                    snapshot.restore()
                    raise
                return captured, setup

    def capture_next(
        self,
        call: Call,
        implicit: list[Any],
        known: Sequence[KnownRead],
        carried: Sequence[int],
    ) -> Segment:
        """Capture the segment that follows what has been read."""
        captured, setup = self.capture(call, implicit, (), known, carried)
        entry = finish(captured, setup, self.signature, self.watch, self.options)
        assert entry.segment is not None
        return entry.segment


def _changes_error(function: str, path: str, cure: str = _RETURN_IT) -> CaptureError:
    return CaptureError(_CHANGES.format(function=function, path=path, cure=cure))


def _capture_function(fn: Callable[..., Any], setup: Setup, options: EntryOptions) -> Captured:
    with capturing(setup.capture, options.mode, flat=options.optimize) as captured:
        args, kwargs = setup.call.rebuild(setup.stand_ins)
        given = flatten((args, kwargs), setup.call.adapter.is_array)
        captured.result = fn(*args, **kwargs)
        left = flatten((args, kwargs), setup.call.adapter.is_array)
        if given[1] != left[1] or any(a is not b for a, b in zip(given[0], left[0], strict=True)):
            raise _changes_error(setup.capture.function, _CONTAINER)
    return captured
