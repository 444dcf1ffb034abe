"""Scalars that refuse to be looked at.

A dynamic scalar may be handed to kernels, and nothing else: what Python computes of it, or
decides by it, would be frozen into the graph. The function is captured once on these; every
operation but those with an array raises. They are NumPy scalars of a derived class, which
CuPy takes as kernel parameters like any other.

What reads the number in C, without asking it, is seen where Python code calls it (Python 3.12).
Conversions to NumPy's scalars go unseen, since kernels are given those.

Input: a number, the name of the argument. Output: a number of a derived class.
Raises: ``DynamicScalarError`` when it is used for anything but a kernel's parameter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("lshift", "rshift", "and", "or", "xor"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rdivmod", "rpow", "rmatmul"),
    *("rlshift", "rrshift", "rand", "ror", "rxor", "lt", "le", "gt", "ge", "eq", "ne"),
)
_UNARY = (
    *("neg", "pos", "abs", "invert", "bool", "index", "float", "complex", "round", "trunc"),
    *("floor", "ceil", "hash", "str", "repr", "format", "reduce", "reduce_ex", "getitem", "iter"),
    *("len", "bytes", "array"),
)
_HARMLESS = frozenset({"isinstance", "type", "id", "hasattr", "getattr", "callable"})
"""Functions that a traced scalar may be given to."""
_PYTHON_MODULES = frozenset({"builtins", "math", "cmath", "operator", "_operator"})
_DECIDES = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "bool", "hash", "index"})
_METADATA = frozenset({"dtype", "ndim", "shape", "size", "itemsize", "nbytes", "strides"})
_BASES: dict[Any, Any] = {int: np.int64, float: np.float64, complex: np.complex128}
Refuse = Callable[[str, str], Exception]
"""Name of the scalar, and what was done with it -> the error to raise."""


class Hooks:
    """What a traced scalar needs of the capture."""

    def __init__(self, is_array: Callable[[Any], bool], refuse: Refuse) -> None:
        self.is_array = is_array
        self.refuse = refuse


def make_traced(value: Any, name: str, hooks: Hooks) -> Any:
    """Return a traced scalar of the same value, and nearly the same type."""
    kind: Any = type(value)
    traced = _traced_type(kind)(value)
    object.__setattr__(traced, "traced_name", name)
    object.__setattr__(traced, "traced_hooks", hooks)
    return traced


def is_traced(value: Any) -> bool:
    """Say whether a value is a traced scalar."""
    return isinstance(value, np.generic) and hasattr(type(value), "traced_base")


@contextmanager
def watched_calls() -> Iterator[None]:
    """Refuse that this thread gives a traced scalar to ``int``, ``math.sqrt`` and the like."""
    monitoring: Any = getattr(sys, "monitoring", None)
    tool_id = next((i for i in (3, 4) if monitoring and monitoring.get_tool(i) is None), None)
    if tool_id is None:
        yield
        return
    thread = threading.get_ident()

    def called(code: Any, offset: int, function: Any, first: Any) -> None:
        if threading.get_ident() == thread and is_traced(first):
            name = getattr(function, "__name__", "")
            if getattr(function, "__module__", "") in _PYTHON_MODULES and name not in _HARMLESS:
                raise _refusal(first, name)

    monitoring.use_tool_id(tool_id, "graphjit's dynamic scalars")
    monitoring.register_callback(tool_id, monitoring.events.CALL, called)
    monitoring.set_events(tool_id, monitoring.events.CALL)
    try:
        yield
    finally:
        monitoring.set_events(tool_id, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool_id, monitoring.events.CALL, None)
        monitoring.free_tool_id(tool_id)


def _plain(scalar: Any) -> Any:
    """Return the number itself."""
    base = type(scalar).traced_base
    return np.frombuffer(scalar, base)[0]


def _refusal(scalar: Any, operation: str) -> Exception:
    get = object.__getattribute__
    name, hooks = get(scalar, "traced_name"), get(scalar, "traced_hooks")
    what = "decides something" if operation in _DECIDES else "is computed with"
    if operation in ("str", "repr", "format"):
        what = "is made text of"
    refused: Exception = hooks.refuse(name, f"{what} in Python (`{operation}`)")
    return refused


def _binary(operation: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any, *rest: Any) -> Any:
        if object.__getattribute__(self, "traced_hooks").is_array(other):
            return getattr(_plain(self), f"__{operation}__")(other, *rest)
        raise _refusal(self, operation)

    return method


def _unary(operation: str) -> Callable[..., Any]:
    def method(self: Any, *rest: Any) -> Any:
        raise _refusal(self, operation)

    return method


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Serve NumPy's functions when an array of the library is among the operands."""
    is_array = object.__getattribute__(self, "traced_hooks").is_array
    if not any(map(is_array, inputs)):
        raise _refusal(self, ufunc.__name__)
    plain = [_plain(v) if is_traced(v) else v for v in inputs]
    return getattr(ufunc, method)(*plain, **kwargs)


def _getattribute(self: Any, name: str) -> Any:
    if name.startswith("__") or name in _METADATA or not hasattr(type(self), name):
        return object.__getattribute__(self, name)
    raise _refusal(self, name)


@cache
def _traced_type(kind: Any) -> Any:
    """Make the class of traced scalars for a type of numbers."""
    base = _BASES.get(kind, kind)
    members: dict[str, Any] = {"traced_base": base}
    members |= {f"__{op}__": _binary(op) for op in _BINARY}
    members |= {f"__{op}__": _unary(op) for op in _UNARY}
    if not issubclass(base, np.integer):  # NumPy converts integers by it, and nothing else
        members["__int__"] = _unary("int")
    members["__array_ufunc__"] = _array_ufunc
    members["__getattribute__"] = _getattribute
    members["__copy__"] = lambda self: self
    members["__deepcopy__"] = lambda self, memo: self
    if kind is int:  # `isinstance(x, int)` has to say what it says of the number
        members["__class__"] = property(lambda self: int)
    return type(f"traced_{kind.__name__}", (base,), members)
