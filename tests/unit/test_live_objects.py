"""Objects are found by their type, without getting in the way of other threads."""

import sys

import pytest
from helpers.processes import run_python

from graphjit._adapters.live_objects import live_objects, live_objects_python

FORMS = pytest.mark.parametrize(
    "find", [live_objects, live_objects_python], ids=["chosen", "plain"]
)


class Base:
    pass


class Derived(Base):
    pass


@FORMS
def test_objects_of_a_type_and_of_derived_types(find):
    """Every live object is found once, and nothing else; those that are gone are not."""
    kept = [Base(), Derived(), object(), Base]
    assert {id(obj) for obj in find(Base)} == {id(obj) for obj in kept[:2]}
    del kept[0]
    assert find(Base) == kept[:1]


@FORMS
def test_no_reference_is_kept(find):
    """What was not asked for has as many references afterwards as before."""
    other = {"a": 1}
    before = sys.getrefcount(other)
    find(Base)
    assert sys.getrefcount(other) == before


SCRIPT = """
import sys, threading
from graphjit._adapters.live_objects import live_objects

def fill():
    while not stop.is_set():
        try:
            tuple(i for i in range(2000))
        except SystemError as error:
            failures.append(error)

sys.setswitchinterval(1e-6)
stop, failures = threading.Event(), []
thread = threading.Thread(target=fill)
thread.start()
for _ in range(100):
    live_objects(threading.Event)
stop.set()
thread.join()
print(len(failures))
"""


@pytest.mark.skipif(live_objects is live_objects_python, reason="the compiled form is not built")
def test_tuples_that_another_thread_fills():
    """A tuple that grows while objects are looked for is finished all the same."""
    done = run_python("-c", SCRIPT)
    assert (done.stdout, done.stderr) == ("0\n", "")
