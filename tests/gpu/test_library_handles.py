"""Handles of libraries, which belong to a thread, outlive it as long as a graph needs them."""

import gc
import threading

import cupy as cp
import pytest
from helpers.gpu_checks import agrees, in_threads, normal, same_bits

from graphjit import graphed
from graphjit._adapters.cupy_libraries import libraries_in_use, library_handles


def spd(n):
    a = normal(n, n, dtype="f8")
    return a @ a.T + n * cp.eye(n)


FUNCTIONS = {
    "inv": lambda a, b: cp.linalg.inv(a) @ b,
    "solve": lambda a, b: cp.linalg.solve(a, b),
    "cholesky": lambda a, b: cp.linalg.cholesky(a) + b,
    "matmul": lambda a, b: (a @ b) @ a,
    "det": lambda a, b: cp.linalg.det(a) * b,
}


def in_a_thread(function):
    """Run a function in a thread that ends; its handles go with it."""
    failed = []

    def work():
        try:
            function()
            cp.cuda.Device().synchronize()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_a_graph_captured_in_a_thread_that_has_ended(fn):
    """Launches from other threads work on the memory of the handle that the capture used."""
    call = graphed(fn)
    in_a_thread(lambda: call(spd(6), spd(6)))
    blocks = [cp.full(1 << 20, cp.nan, "f4") for _ in range(8)]  # what was freed is reused
    for _ in range(5):
        assert agrees(call, fn, spd(6), spd(6))
        in_a_thread(lambda: agrees(call, fn, spd(6), spd(6)))
    assert call.cache_info().misses == 1
    del blocks


def test_handles_are_found():
    """The handles that a thread has used are among what its graphs keep."""
    cp.linalg.solve(spd(4), spd(4))
    kept = libraries_in_use(frozenset())
    raw = {getattr(handle, "handle", None) for handle in kept}
    assert {cp.cuda.device.get_cublas_handle(), cp.cuda.device.get_cusolver_handle()} <= raw


def test_other_state_is_left_alone():
    """Only dictionaries of handles are read, and only this thread's."""
    state = threading.local()
    state.cublas_handles, state.other, state.some_handles = {0: "a", 1: "b"}, {0: "c"}, None
    assert library_handles([state]) == ["a", "b"]
    seen = []
    in_a_thread(lambda: seen.append(library_handles([state])))
    assert seen == [[]]


def matrix(n):
    """Return a symmetric positive definite matrix."""
    a = normal(n, n, dtype="f8")
    return a @ a.T / n + cp.eye(n)


def signal(n):
    """Return complex numbers."""
    return normal(n) + 1j * normal(n)


@pytest.mark.parametrize(
    ("argument", "work"),
    [
        (lambda: signal(1 << 18), lambda a, k: cp.fft.fft(cp.fft.fft(a + k)) * k),
        (lambda: signal(3 * 5 * 7 * 11 * 13), lambda a, k: cp.fft.ifft(a * k) + k),
        (lambda: matrix(96), lambda a, k: cp.linalg.inv(cp.linalg.inv(a * k)) + k),
        (lambda: matrix(64), lambda a, k: cp.linalg.cholesky(a * k) + k),
    ],
    ids=["fft", "ifft", "inv", "cholesky"],
)
def test_graphs_that_share_memory_of_a_library(argument, work):
    """Launches on several streams at once give what eager calls give, one after the other."""
    fns = [lambda a, k=k: work(a, k) for k in (1, 2, 3)]
    calls = [graphed(fn) for fn in fns]
    for call in calls:
        call(argument())
    arguments = [argument() for _ in range(12)]
    expected = [[fn(a) for a in arguments] for fn in fns]
    cp.cuda.Device().synchronize()
    results = [None] * len(fns)

    def launch(i):
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(20):
                results[i] = [calls[i](a) for a in arguments]
            stream.synchronize()

    in_threads(len(fns), launch)
    for want, got in zip(expected, results, strict=True):
        assert all(map(same_bits, want, got))
    assert all(call.cache_info().misses == 1 for call in calls)
