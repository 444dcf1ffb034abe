"""The file of a saved graph: a zip archive of ``graph.json``, code and constants.

Input / Output: values as JSON holds them, and members of bytes. Whatever JSON cannot say exactly
is a list that begins with its kind: ``["float", "0x1.8p+0"]``.
Raises: ``ExportError`` for a value that a file cannot hold, and for a file that is none, is
damaged, or is written in another version.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from graphjit._adapters.interface import ArraySpec
from graphjit._whole_file import whole_file
from graphjit.errors import ExportError

FORMAT = "graphjit graph"
VERSION = 1
_HEADER = "graph.json"
_EXACT = (bool, int, str, type(None))
_PLAIN_BITS = 64
_NUMBERS = "biufcmM"
"""Kinds of NumPy's scalars that are numbers, or times."""


class ArrayPlace:
    """Stands for an array, by its number."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def write(path: str | os.PathLike[str], header: dict[str, Any], members: dict[str, bytes]) -> None:
    """Write a file whole, or not at all."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ExportError(f"{path} is no file")
    whole = {"format": FORMAT, "version": VERSION, **header}
    contents = {_HEADER: json.dumps(whole, allow_nan=False).encode(), **members}
    with whole_file(target) as partial:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents.items():
                archive.writestr(name, data)
            archive.comment = digest(contents)
        if target.exists():
            shutil.copymode(target, partial)


def digest(contents: dict[str, bytes]) -> bytes:
    """Return what tells the contents of a file from those of every other."""
    found = hashlib.sha256()
    for name in sorted(contents):
        for part in (name.encode(), contents[name]):
            found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest().encode()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a file, and check that it is whole and of this version."""
    with Path(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
                is_whole = archive.comment == digest(members)
            header = json.loads(members.pop(_HEADER))
        except (zipfile.BadZipFile, zlib.error, LookupError, ValueError, OSError, EOFError,
                NotImplementedError, RuntimeError) as error:  # fmt: skip
            raise ExportError(f"{path} is no whole file of a graph: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ExportError(f"{path} is no file of a graph")
    if (version := header.get("version")) != VERSION or type(version) is not int:
        raise ExportError(
            f"{path} is written in version {version!r} of the format, and this graphjit reads "
            f"version {VERSION}: export the graph anew"
        )
    if not is_whole:
        raise ExportError(f"{path} has been changed since it was written")
    return header, members


def encode(value: Any, what: str) -> Any:
    """Return a value as JSON holds it; ``what`` says in messages what it is."""
    kind = type(value)
    if kind is int and value.bit_length() > _PLAIN_BITS:
        return ["int", hex(value)]
    if kind in _EXACT:
        return value
    if kind is ArrayPlace:
        return ["array", value.index]
    if kind is float or kind is complex:
        parts = [value] if kind is float else [value.real, value.imag]
        return [kind.__name__, *(np.float64(part).tobytes().hex() for part in parts)]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind is tuple or kind is list:
        return [kind.__name__, *(encode(v, f"{what}[{i}]") for i, v in enumerate(value))]
    if kind is dict:
        items = ([encode(k, what), encode(v, f"{what}[{k!r}]")] for k, v in value.items())
        return ["dict", *items]
    if kind is slice:
        return ["slice", *(encode(v, what) for v in (value.start, value.stop, value.step))]
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return ["number", value.dtype.str, value.tobytes().hex()]
    if isinstance(value, np.dtype):
        return ["dtype", _descr(value, what)]
    raise ExportError(
        f"{what} is of type {kind.__qualname__}, which a file cannot hold: it holds arrays "
        f"of the device, numbers, texts, and tuples, lists and dictionaries of them"
    )


def decode(value: Any, arrays: Callable[[int], Any]) -> Any:
    """Return the value that was encoded; ``arrays`` gives what stands in an array's place."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "array":
        return arrays(*rest)
    if kind == "float" or kind == "complex":
        parts = [float(np.frombuffer(bytes.fromhex(text), "<f8")[0]) for text in rest]
        return parts[0] if kind == "float" else complex(*parts)
    if kind == "int":
        return int(rest[0], 16)
    if kind == "bytes":
        return base64.b64decode(rest[0])
    if kind == "dict":
        return {decode(k, arrays): decode(v, arrays) for k, v in rest}
    if kind == "number":
        return np.frombuffer(bytes.fromhex(rest[1]), rest[0])[0]
    if kind == "dtype":
        return _dtype(rest[0])
    items = [decode(item, arrays) for item in rest]
    if kind == "slice":
        return slice(*items)
    return tuple(items) if kind == "tuple" else {"list": items}[kind]


def encode_spec(spec: ArraySpec, plain: type, what: str) -> Any:
    """Return the description of an array of the library's own class."""
    if spec.array_type is not plain:
        raise ExportError(f"{what} is of the class {spec.array_type.__qualname__}")
    return [spec.shape, _descr(spec.dtype, what), spec.strides, spec.low, spec.high]


def decode_spec(data: Any, array_type: type, device: int) -> ArraySpec:
    """Return a description for the current device."""
    shape, descr, strides, low, high = data
    return ArraySpec(array_type, tuple(shape), _dtype(descr), tuple(strides), device, low, high)


def _descr(dtype: Any, what: str) -> Any:
    """Return a dtype as JSON holds it; refuse one that would come back as another."""
    dtype = np.dtype(dtype)
    try:
        with warnings.catch_warnings(action="error"):
            descr = json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))
        found = _dtype(descr)
        is_same = found == dtype and found.isalignedstruct == dtype.isalignedstruct
    except (ValueError, TypeError, UserWarning):
        is_same, descr = False, None
    if not is_same:
        raise ExportError(f"{what} has the dtype {dtype}, which a file cannot hold")
    return descr


def _dtype(descr: Any) -> np.dtype[Any]:
    return np.lib.format.descr_to_dtype(_tuples(descr))


def _tuples(descr: Any) -> Any:
    """Return the fields of a dtype as NumPy has them; JSON has lists only."""
    if not isinstance(descr, list):
        return descr
    fields = [tuple(field) for field in descr]
    return [(name, _tuples(kind), *map(tuple, shape)) for name, kind, *shape in fields]
