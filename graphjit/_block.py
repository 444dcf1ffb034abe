"""The capture block: a piece of code captured where it stands.

Input: arrays by name; the code of a ``with`` statement, which runs once, under capture.
Output: ``Block``: ``launch`` runs the captured work on other arrays.
Raises: as ``graphed``; in addition ``CaptureError`` for a launch before the block is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphjit._arguments import Call
from graphjit._build import EntryOptions, finish
from graphjit._capture import capturing, new_capture
from graphjit._capture_errors import CaptureRetryError
from graphjit._entry import CacheEntry
from graphjit._launcher import EntryLauncher, refuse_inside
from graphjit._options import check_options, is_disabled
from graphjit._setup import Setup
from graphjit._watch import Watch
from graphjit.errors import CaptureError


class Block(EntryLauncher):
    """Captured work of a ``with graphjit.capture(...)`` statement.

    Attributes
    ----------
    inputs : dict of str to array
        Stand-ins of the inputs, to be used inside the statement.
    """

    _what = "the capture block"
    _missing = "is not complete: it is launched behind the `with` statement"

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__(inputs)
        self.inputs: dict[str, Any] = dict(inputs)

    def _finish(self, call: Call, entry: CacheEntry) -> None:
        self._serve(call, entry)
        self.outputs = None
        self.inputs = {}


@contextmanager
def _without_retries() -> Iterator[None]:
    """A block's code cannot be run again, as a function can."""
    try:
        yield
    except CaptureRetryError as error:
        raise CaptureError(
            f"the capture block cannot be captured as it stands ({error.__cause__}): the array "
            f"library needs a second attempt, which a `with` statement cannot make. Put the code "
            f"in a function and decorate it with @graphed."
        ) from error.__cause__


@contextmanager
def capture(
    inputs: Mapping[str, Any],
    *,
    outputs: str = "fresh",
    patch: str = "auto",
    optimize: bool = False,
    mode: str = "relaxed",
) -> Iterator[Block]:
    """Capture the code of a ``with`` statement; run it later with ``block.launch``.

    Nothing runs on the GPU inside the statement, so that its kernels must have been compiled
    before, or be compilable during capture. Arrays that are no inputs are used where they are.

    Parameters
    ----------
    inputs : mapping of str to array
        The arrays that later launches replace.
    outputs : {"fresh", "static"}
        As in ``graphed``.
    patch : {"auto", "host", "device"}
        As in ``graphed``.
    optimize : bool
        As in ``graphed``.
    mode : {"thread_local", "global", "relaxed"}
        Mode of cuStreamBeginCapture.

    Yields
    ------
    Block

    Raises
    ------
    HostReadError, CaptureError, AnalysisError
        The code cannot be captured; the stream is usable afterwards.
    SignatureError, TypeError, ValueError
        An input or an option is none. Nothing was captured.

    Examples
    --------
    >>> import graphjit
    >>> from graphjit.testing import simulated as xp
    >>> with graphjit.capture(inputs={"x": xp.ones(3)}) as block:
    ...     block.outputs = block.inputs["x"] * 2
    >>> print(block.launch(x=xp.arange(3.0)))
    [0. 2. 4.]
    """
    if is_disabled():
        raise CaptureError("GRAPHJIT_DISABLE is set: a capture block cannot run uncaptured")
    check_options("capture", outputs=outputs, patch=patch, mode=mode, optimize=optimize)
    refuse_inside("a capture block is made")
    block = Block(inputs)
    call = block._read(inputs)
    signature = block._reader.describe(call, [call.adapter.spec(a) for a in call.arrays])
    capture = new_capture(call.adapter, "the capture block", {}, is_block=True)
    capture.is_final = True
    setup = Setup(call, [], capture)
    options = EntryOptions(outputs, patch, mode, optimize=optimize, is_block=True)
    with _without_retries(), capturing(capture, mode, flat=optimize) as captured:
        args, _ = call.rebuild(setup.stand_ins)
        block.inputs.update(zip(block._names, args, strict=True))
        try:
            yield block
        except BaseException as error:
            block._missing = f"is not complete: it was left by {type(error).__name__}"
            raise
        captured.result = block.outputs
    block._finish(call, finish(captured, setup, signature, Watch([]), options))
