"""The decorator: a function that is captured once per signature and launched afterwards.

Input: any callable that launches GPU work. Output: a callable that returns what it returns.
``State.run`` is the whole story of a call, top to bottom.
Raises: what the function raises; ``SignatureError`` before anything is launched;
``CaptureError`` and ``AnalysisError`` when a function cannot be captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import wrapt

from graphjit._cache import CacheInfo
from graphjit._hit import call_graphed, set_call_slot
from graphjit._offered import Offered
from graphjit._options import Options, refuse_other_callables
from graphjit._state import State
from graphjit._typing import Decorator, Graphed, P, R
from graphjit.errors import GraphjitError

_graphed_functions: weakref.WeakSet[GraphedFunction] = weakref.WeakSet()


class _BoundGraphedFunction(Offered, wrapt.BoundFunctionWrapper[..., Any]):
    """A graphed method, bound to its instance or class."""

    @property
    def _self_state(self) -> State:  # type: ignore[override]
        return self._self_parent._self_state  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_state.call((*self._instance(), *args), kwargs)

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        # As a method does: its object, and its name.
        instance = self._instance()
        return (getattr, (instance[0], self.__name__)) if instance else str(self.__qualname__)

    def _instance(self) -> tuple[Any, ...]:
        if self._self_binding == "staticmethod":
            return ()
        if self._self_binding == "classmethod":
            return (getattr(self.__wrapped__, "__self__", self._self_instance),)
        return () if self._self_instance is None else (self._self_instance,)


class GraphedFunction(Offered, wrapt.FunctionWrapper[..., Any]):
    """What ``@graphed`` makes of a function."""

    __bound_function_wrapper__ = _BoundGraphedFunction

    def __init__(self, wrapped: Callable[..., Any], options: Options) -> None:
        super().__init__(wrapped, lambda *_: None)
        self._self_state = State(wrapped, options)
        self._self_fast = self._self_state.fast
        _graphed_functions.add(self)

    __call__ = call_graphed  # the compiled hit first, then ``State.run``

    def __copy__(self) -> GraphedFunction:
        return self  # as a function does

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedFunction:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__qualname__)  # by name, as a function; captured anew where it is loaded

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        state = self._self_state
        info = state.cache.info()
        return (
            f"<graphed {state.name}: {info.current_entries} entries, {info.hits} hits, "
            f"{info.misses} misses>"
        )


set_call_slot(GraphedFunction)


@overload
def graphed(fn: Callable[P, R], /) -> Graphed[P, R]: ...
@overload
def graphed(
    *,
    static: Iterable[str] = (),
    dynamic: Iterable[str] = (),
    max_entries: int | None = 128,
    on_unsupported: Literal["raise", "eager", "split"] = "raise",
    warmup: int = 1,
    outputs: Literal["fresh", "static"] = "fresh",
    verify: bool = False,
    patch: Literal["auto", "host", "device"] = "auto",
    optimize: bool = False,
) -> Decorator: ...
def graphed(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    static: Iterable[str] = (),
    dynamic: Iterable[str] = (),
    max_entries: int | None = 128,
    on_unsupported: str = "raise",
    warmup: int = 1,
    outputs: str = "fresh",
    verify: bool = False,
    patch: str = "auto",
    optimize: bool = False,
) -> Any:
    """Run a function that launches GPU work as one CUDA graph launch.

    The first call of a signature runs the function and captures it; later calls point the
    captured graph at their arrays and launch it on the caller's current stream.

    Parameters
    ----------
    fn : callable
        A function, method, static or class method, lambda, ``functools.partial`` or object
        with ``__call__``.
    static : iterable of str
        Names of arguments that are keyed by their content: NumPy arrays, lists, dictionaries
        of plain data. Another content is another capture.
    dynamic : iterable of str
        Names of arguments whose numbers change from call to call: a step count, a learning rate.
        They are written into the parameters of the kernels like addresses, and are no part of the
        signature but by their type. The number itself may reach kernels, and nothing else: what
        Python computes of it, or decides by it, is refused.
    max_entries : int or None
        Entries kept; the one used longest ago is evicted. None keeps all.
    on_unsupported : {"raise", "eager", "split"}
        What happens to a function that cannot be captured: an error that names the call, or
        the plain function, counted in ``cache_info().eager_calls``. With ``"split"`` a
        function that reads results on the host becomes several graphs: what is read decides
        which comes next. It must do the same each time for what it is given and reads.
    warmup : int
        Eager calls of a signature before it is captured.
    outputs : {"fresh", "static"}
        ``"fresh"`` returns memory of its own on every call; ``"static"`` the same memory
        every time, overwritten by the next call.
    verify : bool
        Run the function beside every graph launch and compare the results bit for bit.
    patch : {"auto", "host", "device"}
        How addresses are written into the graph; ``"auto"`` chooses by cost.
    optimize : bool
        Let elementwise kernels that share no memory, or only read it, run at the same time,
        and merge small fills.

    Returns
    -------
    callable
        With ``eager``, ``explain``, ``cache_info``, ``cache_clear`` and ``cache_entries``.

    Raises
    ------
    SignatureError
        An argument cannot be part of a signature. Nothing was launched.
    CaptureError, AnalysisError
        The function cannot be captured or re-pointed safely.
    DynamicScalarError
        A dynamic argument is used for more than a kernel's parameter.

    Notes
    -----
    cuStreamBeginCapture, cuGraphInstantiate, cuGraphLaunch; CUDA 12.4 or later.
    ``GRAPHJIT_DISABLE=1`` in the environment turns graphed functions into plain ones.

    Examples
    --------
    >>> from graphjit import graphed
    >>> from graphjit.testing import simulated as xp
    >>> @graphed
    ... def saxpy(a, x, y):
    ...     return a * x + y
    >>> x, y = xp.arange(4.0), xp.ones(4)
    >>> for _ in range(3):
    ...     y = saxpy(2.0, x, y)
    >>> saxpy.cache_info().hits
    2
    """
    options = Options(
        tuple([static] if isinstance(static, str) else static),
        tuple([dynamic] if isinstance(dynamic, str) else dynamic),
        max_entries,
        on_unsupported,
        warmup,
        outputs,
        verify,
        patch,
        optimize,
    )

    def decorate(wrapped: Callable[..., Any]) -> GraphedFunction:
        if isinstance(wrapped, GraphedFunction):
            raise GraphjitError(f"{wrapped!r} is graphed already")
        refuse_other_callables(wrapped)
        return GraphedFunction(wrapped, options)

    return decorate if fn is None else decorate(fn)


def caches() -> dict[str, CacheInfo]:
    """Return the cache of every graphed function of the process.

    Returns
    -------
    dict of str to CacheInfo
        Module and qualified name -> counts; several of one name are numbered.
    """
    found: dict[str, CacheInfo] = {}
    for g in list(_graphed_functions):
        plain = name = f"{getattr(g, '__module__', '?')}.{g._self_state.name}"
        n = 1
        while name in found:
            n += 1
            name = f"{plain} #{n}"
        found[name] = g.cache_info()
    return found
