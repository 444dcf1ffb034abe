"""What a captured function does with the host: calls, page-locked memory, events.

Each of these works outside of captured functions, too, and does the same there.

Input: functions, arrays, events of an array library. Output: nothing, or arrays.
Raises: ``CaptureError`` where a graph cannot hold it; ``HostCallbackError`` for what a called
function raised; ``SignatureError`` for arrays of another form.
Source: cuGraphAddHostNode, cuMemHostAlloc, cuGraphAddEventRecordNode, cuGraphAddEventWaitNode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphjit._adapters import registry
from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._bodies import capture_of, empty_like
from graphjit._capture import current_capture, is_capturing_here
from graphjit._containers import flatten, unflatten
from graphjit._driver.host_functions import run_deferred
from graphjit._host_calls import raise_failure, record
from graphjit._host_memory import HostMemory
from graphjit._ran_code import as_host_function
from graphjit.errors import SignatureError

__all__ = ["PinnedArray", "host_callback", "record_event", "synchronize", "wait_event"]


def host_callback(fn: Callable[..., Any], *args: Any) -> None:
    """Call a function on the host, in order with the work on the device.

    In a captured function the call is part of the graph: every launch makes it, after the work
    before it and before the work behind it, while the caller goes on. It may use no CUDA.

    Parameters
    ----------
    fn : callable
        Its result is ignored. In a graph it runs in a thread of the driver's.
    *args
        Any containers. Arrays in them become NumPy arrays, copies of the contents at this point;
        everything else is passed as it was when the function was captured.

    Raises
    ------
    CaptureError
        The call is in a branch or a loop of ``graphjit.control``, or in a function with dynamic
        scalars.
    HostCallbackError
        At ``graphjit.synchronize``, or at the next call of a function with such a graph: what
        ``fn`` raised in a launch. An eager call raises what ``fn`` raises, at once.

    Notes
    -----
    cuGraphAddHostNode; CUDA 12.4. With ``verify=True`` a call is made twice, by the launch and by
    the eager call that it is compared with.

    Examples
    --------
    >>> import graphjit
    >>> from graphjit.testing import simulated as xp
    >>> @graphjit.graphed
    ... def step(x):
    ...     x = x * 2
    ...     graphjit.host_callback(print, "largest:", x.max())
    ...     return x
    >>> for x in (xp.arange(3.0), xp.arange(5.0)[:3] + 1):
    ...     _ = step(x)
    largest: 4.0
    largest: 6.0
    """
    if not callable(fn):
        raise TypeError(
            f"host_callback: the first argument is a {type(fn).__qualname__}, no function"
        )
    capture = capture_of("a host function", *args)
    with as_host_function(fn):
        if capture is not None:
            record(capture, fn, args)
            return
        leaves, tree = flatten(args, registry.is_array)
        adapter = registry.find(leaves)
        fn(*unflatten(tree, [adapter.get(x) if adapter.is_array(x) else x for x in leaves]))


def synchronize() -> None:
    """Wait for the current stream, and report what host functions raised.

    Raises
    ------
    HostCallbackError
        A function that a graph called by ``host_callback`` raised an exception.

    Notes
    -----
    cuStreamSynchronize.
    """
    adapter = registry.find(())
    adapter.driver().stream_synchronize(adapter.current_stream())
    run_deferred()
    raise_failure()


def record_event(event: Any) -> None:
    """Record an event on the current stream, at every launch if the function is captured.

    An event that is recorded by its own method in a captured function orders the work inside the
    graph only; this one can be waited for, queried and timed from outside.

    Parameters
    ----------
    event : event of the array library
        Such as ``cupy.cuda.Event``. The graph keeps it alive.

    Raises
    ------
    CaptureError
        The call is in a branch or a loop of ``graphjit.control``.

    Notes
    -----
    cuEventRecordWithFlags and CU_EVENT_RECORD_EXTERNAL; CUDA 12.4.
    """
    adapter, handle = _event(event)
    adapter.driver().event_record_external(handle, adapter.current_stream())


def wait_event(event: Any) -> None:
    """Let the current stream wait for an event, at every launch if the function is captured.

    Parameters
    ----------
    event : event of the array library
        Recorded outside of the captured function, or by ``record_event``.

    Raises
    ------
    CaptureError
        The call is in a branch or a loop of ``graphjit.control``.

    Notes
    -----
    cuStreamWaitEvent and CU_EVENT_WAIT_EXTERNAL; CUDA 12.4.
    """
    adapter, handle = _event(event)
    adapter.driver().stream_wait_event_external(adapter.current_stream(), handle)


def _event(event: Any) -> tuple[Adapter, int]:
    """Return who knows an event, and its handle; a capture keeps it."""
    adapter, handle = registry.find_event(event)
    if is_capturing_here():
        capture = current_capture()
        if capture.flow.is_in_body:
            raise capture.refuse(
                "it records an event or waits for one in a branch or a loop of graphjit.control, "
                "and CUDA allows no event nodes there"
            )
        capture.kept.append(event)
    return adapter, handle


class PinnedArray:
    """An array in page-locked host memory, which graphs copy to and from.

    A copy is part of the graph and is made by every launch, with what is in the memory then. The
    host writes and reads it through ``host``, and has to see to it that no launch is using it,
    by ``graphjit.synchronize`` or an event.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype, default float
    like : array, optional
        An array of the library whose device the copies are for; by default the library in use.

    Notes
    -----
    cuMemHostAlloc; the copies are kernels, which reach the memory over the bus.

    Examples
    --------
    >>> import graphjit
    >>> from graphjit.testing import simulated as xp
    >>> settings = graphjit.PinnedArray(2, like=xp.zeros(1))
    >>> @graphjit.graphed
    ... def scaled(x):
    ...     factor, offset = settings.to_device()
    ...     return x * factor + offset
    >>> settings.host[:] = 2, 1
    >>> print(scaled(xp.arange(3.0)))
    [1. 3. 5.]
    >>> settings.host[:] = 10, 0
    >>> print(scaled(xp.arange(3.0)))
    [ 0. 10. 20.]
    """

    __slots__ = ("__weakref__", "_adapter", "_memory", "_spec")

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = float, like: Any = None) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        strides = tuple(kind.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        nbytes = kind.itemsize * math.prod(shape)
        self._adapter = registry.find(() if like is None else (like,))
        device = self._adapter.current_device()
        self._spec = ArraySpec(np.ndarray, shape, kind, strides, device, 0, nbytes)
        self._memory = HostMemory(self._adapter.driver(), nbytes)

    def __reduce__(self) -> Any:
        raise TypeError("a PinnedArray is memory of this process: copy what its `host` holds")

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self._spec.shape

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self._spec.dtype

    @property
    def host(self) -> np.ndarray[Any, Any]:
        """The memory as a NumPy array.

        Raises
        ------
        CaptureError
            In a captured function: a launch would not look again.
        """
        if is_capturing_here():
            raise current_capture().refuse(
                "it uses PinnedArray.host, which a launch would not do again; copy it with "
                "to_device, copy_to or copy_from"
            )
        return self._memory.view(self._spec)

    def to_device(self) -> Any:
        """Return a new array on the device with the contents.

        Returns
        -------
        array
        """
        array = empty_like(self._adapter, self._spec)
        self._memory.copy_out(self._adapter, array, self._spec)
        return array

    def copy_to(self, array: Any) -> None:
        """Copy the contents to an array on the device.

        Parameters
        ----------
        array : array
            Of the same shape and dtype.

        Raises
        ------
        SignatureError
            The shape or the dtype differs.
        """
        if self._is_dense(array):
            self._memory.copy_out(self._adapter, array, self._spec)
        else:
            self._adapter.assign(array, self.to_device())

    def copy_from(self, array: Any) -> None:
        """Copy the contents of an array on the device into this memory.

        Parameters
        ----------
        array : array
            Of the same shape and dtype.

        Raises
        ------
        SignatureError
            The shape or the dtype differs.
        """
        if not self._is_dense(array):
            dense = empty_like(self._adapter, self._spec)
            self._adapter.assign(dense, array)
            array = dense
        self._memory.copy_in(self._adapter, array, self._spec)

    def _is_dense(self, array: Any) -> bool:
        """Refuse an array of another form; say whether it lies as this one does."""
        if not self._adapter.is_array(array):
            raise SignatureError(f"{type(array).__name__} is no array of the library in use")
        spec = self._adapter.spec(array)
        if (spec.shape, np.dtype(spec.dtype)) != (self.shape, self.dtype):
            raise SignatureError(
                f"an array {spec.dtype} {spec.shape} cannot be copied to or from a PinnedArray "
                f"{self.dtype} {self.shape}"
            )
        return spec.strides == self._spec.strides or 0 in spec.shape
