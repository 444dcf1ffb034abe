"""Containers are taken apart the same way, whoever comes first."""

import dataclasses
import threading

from graphjit._containers import flatten


def test_threads_that_meet_a_dataclass_at_once():
    """Every thread gets the leaves inside a dataclass, not only the first to see its class."""
    for _ in range(50):
        kind = dataclasses.make_dataclass("Pair", ["a", "b"])
        barrier, found = threading.Barrier(6), []

        def work(kind=kind, barrier=barrier, found=found):
            barrier.wait()
            found.append(flatten([kind(1, 2), 3], lambda _: False)[0])

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[1, 2, 3]] * 6
