"""The decorator: a function that is captured once per signature and launched afterwards.

Input: any callable that launches GPU work. Output: a callable that returns what it returns.
``GraphedFunction._run`` is the whole story of a call, top to bottom.
Raises: what the function raises; ``SignatureError`` before anything is launched;
``CaptureError`` and ``AnalysisError`` when a function cannot be captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, overload

import wrapt

from graphjit._arguments import ArgumentReader, Call
from graphjit._cache import Cache, CacheInfo
from graphjit._capture import is_capturing_here
from graphjit._entry import CacheEntry, EntryOptions, build_entry
from graphjit._hit import IS_COMPILED, MISS
from graphjit._implicit import RanCode, find_implicit, watch_code
from graphjit._options import Options, is_disabled
from graphjit._verify import verify_launch
from graphjit.errors import AnalysisError, CaptureError, GraphjitError
from graphjit.inspection import EntryInfo, Explanation, describe_entry, explain_call

F = TypeVar("F", bound=Callable[..., Any])
_graphed_functions: weakref.WeakSet[GraphedFunction] = weakref.WeakSet()


class _Common:
    """What a graphed function offers, bound to an instance or not."""

    _self_state: _State

    def _instance(self) -> tuple[Any, ...]:
        return ()

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it was before decoration; nothing is captured or launched.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.
        """
        state = self._self_state
        state.cache.eager_calls += 1
        return state.fn(*self._instance(), *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Say whether a call with these arguments would hit, and if not, what differs.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function; nothing is run.

        Returns
        -------
        Explanation
            ``hit``, the closest entry, and the differences by path.
        """
        state = self._self_state
        call = state.reader.read((*self._instance(), *args), kwargs)
        return explain_call(state.reader, state.cache, call)

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, entries, evictions and eager calls."""
        return self._self_state.cache.info()

    def cache_clear(self) -> None:
        """Free all entries: graphs, constants and patch tables."""
        self._self_state.cache.clear()

    def cache_entries(self) -> list[EntryInfo]:
        """Return a description of each entry, the one used last first."""
        return [describe_entry(entry) for entry in self._self_state.cache.entries()]


class _BoundGraphedFunction(_Common, wrapt.BoundFunctionWrapper[..., Any]):
    """A graphed method, bound to its instance or class."""

    @property
    def _self_state(self) -> _State:  # type: ignore[override]
        return self._self_parent._self_state  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_state.call((*self._instance(), *args), kwargs)

    def _instance(self) -> tuple[Any, ...]:
        if self._self_binding == "staticmethod":
            return ()
        if self._self_binding == "classmethod":
            return (getattr(self.__wrapped__, "__self__", self._self_instance),)
        return () if self._self_instance is None else (self._self_instance,)


class GraphedFunction(_Common, wrapt.FunctionWrapper[..., Any]):
    """What ``@graphed`` makes of a function."""

    __bound_function_wrapper__ = _BoundGraphedFunction

    def __init__(self, wrapped: Callable[..., Any], options: Options) -> None:
        super().__init__(wrapped, lambda *_: None)
        self._self_state = _State(wrapped, options)
        self._self_fast = self._self_state.fast.call
        _graphed_functions.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            result = self._self_fast(args)
            if result is not MISS:
                return result
        return self._self_state.run(args, kwargs)

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


class _State:
    """The function, its options, its reader and its cache."""

    def __init__(self, wrapped: Callable[..., Any], options: Options) -> None:
        # A static or class method object is not callable with its arguments; its function is.
        self.fn: Callable[..., Any] = getattr(wrapped, "__func__", wrapped)
        self.name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        self.options = options
        self.reader = ArgumentReader(self.fn, options.static)
        self.cache = Cache(self.name, options.max_entries)
        self.fast = self.cache.fast
        self.entry_options = EntryOptions(options.outputs, options.patch)
        self._finalizer = weakref.finalize(self, Cache.clear, self.cache)
        self._finalizer.atexit = False  # the driver frees everything by itself then

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call, natively if that is possible."""
        result = MISS if kwargs else self.fast.call(args)
        return self.run(args, kwargs) if result is MISS else result

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call: launch the entry of its signature, or make one."""
        if is_capturing_here() or is_disabled():
            return self.fn(*args, **kwargs)
        call = self.reader.read(args, kwargs)
        if call.adapter.is_capturing():
            return self.fn(*args, **kwargs)  # the caller's own capture: become part of it
        result = self._hit(call)
        return self._miss(call) if result is MISS else result

    def _hit(self, call: Call) -> Any:
        """Launch the entry that serves a call; ``MISS`` if there is none."""
        found = self.cache.find(call)
        if found is None:
            return MISS
        entry, arrays = found
        self.cache.count_hit(entry)
        if self.options.verify:
            return verify_launch(self.name, self.fn, call, entry, arrays)
        if call.is_plain:
            self._serve_natively(call, entry, arrays)
        return entry.launch(arrays)

    def _serve_natively(self, call: Call, entry: CacheEntry, arrays: list[Any]) -> None:
        """Let the compiled hit take the next calls like this one."""
        if entry.can_be_native:
            lib = call.adapter.native_library() if IS_COMPILED else None
            native = lib is not None and self.fast.add(
                lib, tuple(call.leaves), entry.hit_plan(arrays)
            )
            if native:
                entry.executable.native.append(native)
            else:
                entry.can_be_native = False

    def _miss(self, call: Call) -> Any:
        """Run the function eagerly, which gives the result, then capture it for later calls."""
        with self.cache.lock:
            result = self._hit(call)  # another thread may have captured it meanwhile
            return self._eager_then_capture(call) if result is MISS else result

    def _eager_then_capture(self, call: Call) -> Any:
        args, kwargs = call.rebuild(call.arrays)
        if self.cache.refusal(call.key) is not None:
            self.cache.eager_calls += 1
            return self.fn(*args, **kwargs)
        self.cache.misses += 1
        with watch_code(call.adapter.library_modules) as ran:
            result = self.fn(*args, **kwargs)
        if self.cache.count_warmup(call.key) < self.options.warmup:
            return result
        try:
            self.cache.insert(call.key, self._capture(call, ran))
        except (CaptureError, AnalysisError) as error:
            if self.options.on_unsupported == "eager":
                self.cache.refuse(call.key, str(error))
                return result
            error.eager_result = result
            error.add_note(
                "The eager call of this signature had been completed before; its result is in "
                "`error.eager_result`."
            )
            raise
        return result

    def _capture(self, call: Call, ran: RanCode) -> CacheEntry:
        adapter = call.adapter
        signature = self.reader.describe(call, [adapter.spec(a) for a in call.arrays])
        watch = find_implicit(self.fn, self.reader.objects(call), adapter, ran)
        return build_entry(self.fn, self.name, call, signature, watch, self.entry_options)


@overload
def graphed(fn: F, /) -> F: ...
@overload
def graphed(
    *,
    static: Iterable[str] = (),
    max_entries: int | None = 128,
    on_unsupported: Literal["raise", "eager"] = "raise",
    warmup: int = 1,
    outputs: Literal["fresh", "static"] = "fresh",
    verify: bool = False,
    patch: Literal["auto", "host", "device"] = "auto",
) -> Callable[[F], F]: ...
def graphed(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    static: Iterable[str] = (),
    max_entries: int | None = 128,
    on_unsupported: str = "raise",
    warmup: int = 1,
    outputs: str = "fresh",
    verify: bool = False,
    patch: str = "auto",
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
    max_entries : int or None
        Entries kept; the one used longest ago is evicted. None keeps all.
    on_unsupported : {"raise", "eager"}
        What happens to a function that cannot be captured: an error that names the call, or
        the plain function, counted in ``cache_info().eager_calls``.
    warmup : int
        Eager calls of a signature before it is captured.
    outputs : {"fresh", "static"}
        ``"fresh"`` returns memory of its own on every call; ``"static"`` the same memory
        every time, overwritten by the next call.
    verify : bool
        Run the function beside every graph launch and compare the results bit for bit.
    patch : {"auto", "host", "device"}
        How addresses are written into the graph; ``"auto"`` chooses by cost.

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
        max_entries,
        on_unsupported,
        warmup,
        outputs,
        verify,
        patch,
    )

    def decorate(wrapped: Callable[..., Any]) -> GraphedFunction:
        if isinstance(wrapped, GraphedFunction):
            raise GraphjitError(f"{wrapped!r} is graphed already")
        return GraphedFunction(wrapped, options)

    return decorate if fn is None else decorate(fn)


def caches() -> dict[str, CacheInfo]:
    """Return the cache of every graphed function of the process.

    Returns
    -------
    dict of str to CacheInfo
        Module and qualified name -> counts.
    """
    return {
        f"{getattr(g, '__module__', '?')}.{g._self_state.name}": g.cache_info()
        for g in list(_graphed_functions)
    }
