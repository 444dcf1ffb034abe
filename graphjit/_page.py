"""A cache entry as one HTML page: what it is for, its graphs, their nodes and their memory.

Input: a summary and the graphs. Output: an HTML document without scripts and without references.
Raises: ``GraphjitError`` if pygraphviz, which draws, is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from graphjit._drawing import dims_text, to_svg
from graphjit._graph_info import GraphInfo, NodeInfo, ParamInfo

_MAX_BYTES = 32
"""Of a parameter that are shown."""


def page(summary: str, graphs: Sequence[GraphInfo]) -> str:
    """Return the page of an entry."""
    template = Template(files("graphjit").joinpath("_page.html").read_text())
    return template.substitute(
        title=escape(graphs[0].name),
        summary=escape(summary),
        graphs="".join(_graph(graph, i) for i, graph in enumerate(graphs)),
    )


def _graph(graph: GraphInfo, part: int) -> str:
    prefix = f"graph{part}-" if part else ""
    svg = to_svg(graph)
    svg = svg[svg.index("<svg") :].replace('xlink:href="#node', f'xlink:href="#{prefix}node')
    memory = ((m.name, m.kind, str(m.nbytes)) for m in graph.memory)
    return (
        f"<h2>{escape(graph.name)}</h2>\n<figure>{svg}</figure>\n"
        f"<h3>Memory</h3>\n{_table(('name', 'kind', 'bytes'), map(_row, memory))}"
        f"<h3>Nodes</h3>\n"
        + _table(
            ("node", "kernel", "launch", "waits for", "parameters"),
            (_node(node, prefix) for node in graph.nodes),
        )
    )


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f"<table>\n<tr>{head}</tr>\n" + "".join(rows) + "</table>\n"


def _row(cells: Iterable[str], attributes: str = "") -> str:
    return f"<tr{attributes}>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>\n"


def _node(node: NodeInfo, prefix: str) -> str:
    shared = f"\n{node.shared_mem_bytes} bytes of shared memory" if node.shared_mem_bytes else ""
    is_kernel = node.kind == "kernel"
    inside = "" if node.inside is None else f"\nin {node.inside[0]}, body {node.inside[1]}"
    cells = (
        str(node.index) + inside,
        node.name or node.kind,
        dims_text(node) + shared if is_kernel else "",
        ", ".join(map(str, node.depends_on)),
        "\n".join(map(_param, node.params)),
    )
    return _row(cells, f' id="{prefix}node{node.index}"')


def _param(param: ParamInfo) -> str:
    """Return what a parameter leads to, or its bytes."""
    n = len(param.data)
    size = f" ({n} bytes)" if n > 8 else ""
    words = [
        (f"byte {word.offset}: " if size else "") + f"{word}" + ", fixed" * (not word.is_patched)
        for word in param.words
    ]
    shown = "; ".join(words) or param.data[:_MAX_BYTES].hex(" ", 8) + "…" * (n > _MAX_BYTES)
    return f"{param.index}: {shown}{size}"
