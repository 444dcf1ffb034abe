"""Kernels of the user's own on the simulated device, like CuPy's RawKernel.

Input: a Python function over NumPy views, or over raw parameters of given types.
Output: a callable that launches it on the current stream.
Raises: ``DriverError`` when the kernel touches memory that is not allocated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.simulated_launch import (
    Work,
    is_array,
    launch,
    launch_function,
    layout_of,
)
from graphjit._driver.simulated_kernels import Run, SimulatedFunction

Kernel = Callable[..., None]


@overload
def kernel(body: Callable[..., Any], /, *, takes_memory: bool = ...) -> Kernel: ...
@overload
def kernel(
    *, params: Sequence[Any] | None = ..., takes_memory: bool = ...
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    body: Callable[..., Any] | None = None,
    /,
    *,
    params: Sequence[Any] | None = None,
    takes_memory: bool = False,
) -> Any:
    """Make a kernel of a Python function.

    Parameters
    ----------
    body : callable
        Without ``params`` it gets a NumPy view of each array, and the scalars, and changes
        the views in place.
    params : sequence, optional
        Types of the parameters, as C has them: ``"pointer"``, a dtype, or a structured dtype
        (padded as by C if ``align=True``). The body then gets the device's memory and raw
        values: addresses as ``int``, structs as records; it opens addresses with
        ``memory.array(ptr, shape, dtype)``. Calls pass arrays where addresses are wanted,
        tuples for structs.
    takes_memory : bool
        Pass the device's memory as first argument also without ``params``.

    Returns
    -------
    callable
        Launches the kernel on the current stream.

    Examples
    --------
    >>> from graphjit.testing import simulated as xp
    >>> @xp.kernel
    ... def axpy(a, x, y):
    ...     y += a * x
    >>> x, y = xp.ones(3), xp.zeros(3)
    >>> axpy(2.0, x, y)
    >>> print(y)
    [2. 2. 2.]
    >>> @xp.kernel(params=["int32", "pointer"])
    ... def count(memory, n, out_ptr):
    ...     memory.array(out_ptr, (n,), "float64")[...] = range(n)
    >>> count(3, y)
    >>> print(y)
    [0. 1. 2.]
    """
    if body is None:
        return functools.partial(_make, params=params, takes_memory=takes_memory)
    return _make(body, params=params, takes_memory=takes_memory)


def _make(
    body: Callable[..., Any], /, *, params: Sequence[Any] | None, takes_memory: bool
) -> Kernel:
    if params is not None:
        return _raw_kernel(body, params)
    function = functools.partial(body, device.driver().memory) if takes_memory else body
    work = Work(function, in_place=True)

    @functools.wraps(body)
    def launcher(*values: Any) -> None:
        launch(body.__name__, work, values)

    return launcher


def _raw_kernel(body: Callable[..., Any], params: Sequence[Any]) -> Kernel:
    types = [np.dtype("u8") if p == "pointer" else np.dtype(p) for p in params]
    dtype = np.dtype([(f"p{i}", t) for i, t in enumerate(types)], align=True)

    def run(context: Run, packed: bytes) -> None:
        record = np.frombuffer(packed.ljust(dtype.itemsize, b"\0"), dtype, 1)[0]
        body(context.memory, *(_value(record[f"p{i}"]) for i in range(len(types))))

    function = SimulatedFunction(body.__name__, layout_of(dtype), run)

    @functools.wraps(body)
    def launcher(*values: Any) -> None:
        record = np.zeros((), dtype)
        for i, value in enumerate(values):
            record[f"p{i}"] = _raw(value)
        launch_function(function, record.tobytes())

    return launcher


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, np.integer) else value


def _raw(value: Any) -> Any:
    """Replace arrays by their addresses, in structs too."""
    if isinstance(value, tuple):
        return tuple(map(_raw, value))
    return value.device_ptr if is_array(value) else value
