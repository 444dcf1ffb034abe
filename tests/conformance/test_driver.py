"""One suite for both drivers: what the simulated driver claims, a GPU confirms."""

from __future__ import annotations

import pytest

from graphjit.testing import DRIVER_CHECKS, check_driver


def make_current(driver):
    """Make the context of a CUDA driver current in this thread."""
    from cuda.bindings import driver as cu

    (status,) = cu.cuCtxSetCurrent(driver._context)
    assert status == cu.CUresult.CUDA_SUCCESS


def cuda_wait(stream, other):
    """Let a stream wait for the work of another, on CUDA."""
    from cuda.bindings import driver as cu

    status, event = cu.cuEventCreate(0)
    assert status == cu.CUresult.CUDA_SUCCESS
    for (status,) in (
        cu.cuEventRecord(event, other),
        cu.cuStreamWaitEvent(stream, event, 0),
        cu.cuEventDestroy(event),
    ):
        assert status == cu.CUresult.CUDA_SUCCESS


@pytest.mark.parametrize("name", DRIVER_CHECKS)
def test_driver(driver, name):
    """The driver does what graphjit relies on."""
    if driver.name == "cuda":
        make_current(driver)
        check_driver(
            driver, only=[name], wait=cuda_wait, prepare_thread=lambda: make_current(driver)
        )
    else:
        check_driver(driver, only=[name])
