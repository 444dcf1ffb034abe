"""What is in the caches: entries, counts, and why a call would or would not hit.

Input: cache entries. Output: ``EntryInfo`` and other plain data that prints as a table; sizes in
bytes, times in microseconds.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphjit._drawing import to_dot, to_svg
from graphjit._explanation import Explanation
from graphjit._externals import External
from graphjit._graph_info import (
    GraphInfo,
    GraphSource,
    MemoryInfo,
    NodeInfo,
    ParamInfo,
    WordInfo,
    describe_graph,
)
from graphjit._page import page
from graphjit._signature import Signature, static_text
from graphjit.errors import GraphjitError

if TYPE_CHECKING:
    from rich.table import Table

    from graphjit._cache import CacheInfo
    from graphjit._entry import CacheEntry
    from graphjit._profile import NodeTime, Profile

__all__ = [
    "CacheInfo",
    "EntryInfo",
    "Explanation",
    "External",
    "GraphInfo",
    "MemoryInfo",
    "NodeInfo",
    "NodeTime",
    "ParamInfo",
    "Profile",
    "Signature",
    "WordInfo",
    "table",
    "to_dot",
    "to_html",
    "to_svg",
]


def __getattr__(name: str) -> Any:
    if name == "CacheInfo":  # defined beside the cache, which needs this module
        from graphjit._cache import CacheInfo

        return CacheInfo
    if name in ("NodeTime", "Profile"):  # so are these beside entries
        from graphjit import _profile

        return getattr(_profile, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True)
class EntryInfo:
    """One cache entry as plain data.

    Attributes
    ----------
    signature : Signature
        What it was captured for.
    hits, patches, launches : int
        Calls served, times its addresses were rewritten, graph launches.
    nodes : dict of str to int
        Captured nodes by kind; copies and fills are launched as kernels.
    critical_path : int
        Nodes of the launched graph that wait for each other, at most.
    relocations : int
        Addresses that are rewritten.
    scalar_words : int
        Places in the parameters that dynamic scalars are written to.
    segments : int
        Graphs that a function is split into at its reads on the host; one if it reads nothing.
        All other numbers are sums over these.
    host_reads : int
        Reads that its calls have waited for.
    draws : int
        Random draws that the host makes before each launch.
    patch_kind : str
        ``"device"``, ``"host"`` or ``"none"``.
    scratch_nbytes, output_nbytes : int
        Memory taken from the caller's allocator for each call.
    constant_nbytes, external_nbytes, table_nbytes : int
        Memory held between calls: constants made of host data, memory of libraries that
        cannot be re-pointed, and the patch table.
    externals : tuple of External
        That memory, with its holder.
    implicit : tuple of str
        Paths of the arrays reached through closures, globals and attributes.
    capture_us, instantiate_us : float
        Time that the first call took beyond the eager call.
    last_use : dt.datetime
    """

    signature: Signature
    hits: int
    patches: int
    launches: int
    nodes: dict[str, int]
    critical_path: int
    relocations: int
    scalar_words: int
    segments: int
    host_reads: int
    draws: int
    patch_kind: str
    scratch_nbytes: int
    output_nbytes: int
    constant_nbytes: int
    external_nbytes: int
    table_nbytes: int
    externals: tuple[External, ...]
    implicit: tuple[str, ...]
    capture_us: float
    instantiate_us: float
    last_use: dt.datetime
    _parts: dict[str, GraphSource] = field(repr=False, compare=False)
    _profile: Callable[..., Profile] | None = field(repr=False, compare=False, default=None)

    @cached_property
    def graphs(self) -> tuple[GraphInfo, ...]:
        """What is launched: one graph, or one for each part of a function that is split."""
        return tuple(describe_graph(part, name) for name, part in self._parts.items())

    @property
    def graph(self) -> GraphInfo:
        """The first, and mostly only, graph."""
        return self.graphs[0]

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """Take the time of each node, as ``GraphedFunction.profile`` does.

        Parameters
        ----------
        *args, **kwargs
            Arguments of a call that this entry serves.

        Returns
        -------
        Profile

        Raises
        ------
        GraphjitError
            As for ``GraphedFunction.profile``; the graph is that of a capture block.
        SignatureError
            The arguments are served by another entry.
        """
        if self._profile is None:
            raise GraphjitError(
                "only entries of graphed functions can be profiled: others cannot be captured again"
            )
        return self._profile(*args, **kwargs)

    def __str__(self) -> str:
        nodes = ", ".join(f"{n} {kind}" for kind, n in self.nodes.items()) or "no nodes"
        if self.segments > 1:
            nodes = f"{self.segments} graphs with {self.host_reads} reads on the host, {nodes}"
        return (
            f"{self.signature}\n"
            f"  {nodes}; {self.relocations} relocations, {self.patch_kind} patch; "
            f"{self.hits} hits, {self.patches} patches, {self.launches} launches\n"
            f"  per call: {self.output_nbytes} bytes of outputs, {self.scratch_nbytes} of scratch; "
            f"held: {self.constant_nbytes} of constants, {self.external_nbytes} external, "
            f"{self.table_nbytes} of patch table"
        )


def describe_entry(
    entry: CacheEntry, name: str, profile: Callable[..., Profile] | None = None
) -> EntryInfo:
    """Copy an entry's facts; ``name`` is that of the function, which ``profile`` profiles."""
    named = {name: entry}
    if entry.segments is not None:
        segments = enumerate(entry.segments.segments())
        named = {f"{name}, part {i}": segment.entry for i, segment in segments}
    parts = list(named.values())
    nodes: Counter[str] = Counter()
    for part in parts:
        nodes.update(part.node_counts)
    externals = tuple(external for part in parts for external in part.externals)
    return EntryInfo(
        signature=entry.signature,
        hits=entry.counts.hits,
        patches=sum(part.counts.patches for part in parts),
        launches=sum(part.counts.launches for part in parts),
        nodes=dict(nodes),
        critical_path=max(part.critical_path for part in parts),
        relocations=sum(len(part.plan.table) + len(part.plan.words) for part in parts),
        scalar_words=sum(len(part.plan.scalars) for part in parts),
        segments=entry.segments.n_segments if entry.segments else 1,
        host_reads=entry.segments.n_reads if entry.segments else 0,
        draws=len(entry.draws),
        patch_kind=" and ".join(sorted({part.executable.patch_kind for part in parts})),
        scratch_nbytes=sum(part.scratch_nbytes for part in parts),
        output_nbytes=sum(part.outputs.nbytes for part in parts),
        constant_nbytes=sum(nbytes for part in parts for _, nbytes in part.constant_ranges),
        external_nbytes=sum(external.nbytes for external in externals),
        table_nbytes=sum(part.executable.table_nbytes for part in parts),
        externals=externals,
        implicit=tuple(entry.watch.array_paths()),
        capture_us=sum(part.capture_us for part in parts),
        instantiate_us=sum(part.instantiate_us for part in parts),
        last_use=dt.datetime.fromtimestamp(entry.counts.last_time),
        _profile=profile,
        _parts={name: part.graph_source() for name, part in named.items()},
    )


def table(entries: Sequence[EntryInfo]) -> Table:
    """Lay entries out as a rich table.

    Parameters
    ----------
    entries : sequence of EntryInfo
        What ``fn.cache_entries()`` returned.

    Returns
    -------
    rich.table.Table
        Print it with ``rich.print``.
    """
    from rich.filesize import decimal
    from rich.table import Table

    result = Table(title="graphjit cache entries", row_styles=["", "dim"])
    for column in ("signature", "graph"):
        result.add_column(column)
    for column in ("hits", "memory\na call", "memory\nheld", "first\ncall"):
        result.add_column(column, justify="right")
    for e in entries:
        held = e.constant_nbytes + e.external_nbytes + e.table_nbytes
        words = f"{e.relocations} words, {e.patch_kind}"
        graphs = f"{e.segments} graphs, " if e.segments > 1 else ""
        result.add_row(
            _brief(e.signature),
            f"{graphs}{sum(e.nodes.values())} nodes\n{words if e.relocations else 'no addresses'}",
            str(e.hits),
            decimal(e.output_nbytes + e.scratch_nbytes),
            decimal(held),
            f"{(e.capture_us + e.instantiate_us) / 1000:.1f} ms",
        )
    return result


def to_html(entry: EntryInfo) -> str:
    """Return a page that shows an entry, its graphs, their nodes and their memory.

    Parameters
    ----------
    entry : EntryInfo
        One of ``fn.cache_entries()``.

    Returns
    -------
    str
        An HTML document without scripts, for a file of its own.

    Raises
    ------
    GraphjitError
        pygraphviz is not installed.
    TypeError
        It is no entry.
    """
    if not isinstance(entry, EntryInfo):
        raise TypeError(f"to_html takes an entry, not a {type(entry).__qualname__}; see to_svg")
    return page(str(entry), entry.graphs)


def _brief(signature: Signature) -> str:
    """Write the arrays and values of a signature, one a line, without layout and place."""
    lines = [f"{path}: {dtype} {shape}" for path, (dtype, shape, *_) in signature.arrays.items()]
    lines += [f"{path} = {static_text(value)}" for path, value in signature.static.items()]
    return "\n".join(lines) or "no arguments"
