"""How long each node of a graph takes.

Input: an entry whose graph takes times, and the arrays of a call. Output: ``Profile``, plain data
that prints as a table and is written as a trace. Times in microseconds.
Raises: ``GraphjitError`` for what cannot be profiled.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphjit._arguments import Call
from graphjit._entry import CacheEntry
from graphjit._graph_info import NodeInfo, describe_graph
from graphjit.errors import GraphjitError

if TYPE_CHECKING:
    from rich.table import Table

N_LAUNCHES = 20


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The time of a node.

    Attributes
    ----------
    node : NodeInfo
        A kernel, a conditional node with all that its bodies did, or a child graph.
    begin_us : float
        Since the beginning of the first node; the median of several launches.
    duration_us : float
        Until the event behind it; from the median of the begins to the median of the ends, so
        that what is in a child graph is within its time.
    """

    node: NodeInfo
    begin_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of the nodes of a graph, launched one after the other.

    Nodes that would run at the same time do not here, and between two nodes stands an event: the
    sum is more than a launch takes. Nodes in the bodies of conditional nodes have no time of
    their own.

    Attributes
    ----------
    name : str
        The function.
    device : str
        The name of the device.
    times : tuple of NodeTime
        In the order of the program; nodes of a child graph behind its node.
    n_launches : int
        Of which the medians are.
    """

    name: str
    device: str
    times: tuple[NodeTime, ...]
    n_launches: int

    @property
    def total_us(self) -> float:
        """The times of all nodes that are in no child graph."""
        return sum(time.duration_us for time in self.times if time.node.inside is None)

    def table(self) -> Table:
        """Lay the nodes out as a rich table, the longest first.

        Returns
        -------
        rich.table.Table
            Print it with ``rich.print``.
        """
        from rich.table import Table

        total = self.total_us or 1.0
        result = Table(title=f"{self.name} on {self.device}, {self.total_us:.1f} us")
        for column, justify in (("node", "right"), ("kind", "left"), ("name", "left")):
            result.add_column(column, justify=justify)  # type: ignore[arg-type]
        for column in ("us", "share"):
            result.add_column(column, justify="right")
        for time in sorted(self.times, key=lambda time: -time.duration_us):
            node = time.node
            share = f"{100 * time.duration_us / total:.1f} %"
            row = (str(node.index), node.kind, node.name, f"{time.duration_us:.2f}", share)
            result.add_row(*row)
        return result

    def to_chrome_trace(self) -> str:
        """Return the nodes as a trace, for https://ui.perfetto.dev or chrome://tracing.

        Returns
        -------
        str
            JSON in the Trace Event Format; child graphs are above the nodes in them.
        """
        return json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ns"})

    def _events(self) -> Iterator[dict[str, Any]]:
        for what, name in (("process_name", self.device), ("thread_name", self.name)):
            yield {"ph": "M", "pid": 0, "tid": 0, "name": what, "args": {"name": name}}
        for time in self.times:
            node = time.node
            yield {
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "name": node.name or node.kind,
                "cat": node.kind,
                "ts": time.begin_us,
                "dur": time.duration_us,
                "args": {
                    "node": node.index,
                    "grid": list(node.grid_dim),
                    "block": list(node.block_dim),
                    "memory": [f"{w}" for param in node.params for w in param.words],
                },
            }


def refuse_profile(entry: CacheEntry, name: str) -> None:
    """Refuse what cannot be launched time and again on the same arrays."""
    if entry.segments is not None:
        raise GraphjitError(
            f"{name} cannot be profiled: it is split at its reads on the host. Profile a graphed "
            f"function that does the work between two reads."
        )
    if entry.draws:
        raise GraphjitError(
            f"{name} cannot be profiled: it draws random numbers from a generator whose state is "
            f"on the host, which would go on. Pass the random numbers as an argument."
        )


def take_times(entry: CacheEntry, call: Call, arrays: list[Any], name: str) -> Profile:
    """Launch several times and put the arrays back each time."""
    adapter, timing = entry.adapter, entry.executable.timing
    assert timing is not None
    driver = adapter.driver()
    saved = [adapter.copy(array) for array in arrays]
    found: list[dict[int, tuple[float, float]]] = []
    for _ in range(N_LAUNCHES):
        entry.launch(call, arrays)
        driver.stream_synchronize(adapter.current_stream())
        found.append(timing.read())
        for array, before in zip(arrays, saved, strict=True):
            adapter.assign(array, before)
    source = entry.graph_source()._replace(graph=timing.graph, plan=timing.plan)
    nodes = describe_graph(source, name).nodes
    times = tuple(
        NodeTime(
            nodes[index],
            begin := statistics.median(times[index][0] for times in found),
            statistics.median(times[index][1] for times in found) - begin,
        )
        for index in timing.around
    )
    return Profile(name, driver.device_name(adapter.current_device()), times, N_LAUNCHES)
