"""A graph put together by hand: nodes, and what each of them waits for.

A node is what a function launches, captured when it is added; it becomes a child graph. So a node
may be one kernel or a thousand, of any library that can be captured.

Input: arrays by name; functions and the nodes that they wait for.
Output: ``Graph``: ``launch`` runs the nodes on other arrays, where possible at the same time.
Raises: as ``graphed``; in addition ``CaptureError`` for nodes that use the same memory in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphjit._build import EntryOptions, finish
from graphjit._capture import (
    Capture,
    Captured,
    capturing,
    current_capture,
    is_capturing_here,
    new_capture,
)
from graphjit._capture_errors import CaptureRetryError
from graphjit._children import Calls, side_by_side
from graphjit._containers import flatten
from graphjit._entry import CacheEntry
from graphjit._explicit_nodes import GraphNode, Part, name_of
from graphjit._externals import External
from graphjit._flow import Flow
from graphjit._launcher import EntryLauncher, refuse_inside
from graphjit._nodes import CapturedGraph
from graphjit._options import check_options, is_disabled
from graphjit._races import Piece, refuse_races
from graphjit._relocation import RelocationPlan
from graphjit._second_attempt import naming_the_line
from graphjit._setup import Setup
from graphjit._watch import Watch
from graphjit.errors import CaptureError, SignatureError

_MODE = "relaxed"
_COMPLETE = "the graph is complete: nodes can be added until it is launched, described or exported"
_MAX_ATTEMPTS = 8


class _Complete(dict[str, Any]):
    """The inputs of a graph that is complete: none."""

    def __missing__(self, name: str) -> Any:
        raise CaptureError(_COMPLETE)


class Graph(EntryLauncher):
    """A graph of nodes with dependencies of their own.

    Parameters
    ----------
    inputs : mapping of str to array
        The arrays that launches replace.
    outputs : {"fresh", "static"}
        As in ``graphed``.
    patch : {"auto", "host", "device"}
        As in ``graphed``.

    Attributes
    ----------
    inputs : dict of str to array
        Stand-ins of the inputs, to be given to nodes.

    Notes
    -----
    cuGraphAddChildGraphNode, cuGraphAddDependencies; CUDA 12.4. A node waits for the nodes whose
    results it is given, and for those in ``after``. Nodes that are in no order may run at the same
    time; two that certainly use the same memory, of which one writes to it, are refused.

    Examples
    --------
    >>> import graphjit
    >>> from graphjit.testing import simulated as xp
    >>> graph = graphjit.Graph(inputs={"x": xp.arange(3.0)})
    >>> a = graph.add(lambda x: x + 1, graph.inputs["x"])
    >>> b = graph.add(lambda y: y * 2, a.result)
    >>> c = graph.add(lambda y: y * y, a.result)
    >>> d = graph.add(lambda y, z: y + z, b.result, c.result)
    >>> graph.outputs = d.result
    >>> print(graph.launch(x=xp.arange(3.0)))
    [ 3.  8. 15.]
    """

    _what = "the graph"

    def __init__(
        self, inputs: Mapping[str, Any], *, outputs: str = "fresh", patch: str = "auto"
    ) -> None:
        if is_disabled():
            raise CaptureError("GRAPHJIT_DISABLE is set: an explicit graph cannot run uncaptured")
        check_options("Graph", outputs=outputs, patch=patch)
        super().__init__(inputs)
        self._call = call = self._read(inputs)
        self._capture = new_capture(call.adapter, "the graph", {}, is_block=True)
        self._setup = Setup(call, [], self._capture)
        self._options = EntryOptions(outputs, patch, _MODE, is_block=True, check=self._check)
        args, _ = call.rebuild(self._setup.stand_ins)
        self.inputs: dict[str, Any] = dict(zip(self._names, args, strict=True))
        self._parts: list[Part] = []
        self._owner: dict[int, int] = {}
        """Address of a region -> the node that asked for it."""

    def add(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        after: Iterable[GraphNode] = (),
        **kwargs: Any,
    ) -> GraphNode:
        """Capture what a function launches as a node. Nothing runs on the GPU.

        Parameters
        ----------
        fn : callable
            Its kernels must have been compiled before, or be compilable during capture.
        *args, **kwargs
            Given to the function: inputs and results of the graph, and anything else. Other
            arrays are used where they are.
        after : iterable of GraphNode
            Nodes to wait for, besides those whose results are given.

        Returns
        -------
        GraphNode

        Raises
        ------
        HostReadError, CaptureError
            The function cannot be captured. The graph is as it was.
        """
        refuse_inside("a node is added to a graph")
        if self._capture is None:
            raise CaptureError(f"the graph {self._missing}")
        if self._entry is not None:
            raise CaptureError(_COMPLETE)
        waits_for = self._producers(args, kwargs) | self._numbers(after)
        number = len(self._parts)
        name = f"{name_of(fn)} ({number})"
        n_regions = len(self._capture.regions.regions)
        captured, flow = naming_the_line(self._captured, fn, args, kwargs)
        for region in self._capture.regions.regions[n_regions:]:
            self._owner[region.ptr] = number
        nodes = frozenset(self._parts[i].node for i in waits_for)
        node = GraphNode(name, captured.result, nodes)
        captured.result = None
        self._parts.append(Part(node, captured, flow, frozenset(waits_for)))
        return node

    def _captured(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Captured, Flow]:
        """Capture a call by itself; one that fails leaves everything as it was."""
        capture, hints = self._capture, dict[str, Any]()
        capture.failure, cause = None, None
        for _ in range(_MAX_ATTEMPTS):
            constants, kept = capture.constants, capture.kept
            host_memory = capture.host_memory
            capture.constants, capture.kept, capture.host_memory = [], [], []
            capture.flow, capture.calls, capture.hints = Flow(), Calls(), hints
            try:
                with capturing(capture, _MODE) as captured:
                    captured.result = fn(*args, **kwargs)
                return captured, capture.flow
            except CaptureRetryError as error:
                cause = error.__cause__
            finally:
                capture.is_open, capture.failure, capture.lines = True, None, None
                capture.constants = [*constants, *capture.constants]
                capture.kept = [*kept, *capture.kept]
                capture.host_memory = [*host_memory, *capture.host_memory]
        raise CaptureError(f"{fn} could not be captured in {_MAX_ATTEMPTS} attempts") from cause

    def _producers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """Return the nodes whose results are given."""
        adapter, found = self._capture.adapter, set()
        self._refuse_nodes((args, kwargs))
        for leaf in flatten((args, kwargs), adapter.is_array)[0]:
            if adapter.is_array(leaf):
                ptr = adapter.device_ptr(leaf)
                region = self._region(ptr)
                if region is None and self._capture.owns(ptr):
                    raise SignatureError(
                        "an array belongs to another graph, or to no graph any more"
                    )
                if region in self._owner:
                    found.add(self._owner[region])
        return found

    def _refuse_nodes(self, value: Any) -> None:
        for leaf in flatten(value, lambda leaf: isinstance(leaf, GraphNode))[0]:
            if isinstance(leaf, GraphNode):
                raise SignatureError(f"{leaf.name} is a node; give its `result`")

    def _region(self, ptr: int) -> int | None:
        capture = self._capture
        region = capture.regions.find(ptr) if capture.owns(ptr) else None
        return None if region is None else region.ptr

    def _numbers(self, nodes: Iterable[GraphNode]) -> set[int]:
        numbers = {part.node: i for i, part in enumerate(self._parts)}
        for node in (nodes := [nodes] if isinstance(nodes, GraphNode) else list(nodes)):
            if not isinstance(node, GraphNode):
                raise SignatureError(f"`after` takes nodes, not a {type(node).__qualname__}")
            if node not in numbers:
                raise SignatureError(f"`after` names {node.name}, which is no node of this graph")
        return {numbers[node] for node in nodes}

    def _complete(self) -> CacheEntry:
        """Put the nodes together, at the first launch."""
        if self._entry is None and self._capture is not None:
            if is_capturing_here():
                self._refuse_here(current_capture())
            self._refuse_nodes(self.outputs)
            parts = [(p.node.name, p.captured.graph, p.after) for p in self._parts]
            captured = Captured(self._capture, self.outputs, None, side_by_side(parts))
            call = self._call
            signature = self._reader.describe(call, [call.adapter.spec(a) for a in call.arrays])
            with call.adapter.driver().relaxed():  # the capture of a graph around it may go on
                entry = finish(captured, self._setup, signature, Watch([]), self._options)
            self._serve(call, entry)
            self.inputs, self.outputs = _Complete(), None
            self._let_go()
        return super()._complete()

    def _refuse_here(self, capture: Capture) -> None:
        """Refuse a first launch in a capture where it cannot be."""
        if capture is self._capture:
            raise capture.refuse("it launches the graph that it is a node of")
        if self._options.outputs == "static":
            raise capture.refuse("the first launch of a graph with static outputs is in it")

    def _let_go(self) -> None:
        """Destroy the driver's graphs of the nodes."""
        for part in self._parts:
            part.captured.close()
            part.flow.drop(part.captured.capture.driver)
        self._parts, self._owner = [], {}

    def _check(self, graph: CapturedGraph, plan: RelocationPlan, externals: list[External]) -> None:
        """Refuse nodes that use the same memory in no order."""
        pieces, begin = list[Piece](), len(self._parts)
        for part in self._parts:
            n = len(part.captured.graph.nodes)
            pieces.append((part.node.name, range(begin, begin + n), part.after))
            begin += n
        libraries = [e for e in externals if e.kind == "library"]
        arrays = [e for e in externals if e.kind == "array"]
        finders = (
            self._region,
            lambda word: next((e.device_ptr for e in libraries if e.holds(word)), None),
            lambda word: any(e.holds(word) for e in arrays),
        )
        refuse_races(graph, plan, self._capture.adapter, pieces, finders, self._name_of)

    def _name_of(self, ptr: int) -> str:
        region = self._capture.regions.find(ptr) if self._capture.owns(ptr) else None
        if region is None:
            return f"at 0x{ptr:x}"
        if region.argument is not None:
            return f"the input {self._names[region.argument]}"
        return f"which the node {self._parts[self._owner[region.ptr]].node.name} asked for"

    def close(self) -> None:
        """Free the nodes and everything they own; the graph cannot be launched any more."""
        super().close()
        if getattr(self, "_capture", None) is not None:
            self._let_go()
            self._capture.free_constants()
            self._capture.is_open = False
            self._capture = None  # type: ignore[assignment]
