"""What is in the caches: entries, counts, and why a call would or would not hit.

Input: cache entries. Output: ``EntryInfo`` and ``Explanation``, plain data that prints as a
table; sizes in bytes, times in microseconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphjit._arguments import ArgumentReader, Call
from graphjit._drawing import to_dot, to_svg
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

if TYPE_CHECKING:
    from rich.table import Table

    from graphjit._cache import Cache, CacheInfo
    from graphjit._entry import CacheEntry

__all__ = [
    "CacheInfo",
    "EntryInfo",
    "Explanation",
    "External",
    "GraphInfo",
    "MemoryInfo",
    "NodeInfo",
    "ParamInfo",
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

    @cached_property
    def graphs(self) -> tuple[GraphInfo, ...]:
        """What is launched: one graph, or one for each part of a function that is split."""
        return tuple(describe_graph(part, name) for name, part in self._parts.items())

    @property
    def graph(self) -> GraphInfo:
        """The first, and mostly only, graph."""
        return self.graphs[0]

    def __str__(self) -> str:
        nodes = ", ".join(f"{n} {kind}" for kind, n in self.nodes.items()) or "no nodes"
        return (
            f"{self.signature}\n"
            f"  {nodes}; {self.relocations} relocations, {self.patch_kind} patch; "
            f"{self.hits} hits, {self.patches} patches, {self.launches} launches\n"
            f"  per call: {self.output_nbytes} bytes of outputs, {self.scratch_nbytes} of scratch; "
            f"held: {self.constant_nbytes} of constants, {self.external_nbytes} external, "
            f"{self.table_nbytes} of patch table"
        )


def describe_entry(entry: CacheEntry, name: str) -> EntryInfo:
    """Copy an entry's facts; ``name`` is that of the function."""
    executable = entry.executable
    parts = {name: entry}
    if entry.segments is not None:
        segments = enumerate(entry.segments.segments())
        parts = {f"{name}, part {i}": segment.entry for i, segment in segments}
    return EntryInfo(
        signature=entry.signature,
        hits=entry.counts.hits,
        patches=entry.counts.patches,
        launches=entry.counts.launches,
        nodes=dict(entry.node_counts),
        critical_path=entry.critical_path,
        relocations=len(entry.plan.table) + len(entry.plan.words),
        scalar_words=len(entry.plan.scalars),
        segments=entry.segments.n_segments if entry.segments else 1,
        host_reads=entry.segments.n_reads if entry.segments else 0,
        draws=len(entry.draws),
        patch_kind=executable.patch_kind,
        scratch_nbytes=entry.scratch_nbytes,
        output_nbytes=entry.outputs.nbytes,
        constant_nbytes=sum(nbytes for _, nbytes in entry.constant_ranges),
        external_nbytes=sum(e.nbytes for e in entry.externals),
        table_nbytes=executable.table_nbytes,
        externals=tuple(entry.externals),
        implicit=tuple(entry.watch.array_paths()),
        capture_us=entry.capture_us,
        instantiate_us=entry.instantiate_us,
        last_use=dt.datetime.fromtimestamp(entry.counts.last_time),
        _parts={name: part.graph_source() for name, part in parts.items()},
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a call would hit.

    Attributes
    ----------
    hit : bool
    differences : tuple of str
        For a miss: what differs from the closest entry, by path.
    closest : Signature or None
        Signature of that entry; None if the cache is empty.
    refusal : str or None
        Why calls of this signature run eagerly, if they do.
    """

    hit: bool
    differences: tuple[str, ...]
    closest: Signature | None
    refusal: str | None = None

    def __bool__(self) -> bool:
        return self.hit

    def __str__(self) -> str:
        if self.hit:
            return "hit"
        if self.refusal is not None:
            return f"runs eagerly: {self.refusal}"
        if self.closest is None:
            return "miss: nothing has been captured yet"
        return "miss: " + "; ".join(self.differences)


def explain_call(reader: ArgumentReader, cache: Cache, call: Call) -> Explanation:
    """Compare a call with the entries of a cache."""
    if cache.find(call) is not None:
        return Explanation(True, (), None)
    refusal = cache.refusal(call.key)
    signature = reader.describe(call, [call.adapter.spec(array) for array in call.arrays])
    best: tuple[list[str], CacheEntry] | None = None
    for entry in cache.entries():
        lines = entry.signature.difference(signature)
        if best is None or len(lines) < len(best[0]):
            best = (lines, entry)
    if best is None:
        return Explanation(False, (), None, refusal)
    lines, entry = best
    if not lines:
        changed = entry.watch.first_change(call.leaves)
        lines = [f"{changed}: is not what it was"] if changed else ["memory is shared differently"]
    return Explanation(False, tuple(lines), entry.signature, refusal)


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
    """
    return page(str(entry), entry.graphs)


def _brief(signature: Signature) -> str:
    """Write the arrays and values of a signature, one a line, without layout and place."""
    lines = [f"{path}: {dtype} {shape}" for path, (dtype, shape, *_) in signature.arrays.items()]
    lines += [f"{path} = {static_text(value)}" for path, value in signature.static.items()]
    return "\n".join(lines) or "no arguments"
