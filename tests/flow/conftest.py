"""Whatever a test of the flow did: nothing is left on the simulated device."""

from __future__ import annotations

import gc

import pytest
from helpers.flow_checks import held_on_device

from graphjit._adapters import simulated_device as device


@pytest.fixture(scope="session")
def quick_collections():
    """Let the collector skip what was imported before: a collection takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def leave_nothing_behind(quick_collections):
    """No live graph, graph exec, array, constant or patch table is left, and no capture."""
    gc.collect()
    before = held_on_device()
    yield
    gc.collect()
    assert held_on_device() == before
    assert gc.isenabled()
    assert not device.current_stream().is_capturing()
    assert device.current_stream() is device.null_stream


@pytest.fixture(params=["host", "device"])
def patch(request):
    """Both ways of writing addresses into a graph."""
    return request.param
