"""What is captured once and launched by name: of a capture block, or of an explicit graph.

Input: arrays by name. Output: ``EntryLauncher``.
Raises: ``SignatureError`` for other arrays than were captured; ``CaptureError`` without a graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from graphjit._arguments import ArgumentReader, Call
from graphjit._capture import current_capture, is_capturing_here
from graphjit._composed import compose
from graphjit._entry import CacheEntry
from graphjit._export import export_entry, residues_of
from graphjit._hit import MISS
from graphjit._host_calls import has_failures
from graphjit._saved import ArrayPlace
from graphjit._scalars import encode_all
from graphjit._watch import Opaque
from graphjit.errors import CaptureError, SignatureError
from graphjit.inspection import EntryInfo, describe_entry

_NOT_NOW = (
    "{what} cannot be launched now: it has just been closed by another thread, or this is a signal "
    "handler or a finaliser that interrupted another launch of it"
)
_OUTPUTS = (
    "it reads `outputs` of {what}, which is what was returned before; use what launch() returns"
)
_DOES_NOT_FIT = "a dynamic number is outside of what the kernels take"


class EntryLauncher(Opaque):
    """A cache entry without a cache, and the names of its arrays."""

    _what: str
    _entry: CacheEntry | None = None
    _missing = "is not complete"
    """Why there is no entry."""

    def __init__(self, inputs: Mapping[str, Any], reader: ArgumentReader | None = None) -> None:
        if not isinstance(inputs, Mapping):
            raise TypeError(f"inputs is a dictionary of names and arrays, not {inputs!r}")
        self._outputs: Any = None
        self._names = tuple(inputs)
        self._taken = frozenset(inputs)
        self._key: Any = None
        self._residues: list[int] = []
        self._reader = reader or ArgumentReader(signature_function(self._names), ())

    def _read(self, inputs: Mapping[str, Any]) -> Call:
        """Take the inputs apart; refuse what is no array."""
        call = self._reader.read((), dict(inputs))
        arrays = {id(array) for array in call.arrays}
        for name, value in inputs.items():
            if id(value) not in arrays:
                raise SignatureError(f"inputs are arrays of one library; {name} is none")
        return call

    @property
    def _title(self) -> str:
        return self._what.removeprefix("the ")

    @property
    def outputs(self) -> Any:
        """What launches are to return, in any container: set it before the work is complete.

        After a launch it is what that returned.
        """
        if self._entry is not None and is_capturing_here():
            raise current_capture().refuse(_OUTPUTS.format(what=self._what))
        return self._outputs

    @outputs.setter
    def outputs(self, value: Any) -> None:
        if self._entry is not None and value is not None:
            raise CaptureError(f"{self._what} is complete: what it returns was set before that")
        self._outputs = value

    def _complete(self) -> CacheEntry:
        """Return the entry."""
        if self._entry is None:
            raise CaptureError(f"{self._what} {self._missing}")
        return self._entry

    def launch(self, /, **arrays: Any) -> Any:
        """Launch the captured work on the caller's current stream.

        In a function or a block that is captured it becomes a child graph.

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
        entry = self._complete()
        if arrays.keys() != self._taken:
            raise self._other_names(arrays)
        call = self._reader.read((), arrays)
        found = entry.match(call) if call.key == self._key else None
        if found is None:
            raise self._other_arrays(entry, call)
        outputs = self._launch(entry, call, found)
        if outputs is MISS:
            raise CaptureError(_NOT_NOW.format(what=self._what))
        return outputs

    def _launch(self, entry: CacheEntry, call: Call, arrays: list[Any]) -> Any:
        if is_capturing_here():
            return compose(current_capture(), entry, self._title, arrays, call.scalars)
        if has_failures():
            entry.report()
        outputs = entry.launch(call, arrays)
        if outputs is not MISS:
            self._outputs = outputs
        return outputs

    def _other_names(self, arrays: Mapping[str, Any]) -> SignatureError:
        names = {
            "lacks": [name for name in self._names if name not in arrays],
            "does not know": [name for name in arrays if name not in self._names],
        }
        lines = [f"{what} {', '.join(those)}" for what, those in names.items() if those]
        return SignatureError(
            f"launch() {' and '.join(lines)}; it takes {', '.join(self._names) or 'nothing'}"
        )

    def _other_arrays(self, entry: CacheEntry, call: Call) -> SignatureError:
        specs = [call.adapter.spec(array) for array in call.arrays]
        lines = entry.signature.difference(self._reader.describe(call, specs))
        if not lines and encode_all(entry.plan.scalar_slots, call.scalars) is None:
            lines = [_DOES_NOT_FIT]
        return SignatureError(
            f"{self._what} was captured for other arguments: "
            + ("; ".join(lines) or "memory is shared differently")
            + ". Give launch() arrays of the same form, or capture the work for these"
        )

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file, for ``graphjit.load`` in this or another process.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        ExportError
            Something in the graph belongs to this process; the message names it. No file is left.
        CaptureError
            There is no graph yet.
        """
        entry = self._complete()
        places = {name: ArrayPlace(i) for i, name in enumerate(self._names)}
        export_entry(path, self._title, entry, places, self._residues)

    def _serve(self, call: Call, entry: CacheEntry) -> None:
        """Launch an entry for calls like this one."""
        self._entry, self._key = entry, call.key
        self._residues = residues_of(call)

    def info(self) -> EntryInfo:
        """Return a description of the captured graph.

        Returns
        -------
        EntryInfo
        """
        return describe_entry(self._complete(), self._title)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the driver frees everything by itself then
            self.close()

    def close(self) -> None:
        """Free the graph and everything it owns; it cannot be launched any more."""
        self._missing = "has been closed"
        if self._entry is not None:
            self._entry.close()
            self._entry = None


def refuse_inside(what: str) -> None:
    """Refuse that one capture is made inside another."""
    if is_capturing_here():
        raise current_capture().refuse(f"{what} in it; make it before, and launch it here")


def signature_function(names: tuple[str, ...]) -> Any:
    """Make a function whose parameters are the inputs, for paths in messages."""
    bad = [name for name in names if not str(name).isidentifier() or iskeyword(name)]
    if bad:
        raise SignatureError(f"names of inputs must be identifiers, not {bad}")
    return eval(f"lambda {', '.join(names)}: None")
