"""Objects are found by their type, without getting in the way of other threads."""

import sys
import threading

from graphjit._adapters.live_objects import live_objects


class Base:
    pass


class Derived(Base):
    pass


def test_objects_of_a_type_and_of_derived_types():
    """Every live object is found once, and nothing else; those that are gone are not."""
    kept = [Base(), Derived(), object(), Base]
    assert {id(obj) for obj in live_objects(Base)} == {id(obj) for obj in kept[:2]}
    del kept[0]
    assert live_objects(Base) == kept[:1]


def test_no_reference_is_kept():
    """What was not asked for has as many references afterwards as before."""
    other = {"a": 1}
    before = sys.getrefcount(other)
    live_objects(Base)
    assert sys.getrefcount(other) == before


def test_tuples_that_another_thread_fills():
    """A tuple that grows while objects are looked for is finished all the same."""
    stop = threading.Event()
    failures = []

    def fill():
        while not stop.is_set():
            try:
                tuple(i for i in range(2000))
            except SystemError as error:
                failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(100):
            live_objects(Base)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not failures
