"""What the walk from a function finds, by path; and which code it learns names from."""

import sys
import threading
import types

import numpy as np
import pytest

from graphjit import _implicit
from graphjit._adapters.registry import simulated_adapter
from graphjit._implicit import find_implicit
from graphjit._ran_code import global_names, watch_code
from graphjit._watch import Watch
from graphjit.errors import CaptureError
from graphjit.testing import simulated as xp

ADAPTER = simulated_adapter()
some_global = 3
unmentioned_global = 4


def watch_of(fn, *args) -> Watch:
    """Run a function and find what it reaches."""
    objects = [("self", 0, args[0])] if args else []
    with watch_code(ADAPTER.library_modules) as ran:
        fn(*args)
    return find_implicit(fn, objects, ADAPTER, ran)


def paths(watched) -> set[str]:
    """Return the paths of a watch."""
    return {step.path for step in watched.steps}


class Model:
    factor = 2

    def __init__(self):
        self.w = xp.ones(2)
        self.parts = {"a": [xp.ones(2), 5]}
        self.unused_number = 7
        self.unused_array = xp.ones(2)

    def run(self):
        return self.w * self.factor + self.parts["a"][0]


def test_arrays_and_named_values_of_an_object():
    """Attributes that the code names, and all that hold arrays; numbers of no name are not."""
    found = paths(watch_of(Model.run, Model()))
    assert {"self.w", "self.parts['a'][0]", "self.parts['a'][1]", "Model.factor"} <= found
    assert "self.unused_array" in found
    assert "self.unused_number" not in found
    arrays = watch_of(Model.run, Model()).array_paths()
    assert arrays == ["self.w", "self.parts['a'][0]", "self.unused_array"]


def test_globals_that_are_mentioned():
    """Globals are watched by name, those of helpers that ran included."""

    def helper():
        return some_global

    def fn():
        return helper() + np.pi

    found = paths(watch_of(fn))
    assert "some_global" in found
    assert "unmentioned_global" not in found
    assert "np" not in found


def test_closures_of_closures():
    """Variables of enclosing functions, through helpers and partials."""
    w = xp.ones(2)

    def inner():
        return w

    def fn():
        return inner()

    assert watch_of(fn).array_paths() == ["w"]


def test_a_value_is_walked_once():
    """A cycle of objects ends, and a shared array is found on each path."""
    model = Model()
    model.parts["me"] = model
    model.other = types.SimpleNamespace(w=model.w)

    def fn():
        return model.run(), model.other.w

    arrays = watch_of(fn).array_paths()
    assert "model.w" in arrays
    assert "model.other.w" in arrays


def test_too_much_to_watch_is_refused(monkeypatch):
    """The error names the last path."""
    monkeypatch.setattr(_implicit, "MAX_STEPS", 50)
    many = [[k] for k in range(100)]

    def fn():
        return many[0]

    with pytest.raises(CaptureError, match=r"more than 50 values .* \(the last one is many\["):
        watch_of(fn)


def test_large_containers_are_watched_as_a_whole():
    """One step for a list of more than 4096 items; each change is seen all the same."""
    large = list(range(5000))

    def fn():
        return large[0]

    watched = watch_of(fn)
    assert len([path for path in paths(watched) if path.startswith("large")]) == 1
    large[4000] = -1
    assert watched.read() is None
    assert watched.first_change() == "large"


# -- the code that ran


def test_code_of_libraries_is_not_the_users():
    """Code of the standard library, of the array library and of graphjit teaches no names."""

    def fn():
        return np.zeros(2).mean() + len(types.SimpleNamespace(a=1).__dict__)

    with watch_code(frozenset({"numpy"})) as ran:
        fn()
    assert {code.co_name for code in ran.codes} == {"fn"}
    assert any(module.startswith("numpy") for module in ran.library_modules)


def test_a_profiler_in_place_goes_on():
    """It sees what it saw, and is in place afterwards, after an error too."""
    seen = []

    def profiler(frame, event, arg):
        seen.append(frame.f_code.co_name)

    def fn():
        return 1

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        with watch_code(frozenset()):
            fn()
        with pytest.raises(ZeroDivisionError), watch_code(frozenset()):
            fn() / 0
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert seen.count("fn") == 4  # two calls and two returns


def test_other_threads_are_not_watched():
    """Code that another thread runs meanwhile is not the function's."""

    def elsewhere():
        return 1

    with watch_code(frozenset()) as ran:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert "elsewhere" not in {code.co_name for code in ran.codes}


def test_names_of_globals():
    """Loads and assignments, in nested functions and comprehensions too; attributes are none."""
    source = """
def fn():
    global assigned
    assigned = loaded.attribute
    return [inner for _ in iterable], lambda: deep
"""
    code = compile(source, "made up", "exec").co_consts[0]
    found = set(global_names(code))
    assert {"assigned", "loaded", "iterable", "inner", "deep"} <= found
    assert "attribute" not in found


def test_an_argument_at_the_address_of_a_dead_one_is_another():
    """The watch of a function that is an argument accepts no other function in its place."""
    first, second = (lambda x: x * 2), (lambda x: x * 3)
    watched = watch_of(lambda f: None, first)
    assert watched.read([first]) == []
    assert watched.read([second]) is None


def test_threads_observe_at_once():
    """Each thread sees its own code, whoever begins and ends first, and code that both run."""

    def shared():
        return 1

    found = {}
    barrier = threading.Barrier(4)

    def work(i):
        namespace = {"shared": shared}
        exec(f"def own_{i}(): return shared()", namespace)
        for _ in range(20):
            barrier.wait(30)
            with watch_code(frozenset()) as ran:
                namespace[f"own_{i}"]()
            found.setdefault(i, []).append({code.co_name for code in ran.codes})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [{"shared", f"own_{i}"}] * 20 for i in range(4)}


def test_observing_without_a_free_tool():
    """If every free tool of sys.monitoring is taken, or there is none, a profile function does."""
    monitoring = getattr(sys, "monitoring", None)
    taken = [i for i in (3, 4) if monitoring is not None and monitoring.get_tool(i) is None]
    for tool_id in taken:
        monitoring.use_tool_id(tool_id, "somebody else")
    try:
        with watch_code(frozenset()) as ran:
            watch_of(lambda: 1)
    finally:
        for tool_id in taken:
            monitoring.free_tool_id(tool_id)
    assert "watch_of" in {code.co_name for code in ran.codes}
    assert sys.getprofile() is None
