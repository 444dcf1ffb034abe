"""The calls of a driver that concern the code of kernels, and their attributes.

Input / Output: functions, modules and nodes are opaque; see ``interface.py``.
Raises: ``DriverError``.
"""

from __future__ import annotations

from typing import Any, Protocol


class CodeInterface(Protocol):
    """What ``Driver`` has for code."""

    # -- the kernels that graphjit brings along
    def builtin_kernel(self, name: str) -> Any:
        """Return the function ``copy``, ``fill``, ``fills``, ``set_condition`` or ``patch_<n>``.

        n is one of PATCH_SLOT_CLASSES.
        """

    def builtin_name(self, function: Any) -> str | None:
        """Return the name of a function that is one of these; None for every other."""

    # -- code of kernels in files
    def target(self) -> str:
        """Return what code must have been compiled for, such as ``"sm_90"``."""

    def load_code(self, code: bytes) -> Any:
        """Load code; return the module (cuModuleLoadData)."""

    def unload_code(self, module: Any) -> None:
        """Unload a module, once its kernels are done (cuModuleUnload)."""

    def code_function(self, module: Any, name: str, shared_mem_bytes: int) -> Any:
        """Return a function that can be launched with so much memory (cuModuleGetFunction)."""

    def kernel_node_attributes(self, node: Any) -> tuple[tuple[str, bytes], ...]:
        """Return the attributes of a node that are not zero (cuGraphKernelNodeGetAttribute)."""

    def graph_kernel_node_set_attributes(
        self, node: Any, attributes: tuple[tuple[str, bytes], ...]
    ) -> None:
        """Set what ``kernel_node_attributes`` returned (cuGraphKernelNodeSetAttribute)."""
