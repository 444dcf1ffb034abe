"""The parts of a saved graph: nodes, relocations and outputs, from what a file says of them.

Input: parts of the file's header, its code, the addresses of its constants.
Output: ``CapturedGraph``, ``RelocationPlan``, ``OutputPlan``.
Raises: ``DriverError`` for code that the driver refuses; for a damaged file whatever comes of it.
Source: cuModuleLoadData, cuModuleGetFunction.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter
from graphjit._containers import flatten
from graphjit._driver.interface import Driver
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
from graphjit._saved import SOURCE_OF_COPY, decode, decode_spec
from graphjit._scalars import Encoding, ScalarWord


class Code:
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


def read_graph(data: dict[str, Any], code: Code, constants: list[int]) -> CapturedGraph:
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


def _node(index: int, data: dict[str, Any], code: Code, constant: int | None) -> Node:
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


def read_plan(
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
    places = [(r.node, r.param_offset, 8, r.slot) for r in plan.relocations]
    places += [(w.node, w.param_offset, w.nbytes, 0) for w in plan.scalars]
    for node, at, nbytes, slot in places:
        target = graph.nodes[node]
        last = len(target.params) - nbytes if isinstance(target, KernelNode) else -1
        if not (0 <= at <= last and 0 <= slot < n_slots):
            raise ValueError(f"a relocation leads nowhere: node {node}, byte {at}, slot {slot}")
    return plan


def read_outputs(data: dict[str, Any], adapter: Adapter) -> OutputPlan:
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
