"""The code of the modules that CuPy loads, kept for graphs that are written to files.

CuPy hands the code to the driver and forgets it, and the driver does not give it back. So the
class that CuPy's compiler loads modules with is replaced, as soon as CuPy is imported, by one
that keeps the code.

Input: handles of modules. Output: their code.
Source: CuPy 14, cupy/cuda/compiler.py (``function.Module().load``).
"""

from __future__ import annotations

import types
import weakref
from typing import Any

COMPILER = "cupy.cuda.compiler"
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""CUmodule -> CuPy's object, for as long as that is loaded."""


def code_of_module(handle: int) -> bytes | None:
    """Return the code that a module was loaded from; None if that is not known."""
    code = getattr(_modules.get(handle), "code", None)
    return None if code is None else bytes(code)


def keep_code(compiler: Any) -> None:
    """Let CuPy load modules with a class that keeps their code."""
    function = compiler.function
    plain = function.Module

    class Module(plain):  # type: ignore[misc, valid-type]
        """CUDA kernel module, which keeps its code."""

        code: bytes | None = None

        def load(self, cubin: Any) -> None:
            super().load(cubin)
            if isinstance(cubin, bytes):
                self.code = cubin
                _modules[int(self.ptr)] = self

    # In the compiler's eyes only: CuPy's extension modules look for the class as it is built.
    compiler.function = types.SimpleNamespace(**{**vars(function), "Module": Module})
