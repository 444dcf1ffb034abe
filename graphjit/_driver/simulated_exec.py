"""Graph execs of the simulated device.

Input: a ``SimulatedGraph``. Output: ``SimulatedGraphExec.run`` executes the nodes in any order
that the edges allow, chosen at random, so that a missing edge shows.
Raises: ``DriverError`` with CUDA's names and codes.
Source: cuGraphInstantiate, cuGraphLaunch, cuGraphExecKernelNodeSetParams.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from graphjit._driver.interface import CONDITIONAL_TYPES
from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_graph import SimulatedGraph, SimulatedNode, SimulatedParams
from graphjit._driver.simulated_kernels import Run, copy_box, fill_rows
from graphjit._driver.simulated_memory import SimulatedMemory

_ON_HOST = ("host", "event_record", "event_wait")


class SimulatedGraphExec:
    """A graph exec, with parameters of its own.

    Parameters
    ----------
    graph : SimulatedGraph
    memory : SimulatedMemory
    order : random.Random
        Chooses among the nodes that may run next.
    flow_in_children : bool
        Whether child graphs may have conditional nodes.
    on_host : callable
        Executes a node that calls a host function, or that records an event or waits for one.
    """

    def __init__(
        self,
        graph: SimulatedGraph,
        memory: SimulatedMemory,
        order: random.Random,
        *,
        flow_in_children: bool,
        on_host: Callable[[SimulatedNode], None],
    ) -> None:
        graphs = list(graph.with_bodies())
        nodes = [node for part in graphs for node in part.nodes]
        if any(node.device_handle for node in nodes) and graph.n_instantiated:
            raise failure(
                "cuGraphInstantiate",
                "INVALID_VALUE",
                "a graph with device-updatable nodes can be instantiated once",
            )
        for part in graphs:
            _refuse_unmapped(part, memory)
            _refuse_in_bodies(part, flow_in_children=flow_in_children)
        self.graph = graph
        self.is_destroyed = False
        self._memory = memory
        self._order = order
        self._on_host = on_host
        self._links = {part: _Links(part) for part in graphs}
        if any(sum(1 for _ in self._in_order(p)) < len(p.nodes) for p in graphs):
            raise failure("cuGraphInstantiate", "INVALID_VALUE", "the edges form a cycle")
        self._params = {
            n: SimulatedParams(n.params.launch, bytes(n.params.buffer))
            for n in nodes
            if n.params is not None
        }
        self._conditions = [handle for part in graphs for handle in part.handles]
        graph.n_instantiated += 1

    def set_params(self, node: SimulatedNode, params: SimulatedParams) -> None:
        """Replace the parameters of a kernel node for the launches to come."""
        call = "cuGraphExecKernelNodeSetParams"
        if self.graph.is_destroyed:
            raise failure(call, "INVALID_HANDLE", "the node's graph is destroyed")
        owned = self._params.get(node)
        if owned is None:
            raise failure(call, "INVALID_VALUE", "no kernel node of this graph exec")
        if node.device_handle and params.launch.function is not owned.launch.function:
            raise failure(call, "INVALID_VALUE", "a device-updatable node keeps its function")
        self._params[node] = SimulatedParams(params.launch, bytes(params.buffer))

    def run(self) -> None:
        """Execute every node, in a random order among those that the edges allow."""
        updatable = {n.device_handle: p.buffer for n, p in self._params.items() if n.device_handle}
        run = Run(self._memory, updatable, self._conditions)
        mapped: set[int] = set()
        try:
            self._run(self.graph, run, mapped)
        except BaseException:
            for ptr in mapped:
                self._memory.free(ptr)
            raise

    def _run(self, graph: SimulatedGraph, run: Run, mapped: set[int]) -> None:
        for node in self._in_order(graph):
            self._execute(node, run, mapped)

    def _in_order(self, graph: SimulatedGraph) -> Iterator[SimulatedNode]:
        links = self._links[graph]
        waiting = dict(links.n_sources)
        ready = [n for n in graph.nodes if not waiting[n]]
        while ready:
            node = ready.pop(self._order.randrange(len(ready)))
            yield node
            for target in links.targets[node]:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)

    def _execute(self, node: SimulatedNode, run: Run, mapped: set[int]) -> None:
        if node.kind == "kernel":
            params = self._params[node]
            params.launch.function.body(run, bytes(params.buffer))
        elif node.kind == "memcpy":
            copy_box(self._memory, **node.fields)
        elif node.kind == "memset":
            fill_rows(self._memory, **node.fields)
        elif node.kind == "mem_alloc":
            self._memory.map(node.fields["device_ptr"], node.fields["nbytes"])
            mapped.add(node.fields["device_ptr"])
        elif node.kind == "mem_free":
            self._memory.free(node.fields["device_ptr"])
            mapped.discard(node.fields["device_ptr"])
        elif node.kind in _ON_HOST:
            self._on_host(node)
        elif node.kind == "child_graph":
            self._run(node.bodies[0], run, mapped)
        elif node.kind == "conditional":
            self._execute_bodies(node, run, mapped)

    def _execute_bodies(self, node: SimulatedNode, run: Run, mapped: set[int]) -> None:
        handle, kind = node.fields["handle"], CONDITIONAL_TYPES[node.fields["type"]]
        if kind == "while":
            while run.conditions[handle]:
                self._run(node.bodies[0], run, mapped)
            return
        value = run.conditions[handle]
        index = int(not value) if kind == "if" else value
        if index < len(node.bodies):
            self._run(node.bodies[index], run, mapped)


class _Links:
    """The edges of a graph, by node."""

    def __init__(self, graph: SimulatedGraph) -> None:
        self.targets: dict[SimulatedNode, list[SimulatedNode]] = {n: [] for n in graph.nodes}
        self.n_sources = dict.fromkeys(graph.nodes, 0)
        for source, target in graph.edges:
            self.targets[source].append(target)
            self.n_sources[target] += 1


def _refuse_in_bodies(graph: SimulatedGraph, *, flow_in_children: bool) -> None:
    """Refuse what bodies and child graphs cannot have, and handles without a node."""
    if unused := [handle for handle, node in graph.handles.items() if node is None]:
        detail = f"no node has the conditional handle 0x{unused[0]:x}"
        raise failure("cuGraphInstantiate", "INVALID_VALUE", detail)
    if graph.parent is None:
        return
    around: SimulatedGraph | None = graph
    while around is not None and around.is_child:
        around = around.parent
    allowed = {"kernel", "memcpy", "memset", "empty", "child_graph"}
    if flow_in_children or not graph.is_child:
        allowed.add("conditional")
    if around is not None and around.parent is None:
        allowed.update(_ON_HOST)  # in a child graph, and in no body
    if other := [node.kind for node in graph.nodes if node.kind not in allowed]:
        detail = f"a {other[0]} node in a {'child graph' if graph.is_child else 'body'}"
        raise failure("cuGraphInstantiate", "INVALID_VALUE", detail)


def _refuse_unmapped(graph: SimulatedGraph, memory: SimulatedMemory) -> None:
    """Refuse copies and fills of addresses without memory: CUDA looks them up now."""
    own = {n.fields["device_ptr"]: n.fields["nbytes"] for n in graph.nodes if n.kind == "mem_alloc"}
    for node in graph.nodes:
        if node.kind not in ("memcpy", "memset"):
            continue
        for name in ("dst_ptr", "src_ptr"):
            ptr = node.fields.get(name)
            if ptr is None or any(begin <= ptr < begin + own[begin] for begin in own):
                continue
            if memory.find(ptr) is None:
                detail = f"{name} 0x{ptr:x} of a {node.kind} node holds no memory"
                raise failure("cuGraphInstantiate", "INVALID_VALUE", detail)
