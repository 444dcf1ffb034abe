"""Load a graph that another process has written to a file.

Input: a file of ``_export.py``, and the current device.
Output: ``LoadedGraph``: ``launch`` runs it on arrays like those that it was captured for.
Raises: ``ExportError`` for a file that does not fit; then nothing is left of it.
Source: cuModuleLoadData, cuGraphInstantiate; CUDA 12.4.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from graphjit._adapters import registry
from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._arguments import ArgumentReader, Call
from graphjit._capture import new_capture
from graphjit._containers import flatten
from graphjit._draws import Draws
from graphjit._entry import CacheEntry
from graphjit._instantiate import instantiate
from graphjit._launcher import EntryLauncher, signature_function
from graphjit._nodes import ConditionalNode
from graphjit._saved import decode, decode_spec, read
from graphjit._saved_parts import Code, decode_graph, decode_outputs, decode_plan
from graphjit._stand_ins import make_stand_ins
from graphjit._watch import Watch
from graphjit.errors import DriverError, ExportError, GraphjitError

_COPIED = ("leaders", "scratch_nbytes", "memory_nbytes", "scratch_offset")
"""Fields of the entry that the file holds as they are."""


class LoadedGraph(EntryLauncher):
    """A graph from a file; ``graphjit.load`` makes it.

    Attributes
    ----------
    name : str
        The function that was captured.
    """

    _what = "the loaded graph"

    def __repr__(self) -> str:
        state = "closed" if self._entry is None else self._entry.signature
        return f"<loaded graph of {self.name}: {state}>"

    def __init__(
        self,
        name: str,
        entry: CacheEntry,
        call: Call,
        reader: ArgumentReader,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(arguments, reader)
        self.name = name
        self._serve(call, entry)
        self._values = {
            name: value
            for name, value in arguments.items()
            if not any(map(call.adapter.is_array, flatten(value, call.adapter.is_array)[0]))
        }

    def launch(self, /, **arguments: Any) -> Any:
        """Launch the graph on the caller's current stream.

        Parameters
        ----------
        **arguments
            What the function takes, by name: arrays of the shapes, dtypes, strides and alignment
            of those that the graph was captured for. Arguments without arrays may be left out.

        Returns
        -------
        object
            What the function would return; also in ``outputs``.

        Raises
        ------
        SignatureError
            An argument is missing or is not like that of the capture.
        """
        return super().launch(**{**self._values, **arguments})

    def export(self, path: str | os.PathLike[str]) -> None:
        """Refuse: the file that the graph is from can be copied."""
        raise ExportError("the graph is from a file, which can be copied")

    @property
    def _title(self) -> str:
        return self.name


def load(path: str | os.PathLike[str]) -> LoadedGraph:
    """Load a graph that ``export`` has written, in this process or another.

    The file holds code, which runs on the GPU: load only files that you trust.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    LoadedGraph

    Raises
    ------
    ExportError
        The file is damaged, of another version, or made for another kind of GPU or array library.
    OSError
        It cannot be read.

    Notes
    -----
    cuModuleLoadData, cuGraphAddKernelNode, cuGraphInstantiate; CUDA 12.4.

    Examples
    --------
    >>> import tempfile, graphjit
    >>> from graphjit.testing import simulated as xp
    >>> @graphjit.graphed
    ... def smooth(u, dt):
    ...     return u + dt * (u[::-1] - u)
    >>> u = xp.arange(3.0)
    >>> _ = smooth(u, 0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     smooth.export(f"{folder}/smooth.graph", u, 0.5)
    ...     loaded = graphjit.load(f"{folder}/smooth.graph")
    >>> print(loaded.launch(u=xp.ones(3) * 2))
    [2. 2. 2.]
    """
    header, members = read(path)
    adapter = _adapter(header, path)
    with ExitStack() as undo:
        try:
            loaded = _loaded(header, members, adapter, undo)
        except DriverError as error:
            raise ExportError(f"{path} cannot be loaded here: {error}") from error
        except GraphjitError:
            raise
        except Exception as error:
            raise ExportError(f"{path} is damaged: {error!r}") from error
        undo.pop_all()
        return loaded


def _adapter(header: dict[str, Any], path: Any) -> Adapter:
    """Return the adapter of the file's library; its code must fit the current device."""
    library, target = header.get("library"), header.get("target")
    adapter = registry.find_by_name(str(library))
    if adapter is None:
        raise ExportError(f"{path} needs {library} and its device, which cannot be used here")
    here = adapter.driver().target()
    if here != target:
        raise ExportError(
            f"{path} holds code for {target}, and this device is {here}: export the graph on a GPU "
            f"of the same kind"
        )
    return adapter


def _loaded(
    header: dict[str, Any], members: dict[str, bytes], adapter: Adapter, undo: ExitStack
) -> LoadedGraph:
    """Make a graph; ``undo`` frees what has been made, until the graph owns it."""
    driver, name, n_slots = adapter.driver(), str(header["name"]), header["n_slots"]
    reader, arguments, call, specs = _call(header, adapter)
    data = _numbered(members, "constants")
    constants: list[int] = []
    for content in data:
        constants.append(driver.mem_alloc(max(len(content), 1)))
        undo.callback(driver.mem_free, constants[-1])
        driver.memcpy_htod(constants[-1], content)
    code = Code(driver, members)
    graph = decode_graph(header["graph"], code, constants)
    missing = driver.missing_for_conditionals()
    if missing and any(isinstance(node, ConditionalNode) for node in graph.nodes):
        raise ExportError(f"the graph of {name} has control flow. {missing}")
    plan = decode_plan(header["plan"], graph, constants, n_slots)
    fields = _fields(header, adapter)
    fields["signature"] = reader.describe(call, specs)
    fields["node_counts"] = graph.count_by_kind()
    fields["constant_ranges"] = [(p, len(c)) for p, c in zip(constants, data, strict=True)]
    keep = bool(header["use_node_priority"])
    executable = instantiate(driver, graph, plan, n_slots, "auto", use_node_priority=keep)
    executable.owned_ptrs += constants
    executable.modules += code.modules
    undo.pop_all()
    undo.callback(executable.close)
    entry = CacheEntry(specs=specs, graph=graph, plan=plan, executable=executable, **fields)
    return LoadedGraph(name, entry, call, reader, arguments)


def _fields(header: dict[str, Any], adapter: Adapter) -> dict[str, Any]:
    """Return fields of the entry that need nothing of the driver."""
    return {
        **{field: header[field] for field in _COPIED},
        "adapter": adapter,
        "watch": Watch([]),
        "aliasing": _triples(header["aliasing"]),
        "identity": tuple(header["identity"]),
        "draws": Draws(),
        "outputs": decode_outputs(header["outputs"], adapter),
        "externals": [],
        "kept": [],
        "capture_us": 0.0,
        "instantiate_us": 0.0,
    }


def _triples(rows: list[list[int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((i, leader, offset) for i, leader, offset in rows)


def _call(
    header: dict[str, Any], adapter: Adapter
) -> tuple[ArgumentReader, dict[str, Any], Call, list[ArraySpec]]:
    """Make the call again that the graph was captured for, on arrays that hold no memory."""
    kind, device = adapter.array_types[0], adapter.current_device()
    specs = [decode_spec(spec, kind, device) for spec, _ in header["arrays"]]
    residues = [residue for _, residue in header["arrays"]]
    aliasing = _triples(header["aliasing"])
    capture = new_capture(adapter, str(header["name"]), {}, is_block=True)
    arrays = make_stand_ins(capture, residues, specs, aliasing)
    arrays = [arrays[first] for first in header["identity"]]
    arguments = {
        name: decode(value, arrays.__getitem__) for name, value in header["arguments"].items()
    }
    function = signature_function(tuple(arguments))
    reader = ArgumentReader(function, (), tuple(header["dynamic"]))
    capture.is_open = False
    return reader, arguments, reader.read((), arguments), specs


def _numbered(members: Mapping[str, bytes], folder: str) -> list[bytes]:
    """Return the members of a folder, whose names are numbers."""
    count = sum(name.startswith(f"{folder}/") for name in members)
    return [members[f"{folder}/{i}"] for i in range(count)]
