"""Load a graph that another process has written to a file.

Input: a file of ``_export.py``, and the current device.
Output: ``LoadedGraph``: ``launch`` runs it on arrays like those that it was captured for.
Raises: ``ExportError`` for a file that does not fit; then nothing is left of it.
Source: cuModuleLoadData, cuGraphInstantiate; CUDA 12.4.
"""

from __future__ import annotations

import os
import struct
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphjit._adapters import registry
from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._arguments import ArgumentReader, Call
from graphjit._capture import new_capture
from graphjit._containers import flatten
from graphjit._draws import Draws
from graphjit._driver.interface import Driver
from graphjit._entry import CacheEntry
from graphjit._instantiate import instantiate
from graphjit._launcher import EntryLauncher, signature_function
from graphjit._nodes import (
    Body,
    CapturedGraph,
    ChildGraphNode,
    ConditionalNode,
    Edge,
    EmptyNode,
    KernelNode,
    Node,
)
from graphjit._outputs import (
    EmptyOutput,
    FreshOutput,
    Output,
    OutputPlan,
    RepeatedOutput,
    SameOutput,
    StaticOutput,
    ViewOutput,
)
from graphjit._regions import Region
from graphjit._relocation import RelocationPlan, WordRelocation
from graphjit._saved import SOURCE_OF_COPY, decode, decode_spec, read
from graphjit._scalars import Encoding, ScalarWord
from graphjit._stand_ins import make_stand_ins
from graphjit._watch import Watch
from graphjit.errors import DriverError, ExportError, GraphjitError
from graphjit.inspection import EntryInfo, describe_entry

_COPIED = ("leaders", "scratch_nbytes", "memory_nbytes", "scratch_offset")
"""Fields of the entry that the file holds as they are."""


class LoadedGraph(EntryLauncher):
    """A graph from a file; ``graphjit.load`` makes it.

    Attributes
    ----------
    name : str
        The function that was captured.
    outputs : object
        What the last launch returned.
    """

    _what = "the loaded graph"

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

    def launch(self, **arguments: Any) -> Any:
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

    def info(self) -> EntryInfo:
        """Return a description of the graph.

        Returns
        -------
        EntryInfo
        """
        return describe_entry(self._complete(), self.name)


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
    driver = adapter.driver()
    modules: list[Any] = []
    constants: list[int] = []
    try:
        return _loaded(header, members, adapter, modules, constants)
    except BaseException as error:
        for module in modules:
            driver.unload_code(module)
        for ptr in constants:
            driver.mem_free(ptr)
        if isinstance(error, DriverError):
            raise ExportError(f"{path} cannot be loaded here: {error}") from error
        if isinstance(error, Exception) and not isinstance(error, GraphjitError):
            raise ExportError(f"{path} is damaged: {error!r}") from error
        raise


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
    header: dict[str, Any],
    members: dict[str, bytes],
    adapter: Adapter,
    modules: list[Any],
    constants: list[int],
) -> LoadedGraph:
    driver, name = adapter.driver(), str(header["name"])
    reader, arguments, call, specs = _call(header, adapter)
    ranges = []
    for data in _numbered(members, "constants"):
        constants.append(driver.mem_alloc(max(len(data), 1)))
        driver.memcpy_htod(constants[-1], data)
        ranges.append((constants[-1], len(data)))
    loaded = _Code(driver, members, modules)
    graph = _graph(header["graph"], loaded, constants)
    missing = driver.missing_for_conditionals()
    if missing and any(isinstance(node, ConditionalNode) for node in graph.nodes):
        raise ExportError(f"the graph of {name} has control flow. {missing}")
    plan = _plan(header["plan"], graph, constants, header["n_slots"])
    fields = {name: header[name] for name in _COPIED}
    entry = CacheEntry(
        signature=reader.describe(call, specs),
        adapter=adapter,
        watch=Watch([]),
        specs=specs,
        aliasing=_triples(header["aliasing"]),
        identity=tuple(header["identity"]),
        draws=Draws(),
        outputs=_outputs(header["outputs"], adapter),
        graph=graph,
        plan=plan,
        executable=instantiate(driver, graph, plan, header["n_slots"], "auto"),
        externals=[],
        constant_ranges=ranges,
        node_counts=graph.count_by_kind(),
        capture_us=0.0,
        instantiate_us=0.0,
        kept=[],
        **fields,
    )
    entry.executable.owned_ptrs += constants
    entry.executable.modules += modules
    return LoadedGraph(name, entry, call, reader, arguments)


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


class _Code:
    """The modules of a file, each loaded at its first use."""

    def __init__(self, driver: Driver, members: Mapping[str, bytes], modules: list[Any]) -> None:
        self._driver, self._members, self._modules = driver, members, modules
        self._loaded: dict[str, Any] = {}

    def function(self, source: list[str], name: str, shared_mem_bytes: int) -> Any:
        kind, place = source
        if kind == "graphjit":
            return self._driver.builtin_kernel(place)
        if place not in self._loaded:
            self._loaded[place] = self._driver.load_code(self._members[place])
            self._modules.append(self._loaded[place])
        return self._driver.code_function(self._loaded[place], name, shared_mem_bytes)


def _graph(data: dict[str, Any], code: _Code, constants: list[int]) -> CapturedGraph:
    sources = {node: constants[number] + offset for node, number, offset in data["constants"]}
    nodes = [_node(i, node, code, sources.get(i)) for i, node in enumerate(data["nodes"])]
    edges = [Edge(i, j, packed and bytes.fromhex(packed)) for i, j, packed in data["edges"]]
    return CapturedGraph(
        tuple(nodes),
        tuple(edges),
        tuple(Body(node, position) for node, position in data["bodies"]),
        tuple(data["scopes"]),
        tuple((i, j) for i, j in data["setters"]),
    )


def _node(index: int, data: dict[str, Any], code: _Code, constant: int | None) -> Node:
    kind = data["kind"]
    if kind == ConditionalNode.kind:
        return ConditionalNode(None, data["type"], data["n_bodies"])
    if kind == ChildGraphNode.kind:
        return ChildGraphNode(None, data["name"])
    if kind == EmptyNode.kind:
        return EmptyNode(None)
    if kind != KernelNode.kind:
        raise ValueError(f"node {index} is of the kind {kind}")
    params = bytearray(b64decode(data["params"]))
    if constant is not None:
        struct.pack_into("<Q", params, SOURCE_OF_COPY, constant)
    function = code.function(data["function"], data["name"], data["shared_mem_bytes"])
    grid_dim, block_dim = data["grid_dim"], data["block_dim"]
    return KernelNode(
        handle=None,
        name=data["name"],
        function=function,
        grid_dim=(grid_dim[0], grid_dim[1], grid_dim[2]),
        block_dim=(block_dim[0], block_dim[1], block_dim[2]),
        shared_mem_bytes=data["shared_mem_bytes"],
        params=bytes(params),
        param_layout=tuple((offset, nbytes) for offset, nbytes in data["param_layout"]),
        attributes=tuple((name, bytes.fromhex(value)) for name, value in data["attributes"]),
    )


def _plan(
    data: dict[str, Any], graph: CapturedGraph, constants: list[int], n_slots: int
) -> RelocationPlan:
    plan = RelocationPlan(
        table=np.array(data["table"], np.int64).reshape(-1, 4),
        memory=np.array(data["memory"], np.int64),
        words=tuple(
            WordRelocation(constants[number] + offset, slot, delta)
            for number, offset, slot, delta in data["words"]
        ),
        candidates=(),
        scalars=tuple(
            ScalarWord(node, at, scalar, tuple(Encoding(*e) for e in encodings), slot)
            for node, at, scalar, encodings, slot in data["scalars"]
        ),
    )
    places = [(r.node, r.param_offset + 8, r.slot) for r in plan.relocations]
    places += [(w.node, w.param_offset + w.nbytes, 0) for w in plan.scalars]
    for node, end, slot in places:
        target = graph.nodes[node]
        if not isinstance(target, KernelNode) or end > len(target.params) or slot >= n_slots:
            raise ValueError(f"a relocation leads nowhere: node {node}, byte {end}, slot {slot}")
    return plan


def _outputs(data: dict[str, Any], adapter: Adapter) -> OutputPlan:
    kind, device = adapter.array_types[0], adapter.current_device()

    def described(what: str, *fields: Any) -> Output:
        if what == "repeated":
            return RepeatedOutput(*fields)
        if what == "same":
            return SameOutput(*fields)
        if what == "static":
            return StaticOutput(decode(fields[0], _no_array))
        *places, spec = fields
        made = {"empty": EmptyOutput, "fresh": FreshOutput, "view": ViewOutput}[what]
        return made(*places, decode_spec(spec, kind, device))  # type: ignore[no-any-return]

    tree = None
    if not data["is_one_leaf"]:
        tree = flatten(decode(data["value"], lambda i: i), adapter.is_array)[1]
    leaves = tuple(described(*leaf) for leaf in data["leaves"])
    return OutputPlan(leaves, tree, tuple(Region(0, nbytes) for nbytes in data["regions"]))


def _no_array(index: int) -> Any:
    raise ValueError(f"there is no array {index} here")
