"""A graph as a picture: nodes with what they are given, arrows for what waits for what.

Input: ``GraphInfo``. Output: DOT text, SVG text.
Raises: ``GraphjitError`` if pygraphviz, which draws, is not installed; ``TypeError`` for what is
no graph.
"""

from __future__ import annotations

from typing import Any

from graphjit._graph_info import GraphInfo, NodeInfo
from graphjit.errors import GraphjitError

_MISSING = (
    "drawing a graph needs pygraphviz, which brings Graphviz along: pip install 'pygraphviz>=2.0'"
)
_MAX_NAME = 40
_MAX_WORDS = 8
"""Lines of a node; more are counted."""


def to_dot(graph: GraphInfo) -> str:
    """Return a graph in the DOT language.

    Parameters
    ----------
    graph : GraphInfo
        Such as ``fn.cache_entries()[0].graph``.

    Returns
    -------
    str

    Raises
    ------
    GraphjitError
        pygraphviz is not installed.
    """
    return str(_draw(graph).to_string())


def to_svg(graph: GraphInfo) -> str:
    """Return a picture of a graph, laid out from top to bottom by Graphviz.

    Parameters
    ----------
    graph : GraphInfo
        Such as ``fn.cache_entries()[0].graph``.

    Returns
    -------
    str
        An SVG document. Each node is a link to ``#node<index>``.

    Raises
    ------
    GraphjitError
        pygraphviz is not installed.
    """
    return str(_draw(graph).draw(format="svg", prog="dot").decode())


def _draw(graph: GraphInfo) -> Any:
    if not isinstance(graph, GraphInfo):
        raise TypeError(
            f"a picture is of one graph, entry.graph or one of entry.graphs, not of a "
            f"{type(graph).__qualname__}"
        )
    try:
        import pygraphviz
    except ImportError as error:
        raise GraphjitError(_MISSING) from error
    drawing = pygraphviz.AGraph(name=graph.name, directed=True, strict=False)
    drawing.node_attr.update(
        shape="box", fontname="monospace", fontsize="10", style="filled", fillcolor="#eef3fa"
    )
    drawing.edge_attr.update(arrowsize="0.6", color="#5a6b7d")
    groups: dict[tuple[int, int] | None, Any] = {None: drawing}
    for node in graph.nodes:
        if node.inside is not None and node.inside not in groups:
            groups[node.inside] = _add_group(groups, graph, node.inside)
        groups[node.inside].add_node(node.index, **_attributes(node))
    for node in graph.nodes:
        for source in node.depends_on:
            drawing.add_edge(source, node.index)
        if node.inside and not node.depends_on:
            drawing.add_edge(node.inside[0], node.index, style="dashed")
    return drawing


def _add_group(groups: dict[Any, Any], graph: GraphInfo, inside: tuple[int, int]) -> Any:
    """Frame a body or a child graph, within the frame that its node is in."""
    around, body = inside
    node = graph.nodes[around]
    is_body = node.kind == "conditional"
    name = f"cluster_{around}_{body}"
    label = f"{node.name} {around}, body {body}" if is_body else f"{node.name}, called by {around}"
    return groups[node.inside].add_subgraph(name=name, label=label, color="#9db2cc")


def _attributes(node: NodeInfo) -> dict[str, str]:
    link = f"#node{node.index}"
    if node.kind == "empty":
        return {"label": "", "shape": "point", "URL": link}
    if node.kind == "conditional":
        label = f"{node.index}: {node.name}"
        return {"label": label, "shape": "diamond", "fillcolor": "#fbeed2", "URL": link}
    if node.kind == "child_graph":
        label = f"{node.index}: call of {node.name}"
        return {"label": label, "shape": "component", "fillcolor": "#e3f1e4", "URL": link}
    if node.kind in ("host", "event"):
        label = f"{node.index}: {node.kind} {node.name}".rstrip()
        return {"label": label, "shape": "cds", "fillcolor": "#f3e6f5", "URL": link}
    return {"label": _label(node), "tooltip": node.name, "URL": link}


def _label(node: NodeInfo) -> str:
    """Return the lines of a node, each ended by Graphviz's sign for left-justified."""
    name = node.name if len(node.name) <= _MAX_NAME else node.name[: _MAX_NAME - 1] + "…"
    shared = f", {node.shared_mem_bytes} bytes shared" if node.shared_mem_bytes else ""
    lines = [f"{node.index}: {name}", f"{dims_text(node)}{shared}"]
    words = [f"{param.index}: {word}" for param in node.params for word in param.words]
    lines += words[:_MAX_WORDS]
    if len(words) > _MAX_WORDS:
        lines.append(f"and {len(words) - _MAX_WORDS} more")
    return "".join(line.replace("\\", "\\\\") + "\\l" for line in lines)


def dims_text(node: NodeInfo) -> str:
    """Return grid and block without trailing ones: ``32 x 8 blocks of 128``."""
    grid, block = (_dims(dims) for dims in (node.grid_dim, node.block_dim))
    return f"{grid} block{'s' * (grid != '1')} of {block}"


def _dims(dims: tuple[int, int, int]) -> str:
    n = max((i for i in range(3) if dims[i] != 1), default=0) + 1
    return " x ".join(map(str, dims[:n]))
