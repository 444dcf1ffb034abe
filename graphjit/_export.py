"""Write the graph of a cache entry to a file, with the code of its kernels.

Input: an entry, and the arguments it serves.
Output: a file that ``_load.py`` reads; see ``_saved.py``.
Raises: ``ExportError`` that names what cannot travel: a node, a piece of memory, an argument.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

from graphjit._arguments import Call
from graphjit._containers import unflatten
from graphjit._driver.interface import COPY_SRC_OFFSET
from graphjit._entry import CacheEntry
from graphjit._nodes import (
    CapturedGraph,
    EventNode,
    HostNode,
    KernelNode,
)
from graphjit._regions import MAX_ALIGNMENT_CLASS
from graphjit._saved import ArrayPlace, encode, encode_spec, write
from graphjit._saved_parts import CODE, OWN, encode_kernel, encode_node, encode_outputs, encode_plan
from graphjit.errors import ExportError

_COPY = [OWN, "copy"]


def export_call(
    path: str | os.PathLike[str],
    name: str,
    entry: CacheEntry,
    call: Call,
    positional: Sequence[str],
    dynamic: Sequence[str],
) -> None:
    """Write the entry of a call; ``positional`` are the names of what is passed by position."""
    with _about(name):
        arguments = _arguments(call, positional)
        wanted = [parameter for parameter in dynamic if parameter in arguments]
    export_entry(path, name, entry, arguments, residues_of(call), wanted)


def export_entry(
    path: str | os.PathLike[str],
    name: str,
    entry: CacheEntry,
    arguments: dict[str, Any],
    residues: Sequence[int],
    dynamic: Sequence[str] = (),
) -> None:
    """Write an entry that serves a call with the given arguments, arrays as ``ArrayPlace``.

    ``residues`` are the addresses of the arrays modulo 256.
    """
    driver = entry.executable.driver
    with _about(name), entry.executable.held() as is_mine:
        if not is_mine:
            raise ExportError(
                "it has just been evicted, or closed, or this interrupts a launch of it"
            )
        _refuse(entry)
        graph = _Graph(entry)
        header = {
            "library": entry.adapter.name,
            "target": driver.target(),
            "cuda": driver.version(),
            "name": name,
            "dynamic": list(dynamic),
            "arguments": {
                parameter: encode(value, f"the argument {parameter}")
                for parameter, value in arguments.items()
            },
            "arrays": _arrays(entry, residues),
            "aliasing": entry.aliasing,
            "identity": entry.identity,
            "leaders": entry.leaders,
            "outputs": encode_outputs(entry.outputs, entry.adapter),
            "memory_nbytes": entry.memory_nbytes,
            "scratch_nbytes": entry.scratch_nbytes,
            "scratch_offset": entry.scratch_offset,
            "n_slots": entry.executable.n_slots - len(entry.plan.scalar_slots),
            "use_node_priority": entry.executable.use_node_priority,
            "graph": graph.header(),
            "plan": encode_plan(entry.plan, entry.constant_at),
        }
    write(path, header, graph.members)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Say in errors whose graph it is."""
    try:
        yield
    except (ExportError, RecursionError) as error:
        raise ExportError(f"the graph of {name} cannot be written to a file: {error}") from error


def _refuse(entry: CacheEntry) -> None:
    """Refuse what needs more of this process than code and constants."""
    if entry.segment is not None:
        raise ExportError("it is split at its reads on the host")
    if entry.draws:
        raise ExportError("it draws random numbers from a generator whose state is on the host")
    if paths := entry.watch.array_paths():
        raise ExportError(
            f"it uses {paths[0]}, which is no argument. Pass such arrays as arguments"
        )
    functions = dict(entry.executable.host_calls)
    for index, node in enumerate(entry.graph.nodes):
        if isinstance(node, HostNode):
            raise ExportError(f"node {index} calls {functions.get(node.number)} on the host")
        if isinstance(node, EventNode):
            raise ExportError(f"node {index} is for an event of this process")
    for external in entry.externals:
        cure = ". Pass such arrays as inputs" if external.kind == "array" else ""
        raise ExportError(
            f"its kernel {external.kernel} uses memory at 0x{external.device_ptr:x}, of "
            f"{external.holder}{cure}"
        )


class _Graph:
    """The nodes, and the code and the constants that travel with them."""

    def __init__(self, entry: CacheEntry) -> None:
        self._entry, self._graph = entry, entry.graph
        self._driver = entry.executable.driver
        self._code: dict[bytes, str] = {}
        self._functions: dict[Any, list[str]] = {}
        self.members: dict[str, bytes] = {}
        for i, (ptr, nbytes) in enumerate(entry.constant_ranges):
            self.members[f"constants/{i}"] = self._driver.memcpy_dtoh(ptr, nbytes)

    def header(self) -> dict[str, Any]:
        graph: CapturedGraph = self._graph
        return {
            "nodes": [self._node(i, node) for i, node in enumerate(graph.nodes)],
            "edges": [[*edge[:2], edge.data and edge.data.hex()] for edge in graph.edges],
            "bodies": graph.bodies,
            "scopes": graph.scopes,
            "setters": graph.setters,
            "constants": list(self._constant_words()),
        }

    def _node(self, index: int, node: Any) -> dict[str, Any]:
        if not isinstance(node, KernelNode):
            return encode_node(node)
        function = self._functions.get(node.function)
        if function is None:
            function = self._functions[node.function] = self._function(index, node)
        attributes = self._driver.kernel_node_attributes(self._entry.executable.nodes[index])
        return encode_kernel(node, function, attributes)

    def _function(self, index: int, node: KernelNode) -> list[str]:
        """Return where the function comes from."""
        if builtin := self._driver.builtin_name(node.function):
            return [OWN, builtin]
        try:
            code = self._entry.adapter.kernel_code(node)
        except ExportError as error:
            raise ExportError(f"node {index}, the kernel {node.name}: {error}") from error
        if code not in self._code:
            self._code[code] = f"code/{len(self._code)}"
            self.members[self._code[code]] = code
        return [CODE, self._code[code]]

    def _constant_words(self) -> Iterator[tuple[int, int, int]]:
        """Find (node, constant, offset within it) of each copy that begins at a constant.

        Anybody else's address of one is unexpected.
        """
        for index, word in self._entry.plan.candidates:
            if (found := self._entry.constant_at(word)) is None:
                continue
            node: Any = self._graph.nodes[index]
            (source,) = struct.unpack_from("<Q", node.params, COPY_SRC_OFFSET)
            if self._functions[node.function] != _COPY or source != word:
                raise ExportError(f"node {index}, the kernel {node.name}, uses a constant in place")
            yield index, *found


def _arguments(call: Call, positional: Sequence[str]) -> dict[str, Any]:
    """Return each argument by its name, with the arrays numbered."""
    leaves: list[Any] = list(call.leaves)
    for number, index in enumerate(call.array_index):
        leaves[index] = ArrayPlace(number)
    if call.shared:
        raise ExportError("it is given one list or dictionary twice")
    args, kwargs = unflatten(call.tree, leaves)
    if len(args) > len(positional) or any(name.startswith("*") for name in positional):
        raise ExportError(
            "its function takes any number of arguments; let it take a list or a tuple of them"
        )
    given: dict[str, Any] = dict(zip(positional, args, strict=False))
    for name, value in kwargs.items():
        if name in given or not name.isidentifier() or iskeyword(name):
            raise ExportError(f"its keyword argument {name!r} has no name of its own")
        given[name] = value
    return given


def residues_of(call: Call) -> list[int]:
    """Return how the arrays of a call are aligned."""
    return [ptr % MAX_ALIGNMENT_CLASS for ptr in call.array_ptrs]


def _arrays(entry: CacheEntry, residues: Sequence[int]) -> list[Any]:
    plain = entry.adapter.array_types[0]
    return [
        [encode_spec(spec, plain, "an argument"), residue]
        for spec, residue in zip(entry.specs, residues, strict=True)
    ]
