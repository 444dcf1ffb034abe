"""One graphed function: its options, its reader, its cache, and the story of a call.

Input: arguments. Output: what the function returns.
``State.run`` is the whole flow, top to bottom; ``State.call`` puts the compiled hit before it.
Raises: what the function raises; ``SignatureError`` before anything is launched;
``CaptureError`` and ``AnalysisError`` when a function cannot be captured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from graphjit._arguments import ArgumentReader, Call
from graphjit._build import EntryOptions
from graphjit._cache import Cache
from graphjit._capture import current_capture, is_capturing_here, refuse_new_thread
from graphjit._entry import CacheEntry
from graphjit._export import export_call
from graphjit._hit import IS_COMPILED, MISS
from graphjit._host_calls import has_failures
from graphjit._implicit import find_implicit
from graphjit._nvtx import IS_ANNOTATING, annotated
from graphjit._options import Options, is_disabled
from graphjit._profile import Profile, refuse_profile, take_times
from graphjit._ran_code import RanCode, is_watching_here, watch_code
from graphjit._recipe import build_entry
from graphjit._segments import SegmentTree
from graphjit._setup import refuse_stand_ins
from graphjit._signature import Signature
from graphjit._verify import verify_launch
from graphjit.errors import AnalysisError, CaptureError, ExportError, GraphjitError, SignatureError

_VERIFY_DRAWS = (
    "{function} cannot be verified: it draws random numbers from a generator whose state is on the "
    "host, so that the eager call beside a launch would draw others. Leave out verify=True, or "
    "pass the random numbers as an argument."
)
_NOT_CAPTURED = (
    "{function} has no graph for this call, and only a graph can be {done}: make the call first"
)
_OTHER_ENTRY = "these arguments are served by another entry, which differs by {lines}"
_INSIDE = "It was raised in an eager call of {function}, which did not come to its end."


class State:
    """The function, its options, its reader and its cache."""

    def __init__(self, wrapped: Callable[..., Any], options: Options) -> None:
        # A static or class method object is not callable with its arguments; its function is.
        self.fn: Callable[..., Any] = wrapped
        if isinstance(wrapped, (staticmethod, classmethod)):
            self.fn = wrapped.__func__
        self.name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        self.options = options
        self.reader = ArgumentReader(self.fn, options.static, options.dynamic)
        self.cache = Cache(self.name, options.max_entries)
        self.fast = self.cache.fast
        self.fast.bind_with(self.reader.bind, self.reader.n_positional, self.reader.dynamic_index)
        self.entry_options = EntryOptions(
            options.outputs,
            options.patch,
            optimize=options.optimize,
            split=options.on_unsupported == "split",
        )
        self._split_code = RanCode()
        """With ``on_unsupported="split"``: the code of all segments."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call, natively if that is possible."""
        result = self.fast.call(args, kwargs)
        return self.run(args, kwargs) if result is MISS else result

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call: launch the entry of its signature, or make one."""
        if is_capturing_here():
            with current_capture().calling(self.fn, self.name):
                return self.fn(*args, **kwargs)
        if is_watching_here() or is_disabled() or sys.is_finalizing():
            return self.fn(*args, **kwargs)
        call = self.reader.read(args, kwargs)
        if call.adapter.is_capturing():
            return self.fn(*args, **kwargs)  # the caller's own capture: become part of it
        result = self._hit(call, args, kwargs)
        return self._miss(call, args, kwargs) if result is MISS else result

    def _hit(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the entry that serves a call; ``MISS`` if there is none."""
        found = self.cache.find(call)
        if found is None:
            return MISS
        if has_failures():
            found[0].report()
        self.cache.count_hit(found[0])
        with annotated(call.adapter, "launch", self.name):
            return self._launch(call, *found, args, kwargs)

    def _launch(
        self,
        call: Call,
        entry: CacheEntry,
        arrays: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self.options.verify:
            eager = partial(self._eagerly, call, args, kwargs)
            launch = partial(entry.launch, call, arrays)
            return verify_launch(self.name, eager, launch, entry, arrays)
        if entry.segments is not None:
            eager = partial(self._eagerly, call, args, kwargs)
            return self._launch_segments(call, entry, entry.segments, arrays, eager)
        if IS_COMPILED and entry.can_be_native and not IS_ANNOTATING:
            self._serve_natively(call, entry, args, kwargs, arrays)
        return entry.launch(call, arrays)

    def _launch_segments(
        self,
        call: Call,
        entry: CacheEntry,
        tree: SegmentTree,
        arrays: list[Any],
        eager: Callable[[], Any],
    ) -> Any:
        """Launch a function that is split at its reads on the host."""
        try:
            return tree.run(call, arrays, eager)
        finally:
            if tree.failure:
                self.cache.refuse(call.key, tree.failure)
            # Code that ran for the first time names what has not been watched yet.
            if tree.failure or len(self._split_code.codes) != tree.n_codes:
                self.cache.discard(call.key, entry)

    def _serve_natively(
        self,
        call: Call,
        entry: CacheEntry,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arrays: list[Any],
    ) -> None:
        """Let the compiled hit take the next calls like this one."""
        lib = call.adapter.native_library() if self.reader.is_plain(call) else None
        native = lib is not None and self.fast.add(lib, args, kwargs, entry.hit_plan(call, arrays))
        if native:
            entry.executable.open_native(native)
        else:
            entry.can_be_native = False

    def _miss(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function eagerly, which gives the result, then capture it for later calls."""
        refuse_stand_ins(call)
        with self.cache.lock:
            result = self._hit(call, args, kwargs)  # another thread may have captured it by now
            if result is MISS:
                result = self._eager_then_capture(call, args, kwargs)
            return result

    def _eager_then_capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.cache.refusal(call.key) is not None:
            return self._refused(args, kwargs)
        self.cache.misses += 1
        with (
            annotated(call.adapter, "eager", self.name),
            watch_code(call.adapter.library_modules) as ran,
        ):
            result = self.fn(*args, **kwargs)
        if self.cache.count_warmup(call.key) < self.options.warmup:
            return result
        try:
            with annotated(call.adapter, "capture", self.name):
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

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that cannot be captured; graphed ones inside are launched."""
        self.cache.eager_calls += 1
        try:
            return self.fn(*args, **kwargs)
        except GraphjitError as error:
            error.eager_result = None  # of the inner one: it is not this function's
            error.add_note(_INSIDE.format(function=self.name))
            raise

    def _eagerly(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plain function; graphed ones inside are plain too, as in a capture."""
        with watch_code(call.adapter.library_modules):
            return self.fn(*args, **kwargs)

    def profile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature | None = None
    ) -> Profile:
        """Take the times of the nodes of a call that has been captured before.

        With ``signature``, by the entry that has it.
        """
        if is_capturing_here():
            raise current_capture().refuse("it takes a profile, which makes a capture of its own")
        call, entry, arrays = self._captured(args, kwargs, "profiled", GraphjitError)
        if signature is not None and entry.signature is not signature:
            lines = signature.difference(entry.signature)
            raise SignatureError(_OTHER_ENTRY.format(lines="; ".join(lines) or "sharing memory"))
        refuse_profile(entry, self.name)
        fn = partial(_call_watched, self.fn, RanCode(), call.adapter.library_modules)
        options = replace(self.entry_options, profile=True)
        timed = build_entry(fn, self.name, call, entry.signature, entry.watch, options)
        try:
            return take_times(timed, call, arrays, self.name)
        finally:
            timed.close()

    def export(
        self, path: str | os.PathLike[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Write the graph that serves a call to a file."""
        call, entry, _ = self._captured(args, kwargs, "exported", ExportError)
        names, dynamic = self.reader.positional, self.options.dynamic
        export_call(path, self.name, entry, call, names, dynamic)

    def _captured(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        done: str,
        error: type[GraphjitError],
    ) -> tuple[Call, CacheEntry, list[Any]]:
        """Return a call with the entry that serves it, and its arrays; there has to be one."""
        call = self.reader.read(args, kwargs)
        found = self.cache.find(call)
        if found is None:
            reason = self.cache.refusal(call.key)
            text = _NOT_CAPTURED.format(function=self.name, done=done)
            raise error(f"{text}, unless it is refused: {reason}" if reason else text)
        return call, *found

    def _capture(self, call: Call, ran: RanCode) -> CacheEntry:
        adapter = call.adapter
        if self.options.on_unsupported == "split":  # other reads may lead to other code
            self._split_code.add(ran)
            ran = self._split_code
        signature = self.reader.describe(call, [adapter.spec(a) for a in call.arrays])
        while True:
            n_known = len(ran.codes), len(ran.library_modules)
            objects, classes = self.reader.objects(call), self.reader.classes(call)
            watch = find_implicit(self.fn, objects, adapter, ran, classes)
            options = replace(self.entry_options, library_code=frozenset(ran.library_modules))
            fn = partial(_call_watched, self.fn, ran, adapter.library_modules)
            entry = build_entry(fn, self.name, call, signature, watch, options)
            if n_known == (len(ran.codes), len(ran.library_modules)):
                if entry.segments is not None:
                    entry.segments.n_codes = len(ran.codes)
                break
            # The eager call had set something up, and the capture took another way: what its
            # code names has not been watched yet.
            entry.close()
        if self.options.verify and entry.draws:
            entry.close()
            raise CaptureError(_VERIFY_DRAWS.format(function=self.name))
        return entry


def _call_watched(
    fn: Callable[..., Any],
    ran: RanCode,
    library_modules: frozenset[str],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a function, and add the code that runs to ``ran``."""
    calling = current_capture().calls.enter(fn)
    with calling, watch_code(library_modules, refuse_new_thread) as again:
        try:
            return fn(*args, **kwargs)
        finally:
            ran.add(again)
