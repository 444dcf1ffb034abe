"""Control flow on the device with CuPy: conditional nodes, against the eager call."""

import cupy as cp
import pytest
from helpers.gpu_checks import agrees, normal

from graphjit import graphed
from graphjit.control import cond, fori_loop, switch, while_loop

pytestmark = pytest.mark.conditional


@pytest.fixture(params=["host", "device"])
def patch(request):
    return request.param


def spd(n):
    a = normal(n, n, dtype="f8")
    return a @ a.T + n * cp.eye(n)


def branch(x):
    return cond(x.sum() > 0, lambda a: cp.sin(a) * 2, lambda a: a - a.mean(), x) + 1


def products(x, w):
    return cond(x.sum() > 0, lambda: x @ w, lambda: (w @ x) @ w)


def by_index(x, i):
    return switch(i, [lambda a: a + 1, cp.sin, lambda a: a * a.max()], x)


def newton(x):
    def improve(carry):
        y, _, n = carry
        new = y - (y * y - x) / (2 * y)
        return new, abs(new - y).max(), n + 1

    start = (cp.ones_like(x), cp.asarray(1.0, x.dtype), 0)
    return while_loop(lambda c: (c[1] > 1e-9) & (c[2] < 50), improve, start)


def conjugate_gradient(a, b):
    def step(carry):
        x, r, p, rs = carry
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return x, r, r + new / rs * p, new

    return while_loop(lambda c: c[3] > 1e-18, step, (cp.zeros_like(b), b, b, b @ b))[0]


def power_iteration(a):
    def step(i, v):
        w = a @ v
        return w / cp.sqrt((w * w).sum())

    v = fori_loop(0, 40, step, cp.ones(a.shape[0], a.dtype))
    return v, v @ (a @ v)


def decode(table, token, most):
    """Follow the most likely next token until the end token, 0, or a number of them."""

    def step(carry):
        tokens, token, n = carry
        token = table[token].argmax()
        tokens = cp.where(cp.arange(tokens.size) == n, token, tokens)
        return tokens, token, n + 1

    start = (cp.zeros(16, "i8"), token, cp.asarray(0))
    return while_loop(lambda c: (c[1] != 0) & (c[2] < most), step, start)


def nested(x):
    def outer(i, carry):
        def inner(j, c):
            return cond(c.sum() > 3, lambda c: c * 0.5 + j, lambda c: c + i, c)

        return fori_loop(0, i + 1, inner, carry) + x

    return fori_loop(0, 4, outer, x * 0)


def first_kernels(x, k):
    """The branch that the first call does not take has a kernel that nobody has compiled yet."""
    name = f"unique_{k}"
    kernel = cp.ElementwiseKernel("T x", "T y", f"y = x * {k} + 1", name)
    return cond(x.sum() > 0, lambda: x + 1, lambda: kernel(x))


CASES = {
    "branch": (branch, lambda: (normal(5),)),
    "products": (products, lambda: (normal(8, 8), normal(8, 8))),
    "index": (by_index, lambda: (normal(5), cp.random.randint(-2, 5, dtype="i4"))),
    "newton": (newton, lambda: (abs(normal(7, dtype="f8")) + 0.1,)),
    "conjugate gradient": (conjugate_gradient, lambda: (spd(12), normal(12, dtype="f8"))),
    "power iteration": (power_iteration, lambda: (spd(6),)),
    "decode": (decode, lambda: (normal(9, 9), cp.random.randint(1, 9), 12)),
    "nested": (nested, lambda: (normal(4, dtype="f8"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager_calls(name, patch):
    """Bit for bit, whatever is decided."""
    fn, arguments = CASES[name]
    call = graphed(patch=patch)(fn)
    for _ in range(12):
        given = [cp.asarray(a) if hasattr(a, "dtype") else a for a in arguments()]
        assert agrees(call, fn, *given)
    assert call.cache_info().misses == 1


def test_kernels_that_are_new_in_the_other_branch():
    """They are compiled, and loaded, during the capture."""
    for k in range(3):
        call = graphed(lambda x, k=k: first_kernels(x, k + 2))
        for sign in (1, -1, 1, -1):
            x = abs(normal(6)) * sign
            assert agrees(call, lambda x, k=k: first_kernels(x, k + 2), x)


def test_hits_are_native():
    """Conditional nodes change nothing for the compiled hit."""
    call = graphed(newton)
    for _ in range(3):
        call(abs(normal(7, dtype="f8")) + 0.1)
    (entry,) = call._self_state.cache.entries()
    assert all(native.is_open for native in entry.executable.native)
    assert call.cache_entries()[0].nodes["conditional"] == 1


def test_many_decisions(patch):
    """Hundreds of launches in a row, each decided by its own arguments."""
    call = graphed(patch=patch)(by_index)
    given = [(normal(5), cp.asarray(k % 7 - 2, "i4")) for k in range(300)]
    expected = [by_index(*pair) for pair in given]
    got = [call(*pair) for pair in given]
    for k, (left, right) in enumerate(zip(expected, got, strict=True)):
        assert left.tobytes() == right.tobytes(), f"call {k}: {given[k]}: {left} and {right}"
