"""The errors of the simulated device, with CUDA's names and codes.

Input: the driver function and the name of an error without its prefix.
Output: ``DriverError``.
Source: CUresult of the CUDA Driver API.
"""

from __future__ import annotations

from graphjit.errors import DriverError

_CODES = {
    "INVALID_VALUE": 1,
    "OUT_OF_MEMORY": 2,
    "INVALID_IMAGE": 200,
    "INVALID_HANDLE": 400,
    "ILLEGAL_STATE": 401,
    "NOT_FOUND": 500,
    "ILLEGAL_ADDRESS": 700,
    "NOT_PERMITTED": 800,
    "NOT_SUPPORTED": 801,
    "STREAM_CAPTURE_UNSUPPORTED": 900,
    "STREAM_CAPTURE_INVALIDATED": 901,
    "STREAM_CAPTURE_MERGE": 902,
    "STREAM_CAPTURE_UNMATCHED": 903,
    "STREAM_CAPTURE_UNJOINED": 904,
    "STREAM_CAPTURE_ISOLATION": 905,
    "STREAM_CAPTURE_IMPLICIT": 906,
    "CAPTURED_EVENT": 907,
    "STREAM_CAPTURE_WRONG_THREAD": 908,
}


def failure(call: str, name: str, detail: str = "") -> DriverError:
    """Return the error ``CUDA_ERROR_<name>`` of a driver function."""
    return DriverError(call, f"CUDA_ERROR_{name}", _CODES[name], detail)


def failure_of_code(call: str, code: int) -> DriverError:
    """Return the error with a given code."""
    names = {value: name for name, value in _CODES.items()}
    return DriverError(call, f"CUDA_ERROR_{names.get(code, 'UNKNOWN')}", code)
