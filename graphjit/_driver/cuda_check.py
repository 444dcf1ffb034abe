"""The status of a driver call -> what it returned, or an error.

Input: the result of a cuda.bindings call. Output: what it holds besides the status.
Raises: ``DriverError`` with the driver function, the error's name and its code.
Source: cuGetErrorString, cuGetProcAddress.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from graphjit.errors import DriverError

_SUCCESS = cu.CUresult.CUDA_SUCCESS


def check(result: tuple[Any, ...], call: str) -> Any:
    """Return what a driver call returned, without its status; raise if that is an error."""
    if result[0] != _SUCCESS:
        raise driver_error(call, int(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def driver_error(call: str, status: int) -> DriverError:
    """Return the error of a call that gave ``status``."""
    result = cu.CUresult(status)
    error, text = cu.cuGetErrorString(result)
    return DriverError(call, result.name, status, text.decode() if error == _SUCCESS else "")


def entry_point(name: str, version: int) -> int:
    """Return the address of a driver function in its form of a CUDA version."""
    flags = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
    return int(check(cu.cuGetProcAddress(name.encode(), version, flags), name)[0])
