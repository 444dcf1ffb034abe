"""The parts of a saved graph: nodes, relocations and outputs, and what a file says of them.

Input / Output: ``CapturedGraph``, ``RelocationPlan``, ``OutputPlan``, and parts of the file's
header, with its code and the addresses of its constants.
Raises: ``DriverError`` for code that the driver refuses; for a damaged file whatever comes of it.
Source: cuModuleLoadData, cuModuleGetFunction.
"""

from __future__ import annotations

import struct
import weakref
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter
from graphjit._containers import flatten, unflatten
from graphjit._driver import host_functions
from graphjit._driver.interface import COPY_SRC_OFFSET, Driver
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
from graphjit._saved import ArrayPlace, decode, decode_spec, encode, encode_spec
from graphjit._scalars import Encoding, ScalarWord

OWN, CODE = "graphjit", "code"
"""Where the function of a kernel comes from: graphjit has it, or the file."""
FindConstant = Callable[[int], "tuple[int, int] | None"]
"""Address -> the constant that it is in, and the distance from its beginning."""


class Module:
    """A module of the driver's, unloaded with the last graph that has kernels of it."""

    def __init__(self, driver: Driver, code: bytes) -> None:
        self.handle = driver.load_code(code)
        unload = partial(host_functions.later, driver.unload_code, self.handle)
        weakref.finalize(self, unload).atexit = False


class Code:
    """The modules of a file, each loaded at its first use."""

    def __init__(self, driver: Driver, members: Mapping[str, bytes]) -> None:
        self._driver, self._members = driver, members
        self._loaded: dict[str, Module] = {}

    @property
    def modules(self) -> list[Module]:
        """Those that have been loaded."""
        return list(self._loaded.values())

    def function(self, source: list[str], name: str, shared_mem_bytes: int) -> Any:
        kind, place = source
        if kind == OWN:
            return self._driver.builtin_kernel(place)
        if place not in self._loaded:
            self._loaded[place] = Module(self._driver, self._members[place])
        return self._driver.code_function(self._loaded[place].handle, name, shared_mem_bytes)


def encode_node(node: Node) -> dict[str, Any]:
    """Return a node that is no kernel; allocation and free nodes are joins."""
    if isinstance(node, ConditionalNode):
        return {"kind": node.kind, "type": node.type, "n_bodies": node.n_bodies}
    if isinstance(node, ChildGraphNode):
        return {"kind": node.kind, "name": node.name}
    return {"kind": EmptyNode.kind}


def encode_kernel(
    node: KernelNode, function: list[str], attributes: Iterable[tuple[str, bytes]]
) -> dict[str, Any]:
    """Return a kernel node; ``function`` says where its function comes from."""
    return {
        "kind": node.kind,
        "name": node.name,
        "function": function,
        "grid_dim": node.grid_dim,
        "block_dim": node.block_dim,
        "shared_mem_bytes": node.shared_mem_bytes,
        "params": b64encode(node.params).decode(),
        "param_layout": node.param_layout,
        "attributes": [(name, data.hex()) for name, data in attributes],
    }


def decode_graph(data: dict[str, Any], code: Code, constants: list[int]) -> CapturedGraph:
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
        struct.pack_into("<Q", params, COPY_SRC_OFFSET, constant)
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
        is_own=data["function"][0] == OWN,
    )


def encode_plan(plan: RelocationPlan, constant_of: FindConstant) -> dict[str, Any]:
    """Return relocations, as JSON holds them."""
    words = [(*_found(constant_of, w.device_ptr), w.slot, w.delta) for w in plan.words]
    scalars = [
        [w.node, w.param_offset, w.scalar, [[e.part, e.dtype] for e in w.encodings], w.slot]
        for w in plan.scalars
    ]
    return {
        "table": plan.table.tolist(),
        "memory": plan.memory.tolist(),
        "words": words,
        "scalars": scalars,
    }


def _found(constant_of: FindConstant, ptr: int) -> tuple[int, int]:
    found = constant_of(ptr)
    assert found is not None
    return found


def decode_plan(
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


def encode_outputs(outputs: OutputPlan, adapter: Adapter) -> dict[str, Any]:
    """Return how results are built, as JSON holds it."""
    plain = adapter.array_types[0]

    def described(leaf: Output) -> list[Any]:
        if isinstance(leaf, RepeatedOutput):
            return ["repeated", leaf.leaf]
        if isinstance(leaf, SameOutput):
            return ["same", leaf.array]
        if isinstance(leaf, StaticOutput):
            return ["static", encode(leaf.value, "a result")]
        spec = encode_spec(leaf.spec, plain, "a result")
        if isinstance(leaf, EmptyOutput):
            return ["empty", spec]
        if isinstance(leaf, FreshOutput):
            return ["fresh", leaf.memory, leaf.byte_offset, spec]
        return ["view", leaf.array, leaf.byte_offset, spec]

    places = [ArrayPlace(i) for i in range(len(outputs.leaves))]
    value = places[0] if outputs.tree is None else unflatten(outputs.tree, places)
    return {
        "leaves": [described(leaf) for leaf in outputs.leaves],
        "value": encode(value, "the result"),
        "is_one_leaf": outputs.tree is None,
        "regions": [region.nbytes for region in outputs.regions],
    }


def decode_outputs(data: dict[str, Any], adapter: Adapter) -> OutputPlan:
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
