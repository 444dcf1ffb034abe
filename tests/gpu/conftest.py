"""The suite that runs on a real GPU: without one, every file is skipped with the reason.

With ``GRAPHJIT_REQUIRE_GPU=1`` a missing GPU is a failure instead. The files are not even
imported without a GPU, so that collection needs no CuPy.
"""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@cache
def what_is_missing() -> str:
    """Return why there is no GPU to test on, or an empty string."""
    try:
        import cupy
    except ImportError as error:
        return f"no CUDA device can be used: {error}"
    try:
        n_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return "" if n_devices else "no CUDA device"


class ModuleWithoutDevice(pytest.Module):
    """A test file that is not imported, since there is no GPU."""

    def collect(self):
        if os.environ.get("GRAPHJIT_REQUIRE_GPU", "") not in ("", "0"):
            pytest.fail(f"GRAPHJIT_REQUIRE_GPU is set, but {what_is_missing()}", pytrace=False)
        pytest.skip(what_is_missing(), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if what_is_missing():
        return ModuleWithoutDevice.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def leave_the_device_usable():
    """Whatever a test did: the device answers, and no capture or allocator is left behind."""
    import cupy as cp

    yield
    assert gc.isenabled()
    assert not cp.cuda.get_current_stream().is_capturing()
    cp.cuda.Device().synchronize()
    assert int(cp.arange(5).sum()) == 10


@pytest.fixture
def pool():
    """CuPy's memory pool, with nothing cached in it."""
    import cupy as cp

    gc.collect()
    cp.cuda.Device().synchronize()
    found = cp.get_default_memory_pool()
    found.free_all_blocks()
    return found


def pytest_make_parametrize_id(val, argname):
    """Name a lambda by its line: ids have to differ."""
    if getattr(val, "__name__", "") == "<lambda>":
        return f"{argname}-line-{val.__code__.co_firstlineno}"
    return None
