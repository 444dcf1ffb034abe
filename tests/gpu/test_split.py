"""Functions of CuPy that read on the host, as trees of graphs: ``on_unsupported="split"``."""

import threading

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, check_libraries, normal, same_bits

from graphjit import CaptureError, graphed

split = graphed(on_unsupported="split")


def number(x):
    """A float that is another one for each array."""
    return x / (1 + abs(float(x.sum())))


def branch(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1, x


def nested(x):
    if bool((x.sum() > 0).item()):
        return x * 3 if (x.max() > 1).get() else x * 5
    return x * 7 if int((x < -1).sum()) > 1 else x * 11


def indices(x):
    (found,) = cp.nonzero(x > 0)
    return x[found] * 2


def mask(x):
    return x[x > 0].sum(), cp.where(x > 0)[0]


def unique(x):
    return cp.unique(cp.sign(x))


def products(x):
    """CuBLAS before and after a read, with a temporary across it."""
    y = x @ x.T
    z = cp.sin(y)
    if y.trace() > 20 * 20:
        return z @ x
    return (y - z) @ x


def in_place(x):
    x += 1
    if (x > 1).any():
        x *= 2
    return x.sum()


def transformed(x):
    spectrum = cp.fft.rfft(x)
    if cp.abs(spectrum[1:]).argmax() > 8:
        return cp.fft.irfft(spectrum * 2)
    return spectrum


def solve(x):
    """Newton's method, with a read in every round."""
    rounds = 0
    while cp.abs(x * x - 2).max() > 1e-5:
        x = (x + 2 / x) / 2
        rounds += 1
    return x, rounds


def to_the_host(x):
    """NumPy works with what was read."""
    limits = cp.asnumpy(cp.stack([x.min(), x.max()]) > 0)
    return x + np.count_nonzero(limits)


CASES = {
    "branch": (branch, lambda: normal(40)),
    "nested": (nested, lambda: normal(3)),
    "indices": (indices, lambda: cp.sign(normal(4)) * abs(normal(4))),
    "mask": (mask, lambda: cp.sign(normal(4)) * abs(normal(4))),
    "unique": (unique, lambda: normal(3)),
    "products": (products, lambda: normal(20, 20)),
    "in place": (in_place, lambda: normal(2)),
    "fft": (transformed, lambda: normal(32)),
    "newton": (solve, lambda: abs(normal(8)) + 0.5),
    "host": (to_the_host, lambda: normal(3)),
}


@pytest.mark.parametrize(("fn", "make"), CASES.values(), ids=list(CASES))
def test_random_paths(fn, make):
    """Fresh numbers on every call: the results are the eager ones, bit for bit."""
    call = split(fn)
    for _ in range(25):
        assert agrees(call, fn, make())
    info = call.cache_info()
    assert (info.misses, info.eager_calls, info.current_entries) == (1, 0, 1)
    (entry,) = call.cache_entries()
    assert entry.segments > 2
    assert entry.host_reads >= 24
    check_libraries()


def test_a_value_that_differs_each_time():
    """Each value has a graph of its own, until there are too many: then calls are eager."""
    call = split(number)
    for _ in range(75):
        assert agrees(call, number, normal(5))
    assert call.cache_info().eager_calls > 5
    assert call.cache_info().current_entries == 0


def test_results_keep_their_memory_and_graphs_hold_none():
    """What calls return is theirs; between calls the tree holds no memory of the pool."""
    call = split(products)
    inputs = [normal(20, 20) for _ in range(10)]
    results = [call(x) for x in inputs]
    assert all(same_bits(got, products(x)) for x, got in zip(inputs, results, strict=True))
    pool = cp.get_default_memory_pool()
    del results
    before = pool.used_bytes()
    call(inputs[0])
    assert pool.used_bytes() == before


def test_threads():
    """Several callers go through one tree at once, each on a stream of its own."""
    call = split(nested)
    call(normal(3))
    wrong = []

    def work():
        with cp.cuda.Stream(non_blocking=True):
            for _ in range(20):
                x = normal(3)
                if not same_bits(call(x), nested(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_part_that_cannot_be_captured():
    """The call says how far it came; later ones run eagerly, and the libraries work."""

    def fn(x):
        if x.sum() > 0:
            return cp.linalg.eigvalsh(x @ x.T)
        return x.sum(axis=0)

    call = split(fn)
    for _ in range(2):
        assert agrees(call, fn, -abs(normal(6, 6)))
    with pytest.raises(CaptureError, match="CUSOLVER") as caught:
        call(abs(normal(6, 6)))
    assert "carried out up to the read at" in caught.value.__notes__[-1]
    assert agrees(call, fn, abs(normal(6, 6)))
    assert call.cache_info().eager_calls == 1
    check_libraries()


def test_large_reads_are_refused():
    """Whole arrays choose no graphs."""
    with pytest.raises(CaptureError, match="reads 40000 bytes on the host"):
        split(lambda x: x + float(x.get().sum()))(normal(10_000))
