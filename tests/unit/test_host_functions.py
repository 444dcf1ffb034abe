"""What launches in flight have still to call: kept until then, and let go of by other threads."""

import threading

import numpy as np
import pytest

from graphjit._driver import host_functions


class Function:
    """Says in which thread it was called, and in which it was let go of."""

    def __init__(self, log, fails=False):
        self.log, self.fails = log, fails

    def __call__(self):
        self.log.append(("called", threading.current_thread().name))
        if self.fails:
            raise ValueError("mine")

    def __del__(self):
        self.log.append(("dropped", threading.current_thread().name))


def call_in_a_thread(number):
    thread = threading.Thread(target=host_functions.call, args=(number,), name="driver")
    thread.start()
    thread.join()


def test_the_calling_thread_leaves_the_driver_to_others():
    """It may make no call of the driver's: what is freed there is freed later."""
    log, number = [], host_functions.new_number()

    def function():
        assert host_functions.is_calling()
        host_functions.later(
            lambda name: log.append((name, threading.current_thread().name)), "free"
        )

    host_functions.arm(number, function)
    assert host_functions.n_armed() == 1
    call_in_a_thread(number)
    assert log == []
    assert host_functions.n_armed() == 0
    host_functions.run_deferred()
    assert log == [("free", threading.current_thread().name)]
    assert not host_functions.is_calling()
    host_functions.later(log.append, "now")
    assert log[-1] == "now"


def test_nothing_is_kept_behind_a_call():
    """The function goes with it."""
    log, number = [], host_functions.new_number()
    host_functions.arm(number, Function(log))
    call_in_a_thread(number)
    assert [what for what, _ in log] == ["called", "dropped"]


def test_a_number_is_kept_while_launches_are_in_flight():
    """Its graph may be gone by then; each launch has its own call, in order."""
    log, number = [], host_functions.new_number()
    functions = [lambda k=k: log.append(k) for k in range(3)]
    for function in functions:
        host_functions.arm(number, function)
    host_functions.forget(number)
    for _ in range(3):
        call_in_a_thread(number)
    assert log == [0, 1, 2]
    host_functions.forget(number)
    with pytest.raises(KeyError):
        host_functions.call(number)


def test_a_launch_that_failed_takes_its_call_back():
    """The one that was armed last."""
    log, number = [], host_functions.new_number()
    host_functions.arm(number, lambda: log.append(1))
    host_functions.arm(number, lambda: log.append(2))
    host_functions.disarm(number)
    host_functions.call(number)
    assert log == [1]
    assert host_functions.n_armed() == 0


def test_a_function_that_raises_is_called_once():
    """It is gone afterwards."""
    log, number = [], host_functions.new_number()
    host_functions.arm(number, Function(log, fails=True))
    with pytest.raises(ValueError, match="mine"):
        host_functions.call(number)
    assert host_functions.n_armed() == 0


def test_views_keep_the_owner():
    """Of whatever shape they are."""
    data = np.arange(8, dtype="u1")
    owner = Function(log := [])
    view = host_functions.owned_bytes(data.ctypes.data, 8, owner)[2:].reshape(2, 3).T
    del owner
    assert log == []
    assert view.tolist() == [[2, 5], [3, 6], [4, 7]]
    del view
    assert [what for what, _ in log] == ["dropped"]
