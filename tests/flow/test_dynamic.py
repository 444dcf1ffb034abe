"""Dynamic scalars: numbers that change from call to call, with one graph for all of them."""

import functools
import math
import sys

import numpy as np
import pytest
from helpers.flow_checks import agrees, normal

from graphjit import DynamicScalarError, graphed
from graphjit.testing import simulated as xp


def scaled(x, alpha):
    return x * alpha + alpha


def adam(x, gradient, alpha, step):
    for _ in range(4):
        x = x - alpha * gradient / (xp.sqrt(x * x) + step)
    return x


def check(fn, dynamic, calls, **options):
    """Call on fresh numbers; all but the first are hits of one entry, and equal to eager calls."""
    graphed_fn = graphed(dynamic=dynamic, **options)(fn)
    for arguments in calls:
        assert agrees(graphed_fn, fn, *arguments)
    info = graphed_fn.cache_info()
    assert (info.misses, info.current_entries, info.eager_calls) == (1, 1, 0)
    return graphed_fn.cache_entries()[0]


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("outputs", ["fresh", "static"])
@pytest.mark.parametrize("verify", [False, True])
def test_numbers_change_and_the_graph_stays(patch, outputs, verify):
    """Every call is served with its own numbers, whichever way the words are written."""
    rng = np.random.default_rng(3)
    calls = [(normal(6), normal(6), float(rng.normal()), 10.0**-k) for k in range(6)]
    options = {"patch": patch, "outputs": outputs, "verify": verify}
    entry = check(adam, ("alpha", "step"), calls, **options)
    assert entry.scalar_words == 8
    assert "alpha = any float" in str(entry.signature)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (np.float64, [2.5, -0.0, 0.0, math.inf, -math.inf, 1e-300, 5e-324]),
        (np.float32, [2.5, 1e300, -1e-30, math.pi]),
        (np.int64, [3, -4, 0, (1 << 62) - 1, -(1 << 62)]),
        (np.int16, [3, -4, 0, 1000]),
        (np.complex128, [1 + 2j, -0.5j, 3 + 0j]),
        (np.float32, [np.float32(v) for v in (1.5, -2.5, 0.1)]),
        (np.float16, [np.float16(v) for v in (1.5, -2.5, 6e4)]),
        (np.float64, [np.float32(v) for v in (1.5, -2.5, 0.1)]),
        (np.int32, [np.int8(v) for v in (-128, 127, 0, 5)]),
        (np.uint8, [np.uint8(v) for v in (0, 255, 7)]),
        (np.complex64, [np.complex64(v) for v in (1j, 2 - 3j)]),
    ],
)
def test_types(dtype, numbers):
    """Python's and NumPy's numbers of all widths, in arrays of several dtypes."""
    check(scaled, "alpha", [(normal(5).astype(dtype), number) for number in numbers])


def test_nan():
    """A NaN is a number like the others."""
    fn = graphed(dynamic="alpha")(scaled)
    fn(xp.ones(3), 1.0)
    assert np.isnan(fn(xp.ones(3), math.nan).get()).all()
    assert fn(xp.ones(3), 2.0).tolist() == [4.0] * 3
    assert fn.cache_info().misses == 1


def test_a_number_by_keyword_and_by_default():
    """However it is given, and for methods too."""

    class Model:
        @functools.partial(graphed, dynamic="alpha")
        def scaled(self, x, *, alpha=2.0):
            return x * alpha

    model, x = Model(), normal(4)
    results = [model.scaled(x), model.scaled(x, alpha=3.0), model.scaled(alpha=4.0, x=x)]
    assert [r.tolist() for r in results] == [(x * a).tolist() for a in (2.0, 3.0, 4.0)]
    assert Model.scaled.cache_info().misses == 1


def test_other_types_are_other_signatures():
    """A type is part of the signature; what is no number is keyed as usual."""
    fn = graphed(dynamic="alpha")(lambda x, alpha: x if alpha is None else x * alpha)
    for alpha in (2, 2.5, np.float32(2), True, None, 3, 4.5, np.float32(3), False, None):
        assert fn(xp.ones(2), alpha).tolist() == [1.0 if alpha is None else float(alpha)] * 2
    assert fn.cache_info().misses == 6  # both booleans have one of their own


def test_a_step_counter():
    """A number that is another one on each of many calls: one entry."""
    fn = graphed(dynamic="step")(lambda x, step: x / (1 + xp.zeros(1) + step))
    x = normal(3)
    for step in range(300):
        assert fn(x, step).tolist() == (x / (1.0 + step)).tolist()
    assert fn.cache_info()[:4] == (299, 1, 128, 1)


def test_a_number_that_nothing_uses():
    """A number without a place in any kernel may be anything."""
    check(lambda x, alpha: x + 1, "alpha", [(normal(3), float(k)) for k in range(4)])


def test_a_number_too_large_for_the_kernel():
    """What does not fit the parameter is no hit: the call is eager, with the eager error."""
    store = xp.kernel(params=["int8", "pointer"])(
        lambda memory, n, ptr: memory.array(ptr, (1,), "int64").__setitem__(0, n)
    )

    def fn(x, n):
        y = x + 0
        store(n, y)
        return y

    call = graphed(dynamic="n")(fn)
    x = xp.zeros(1, dtype=np.int64)
    assert [call(x, n).tolist() for n in (3, -128, 127)] == [[3], [-128], [127]]
    with pytest.raises(OverflowError):
        call(x, 128)
    assert call(x, 5).tolist() == [5]
    assert call.cache_entries()[0].scalar_words == 1


# -- what is refused

ALL_VERSIONS = {
    "derived": (lambda x, a: x * (a * 2), r"is computed with in Python \(`mul`\)"),
    "reflected": (lambda x, a: x * (2 - a), r"is computed with in Python \(`rsub`\)"),
    "negative": (lambda x, a: x * -a, r"is computed with in Python \(`neg`\)"),
    "branch": (lambda x, a: x * a if a > 0 else x, r"decides something in Python \(`gt`\)"),
    "truth": (lambda x, a: x * a if a else x, r"decides something in Python \(`bool`\)"),
    "limit": (lambda x, a: x * min(a, 1.0), r"decides something in Python"),
    "text": (lambda x, a: x * float(f"{a}"), r"is made text of in Python"),
    "key": (lambda x, a: x * {1.5: 2.0}.get(a, 3.0), r"decides something in Python \(`hash`\)"),
    "numpy": (lambda x, a: x * np.sqrt(a), r"is computed with in Python \(`sqrt`\)"),
    "attribute": (lambda x, a: x * a.real, r"is computed with in Python \(`real`\)"),
    "caught": (lambda x, a: _caught(x, a), r"is computed with in Python \(`mul`\)"),
    "root": (lambda x, a: x * math.sqrt(abs(a)), r"is computed with in Python \(`abs`\)"),
    "returned": (lambda x, a: (x * a, a), r"is returned"),
    "uploaded": (lambda x, a: x + xp.asarray(a), r"host data that the function copies"),
    "converted": (lambda x, a: x * (np.float32(a) * 2), r"used in a derived form: parameter 1 of"),
    "clipped": (lambda x, a: x * min(np.float32(a), np.float32(9)), r"used in a derived form"),
    "threshold": (lambda x, a: x * 2 if np.float32(a) > 1e3 else x, r"decides what is launched"),
    "percent": (lambda x, a: x * len("%.3f" % a), r"used in a derived form|is computed with"),  # noqa: UP031
    "raises": (lambda x, a: _positive(x, np.float64(np.asarray(a))), r"decides what is done"),
}


def _caught(x, a):
    try:
        return x * (a * 2)
    except DynamicScalarError:
        return x


def _positive(x, a):
    if a < 0:
        raise ValueError("must be positive")
    return x * a


@pytest.mark.parametrize(("fn", "reason"), ALL_VERSIONS.values(), ids=list(ALL_VERSIONS))
def test_what_is_refused(fn, reason):
    """Whatever Python does with the number: refused with the reason, after the eager call."""
    call = graphed(dynamic="a")(fn)
    x = normal(4)
    with pytest.raises(DynamicScalarError, match=reason) as caught:
        call(x, 1.5)
    assert "graphed(dynamic=...)" in str(caught.value)
    assert "`a`" in str(caught.value)
    expected, got = fn(x, 1.5), caught.value.eager_result
    assert str(expected) == str(got)
    assert call.cache_info().current_entries == 0
    allowed = graphed(dynamic="a", on_unsupported="eager")(fn)
    assert [str(allowed(x, v)) for v in (1.5, 2.5)] == [str(fn(x, v)) for v in (1.5, 2.5)]


INTEGERS = {
    "shape": (lambda x, n: x[n:] * 2, r"decides something in Python \(`index`\)"),
    "range": (lambda x, n: sum((x for _ in range(n)), x), r"decides something in Python"),
    "parity": (lambda x, n: x * (n % 2), r"is computed with in Python \(`mod`\)"),
    "store": (lambda x, n: setattr(_kept, "n", n) or x, r"cannot be captured"),
}
_kept = type("Kept", (), {"n": 0})()


@pytest.mark.parametrize(("fn", "reason"), INTEGERS.values(), ids=list(INTEGERS))
def test_integers_that_are_refused(fn, reason):
    """Shapes, counts and remainders."""
    with pytest.raises(Exception, match=reason):
        graphed(dynamic="n")(fn)(normal(4), 2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="calls are seen by sys.monitoring")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x * (int(n) % 2),
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x + divmod(n, 2)[0],
    ],
    ids=["int", "sqrt", "divmod"],
)
def test_functions_in_c_that_read_the_number(fn):
    """What reads the number without asking it is seen where it is called."""
    with pytest.raises(DynamicScalarError, match=r"is computed with in Python .*test_dynamic\.py:"):
        graphed(dynamic="n")(fn)(normal(4), 3)


def test_an_integer_passes_for_one():
    """Questions about its type are answered as for the number itself."""

    def fn(x, n, a):
        assert isinstance(n, int)
        assert isinstance(a, float)
        return x * n + a

    check(fn, ("n", "a"), [(normal(3), n, n / 3) for n in range(1, 5)])


def test_random_numbers_beside_a_dynamic_scalar_are_refused():
    """A generator of the host is called with the number before each launch: not supported."""
    rng = xp.Generator(5)
    with pytest.raises(DynamicScalarError, match="random numbers"):
        graphed(dynamic="a")(lambda x, a: x * a + rng.uniform(4))(normal(4), 2.0)


def test_names_are_checked():
    """A name that is no parameter, or is static too, is refused when the function is decorated."""
    with pytest.raises(TypeError, match=r"dynamic=\.\.\.\) names \['beta'\]"):
        graphed(dynamic="beta")(scaled)
    with pytest.raises(TypeError, match="both static and dynamic"):
        graphed(dynamic="alpha", static="alpha")(scaled)


def test_explain_names_the_type():
    """A call whose number is of another type is explained."""
    fn = graphed(dynamic="alpha")(scaled)
    fn(xp.ones(2), 2.0)
    assert fn.explain(xp.ones(2), 3.0).hit
    (line,) = fn.explain(xp.ones(2), 3).differences
    assert line == "alpha: now any int, before any float"


@pytest.mark.parametrize("value", [0.5, 1.0, -1.0, 2.0, 0.0, 1.6180339887])
def test_what_an_earlier_launch_left_behind_is_no_scalar(value):
    """Bytes that nobody writes hold numbers of earlier launches, those of other captures, too.

    Also if the call's own number is one of those that captures are made with.
    """

    def plain(x, lr):
        z = xp.matmul(x, x)  # parameters with padding, over those of the last launch
        z = xp.matmul(z, x)
        return z * lr + lr

    fn = graphed(dynamic="lr")(plain)
    for k in range(3):
        xp.matmul(normal(3, 3), normal(3, 3)) * (value * k)
        assert agrees(fn, plain, normal(3, 3), value)
    assert fn.cache_info()[:2] == (2, 1)
