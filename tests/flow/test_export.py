"""Graphs in files: written by one process, launched by another, with eager results."""

import contextlib
import gc
import json
import os
import random
import re
import zipfile

import numpy as np
import pytest
from helpers.flow_checks import copy_arrays, held_on_device, in_threads, normal, same_bits
from helpers.processes import run_python
from helpers.saved_graphs import names_of

import graphjit
from graphjit import ExportError, SignatureError, graphed, host_callback
from graphjit._saved import digest
from graphjit.control import cond, fori_loop, while_loop
from graphjit.testing import simulated as xp


def chain(x, y):
    for _ in range(8):
        x = xp.sin(x) * y + 1
    return x


def containers(x, p, n=3):
    p["w"][0] += 1
    total = x.sum()
    return {
        "views": (x[1:], p["w"][0]),
        "fresh": [total, total, p["w"][1] * n],
        "n": n,
        "none": None,
    }


def constants(x):
    return x + xp.asarray([1.0, 2.0, 3.0, 4.0, 5.0]) + xp.asarray(np.arange(5.0))


def reductions(x, y):
    return x @ y, (x * y).max(axis=0), xp.concatenate([x, y], axis=1)[:, ::2]


def flow(x):
    def step(carry):
        y, n = carry
        return cond(y.sum() > 4, lambda y: y * 0.5, lambda y: y + 1, y), n + 1

    y, n = while_loop(lambda c: (c[1] < 9) & (c[0].max() < 50), step, (x, 0))
    return fori_loop(0, 3, lambda i, v: v + i, y), n


@graphed
def layer(x, w):
    return xp.tanh(x @ w)


def calls(x, w):
    return layer(layer(x, w), w) + 1


CASES = {
    "chain": (chain, lambda: (normal(5), normal(5))),
    "broadcast": (chain, lambda: (normal(3, 1), normal(4))),
    "containers": (containers, lambda: (normal(6), {"w": [normal(3), normal(2, 2).T]})),
    "constants": (constants, lambda: (normal(5),)),
    "reductions": (reductions, lambda: (normal(4, 4), normal(4, 4))),
    "flow": (flow, lambda: (normal(3),)),
    "calls": (calls, lambda: (normal(4, 4), normal(4, 4))),
    "strided": (chain, lambda: (normal(9)[1::2], normal(4)[::-1])),
    "empty": (chain, lambda: (xp.empty(0), xp.empty(0))),
    "no arrays": (lambda: xp.arange(5.0) * 2, tuple),
}


def exported(call, path, make):
    """Write the graph of a call, and load it."""
    call(*make())
    call(*make())
    call.export(path, *make())
    return graphjit.load(path)


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_graph_gives_eager_results(name, patch, tmp_path):
    """On fresh arrays each time; also when the function that it is from is gone."""
    fn, make = CASES[name]
    call = graphed(patch=patch)(fn)
    loaded = exported(call, tmp_path / "graph", make)
    assert loaded.name == call.__name__
    call.cache_clear()
    for _ in range(4):
        given = make()
        copies = copy_arrays(given)
        expected = fn(*copies)
        got = loaded.launch(**dict(zip(names_of(fn), given, strict=False)))
        assert same_bits(got, expected)
        assert same_bits(given, copies)
        assert loaded.outputs is got
    assert loaded.info().launches == 4
    loaded.close()
    layer.cache_clear()


def test_results_that_are_arguments(tmp_path):
    """They are the very objects; views keep their base."""
    loaded = exported(graphed(containers), tmp_path / "graph", CASES["containers"][1])
    x, p = CASES["containers"][1]()
    out = loaded.launch(x=x, p=p)
    assert out["views"][1] is p["w"][0]
    assert out["fresh"][0] is out["fresh"][1]
    assert out["n"] == 3
    assert out["none"] is None
    loaded.close()


def test_another_process(tmp_path):
    """The file is all that it needs, and what it was given there comes out the same."""
    path = tmp_path / "graph"
    exported(graphed(flow), path, CASES["flow"][1]).close()
    x = np.random.default_rng(1).standard_normal(3)
    np.save(tmp_path / "x.npy", x)
    done = run_python(
        "-c",
        "import sys, numpy as np, graphjit\n"
        "from graphjit.testing import simulated as xp\n"
        f"loaded = graphjit.load({str(path)!r})\n"
        f"y, n = loaded.launch(x=xp.asarray(np.load({str(tmp_path / 'x.npy')!r})))\n"
        f"np.savez({str(tmp_path / 'out.npz')!r}, y=y.get(), n=n.get())\n",
    )
    assert done.returncode == 0, done.stderr
    y, n = flow(xp.asarray(x))
    with np.load(tmp_path / "out.npz") as out:
        assert out["y"].tobytes() == y.get().tobytes()
        assert out["n"].tobytes() == n.get().tobytes()


def test_blocks_and_explicit_graphs(tmp_path):
    """They have inputs by name already."""
    with graphjit.capture(inputs={"x": normal(4)}) as block:
        block.outputs = block.inputs["x"] * 2, block.inputs["x"][1:]
    block.export(tmp_path / "block")
    graph = graphjit.Graph(inputs={"x": normal(4), "y": normal(4)})
    a = graph.add(xp.sin, graph.inputs["x"])
    b = graph.add(xp.cos, graph.inputs["y"])
    graph.outputs = graph.add(lambda a, b: a - b, a.result, b.result).result
    graph.launch(x=normal(4), y=normal(4))
    graph.export(tmp_path / "graph")
    of_block, of_graph = graphjit.load(tmp_path / "block"), graphjit.load(tmp_path / "graph")
    for _ in range(3):
        x, y = normal(4), normal(4)
        assert same_bits(of_block.launch(x=x), (x * 2, x[1:]))
        assert same_bits(of_graph.launch(x=x, y=y), xp.sin(x) - xp.cos(y))
    for item in (block, graph, of_block, of_graph):
        item.close()


def test_numbers_that_change(tmp_path):
    """Dynamic scalars stay dynamic; other values are those of the capture."""

    def axpy(a, x, n, scale=(1.5, "up")):
        return x * a + n * scale[0]

    call = graphed(dynamic=("a",))(axpy)
    x = normal(3)
    call(2.0, x, 3)
    call.export(tmp_path / "graph", 2.0, x, 3)
    loaded = graphjit.load(tmp_path / "graph")
    for a in (0.25, -1.0, 1e300):
        x = normal(3)
        assert same_bits(loaded.launch(a=a, x=x), axpy(a, x, 3))
        assert same_bits(loaded.launch(a=a, x=x, n=3, scale=(1.5, "up")), axpy(a, x, 3))
    with pytest.raises(SignatureError, match="n: now 4, before 3"):
        loaded.launch(a=1.0, x=x, n=4)
    with pytest.raises(SignatureError, match="a: now any int, before any float"):
        loaded.launch(a=1, x=x)
    loaded.close()


@pytest.mark.parametrize(
    "value",
    [-0.0, float("nan"), 1 + 2j, b"\x00\xff", np.float32(0.1), np.dtype("i2"), slice(1, None, 2),
     (None, True, [2, {"k": ("v", 3)}]), np.int64(-5), 10**30],
    ids=repr,
)  # fmt: skip
def test_values_are_kept_exactly(value, tmp_path):
    """What a graph was captured for is told from everything else after loading, too."""
    call = graphed(lambda x, value: (x + 1, value))
    call(normal(2), value)
    call.export(tmp_path / "graph", normal(2), value)
    loaded = graphjit.load(tmp_path / "graph")
    x = normal(2)
    assert same_bits(loaded.launch(x=x, value=value)[0], x + 1)
    assert repr(loaded.launch(x=x)[1]) == repr(value)
    other = 0.0 if repr(value) == "-0.0" else "other"
    with pytest.raises(SignatureError, match="value"):
        loaded.launch(x=x, value=other)
    loaded.close()


def test_arrays_that_share_memory(tmp_path):
    """The pattern is part of the file; another is refused."""

    def fn(x, y):
        x += 1
        return x * y

    call = graphed(fn)
    x = normal(6)
    call(x[:4], x[2:])
    call.export(tmp_path / "shared", x[:4], x[2:])
    call(x, x)
    call.export(tmp_path / "same", x, x)
    shared, same = graphjit.load(tmp_path / "shared"), graphjit.load(tmp_path / "same")
    for _ in range(3):
        x = normal(6)
        y = x.copy()
        assert same_bits(shared.launch(x=x[:4], y=x[2:]), fn(y[:4], y[2:]))
        assert same_bits(x, y)
        assert same_bits(same.launch(x=x, y=x), fn(y, y))
        with pytest.raises(SignatureError, match="y"):
            shared.launch(x=normal(4), y=normal(4))
        with pytest.raises(SignatureError):
            same.launch(x=x, y=x.copy())
    shared.close()
    same.close()


def test_other_arguments_are_refused(tmp_path):
    """By name, and nothing is launched."""
    loaded = exported(graphed(chain), tmp_path / "graph", CASES["chain"][1])
    with pytest.raises(SignatureError, match=r"lacks y; it takes x, y"):
        loaded.launch(x=normal(5))
    with pytest.raises(SignatureError, match=r"x: now float64 \(6,\)"):
        loaded.launch(x=normal(6), y=normal(5))
    with pytest.raises(SignatureError, match="does not know z; it takes x, y"):
        loaded.launch(x=normal(5), y=normal(5), z=3)
    with pytest.raises(SignatureError, match="y: now 3"):
        loaded.launch(x=normal(5), y=3)
    with pytest.raises(SignatureError, match="float32"):
        loaded.launch(x=normal(5).astype("f4"), y=normal(5))
    with pytest.raises(ExportError, match="can be copied"):
        loaded.export(tmp_path / "again")
    loaded.close()
    with pytest.raises(graphjit.CaptureError, match="has been closed"):
        loaded.launch(x=normal(5), y=normal(5))


WEIGHTS = normal(4)


@xp.kernel
def own_kernel(x):
    x += 1


class Opaque:
    """An object that graphs are keyed by."""


OPAQUE = Opaque()


REFUSED = {
    "implicit": (lambda x: x * WEIGHTS, lambda: (normal(4),), "WEIGHTS.*Pass such arrays"),
    "kernel": (lambda x: own_kernel(x), lambda: (normal(4),), "node 0, the kernel own_kernel"),
    "callback": (
        lambda x: host_callback(repr, x),
        lambda: (normal(4),),
        "calls repr, at",
    ),
    "object": (lambda x, o: x + 1, lambda: (normal(4), OPAQUE), "argument o.*Opaque"),
    "star": (lambda *x: x[0] + 1, lambda: (normal(4),), "any number of arguments"),
    "twice": (lambda x, y: x[0] + y[0], lambda: ([normal(4)],) * 2, "list or dictionary twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_belongs_to_this_process_is_refused(name, tmp_path):
    """By name, and no file is left."""
    fn, make, text = REFUSED[name]
    call = graphed(fn)
    given = make()
    call(*given)
    with pytest.raises(ExportError, match=text) as error:
        call.export(tmp_path / "graph", *given)
    assert call.__name__ in str(error.value)
    assert list(tmp_path.iterdir()) == []
    graphjit.synchronize()


def test_without_a_graph_there_is_nothing_to_export(tmp_path):
    """Nor of a function that is split at its reads."""
    call = graphed(chain)
    with pytest.raises(graphjit.GraphjitError, match="can be exported: make the call first"):
        call.export(tmp_path / "graph", normal(3), normal(3))
    split = graphed(on_unsupported="split")(lambda x: x * float(x.sum()))
    x = normal(3)
    split(x)
    split(x)
    with pytest.raises(ExportError, match="split at its reads"):
        split.export(tmp_path / "graph", x)
    block = graphjit.capture(inputs={"x": normal(3)})
    with pytest.raises(graphjit.CaptureError, match="not complete"), block as made:
        made.export(tmp_path / "graph")


def rewrite(path, change=lambda header: None, **members):
    """Write a file anew, with its header changed and members replaced."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(found["graph.json"])
    change(header)
    found["graph.json"] = json.dumps(header).encode()
    found = {name: data for name, data in (found | members).items() if data is not None}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in found.items():
            archive.writestr(name, data)
        archive.comment = digest(found)


def updated(**fields):
    return lambda header: header.update(fields)


DAMAGE = {
    "version": (updated(version=99), {}, "version 99.*reads version 1"),
    "format": (updated(format="other"), {}, "no file of a graph"),
    "target": (updated(target="sm_10"), {}, "code for sm_10, and this device is simulated"),
    "library": (updated(library="abacus"), {}, "needs abacus"),
    "missing": (lambda h: h.pop("leaders"), {}, "is damaged.*leaders"),
    "relocation": (lambda h: h["plan"]["table"][0].__setitem__(1, 10**6), {}, "leads nowhere"),
    "negative slot": (lambda h: h["plan"]["table"][0].__setitem__(2, -1), {}, "leads nowhere"),
    "slot": (lambda h: h["plan"]["table"][0].__setitem__(2, 99), {}, "leads nowhere"),
    "kind": (lambda h: h["graph"]["nodes"][0].update(kind="host"), {}, "of the kind host"),
    "code": (lambda h: None, {"code/0": b"nonsense"}, "cannot be loaded here.*cuModuleLoadData"),
    "no code": (lambda h: None, {"code/0": None}, "is damaged.*code/0"),
    "name": (lambda h: [n.update(name="x") for n in h["graph"]["nodes"]], {}, "NOT_FOUND"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_files_that_do_not_fit_are_refused(name, tmp_path):
    """Before anything is launched, and nothing is left of them."""
    path = tmp_path / "graph"
    call = graphed(constants)
    exported(call, path, CASES["constants"][1]).close()
    call.cache_clear()
    change, members, text = DAMAGE[name]
    rewrite(path, change, **members)
    gc.collect()
    before = held_on_device()
    with pytest.raises(ExportError, match=text) as error:
        graphjit.load(path)
    assert str(path) in str(error.value)
    del error
    gc.collect()
    assert held_on_device() == before


def test_a_file_that_was_edited(tmp_path):
    """Whatever was changed in it: refused."""
    path = tmp_path / "graph"
    exported(graphed(chain), path, CASES["chain"][1]).close()
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
        comment = archive.comment
    contents["graph.json"] = contents["graph.json"].replace(b'"scratch_offset": ', b'"other": ')
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
        archive.comment = comment
    with pytest.raises(ExportError, match="has been changed since it was written"):
        graphjit.load(path)


def test_what_stands_at_the_path(tmp_path):
    """A link leads to its file, which keeps its mode; what is no file is left alone."""
    call = graphed(chain)
    exported(call, tmp_path / "graph", CASES["chain"][1]).close()
    (tmp_path / "graph").chmod(0o600)
    (tmp_path / "link").symlink_to("graph")
    call.export(tmp_path / "link", *CASES["chain"][1]())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "graph").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    for place in ("pipe", "."):
        with pytest.raises(ExportError, match="is no file"):
            call.export(tmp_path / place, *CASES["chain"][1]())
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["graph", "link", "pipe"]


def test_threads_that_export_to_one_path(tmp_path):
    """Whoever comes last, the file is whole at any time."""
    call, path = graphed(chain), tmp_path / "graph"
    exported(call, path, CASES["chain"][1]).close()
    given = CASES["chain"][1]()

    def work(k):
        for _ in range(10):
            call.export(path, *given)
            graphjit.load(path).close()

    in_threads(4, work)
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


def test_an_entry_that_is_evicted_meanwhile(tmp_path):
    """It is refused, and nothing is written."""
    call, given = graphed(chain), CASES["chain"][1]()
    call(*given)
    (entry,) = call._self_state.cache.entries()
    entry.close()
    with pytest.raises(ExportError, match="has just been evicted"):
        call.export(tmp_path / "graph", *given)
    assert list(tmp_path.iterdir()) == []


def test_a_launch_in_the_middle_of_a_launch(tmp_path):
    """By a signal handler, say: an error, and no result that is none."""
    loaded = exported(graphed(chain), tmp_path / "graph", CASES["chain"][1])
    x, y = CASES["chain"][1]()
    with (
        loaded._entry.executable.held(),
        pytest.raises(graphjit.CaptureError, match="cannot be launched now"),
    ):
        loaded.launch(x=x, y=y)
    assert same_bits(loaded.launch(x=x, y=y), chain(x, y))
    loaded.close()


UNKEPT = {
    "record": np.zeros((), [("a", "i4"), ("b", "f8")])[()],
    "subarray": np.dtype(("f4", (2,))),
    "titles": np.dtype([(("t", "a"), "i1")]),
    "metadata": np.dtype("f4", metadata={"unit": "m"}),
    "NumPy text": np.str_("a"),
    "enumeration": re.RegexFlag.I,
}


@pytest.mark.parametrize("name", UNKEPT)
def test_values_that_would_come_back_as_others_are_refused(name, tmp_path):
    """By the name of the argument."""
    call = graphed(lambda x, value: (x + 1, value))
    call(normal(2), UNKEPT[name])
    with pytest.raises(ExportError, match="the argument value"):
        call.export(tmp_path / "graph", normal(2), UNKEPT[name])


def test_names_of_arguments(tmp_path):
    """``self`` is a name like any other; what is no name, or twice one, is refused."""

    def positional(x, /, **more):
        return x + sum(more.values())

    call = graphed(positional)
    for more in ({"x": 2}, {"a-b": 2}, {"class": 2}):
        call(normal(2), **more)
        with pytest.raises(ExportError, match="no name of its own"):
            call.export(tmp_path / "graph", normal(2), **more)
    call(normal(2), a=2)
    call.export(tmp_path / "graph", normal(2), a=2)
    loaded = graphjit.load(tmp_path / "graph")
    x = normal(2)
    assert same_bits(loaded.launch(x=x), x + 2)
    assert "loaded graph of" in repr(loaded)
    loaded.close()
    call = graphed(lambda self, y: self + y)
    call(x, x + 1)
    call.export(tmp_path / "graph", x, x + 1)
    loaded = graphjit.load(tmp_path / "graph")
    assert same_bits(loaded.launch(self=x, y=x + 1), x + (x + 1))
    loaded.close()
    assert repr(loaded).endswith("closed>")


def test_a_number_that_does_not_fit(tmp_path):
    """The message says so."""
    call = graphed(dynamic=("a",))(lambda x, a: x * a)
    x = normal(3)
    call(x, 3)
    call.export(tmp_path / "graph", x, 3)
    loaded = graphjit.load(tmp_path / "graph")
    with pytest.raises(SignatureError, match="dynamic number is outside"):
        loaded.launch(x=x, a=2**1100)
    loaded.close()


def test_broken_files(tmp_path):
    """A file that was cut off, one that is something else, and none."""
    path = tmp_path / "graph"
    exported(graphed(chain), path, CASES["chain"][1]).close()
    whole = path.read_bytes()
    rng = random.Random(1)
    for _ in range(300):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([rng.randrange(256)]) + whole[at + 1 :])
        with contextlib.suppress(ExportError):  # a byte that says nothing may be another
            graphjit.load(path).close()
    for data in (whole[:-30], whole[:40], b"", b"text", whole[:60] + b"\xff" + whole[61:]):
        path.write_bytes(data)
        with pytest.raises(ExportError, match=r"no whole file of a graph|has been changed"):
            graphjit.load(path)
    with pytest.raises(FileNotFoundError):
        graphjit.load(tmp_path / "none")
