"""Ranges for profilers: which function each eager call, capture and launch is of."""

import pytest
from helpers.flow_checks import agrees, normal
from helpers.processes import run_python

from graphjit import _nvtx as nvtx
from graphjit import _state, graphed
from graphjit._adapters import simulated_device as device

SCRIPT = """
from graphjit import graphed
from graphjit._adapters import simulated_device as device
from graphjit.testing import simulated as xp

@graphed
def step(x):
    return x * 2

for _ in range(3):
    step(xp.ones(3))
print(device.time_ranges)
"""


@pytest.fixture
def ranges(monkeypatch):
    """The texts of ranges, as with the variable in the environment."""
    for module in (nvtx, _state):
        monkeypatch.setattr(module, "IS_ANNOTATING", True)
    device.time_ranges.clear()
    return device.time_ranges


def test_ranges_name_what_is_done(ranges):
    """An eager call and a capture, then launches; refused calls have no launch."""

    def fn(x):
        return x * 2

    call = graphed(fn)
    for _ in range(3):
        assert agrees(call, fn, normal(3))
    name = "test_ranges_name_what_is_done.<locals>.fn"
    assert ranges == [
        f"graphjit {what} {name}" for what in ("eager", "capture", "launch", "launch")
    ]
    ranges.clear()
    reads = graphed(on_unsupported="eager")(lambda x: float(x.sum()))
    for _ in range(2):
        reads(normal(3))
    assert [text.split()[1] for text in ranges] == ["eager", "capture"]


def test_the_variable():
    """It is read when graphjit is imported; without it there are no ranges."""
    for value, n in (("1", 4), ("0", 0), (None, 0)):
        variables = {} if value is None else {"GRAPHJIT_NVTX": value}
        done = run_python("-c", SCRIPT, **variables)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("graphjit ") == n
