"""The capture block: a piece of code captured where it stands.

Input: arrays by name; the code of a ``with`` statement, which runs once, under capture.
Output: ``Block``: ``launch`` runs the captured work on other arrays.
Raises: as ``graphed``; in addition ``CaptureError`` for a launch before the block is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphjit._arguments import ArgumentReader, Call
from graphjit._build import EntryOptions, finish
from graphjit._capture import CaptureRetryError, capturing, new_capture
from graphjit._entry import CacheEntry
from graphjit._options import is_disabled
from graphjit._setup import Setup
from graphjit._watch import Watch
from graphjit.errors import CaptureError, SignatureError
from graphjit.inspection import EntryInfo, describe_entry


class Block:
    """Captured work of a ``with graphjit.capture(...)`` statement.

    Attributes
    ----------
    inputs : dict of str to array
        Stand-ins of the inputs, to be used inside the statement.
    outputs : object
        Set it inside the statement to what ``launch`` is to return: an array or any container
        of arrays. Afterwards it is what the last launch returned.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs: dict[str, Any] = dict(inputs)
        self.outputs: Any = None
        self._names = tuple(inputs)
        self._key: Any = None
        self._entry: CacheEntry | None = None
        self._reader = ArgumentReader(_signature_function(self._names), ())

    def launch(self, **arrays: Any) -> Any:
        """Launch the captured work on the caller's current stream.

        Parameters
        ----------
        **arrays
            One array for each input, of the same shape, dtype, strides and alignment.

        Returns
        -------
        object
            The outputs, in fresh memory; also in ``outputs``.

        Raises
        ------
        SignatureError
            An array is missing or differs from the one that was captured.
        """
        if self._entry is None:
            raise CaptureError("the capture block is not complete: it was left by an exception")
        if set(arrays) != set(self._names):
            raise SignatureError(
                f"launch() takes the inputs {sorted(self._names)}, not {sorted(arrays)}"
            )
        call = self._reader.read((), arrays)
        found = self._entry.match(call)
        if call.key != self._key or found is None:
            self._refuse(call)
        assert found is not None
        self.outputs = self._entry.launch(call, found)
        return self.outputs

    def _finish(self, call: Call, entry: CacheEntry) -> None:
        self._key = call.key
        self._entry = entry
        self.outputs = None
        self.inputs = {}

    def _refuse(self, call: Call) -> None:
        assert self._entry is not None
        specs = [call.adapter.spec(array) for array in call.arrays]
        lines = self._entry.signature.difference(self._reader.describe(call, specs))
        raise SignatureError(
            "launch() was given other arrays than were captured: "
            + ("; ".join(lines) or "memory is shared differently")
        )

    def info(self) -> EntryInfo:
        """Return a description of the captured graph."""
        if self._entry is None:
            raise CaptureError("the capture block is not complete")
        return describe_entry(self._entry, "capture block")

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the driver frees everything by itself then
            self.close()

    def close(self) -> None:
        """Free the graph and everything it owns."""
        if self._entry is not None:
            self._entry.close()
            self._entry = None


def _signature_function(names: tuple[str, ...]) -> Any:
    """Make a function whose parameters are the inputs, for paths in messages."""
    if bad := [name for name in names if not name.isidentifier()]:
        raise SignatureError(f"names of inputs must be identifiers, not {bad}")
    return eval(f"lambda {', '.join(names)}: None")


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
    block = Block(inputs)
    call = block._reader.read((), dict(inputs))
    signature = block._reader.describe(call, [call.adapter.spec(a) for a in call.arrays])
    setup = Setup(call, [], new_capture(call.adapter, "the capture block", {}))
    options = EntryOptions(outputs, patch, mode, optimize=optimize, is_block=True)
    with _without_retries(), capturing(setup.capture, mode, flat=optimize) as captured:
        args, _ = call.rebuild(setup.stand_ins)
        block.inputs.update(zip(block._names, args, strict=True))
        yield block
        captured.result = block.outputs
    block._finish(call, finish(captured, setup, signature, Watch([]), options))
