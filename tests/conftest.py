"""Fixtures of all suites: which driver, and what a missing device means.

``--driver=simulated|cuda|both`` chooses the drivers of the ``driver`` fixture. Without a CUDA
device a test of the CUDA driver is skipped; with ``GRAPHJIT_REQUIRE_GPU=1`` it fails.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from graphjit.testing import SimulatedDriver

DRIVERS = {"simulated": ["simulated"], "cuda": ["cuda"], "both": ["simulated", "cuda"]}


def pytest_addoption(parser):
    parser.addoption(
        "--driver",
        choices=list(DRIVERS),
        default="simulated",
        help="drivers that the conformance suite runs on",
    )


def pytest_generate_tests(metafunc):
    if "driver" in metafunc.fixturenames:
        names = DRIVERS[metafunc.config.getoption("--driver")]
        metafunc.parametrize("driver", names, indirect=True)


def pytest_make_parametrize_id(val, argname):
    """Name a lambda by its line: ids have to differ."""
    if getattr(val, "__name__", "") == "<lambda>":
        return f"{argname}-line-{val.__code__.co_firstlineno}"
    return None


@cache
def missing_device() -> str:
    """Return why there is no CUDA device, or an empty string; other failures are raised."""
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        return f"no CUDA device can be used: {error}"
    try:
        (status,) = cu.cuInit(0)
    except RuntimeError as error:  # cuda.bindings did not find libcuda
        return f"no CUDA device: {error}"
    if status == cu.CUresult.CUDA_ERROR_NO_DEVICE:
        return "no CUDA device"
    assert status == cu.CUresult.CUDA_SUCCESS, status
    return ""


@pytest.fixture
def driver(request):
    """A driver: a new simulated one, or that of CUDA device 0."""
    if request.param == "simulated":
        return SimulatedDriver()
    if missing := missing_device():
        if os.environ.get("GRAPHJIT_REQUIRE_GPU", "") not in ("", "0"):
            pytest.fail(f"GRAPHJIT_REQUIRE_GPU is set, but {missing}", pytrace=False)
        pytest.skip(missing)
    from graphjit._driver.cuda import cuda_driver

    return cuda_driver(0)
