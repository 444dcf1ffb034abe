"""A graphed function that another one calls is a child graph of it, on the GPU."""

import cupy as cp
import pytest
from helpers.gpu_checks import agrees, normal

from graphjit import graphed
from graphjit.control import cond, while_loop


@graphed
def layer(x, w):
    return cp.tanh(x @ w)


@graphed
def two_layers(x, w):
    return layer(layer(x, w), w) - x


def network(x, w):
    y = two_layers(x, w) + 1
    x += layer(y, w)
    return y, two_layers(y, w)


def forked(x, w):
    side = cp.cuda.Stream(non_blocking=True)
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        z = layer(x, w)
    y = layer(x * 3, w) @ w
    side.synchronize()
    return z + y


def looped(x, w):
    @graphed
    def chosen(x):
        return cond(x.sum() > 0, lambda: layer(x, w), lambda: x - 1)

    return while_loop(lambda c: c[1] < 4, lambda c: (chosen(c[0]), c[1] + 1), (x, 0))[0] + chosen(x)


def sorted_inside(x, w):
    @graphed
    def order(x):
        return cp.sort(x, axis=0), cp.argsort(x, axis=1)

    return order(x), cp.fft.fft(layer(x, w))


N_CHILDREN = {network: 7, forked: 2, looped: 4, sorted_inside: 2}


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize(
    "fn",
    [pytest.param(fn, marks=[pytest.mark.conditional] * (fn is looped)) for fn in N_CHILDREN],
    ids=lambda fn: fn.__name__,
)
def test_calls_are_child_graphs(fn, patch):
    """The outer call's arrays are patched into the nodes of child graphs, at every call."""
    call = graphed(patch=patch)(fn)
    for _ in range(5):
        assert agrees(call, fn, normal(6, 6, dtype="f8"), normal(6, 6, dtype="f8"))
    assert call.cache_info()[:2] == (4, 1)
    (entry,) = call.cache_entries()
    assert entry.nodes["child_graph"] == N_CHILDREN[fn]
    assert entry.patch_kind == patch
