"""What a captured function returned -> how to build the same thing on every call.

Input: the leaves of the returned value, made of stand-ins.
Output: ``OutputPlan``: for each leaf where its memory comes from; sizes in bytes.
Raises: ``CaptureError`` for a leaf that cannot be built again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter, ArraySpec, Memory
from graphjit._capture import Capture
from graphjit._containers import flatten, plain_tuple, unflatten
from graphjit._regions import Region
from graphjit._signature import EqualityKey, static_key
from graphjit._watch import VALUE_TYPES
from graphjit.errors import CaptureError


@dataclass(frozen=True, slots=True)
class FreshOutput:
    """An array in memory of its own."""

    memory: int
    byte_offset: int
    spec: ArraySpec

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        return adapter.make_array(self.spec, memories[self.memory], self.byte_offset)


@dataclass(frozen=True, slots=True)
class SameOutput:
    """An argument, or an implicit argument, itself."""

    array: int

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        return arrays[self.array]


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """A view of an argument or of an implicit argument."""

    array: int
    byte_offset: int
    spec: ArraySpec

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        return adapter.view_of(arrays[self.array], self.spec, self.byte_offset)


@dataclass(frozen=True, slots=True)
class StaticOutput:
    """A value that does not depend on the contents of arrays."""

    value: Any

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        return self.value.copy() if isinstance(self.value, np.ndarray) else self.value


@dataclass(frozen=True, slots=True)
class EmptyOutput:
    """An array without elements that the function did not make."""

    spec: ArraySpec

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        return adapter.make_array(self.spec, adapter.allocate(0), 0)


@dataclass(frozen=True, slots=True)
class RepeatedOutput:
    """The very object that stands at an earlier place."""

    leaf: int


Output = RepeatedOutput | EmptyOutput | FreshOutput | SameOutput | ViewOutput | StaticOutput


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The returned value, leaf by leaf, and the memory that it needs."""

    leaves: tuple[Output, ...]
    tree: Any
    regions: tuple[Region, ...]
    """Regions that need memory of their own, in the order of ``FreshOutput.memory``."""

    @property
    def nbytes(self) -> int:
        """Bytes of fresh memory for one call."""
        return sum(region.nbytes for region in self.regions)

    @property
    def is_plain_tuple(self) -> bool:
        """Say whether a tuple of leaves is returned, and nothing deeper."""
        return self.tree is not None and self.tree == plain_tuple(len(self.leaves))

    @property
    def is_fresh(self) -> bool:
        """Say whether one fresh array is returned, or a tuple of nothing else."""
        is_flat = self.tree is None or self.is_plain_tuple
        return is_flat and all(isinstance(leaf, FreshOutput) for leaf in self.leaves)

    def templates(self, adapter: Adapter) -> list[Any] | None:
        """Return an array like each output if all are fresh and each fills its memory."""
        if self.tree is not None and not self.is_plain_tuple:
            return None
        found = []
        for i, leaf in enumerate(self.leaves):
            if not isinstance(leaf, FreshOutput) or (leaf.memory, leaf.byte_offset) != (i, 0):
                return None
            if leaf.spec.array_type is not adapter.array_types[0]:
                return None
            found.append(adapter.make_template(leaf.spec))
        return found

    def build(self, adapter: Adapter, memories: Sequence[Memory], arrays: Sequence[Any]) -> Any:
        """Return what the function would have returned."""
        first = self.leaves[0] if self.tree is None else None
        if first is not None and not isinstance(first, RepeatedOutput):
            return first.build(adapter, memories, arrays)
        built: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf, RepeatedOutput):
                built.append(built[leaf.leaf])
            else:
                built.append(leaf.build(adapter, memories, arrays))
        return unflatten(self.tree, built)


def plan_outputs(
    capture: Capture, result: Any, given: Sequence[Any], objects: Sequence[Any]
) -> OutputPlan:
    """Plan the outputs.

    Parameters
    ----------
    capture : Capture
        The capture that ``result`` came from.
    result : object
        What the function returned on stand-ins.
    given : sequence of arrays
        The arrays the function worked on: stand-ins of arguments, then implicit arguments.
    objects : sequence
        Non-array arguments, which may be returned as they are.
    """
    adapter = capture.adapter
    leaves, tree = flatten(result, adapter.is_array)
    regions: list[Region] = []
    planned: list[Output] = []
    first_place: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        if adapter.is_array(leaf) and first_place.setdefault(id(leaf), place) != place:
            planned.append(RepeatedOutput(first_place[id(leaf)]))
        elif adapter.is_array(leaf):
            planned.append(_plan_array(capture, leaf, given, regions))
        elif isinstance(leaf, VALUE_TYPES) or any(leaf is o and not _varies(o) for o in objects):
            planned.append(StaticOutput(leaf))
        else:
            raise CaptureError(
                f"{capture.function} returns a {type(leaf).__qualname__}, which graphjit cannot "
                f"build anew for each call. Return arrays, numbers and containers of them, or "
                f"register the class as a pytree with optree in the namespace 'graphjit'."
            )
    single = len(leaves) == 1 and leaves[0] is result
    return OutputPlan(tuple(planned), None if single else tree, tuple(regions))


def _varies(value: Any) -> bool:
    """Say whether calls of one signature may be given different objects in its place."""
    return isinstance(static_key(value, "", by_content=True), EqualityKey)


def _plan_array(capture: Capture, leaf: Any, given: Sequence[Any], regions: list[Region]) -> Output:
    adapter = capture.adapter
    for i, array in enumerate(given):
        if leaf is array:
            return SameOutput(i)
    spec, ptr = adapter.spec(leaf), adapter.device_ptr(leaf)
    if not capture.owns(ptr):
        if spec.high == spec.low:
            return EmptyOutput(spec)
        return _plan_real_view(capture, spec, ptr, given)
    region = capture.regions.find(ptr)
    if region is None:
        raise CaptureError(
            f"{capture.function} returns an array {spec.dtype} {spec.shape} that was made in "
            f"another capture; return one that this call made"
        )
    if region.argument is not None:
        base = given[region.argument]
        return ViewOutput(region.argument, ptr - adapter.device_ptr(base), spec)
    if not any(r is region for r in regions):
        regions.append(region)
    memory = next(i for i, r in enumerate(regions) if r is region)
    return FreshOutput(memory, ptr - region.ptr, spec)


def _plan_real_view(capture: Capture, spec: ArraySpec, ptr: int, given: Sequence[Any]) -> Output:
    adapter = capture.adapter
    for i, array in enumerate(given):
        base, base_ptr = adapter.spec(array), adapter.device_ptr(array)
        if base_ptr + base.low <= ptr + spec.low and ptr + spec.high <= base_ptr + base.high:
            return ViewOutput(i, ptr - base_ptr, spec)
    raise CaptureError(
        f"{capture.function} returns an array {spec.dtype} {spec.shape} that it neither made "
        f"nor was given, and that no global, closure variable or attribute named in its code "
        f"holds. Pass the array as an argument."
    )
