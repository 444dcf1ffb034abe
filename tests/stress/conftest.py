"""Whatever a script did: nothing of it is left on the simulated device."""

from __future__ import annotations

import gc

import pytest
from helpers.flow_checks import held_on_device


@pytest.fixture(autouse=True)
def leave_nothing_behind():
    gc.collect()
    gc.freeze()
    before = held_on_device()
    yield
    gc.collect()
    after = held_on_device()
    gc.unfreeze()
    assert after == before
