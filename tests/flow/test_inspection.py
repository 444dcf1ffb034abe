"""The graph of an entry as plain data, as a picture and as a page."""

import dataclasses
import gc
import html.parser
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from helpers.flow_checks import normal

import graphjit
from graphjit import graphed, inspection
from graphjit._adapters import simulated_device as device
from graphjit.testing import simulated as xp

TABLE = np.arange(3.0)
W = normal(3, 3)


@xp.kernel(params=["pointer", "int32", [("n", "i4"), ("x", "u8"), ("y", "u8")]])
def raw(memory, out_ptr, n, both):
    """Add two arrays, whose addresses are in a struct."""
    x, y = (memory.array(int(both[name]), (n,), "float64") for name in ("x", "y"))
    memory.array(out_ptr, (n,), "float64")[...] = x + y


def words(node):
    """Return the words of a node: parameter, place in it, text, whether it is patched."""
    return {
        (param.index, word.offset, str(word), word.is_patched)
        for param in node.params
        for word in param.words
    }


def kernels(graph):
    return [node for node in graph.nodes if node.kind == "kernel"]


def entry_of(fn, *args, **options):
    graphed_fn = graphed(**options)(fn)
    graphed_fn(*args)
    (entry,) = graphed_fn.cache_entries()
    return entry


def test_everything_has_its_name():
    """Arguments by path, results, implicit arrays, scratch, constants and dynamic scalars."""

    def fn(x, lr, options):
        z = xp.matmul(x, W)
        z = z * lr + xp.asarray(TABLE)
        return {"sum": z.sum(), "both": (z, options["a"][0])}

    x = normal(3, 3)
    entry = entry_of(fn, x, 0.5, {"a": [normal(2)]}, dynamic="lr")
    memory = {m.name: (m.kind, m.nbytes) for m in entry.graph.memory}
    assert memory == {
        "x": ("argument", 72),
        "options['a'][0]": ("argument", 16),
        "W": ("implicit", 72),
        "result['sum']": ("output", 8),
        "result['both'][0]": ("output", 72),
        "scratch": ("scratch", entry.scratch_nbytes),
        "lr": ("scalar", 8),
        "constant 0": ("constant", 24),
    }
    assert entry.graph.name.endswith("fn")
    by_name = {node.name: node for node in kernels(entry.graph)}
    assert {text for _, _, text, _ in words(by_name["matmul"])} >= {"x", "W"}
    assert "lr" in {text for _, _, text, _ in words(by_name["mul"])}
    assert {text for _, _, text, _ in words(by_name["sum"])} >= {
        "result['sum']",
        "result['both'][0]",
    }
    (fixed,) = (w for node in kernels(entry.graph) for w in words(node) if not w[3])
    assert fixed[2] == "constant 0"


def test_words_have_their_place():
    """A word is found in its parameter, at its offset, with the distance from the array."""

    def fn(x, y):
        out = xp.empty(3)
        raw(out, 3, (7, x[2:], y))
        return out

    entry = entry_of(fn, normal(5), normal(3))
    (node,) = kernels(entry.graph)
    assert node.name == "raw"
    assert words(node) == {
        (0, 0, "result", True),
        (2, 4, "x +16", True),
        (2, 12, "y", True),
    }
    assert [(p.index, p.offset, len(p.data)) for p in node.params] == [
        (0, 0, 8),
        (1, 8, 4),
        (2, 12, 20),
    ]
    assert node.params[1].data == (3).to_bytes(4, "little")


def test_dependencies():
    """A node names those that it waits for."""
    graph = entry_of(lambda x: (x + 1) * 2, normal(3)).graph
    assert [node.index for node in graph.nodes] == list(range(len(graph.nodes)))
    first, second = kernels(graph)
    assert (first.depends_on, second.depends_on) == ((), (first.index,))


def test_it_is_plain_data():
    """A description outlives its entry, can be taken apart, and keeps no graph alive."""
    fn = graphed(lambda x: x + W)
    fn(normal(3, 3))
    (entry,) = fn.cache_entries()
    fn.cache_clear()
    gc.collect()
    assert device.driver().counts["live_graph_execs"] == 0
    asdict = dataclasses.asdict(entry.graph)
    assert asdict["nodes"][0]["name"] == "add"
    assert {m["name"] for m in asdict["memory"]} == {"x", "W", "result"}


def test_each_part_of_a_split_function():
    """A function that reads on the host has a graph for each part."""

    @graphed(on_unsupported="split")
    def fn(x):
        y = x * 2
        return y + 1 if float(x.sum()) > 0 else y - 1

    for sign in (1, -1, 1):
        fn(xp.ones(3) * sign)
    (entry,) = fn.cache_entries()
    assert len(entry.graphs) == entry.segments == 3
    names = [[node.name for node in kernels(graph)] for graph in entry.graphs]
    assert names[0] == ["mul", "sum"]
    assert sorted(names[1:]) == [["add"], ["sub"]]
    assert entry.graph is entry.graphs[0]
    assert {m.kind for m in entry.graphs[1].memory} >= {"carried"}
    assert [graph.name.rpartition(", ")[2] for graph in entry.graphs] == [
        "part 0",
        "part 1",
        "part 2",
    ]
    page = inspection.to_html(entry)
    assert page.count("<svg") == 3


def test_a_picture():
    """DOT can be read again, and SVG is XML; both have every node and every dependency."""
    pygraphviz = pytest.importorskip("pygraphviz")

    @graphed
    def fn(x):
        for _ in range(20):
            x = xp.sin(x) + 1
        return x

    fn(normal(3))
    graph = fn.cache_entries()[0].graph
    drawing = pygraphviz.AGraph(string=inspection.to_dot(graph))
    assert len(drawing.nodes()) == len(graph.nodes) == 40
    assert {(int(a), int(b)) for a, b in drawing.edges()} == {
        (source, node.index) for node in graph.nodes for source in node.depends_on
    }
    root = ET.fromstring(inspection.to_svg(graph))
    classes = [element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}g")]
    assert (classes.count("node"), classes.count("edge")) == (40, 39)


class Page(html.parser.HTMLParser):
    """Notes the tags that are open, and the ids and references."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.append(attributes.get("id"))
        self.links += [v for k, v in attrs if k in ("href", "xlink:href", "src")]
        if tag not in ("meta", "polygon", "path", "ellipse"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        self.text += data


def test_a_page():
    """A page stands alone, is well-formed whatever names there are, and links to its nodes."""

    @xp.kernel
    def kernel(x, out):
        out[...] = x

    def fn(x):
        out = xp.empty(3)
        kernel(x['<b>&"'], out)
        return out + xp.asarray(TABLE)

    kernel.__wrapped__.__name__ = "k<T, 4>&\"'\\"
    entry = entry_of(fn, {'<b>&"': normal(3)})
    page = Page(inspection.to_html(entry))
    assert page.open == []
    assert set(page.links) == {f"#node{node.index}" for node in kernels(entry.graph)}
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert """x['<b>&"']""" in page.text
    assert "k<T, 4>&\"'\\" in page.text
    assert "constant 0, fixed" in page.text


def test_without_pygraphviz(monkeypatch):
    """The data is there; a picture says what to install."""
    entry = entry_of(lambda x: x + 1, normal(3))
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    assert len(entry.graph.nodes) == 1
    for draw in (inspection.to_dot, inspection.to_svg):
        with pytest.raises(graphjit.GraphjitError, match=r"pip install .pygraphviz"):
            draw(entry.graph)


def test_entries_and_graphs_are_told_apart():
    """A page is of an entry, a picture of a graph; the error says which is which."""
    entry = entry_of(lambda x: x + 1, normal(3))
    with pytest.raises(TypeError, match="takes an entry, not a GraphInfo"):
        inspection.to_html(entry.graph)
    for wrong in (entry, entry.graphs):
        with pytest.raises(TypeError, match=r"one graph, entry\.graph or one of entry\.graphs"):
            inspection.to_svg(wrong)


def test_a_block():
    """The graph of a capture block, with the external arrays that it uses where they are."""
    w = normal(3)
    with graphjit.capture(inputs={"x": normal(3)}) as block:
        block.outputs = block.inputs["x"] * w
    graph = block.info().graph
    assert graph.name == "capture block"
    assert {(m.name, m.kind) for m in graph.memory} == {
        ("x", "argument"),
        ("result", "output"),
        ("external 0 (an array float64 (3,))", "external"),
    }
    (node,) = kernels(graph)
    assert "external 0 (an array float64 (3,))" in {w[2] for w in words(node) if not w[3]}
    block.close()


def test_numbers_are_shown_as_numbers():
    """In signatures and explanations, not by the bits that they are keyed by."""
    call = graphed(lambda x, a, s: x[s] * a)
    x = xp.ones(4)
    call(x, 0.1, slice(1, None))
    text = str(call.explain(x, 0.2, slice(2, None, 2)))
    assert "a: now 0.2, before 0.1" in text
    assert "s: now slice(2, None, 2), before slice(1, None, None)" in text
    for value in (1.5 - 2j, np.float32(0.5), np.int8(3), float("nan")):
        assert f"now {value!r}," in str(call.explain(x, value, slice(1, None)))


def test_entries_of_split_functions_are_sums():
    """Nodes and memory are those of all graphs, and the text says how many there are."""

    def fn(x):
        if float(x.sum()) > 0:
            x = xp.sin(x) + 1
        return xp.cos(x) * 2

    call = graphed(on_unsupported="split")(fn)
    for sign in (1, 1, -1, -1):
        call(xp.ones(4) * sign)
    (entry,) = call.cache_entries()
    assert entry.segments == len(entry.graphs) == 3
    assert sum(entry.nodes.values()) == sum(len(graph.nodes) for graph in entry.graphs)
    assert entry.output_nbytes >= 64
    assert "3 graphs with 3 reads on the host" in str(entry)


def test_functions_of_one_name_are_counted_apart():
    """Lambdas, for instance."""
    functions = [graphed(lambda x: x + 1), graphed(lambda x: x + 2)]
    for n, fn in enumerate(functions):
        for _ in range(n + 3):
            fn(xp.ones(3))
    name = "test_functions_of_one_name_are_counted_apart.<locals>.<lambda>"
    hits = sorted(info.hits for key, info in graphjit.caches().items() if name in key)
    assert hits == [2, 3]
