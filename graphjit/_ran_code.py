"""Which of the user's code runs during the eager call, and the names that it mentions.

Input: a call in this thread. Output: ``RanCode``: code objects with their globals.
Source: dis.
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graphjit._hit import pause_hits
from graphjit._observed import observed

OWN_MODULES = frozenset({"graphjit", "wrapt", "optree"})
STDLIB_MODULES = frozenset(sys.stdlib_module_names - {"__main__"})


def top_module(module: object) -> str:
    """Return the top-level name of a module's name."""
    return str(module).partition(".")[0]


_watching = threading.local()


def is_watching_here() -> bool:
    """Say whether this thread is inside an eager call that is being watched."""
    return getattr(_watching, "depth", 0) > 0


@dataclass(slots=True)
class RanCode:
    """The user's code objects that ran, and the globals that each of them saw."""

    codes: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    library_modules: set[str] = field(default_factory=set)
    """Modules of the array library whose code ran."""
    host_codes: set[types.CodeType] = field(default_factory=set)
    """The code of functions that the graph itself calls."""

    def add(self, other: RanCode) -> None:
        """Add what ran another time."""
        self.codes.update(other.codes)
        self.library_modules |= other.library_modules
        self.host_codes |= other.host_codes

    def is_host_function(self, value: Any) -> bool:
        """Say whether launches call a function, and nothing else: it sees what there is then."""
        code = getattr(value, "__code__", None)
        return code in self.host_codes and code not in self.codes

    def names(self) -> frozenset[str]:
        """Return every name by which the code may reach an attribute."""
        return frozenset(name for code in self.codes for name in _attribute_names(code))


def imported_modules(code: types.CodeType) -> Iterator[str]:
    """Yield the modules that code imports when it runs."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield instruction.argval
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from imported_modules(const)


def _attribute_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code mentions, and its strings: ``getattr(self, "bias", None)``."""
    yield from code.co_names
    consts = list(code.co_consts)
    for const in consts:
        if isinstance(const, types.CodeType):
            yield from _attribute_names(const)
        elif isinstance(const, (tuple, frozenset)):
            consts += const  # ``for name in ("w", "b")``, and the keywords of a class pattern
        elif isinstance(const, str) and const.isidentifier():
            yield const


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code looks up, or assigns, in its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            yield instruction.argval
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from global_names(const)


@contextmanager
def watch_code(
    library_modules: frozenset[str], on_new_thread: Callable[[], None] = lambda: None
) -> Iterator[RanCode]:
    """Collect the user's code that runs in this thread; a profiler in place goes on.

    ``on_new_thread`` is called before this thread starts another one.
    """
    ran = RanCode()
    skipped = library_modules | STDLIB_MODULES | OWN_MODULES

    def starts(code: types.CodeType, namespace: dict[str, Any]) -> None:
        if getattr(_watching, "is_paused", False):
            return
        module = namespace.get("__name__")
        if top_module(module) in library_modules:
            ran.library_modules.add(str(module))
        elif top_module(module) not in skipped:
            ran.codes.setdefault(code, namespace)
        elif code is threading.Thread.start.__code__:
            on_new_thread()

    # Graphed functions inside run as plain ones: what they reach counts, too.
    depth = getattr(_watching, "depth", 0)
    _watching.depth = depth + 1
    around = getattr(_watching, "around", ())
    _watching.around = (*around, ran)
    pause_hits(1)
    # A collection would run finalisers and callbacks of others, whose code is not the function's.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with observed(starts):
            yield ran
    finally:
        pause_hits(-1)
        _watching.depth = depth
        _watching.around = around
        if was_enabled:
            gc.enable()


@contextmanager
def as_host_function(function: Any) -> Iterator[None]:
    """Call a function that launches call, too, or record the call."""
    if isinstance(function, types.FunctionType):
        for ran in getattr(_watching, "around", ()):
            ran.host_codes.add(function.__code__)
    was_paused = getattr(_watching, "is_paused", False)
    _watching.is_paused = True
    try:
        yield
    finally:
        _watching.is_paused = was_paused
