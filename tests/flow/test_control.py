"""Control flow on the device: the same results captured and eager, without host round trips."""

import gc

import numpy as np
import pytest
from helpers.flow_checks import agrees, counted, normal, same_bits

import graphjit
from graphjit import ControlFlowError, graphed
from graphjit._adapters import simulated_device as device
from graphjit.control import cond, fori_loop, switch, while_loop
from graphjit.testing import simulated as xp

W = normal(3, 3)


@pytest.fixture(params=[13000, 12040], ids=["cuda13", "cuda12.4"])
def any_version(request, monkeypatch):
    """Drivers with and without branches of several bodies."""
    monkeypatch.setattr(device.driver(), "cuda_version", request.param)


def branch(x):
    return cond(x.sum() > 0, lambda a: xp.matmul(a, W) * 2, lambda a: a - a.mean(), x) + 1


def branch_by_index(x, i):
    return switch(i, [lambda a: a + 1, lambda a: xp.sin(a), lambda a: a * a.max()], x)


def newton(x):
    def improve(carry):
        y, _, n = carry
        new = y - (y * y - x) / (2 * y)
        return new, abs(new - y).max(), n + 1

    def is_far(carry):
        return (carry[1] > 1e-12) & (carry[2] < 50)

    return while_loop(is_far, improve, (xp.ones(x.shape), xp.asarray(1.0), 0))


def power_iteration(a):
    def step(i, v):
        w = xp.matmul(a, v)
        return w / xp.sqrt((w * w).sum())

    v = fori_loop(0, 30, step, xp.ones(a.shape[0]))
    return v, (v * xp.matmul(a, v)).sum()


def nested(x):
    def outer(i, carry):
        def inner(j, c):
            return cond(c.sum() > 3, lambda c: c * 0.5 + j, lambda c: c + i, c)

        return fori_loop(0, i + 1, inner, carry) + x

    return fori_loop(0, 4, outer, x * 0)


def in_place(x, y):
    def yes(a, b):
        a += b
        b *= 2
        return a.sum()

    def no(a, b):
        b -= 1
        return b.sum()

    return cond(x.sum() > y.sum(), yes, no, x, y)


def swapped(x, y):
    return while_loop(
        lambda c: c["n"] < 5,
        lambda c: {"a": c["b"], "b": c["a"] + c["b"], "n": c["n"] + 1},
        {"a": x, "b": y, "n": 0},
    )


def exchanged(x, y):
    """A body returns the arrays of its carry in other places, and views of them."""

    def body(i, c):
        a, b, both = c
        return b, a[::-1], xp.concatenate([both[3:], both[:3] + i])

    return fori_loop(0, 5, body, (x, y, xp.concatenate([x, y])))


def indices(x, n):
    """A body may return its index, and keep nothing of the one before."""
    last = fori_loop(2, n, lambda i, c: i, -7)
    total = fori_loop(n - 3, n, lambda i, c: (c[0] + i, i, c[1]), (x, -1, -1))
    return last, total, fori_loop(5, 2, lambda i, c: c * i, x)


def through_memory(x):
    """Temporaries before, in and after control flow share scratch without meeting."""
    before = [(abs(x) + 1) * k for k in range(1, 4)]
    y = while_loop(lambda c: c.max() < 50, lambda c: c * before[1].max() + before[2] * 0.1, abs(x))
    del before[1:]
    z = xp.sin(y) + y * 2
    return cond(z.max() > 1, lambda: (z + 1) * before[0], lambda: z - 1) + z


FUNCTIONS = {
    "branch": (branch, lambda: (normal(3, 3),)),
    "newton": (newton, lambda: (abs(normal(4)) + 0.1,)),
    "power iteration": (power_iteration, lambda: (lambda m: (xp.matmul(m, m.T),))(normal(4, 4))),
    "nested": (nested, lambda: (normal(3),)),
    "in place": (in_place, lambda: (normal(3), normal(3))),
    "swapped": (swapped, lambda: (normal(2), normal(2))),
    "indices": (indices, lambda: (normal(3), xp.asarray(np.random.default_rng().integers(0, 6)))),
    "exchanged": (exchanged, lambda: (normal(3), normal(3))),
    "memory": (through_memory, lambda: (normal(5),)),
    "index": (
        branch_by_index,
        lambda: (normal(3), xp.asarray(np.random.default_rng().integers(-2, 5))),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_eager_calls(name, patch, any_version):
    """Whatever the device decides, results and arguments have the bits of the eager call."""
    fn, arguments = FUNCTIONS[name]
    graphed_fn = graphed(patch=patch)(fn)
    for _ in range(12):
        assert agrees(graphed_fn, fn, *arguments())
    assert graphed_fn.cache_info()[:2] == (11, 1)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "options", [{"optimize": True}, {"verify": True}, {"outputs": "static"}], ids=str
)
def test_other_options(name, options):
    """Control flow goes together with what else a function can be told."""
    fn, arguments = FUNCTIONS[name]
    graphed_fn = graphed(**options)(fn)
    for _ in range(5):
        assert agrees(graphed_fn, fn, *arguments())


def test_indices_are_those_of_a_range():
    """What a body gets as its index, pass by pass."""
    last, (total, i, before), unchanged = indices(xp.zeros(2), xp.asarray(6))
    assert (int(last), total.tolist(), int(i), int(before)) == (5, [12.0, 12.0], 5, 4)
    assert unchanged.tolist() == [0.0, 0.0]
    assert int(indices(xp.zeros(2), xp.asarray(1))[0]) == -7


FLAGS = {"is_on": xp.asarray(True), "which": xp.asarray(2, "u1")}


def test_deciders_from_everywhere(patch, any_version):
    """Arguments, views of them, replaced attributes, constants, and integers of all types."""

    def fn(x, flag, many):
        y = cond(flag, lambda: x + 1, lambda: x - 1)
        y = cond(many[1], lambda: y * 2, lambda: -y)
        y = cond(FLAGS["is_on"], lambda: y + x, lambda: y - x)
        y = switch(FLAGS["which"], [lambda k=k: y * (k + 2) for k in range(4)])
        return cond(xp.asarray(np.array(False)), lambda: y, lambda: y / 3)

    graphed_fn = graphed(patch=patch)(fn)
    rng = np.random.default_rng(5)
    for _ in range(12):
        FLAGS["is_on"] = xp.asarray(bool(rng.integers(2)))
        FLAGS["which"] = xp.asarray(rng.integers(0, 256), "u1")
        many = xp.asarray(rng.integers(0, 2, 3).astype(bool))
        assert agrees(graphed_fn, fn, normal(3), xp.asarray(bool(rng.integers(2))), many)
    assert graphed_fn.cache_info().misses == 1
    for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
        FLAGS["which"] = xp.asarray(1, dtype)
        many = xp.asarray([True, False, True])
        assert agrees(graphed_fn, fn, normal(3), xp.asarray(True), many)
        FLAGS["which"] = xp.asarray(np.iinfo(dtype).max, dtype)
        assert agrees(graphed_fn, fn, normal(3), xp.asarray(True), many)
        FLAGS["which"] = xp.asarray(np.iinfo(dtype).min, dtype)
        assert agrees(graphed_fn, fn, normal(3), xp.asarray(True), many)


def test_nothing_is_read_on_the_host(monkeypatch):
    """A hit is one launch, and no copy to the host."""
    fn = graphed(newton)
    fn(abs(normal(4)))
    reads = []
    monkeypatch.setattr(device, "reading_hooks", lambda block: reads.append(block))
    x = abs(normal(4))
    assert counted("graph_launches", lambda: fn(x)) == 1
    assert counted("kernel_launches", lambda: fn(x)) == 0
    assert reads == []
    kinds = fn.cache_entries()[0].nodes
    assert kinds["conditional"] == 1


def test_both_branches_are_captured_at_once():
    """A branch that the first call did not take needs no second capture."""
    runs = []

    def fn(x):
        return cond(
            x.sum() > 0, lambda: runs.append("yes") or x + 1, lambda: runs.append("no") or x - 1
        )

    graphed_fn = graphed(fn)
    with pytest.raises(graphjit.CaptureError, match="runs"):
        graphed_fn(xp.ones(2))  # the list is watched: a launch would not append to it
    assert runs == ["yes"]


def test_what_only_the_other_branch_reaches_is_watched():
    """A global array of the branch that was not taken can be replaced."""
    holder = {"w": normal(2)}

    def fn(x):
        return cond(x.sum() > 0, lambda: x + 1, lambda: x * holder["w"])

    graphed_fn = graphed(fn)
    for sign in (1, -1, 1, -1):
        holder["w"] = normal(2)
        assert agrees(graphed_fn, fn, abs(normal(2)) * sign)
    assert graphed_fn.cache_info().misses == 1


def test_a_python_boolean_or_integer_decides_at_once():
    """Nothing is left to the device, and results are new memory all the same."""
    x = normal(3)
    for pred in (True, np.bool_(True)):
        y = cond(pred, lambda a: a, lambda a: 1 / 0, x)
        assert same_bits(x, y)
        assert y.device_ptr != x.device_ptr
    assert same_bits(switch(np.int64(7), [lambda: 1 / 0, lambda: x]), x)

    fn = graphed(lambda x, flag: cond(flag, lambda: x + 1, lambda: x - 1))
    assert same_bits(fn(x, True), x + 1)
    assert "conditional" not in fn.cache_entries()[0].nodes


def test_results_are_new_memory():
    """What a branch returns unchanged is a copy, captured and eager."""

    def fn(x):
        y = cond(x.sum() > 0, lambda: x, lambda: x.T)
        y += 1
        z = while_loop(lambda c: c.sum() < 0, lambda c: c, x)
        z += 1
        return y, z

    assert agrees(graphed(fn), fn, abs(normal(3, 3)))
    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(3, 3) + 10)


def test_numbers_and_other_leaves():
    """Numbers become arrays of NumPy's types; what is neither must be the same in all."""

    def fn(x):
        return cond(x.sum() > 0, lambda: (1, x, None, "a"), lambda: (2, x * 2, None, "a"))

    graphed_fn = graphed(fn)
    for sign in (1, -1, -1, 1):
        x = abs(normal(2)) * sign
        number, array, none, text = graphed_fn(x)
        assert (number.dtype, number.shape, int(number)) == (
            np.dtype(int),
            (),
            1 if sign > 0 else 2,
        )
        assert same_bits(array, x if sign > 0 else x * 2)
        assert (none, text) == (None, "a")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: cond(x > 0, lambda: x, lambda: x), r"cond: pred is an array bool \(3,\)"),
        (lambda x: cond(x.sum(), lambda: x, lambda: x), r"pred is an array float64 \(\)"),
        (lambda x: cond(1, lambda: x, lambda: x), "pred is a int"),
        (lambda x: switch(x.sum(), [lambda: x]), r"index is an array float64 \(\)"),
        (lambda x: switch(1.5, [lambda: x]), "index is a float"),
        (lambda x: switch(0, []), "at least one branch"),
        (lambda x: switch(0, abs, x), "branches is one function"),
        (lambda x: switch(0, [abs, x]), r"switch: branches\[1\] is a Array, no function"),
        (lambda x: cond(True, abs, x), "cond: false_fn is a Array, no function"),
        (lambda x: while_loop(True, abs, x), "while_loop: cond_fn is a bool, no function"),
        (lambda x: fori_loop(0, 3, x, abs), "fori_loop: body_fn is a Array, no function"),
        (lambda x: while_loop(lambda c: True, lambda c: c, x), "cond_fn returns a bool"),
        (lambda x: while_loop(lambda c: c.sum(), lambda c: c, x), "result of cond_fn is an array"),
        (
            lambda x: while_loop(lambda c: c.sum() < 9, lambda c: c[:2], abs(x)),
            r"float64 \(3,\).*\(2,\)",
        ),
        (
            lambda x: while_loop(lambda c: c.sum() < 9, lambda c: c.astype("f4"), abs(x)),
            r"float64 \(3,\).*float32",
        ),
        (
            lambda x: while_loop(lambda c: c[0].sum() < 9, lambda c: [c[0]], (abs(x),)),
            r"while_loop: init is the container \(\*,\)",
        ),
        (lambda x: fori_loop(0.0, 3, lambda i, c: c, x), "lower is a float"),
        (lambda x: fori_loop(0, x, lambda i, c: c, x), "upper is an array"),
        (lambda x: fori_loop(True, 3, lambda i, c: c, x), "lower is a bool"),
    ],
)
def test_what_has_the_wrong_form_is_refused(fn, message):
    """Eager and captured, with the form that was found."""
    with pytest.raises(ControlFlowError, match=message):
        fn(abs(normal(3)) + 0.1)
    with (
        pytest.raises(ControlFlowError, match=message),
        graphjit.capture({"x": normal(3)}) as block,
    ):
        block.outputs = fn(block.inputs["x"])
    assert issubclass(ControlFlowError, TypeError)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda x: x[:2], r"true_fn returns is float64 \(3,\).*false_fn returns is float64 \(2,\)"),
        (lambda x: x.astype("f4"), "float32"),
        (lambda x: (x, x), r"is one array or number, and .* \(\*, \*\)"),
        (lambda x: None, "None"),
    ],
)
def test_branches_that_return_different_things(other, message):
    """The capture sees both branches; the eager result is there, and nothing is kept."""
    fn = graphed(lambda x: cond(x.sum() > 0, lambda: x, lambda: other(x)))
    for _ in range(2):
        with pytest.raises(ControlFlowError, match=message):
            fn(abs(normal(3)))
    assert fn.cache_info().current_entries == 0
    assert agrees(graphed(lambda x: x + 1), lambda x: x + 1, normal(3))


def test_a_read_on_the_host_in_a_body():
    """Is refused by line, also in a function that may be split."""
    for options in ({}, {"on_unsupported": "split"}):

        @graphed(**options)
        def fn(x):
            return while_loop(lambda c: c.sum() < 100, lambda c: c * float(c.max() + 1.5), x)

        with pytest.raises(graphjit.HostReadError, match=r"test_control.py:.*c\.max\(\)"):
            fn(abs(normal(3)) + 1)


def test_split_functions_have_control_flow():
    """Before, between and after reads on the host, each part with its own conditional nodes."""

    def fn(x):
        y = cond(x.sum() > 0, lambda: x + 1, lambda: x - 1)
        if float(y.sum()) > 0:
            y = while_loop(lambda c: c.max() < 50, lambda c: c * 2 + 1, y)
        else:
            y = fori_loop(0, 3, lambda i, c: c - i, y)
        return y * 2

    graphed_fn = graphed(on_unsupported="split")(lambda x: fn(x))
    same = [normal(3) for _ in range(2)]
    for _ in range(3):
        for x in (*same, -same[0]):
            assert agrees(graphed_fn, fn, x.copy())
    (entry,) = graphed_fn.cache_entries()
    assert entry.segments == 4
    assert all(any(n.kind == "conditional" for n in graph.nodes) for graph in entry.graphs)


def test_an_array_that_a_body_keeps():
    """A body must not store what it makes: whether it is written is decided on the device."""
    kept = []

    class Box:
        y = None

    box = Box()

    def store(x):
        box.y = x * 2
        return x

    fn = graphed(lambda x: cond(x.sum() > 0, lambda: x, lambda: store(x)))
    with pytest.raises(graphjit.CaptureError, match=r"branch 1 keeps 1 array .* of 24 bytes"):
        fn(abs(normal(3)))
    assert not kept


def test_random_numbers_of_the_host_in_a_body():
    """How often they are drawn is decided on the device: refused."""
    generator = xp.Generator(3)
    fn = graphed(lambda x: fori_loop(0, 3, lambda i, c: c + generator.uniform(3), x))
    with pytest.raises(graphjit.CaptureError, match="draws random numbers"):
        fn(normal(3))


def test_memory_from_before_is_not_reused_in_a_loop():
    """What a body lets go of is there again in the next pass."""

    def fn(x):
        box = [xp.sin(x)]

        def body(i, c):
            value = box[0] if box else first
            c = c + value
            box.clear()  # in the capture: its memory is free from here on
            return c * xp.cos(c) + xp.exp(-c)

        first = xp.sin(x)
        return fori_loop(0, 4, body, x)

    def plain(x):
        first = c = x
        first = xp.sin(x)
        for _ in range(4):
            c = c + first
            c = c * xp.cos(c) + xp.exp(-c)
        return c

    graphed_fn = graphed(fn)
    for _ in range(5):
        x = normal(4)
        assert same_bits(graphed_fn(x), plain(x))


def test_capture_blocks():
    """A block has no eager call before it, and conditional nodes all the same."""
    with graphjit.capture(inputs={"x": normal(3, 3)}) as block:
        block.outputs = branch(block.inputs["x"])
    for _ in range(4):
        x = normal(3, 3)
        assert same_bits(block.launch(x=x), branch(x))
    block.close()


def test_dynamic_scalars_in_bodies(patch):
    """Numbers that change reach the kernels of a body."""

    def fn(x, lr):
        return fori_loop(0, 3, lambda i, c: c - c * lr, x)

    graphed_fn = graphed(dynamic="lr", patch=patch)(fn)
    for k in range(5):
        assert agrees(graphed_fn, fn, normal(3), 0.1 * k)
    assert graphed_fn.cache_info().misses == 1


def test_a_graphed_function_in_a_body():
    """It is inlined, as in a capture."""
    inner = graphed(lambda x: xp.sin(x) + 1)
    fn = graphed(lambda x: fori_loop(0, 3, lambda i, c: inner(c), x))
    for _ in range(3):
        assert agrees(fn, lambda x: xp.sin(xp.sin(xp.sin(x) + 1) + 1) + 1, normal(3))


def test_an_exception_in_a_body():
    """The user's own comes out, and the next capture works."""

    def fn(x, fail):
        def body(i, c):
            if fail and graphjit._capture.is_capturing_here():
                raise KeyError("mine")
            return c + 1

        return fori_loop(0, 2, body, x)

    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            graphed(fn)(normal(3), fail=True)
    assert agrees(graphed(fn), fn, normal(3), fail=False)


def test_a_foreign_capture():
    """Control flow cannot be part of a capture that somebody else has begun."""
    stream = xp.Stream(non_blocking=True)
    x = normal(3)
    pred = x.sum() > 0
    with stream:
        device.driver().stream_begin_capture(stream.handle, "relaxed")
        with pytest.raises(graphjit.CaptureError, match="has not begun"):
            cond(pred, lambda: x, lambda: x)
        device.driver().stream_abandon_capture(stream.handle)
    gc.collect()


def test_a_driver_without_conditional_nodes(monkeypatch):
    """The refusal says what is missing, and the eager result is there."""
    monkeypatch.setattr(device.driver(), "missing_for_conditionals", lambda: "Get a newer one.")
    x = abs(normal(3, 3))
    with pytest.raises(graphjit.CaptureError, match="Get a newer one") as caught:
        graphed(branch)(x)
    assert same_bits(caught.value.eager_result, branch(x))


def test_inspection():
    """Nodes say in which body of which conditional node they are; a picture has both."""
    fn = graphed(nested)
    fn(normal(3))
    graph = fn.cache_entries()[0].graph
    conditionals = [node for node in graph.nodes if node.kind == "conditional"]
    assert [node.name for node in conditionals] == ["while", "while", "if"]
    assert [node.inside for node in conditionals] == [
        None,
        (conditionals[0].index, 0),
        (conditionals[1].index, 0),
    ]
    assert {node.inside for node in graph.nodes} >= {(conditionals[2].index, k) for k in range(2)}
    assert "cluster" in graphjit.inspection.to_dot(graph)
    assert graphjit.inspection.to_svg(graph).count('class="cluster"') == 4
    assert "while" in graphjit.inspection.to_html(fn.cache_entries()[0])
