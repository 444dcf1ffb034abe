"""Print the extra of graphjit that fits this machine: cuda13, cuda12 or simulated.

Input: the NVIDIA driver, if there is one, asked through ctypes; nothing needs to be installed.
Output: one word on standard output; the reason on standard error.
Source: cuInit, cuDeviceGetCount, cuDriverGetVersion.
"""

from __future__ import annotations

import ctypes
import sys

MINIMUM_VERSION = 12040
"""CUDA 12.4, the first version that graphjit can use."""


def find_extra() -> tuple[str, str]:
    """Return the extra and the reason."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "simulated", "no NVIDIA driver (libcuda.so.1) was found"
    n_devices, version = ctypes.c_int(), ctypes.c_int()
    if (code := driver.cuInit(0)) or (code := driver.cuDeviceGetCount(ctypes.byref(n_devices))):
        return "simulated", f"the NVIDIA driver found no usable device (CUresult {code})"
    if n_devices.value == 0:
        return "simulated", "the NVIDIA driver found no device"
    driver.cuDriverGetVersion(ctypes.byref(version))
    major, minor = version.value // 1000, version.value % 1000 // 10
    if version.value < MINIMUM_VERSION:
        return "simulated", f"the driver offers CUDA {major}.{minor}; graphjit needs 12.4"
    return ("cuda13" if major >= 13 else "cuda12"), f"the driver offers CUDA {major}.{minor}"


if __name__ == "__main__":
    extra, reason = find_extra()
    print(f"{extra}: {reason}", file=sys.stderr)
    print(extra)
