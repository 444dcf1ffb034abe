"""Code of kernels on the simulated device: functions, and pickled ones in files.

Input / Output: as ``_driver/interface.py``.
Raises: ``DriverError`` with CUDA's names and codes.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from graphjit._driver.simulated_errors import failure
from graphjit._driver.simulated_host import SimulatedHost
from graphjit._driver.simulated_kernels import builtin_functions


class SimulatedCode(SimulatedHost):
    """Functions of one simulated device."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._builtins = builtin_functions()

    # -- the kernels that graphjit brings along

    def builtin_kernel(self, name: str) -> Any:
        return self._builtins[name]

    def builtin_name(self, function: Any) -> str | None:
        return next((name for name, known in self._builtins.items() if known is function), None)

    # -- code of kernels in files: pickled functions

    def target(self) -> str:
        return "simulated"

    def load_code(self, code: bytes) -> Any:
        try:
            return pickle.loads(code)
        except Exception as error:
            raise failure("cuModuleLoadData", "INVALID_IMAGE", repr(error)) from error

    def unload_code(self, module: Any) -> None:
        """Do nothing: functions are Python objects."""

    def code_function(self, module: Any, name: str, shared_mem_bytes: int) -> Any:
        if getattr(module, "name", None) != name:
            raise failure("cuModuleGetFunction", "NOT_FOUND", name)
        return module

    def kernel_node_attributes(self, node: Any) -> tuple[tuple[str, bytes], ...]:
        if not node.priority:
            return ()
        return (("PRIORITY", struct.pack("<i", node.priority)),)

    def graph_kernel_node_set_attributes(
        self, node: Any, attributes: tuple[tuple[str, bytes], ...]
    ) -> None:
        for name, data in attributes:
            if name != "PRIORITY":
                raise failure("cuGraphKernelNodeSetAttribute", "INVALID_VALUE", name)
            (node.priority,) = struct.unpack_from("<i", data)
