"""The decorator: every kind of callable, every option, and what can be asked."""

import functools
import gc
import inspect

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, hits, n_entries, normal, same_bits
from helpers.processes import run_python
from rich.console import Console

import graphjit
from graphjit import graphed, inspection

# -- callables


def scaled(x, factor=2.0, *, shift=0.0):
    """Return x * factor + shift."""
    return x * factor + shift


class Layer:
    factor = 3.0

    def __init__(self):
        self.w = normal(6)

    def __call__(self, x):
        return x * self.w

    def plain(self, x):
        return x + self.w

    method = graphed(plain)

    @graphed
    @classmethod
    def class_inside(cls, x):
        return x * cls.factor

    @classmethod
    @graphed
    def class_outside(cls, x):
        return x * cls.factor

    @graphed
    @staticmethod
    def static_inside(x):
        return x + 7

    @staticmethod
    @graphed
    def static_outside(x):
        return x + 7


class Other(Layer):
    factor = 4.0


CALLABLES = {
    "function": lambda: (graphed(scaled), scaled),
    "lambda": lambda: (graphed(lambda x: x - 1), lambda x: x - 1),
    "partial": lambda: (graphed(functools.partial(scaled, factor=5.0)), lambda x: x * 5.0 + 0.0),
    "partial with an array": lambda: (
        graphed(functools.partial(scaled, factor=_held)),
        lambda x: x * _held + 0.0,
    ),
    "object": lambda: (graphed(_layer), _layer),
    "bound method": lambda: (graphed(_layer.plain), _layer.plain),
    "method": lambda: (_layer.method, _layer.plain),
    "unbound method": lambda: (
        functools.partial(Layer.method, _layer),
        functools.partial(Layer.plain, _layer),
    ),
    "class method inside": lambda: (Layer.class_inside, lambda x: x * 3.0),
    "class method inside, of an instance": lambda: (Other().class_inside, lambda x: x * 4.0),
    "class method outside": lambda: (Other.class_outside, lambda x: x * 4.0),
    "static method inside": lambda: (Layer.static_inside, lambda x: x + 7),
    "static method inside, of an instance": lambda: (_layer.static_inside, lambda x: x + 7),
    "static method outside": lambda: (_layer.static_outside, lambda x: x + 7),
    "ufunc": lambda: (graphed(cp.sin), cp.sin),
    "fused function": lambda: (graphed(_fused), _fused),
    "library function": lambda: (graphed(cp.sort), cp.sort),
}
_layer = None
_held = None


@cp.fuse()
def _fused(x):
    return x * x + 1


@pytest.mark.parametrize("name", CALLABLES)
def test_callables(name, monkeypatch):
    """Whatever can be called with arrays can be graphed, and is served by its graph."""
    monkeypatch.setitem(globals(), "_layer", Layer())
    monkeypatch.setitem(globals(), "_held", normal(6))
    fn, plain = CALLABLES[name]()
    info = (fn.func if type(fn) is functools.partial else fn).cache_info
    before = info().hits
    for _ in range(4):
        assert agrees(fn, plain, normal(6))
    assert info().hits >= before + 3


def test_the_decorated_function_looks_like_the_plain_one():
    """Name, docstring and signature are those of the function."""
    fn = graphed(scaled)
    assert (fn.__name__, fn.__doc__) == (scaled.__name__, scaled.__doc__)
    assert inspect.signature(fn) == inspect.signature(scaled)
    assert "scaled" in repr(fn)


def test_a_graphed_function_is_not_graphed_again():
    """Decorating twice is an error."""
    with pytest.raises(graphjit.GraphjitError, match="graphed already"):
        graphed(graphed(scaled))


# -- options


@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 0},
        {"max_entries": 0},
        {"outputs": "new"},
        {"patch": "none"},
        {"on_unsupported": "ignore"},
    ],
)
def test_bad_options_are_refused_at_once(options):
    """An option that does not exist is an error when the function is decorated."""
    (name,) = options
    with pytest.raises(ValueError, match=name):
        graphed(**options)(scaled)


def test_warmup():
    """With warmup=3 the third call of a signature is captured, and the fourth is a hit."""
    fn = graphed(warmup=3)(scaled)
    entries = []
    for _ in range(5):
        assert agrees(fn, scaled, normal(5))
        entries.append(n_entries(fn))
    assert entries == [0, 0, 1, 1, 1]
    assert fn.cache_info()[:2] == (2, 3)


def test_static_outputs():
    """With outputs="static" all hits of a signature return the same memory, newly written."""
    fn = graphed(outputs="static")(lambda x: (x * 2, x[1:] - 1))
    x = normal(50)
    fn(x)
    first = fn(x)
    assert same_bits(first, (x * 2, x[1:] - 1))
    y = normal(50)
    second = fn(y)
    assert [a.data.ptr for a in first] == [a.data.ptr for a in second]
    assert same_bits(first, (y * 2, y[1:] - 1))


def test_verify_accepts_what_is_right():
    """With verify=True a right graph gives its result, and in-place work is done once."""

    def fn(counter, x):
        counter += 1
        return cp.sort(x) * 2

    graphed_fn = graphed(verify=True)(fn)
    counter = cp.zeros(3)
    for k in range(4):
        x = normal(40)
        assert same_bits(graphed_fn(counter, x), cp.sort(x) * 2)
        assert counter.tolist() == [k + 1] * 3
    assert hits(graphed_fn) == 3


def test_verify_finds_what_is_hidden():
    """With verify=True a result that depends on hidden host state is an error."""
    hidden = iter(range(100))
    fn = graphed(verify=True)(lambda x: x + next(hidden))
    x = normal(4)
    fn(x)
    with pytest.raises(graphjit.VerificationError, match="output 0"):
        fn(x)


def test_calls_that_cannot_be_graphs_run_eagerly_on_request():
    """With on_unsupported="eager" a refused signature runs eagerly; others keep their graphs."""

    def fn(x, reads):
        return x * float(x.sum()) if reads else x * 2

    graphed_fn = graphed(on_unsupported="eager")(fn)
    for _ in range(3):
        for reads in (True, False):
            assert agrees(graphed_fn, fn, normal(5), reads)
    assert graphed_fn.cache_info() == (2, 2, 128, 1, 0, 2)
    explanation = graphed_fn.explain(normal(5), True)
    assert not explanation.hit
    assert "reads the contents" in explanation.refusal
    graphed_fn.cache_clear()
    assert graphed_fn.explain(normal(5), True).refusal is None


def test_exceptions_are_never_swallowed():
    """With on_unsupported="eager" what the function itself raises comes out."""

    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graphed(on_unsupported="eager")(fn)(normal(3))


def test_too_much_to_watch_runs_eagerly_on_request():
    """A function that reaches too many values is refused, or runs eagerly if that was asked."""
    table = [[k] * 4000 for k in range(6)]

    def fn(x):
        return x * len(table)

    with pytest.raises(graphjit.GraphjitError, match="values"):
        graphed(fn)(normal(3))
    eager = graphed(on_unsupported="eager")(fn)
    for _ in range(3):
        assert agrees(eager, fn, normal(3))


def test_the_off_switch():
    """With GRAPHJIT_DISABLE, read at import, the plain function runs and nothing is cached."""
    code = (
        "import cupy as cp, graphjit\n"
        "fn = graphjit.graphed(lambda x: x + 1)\n"
        "assert [float(fn(cp.ones(1) * k)[0]) for k in range(3)] == [1, 2, 3]\n"
        "print(fn.cache_info()[:4])"
    )
    done = run_python("-c", code, GRAPHJIT_DISABLE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(0, 0, 128, 0)"


def test_one_eager_call():
    """fn.eager runs the plain function once, bound or not, and is counted."""
    fn = graphed(scaled)
    x = normal(4)
    fn(x)
    assert same_bits(fn.eager(x, shift=1.0), scaled(x, shift=1.0))
    assert fn.cache_info() == (0, 1, 128, 1, 0, 1)
    layer = Layer()
    x = normal(6)
    assert same_bits(layer.method.eager(x), layer.plain(x))


# -- questions


def test_explain():
    """Explaining a call says whether a call would hit, and names what differs; it runs nothing."""

    def fn(x, y, mode="a"):
        return x + y

    graphed_fn = graphed(fn)
    x, y = normal(4, 5), normal(4, 5)
    assert "nothing has been captured" in str(graphed_fn.explain(x, y))
    graphed_fn(x, y)
    assert graphed_fn.explain(y, x)
    assert str(graphed_fn.explain(y, x)) == "hit"
    for arguments, keywords, wanted in (
        ((x.astype(np.float64), y), {}, ("x: now float64", "before float32")),
        ((normal(2, 5), y), {}, ("x: now", "(2, 5)", "(4, 5)")),
        ((x, y), {"mode": "b"}, ("mode: now 'b', before 'a'",)),
        ((x, x), {}, ("y", "x + 0 bytes")),
        ((x, cp.asfortranarray(y)), {}, ("y: now", "strides")),
    ):
        explanation = graphed_fn.explain(*arguments, **keywords)
        assert not explanation
        for text in wanted:
            assert text in str(explanation)
    assert graphed_fn.cache_info()[:2] == (0, 1)


def test_explain_names_a_changed_implicit_value():
    """The explanation names a number or an array reached through a closure that has changed."""
    factor = 2.0
    fn = graphed(lambda x: x * factor)
    x = normal(4)
    fn(x)
    factor = 3.0
    assert "factor" in str(fn.explain(x))


def test_entries_say_what_they_are():
    """cache_entries lists nodes, bytes and counts, as data and as a table."""
    table = np.arange(100, dtype=np.float32)
    fn = graphed(lambda x: cp.sort(x + cp.asarray(table)) * 2)
    for _ in range(3):
        fn(normal(100))
    (entry,) = fn.cache_entries()
    assert (entry.hits, entry.launches) == (2, 2)
    assert sum(entry.nodes.values()) >= 3
    assert entry.relocations >= 6
    assert entry.output_nbytes >= 400
    assert entry.constant_nbytes >= 400
    assert entry.capture_us > 0
    assert entry.instantiate_us > 0
    assert "float32 (100,)" in str(entry)
    console = Console(width=1000)
    with console.capture() as captured:
        console.print(inspection.table(fn.cache_entries()))
    assert "float32 (100,)" in captured.get()


def test_the_caches_of_the_process():
    """graphjit.caches lists a function under its name, and no longer when it is gone."""

    def in_no_other_test(x):
        return x + 1

    fn = graphed(in_no_other_test)
    fn(normal(3))
    (name,) = [name for name in graphjit.caches() if "in_no_other_test" in name]
    assert graphjit.caches()[name].misses == 1
    del fn
    gc.collect()
    assert name not in graphjit.caches()


def test_errors_carry_the_eager_result():
    """A refused call has run eagerly once: its result is in the error, and said in its note."""
    x = normal(6)
    with pytest.raises(graphjit.HostReadError) as caught:
        graphed(lambda x: x * float(x.max()))(x)
    assert same_bits(caught.value.eager_result, x * float(x.max()))
    assert any("eager_result" in note for note in caught.value.__notes__)


def test_static_outputs_beside_the_callers_own_arrays():
    """With outputs="static" an argument, or a view of one, comes back as that of this call."""
    fn = graphed(outputs="static")(lambda x: (x, x + 1, x[1:]))
    for _ in range(5):
        x = normal(8)
        same, plus, view = fn(x)
        assert same is x
        assert same_bits(plus, x + 1)
        assert view.data.ptr == x.data.ptr + 4


def test_static_outputs_are_the_same_memory():
    """With outputs="static" every call writes to the same memory, natively served or not."""
    fn = graphed(outputs="static")(lambda x: x * 2)
    pointers = set()
    for _ in range(6):
        x = normal(8)
        out = fn(x)
        assert same_bits(out, x * 2)
        pointers.add(out.data.ptr)
    assert len(pointers) == 2  # the eager call's, and the entry's


def test_a_static_result_fed_back():
    """A call on its own static result writes elsewhere: two entries take turns, no bit is lost."""

    def step(x):
        y = cp.zeros_like(x)
        y[1:] = x[:-1]
        return (y @ x) * 0.1 + x

    call = graphed(outputs="static")(step)
    state = expected = normal(32, 32)
    for _ in range(12):
        state, expected = call(state), step(expected)
        assert same_bits(state, expected)
    assert (call.cache_info().misses, hits(call)) == (2, 10)
