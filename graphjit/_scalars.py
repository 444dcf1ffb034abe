"""Scalars: what tells them apart, and the bytes that a kernel gets of one.

Input: Python's and NumPy's numbers. Output: types; ``Encoding``: the bytes of a number in a
kernel's parameter of some type.
Raises: ``OverflowError`` for a number that the type does not hold, as NumPy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Python's own."""
NUMPY_SCALARS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdFD")
"""NumPy's numbers that have no padding."""
DYNAMIC = (NUMPY_SCALARS - {np.bool_}) | {int, float, complex}
"""Types of arguments that may be dynamic; a boolean can only decide."""

_REAL = ("f8", "f4", "f2")
_INTEGER = ("i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1")


@dataclass(frozen=True, slots=True)
class Encoding:
    """A part of a number, converted to a dtype as NumPy, and CuPy, convert it."""

    part: str
    """``"real"`` or ``"imag"``."""
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in the parameter: 1, 2, 4 or 8."""
        return int(self.dtype[1])

    def encode(self, value: Any) -> bytes:
        """Return the bytes; ``OverflowError`` if the dtype does not hold the number."""
        target = np.empty(1, f"<{self.dtype}")
        with np.errstate(all="ignore"):
            target[0] = value if self.part == "real" and is_real(value) else self._part(value)
        return target.tobytes()

    def _part(self, value: Any) -> Any:
        return getattr(value, self.part)


def is_real(value: Any) -> bool:
    """Say whether a number is no complex one."""
    return not isinstance(value, (complex, np.complexfloating))


def encodings(value: Any) -> list[Encoding]:
    """Return how a kernel can be given a number of this type, the longest form first."""
    if not is_real(value):
        return [Encoding(part, dtype) for dtype in _REAL for part in ("real", "imag")]
    is_integer = isinstance(value, (int, np.integer))
    found = [Encoding("real", dtype) for dtype in (*_REAL, *(_INTEGER if is_integer else ()))]
    return sorted(found, key=lambda encoding: -encoding.nbytes)


@dataclass(frozen=True, slots=True)
class ScalarWord:
    """``params[param_offset:]`` of a node <- scalar, encoded; all encodings must agree."""

    node: int
    param_offset: int
    scalar: int
    encodings: tuple[Encoding, ...]
    slot: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes in the parameter."""
        return self.encodings[0].nbytes

    def encode(self, value: Any) -> int:
        """Return the scalar as a slot; ``OverflowError`` if the encodings disagree."""
        forms = {encoding.encode(value) for encoding in self.encodings}
        if len(forms) > 1:
            raise OverflowError(f"{value!r} has more than one form")
        return int.from_bytes(forms.pop(), "little")


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Stands in a signature for the value of a dynamic argument."""

    kind: type

    def __repr__(self) -> str:
        return f"any {self.kind.__qualname__}"


def encode_all(words: Sequence[ScalarWord], values: Sequence[Any]) -> list[int] | None:
    """Return the slots of dynamic scalars; None if a value does not fit what was found."""
    try:
        return [word.encode(values[word.scalar]) for word in words]
    except (OverflowError, TypeError, ValueError):
        return None
