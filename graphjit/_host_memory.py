"""Page-locked memory of the host, which kernels reach, too: what is copied to and from it.

Input: sizes in bytes, arrays. Output: ``HostMemory``; copies on the current stream, which a
capture records as kernels of graphjit's own.
Raises: ``DriverError``.
Source: cuMemHostAlloc.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._capture import current_capture, is_capturing_here
from graphjit._driver import host_functions
from graphjit._driver.interface import Driver
from graphjit._replace import copy_launch


class HostMemory:
    """A block that is freed with the last reference, once the device is done with it."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.driver = driver
        self.nbytes = max(nbytes, 1)
        self.ptr = driver.host_alloc(self.nbytes)
        self.is_shared = False
        """Several graphs use it, whose launches take turns."""
        weakref.finalize(self, host_functions.later, driver.host_free, self.ptr).atexit = False

    def view(self, spec: ArraySpec) -> np.ndarray[Any, Any]:
        """Return it as an array like the one that ``copy_in`` was given."""
        octets = self.driver.host_view(self.ptr, self.nbytes, self)
        return np.ndarray(spec.shape, spec.dtype, octets.data, -spec.low, spec.strides)

    def copy_in(self, adapter: Adapter, array: Any, spec: ArraySpec) -> None:
        """Copy what an array touches to the host."""
        self._copy(adapter, self.ptr, adapter.device_ptr(array) + spec.low, spec)

    def copy_out(self, adapter: Adapter, array: Any, spec: ArraySpec) -> None:
        """Copy to all that an array touches."""
        self._copy(adapter, adapter.device_ptr(array) + spec.low, self.ptr, spec)

    def _copy(self, adapter: Adapter, dst_ptr: int, src_ptr: int, spec: ArraySpec) -> None:
        if is_capturing_here():
            current_capture().host_memory.append(self)
        if spec.high > spec.low:
            launch, params = copy_launch(self.driver, dst_ptr, src_ptr, spec.high - spec.low)
            self.driver.launch_kernel(launch, params, adapter.current_stream())
