"""Implicit arguments: what a function reaches through closures, globals and attributes.

Input: the function, its arguments that are objects, and the Python code that ran during the
eager call (seen by a profile function).
Output: a ``Watch`` that finds every array, and every value that the code names.
Raises: ``CaptureError`` when there is too much to watch.

The rule: a global, a closure cell or an attribute is watched if the code that ran mentions
its name, or if it holds arrays; containers by what they hold. What is reached in no such way
(``getattr`` with a computed name) is not seen; if it is an array, the graph's own addresses
give it away and the capture is refused.
"""

from __future__ import annotations

import array
import collections
import ctypes
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from graphjit import _places as places
from graphjit import _watch as watch
from graphjit._adapters.interface import Adapter
from graphjit._places import MISSING, Place, attributes_of, vars_of
from graphjit._ran_code import (
    OWN_MODULES,
    STDLIB_MODULES,
    RanCode,
    global_names,
    imported_modules,
    top_module,
)
from graphjit._signature import is_kept_by_identity
from graphjit._watch import Step, Watch
from graphjit.errors import CaptureError

MAX_ITEMS = 4096  # of one container that are watched one by one
MAX_STEPS = 20_000
_BUFFER_TYPES = (bytearray, memoryview, array.array, ctypes.Structure.__mro__[1])  # of ctypes: all
_MIXIN_MODULES = frozenset({"builtins", "abc", "typing"})
_DESCRIPTIVE = frozenset({"__annotations__", "__doc__", "__module__", "__dict__", "__weakref__"})


def find_implicit(
    fn: Callable[..., Any],
    objects: list[tuple[str, int, Any]],
    adapter: Adapter,
    ran: RanCode,
    classes: Iterable[type] = (),
) -> Watch:
    """Find what a function reaches beyond its arguments.

    Parameters
    ----------
    fn : callable
        The user's function.
    objects : list of (path, index, object)
        Arguments that are neither arrays nor plain values: ``self``, a model; with their
        places among the leaves of a call.
    adapter : Adapter
        The library whose arrays are looked for.
    ran : RanCode
        The code that ran during the eager call.
    classes : iterable of type
        Classes of the containers among the arguments, which hold methods and numbers, too.
    """
    walker = _Walker(adapter, ran)
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    if isinstance(fn, types.FunctionType):
        walker.walk_function(-1, name, fn)  # the function itself is what is graphed: no check
    else:
        walker.walk(-1, places.Held(fn), name, fn)
    for path, index, value in objects:
        walker.walk_argument(index, path, value)
    for kind in classes:
        walker.walk_class(kind)
    for code, namespace in ran.codes.items():
        walker.walk_globals(code, namespace)
    return Watch(walker.steps)


class _Walker:
    """Walks from the function to everything that its code can name."""

    def __init__(self, adapter: Adapter, ran: RanCode) -> None:
        self.adapter = adapter
        self.ran = ran
        self.names = ran.names()
        self.steps: list[Step] = []
        self._seen: set[Any] = set()
        self._library = adapter.library_modules | STDLIB_MODULES | OWN_MODULES

    def walk(self, parent: int, place: Place, path: str, value: Any) -> None:
        """Add the read of one value, and those of what it holds."""
        if len(self.steps) >= MAX_STEPS:
            raise CaptureError(
                f"the function reaches more than {MAX_STEPS} values through globals, closures "
                f"and attributes (the last one is {path}); pass what it needs as arguments"
            )
        if value is MISSING or (isinstance(value, types.ModuleType) and self._in_library(value)):
            return
        if self.adapter.is_array(value):
            index = self._add(parent, place, watch.same_array(value, self.adapter), path, "array")
            if type(value) not in self.adapter.array_types:
                self._walk_attributes(index, path, value)
        elif isinstance(value, (np.ndarray, np.void)):
            self._add(parent, place, watch.same_host_array(value), path)
        elif isinstance(value, watch.VALUE_TYPES):
            self._add(parent, place, watch.same_value(value, path), path, "value")
        elif isinstance(value, _BUFFER_TYPES):
            self._add(parent, place, watch.same_bytes(value), path)
        elif isinstance(value, (set, frozenset)):
            self._walk_members(self._add(parent, place, watch.same_set(value), path), path, value)
        elif isinstance(value, (list, tuple, collections.deque, *watch.MAPPING_TYPES)):
            self._walk_container(parent, place, path, value)
        else:
            self._walk_object(parent, place, path, value)

    def walk_argument(self, leaf: int, path: str, value: Any) -> None:
        """Walk an object that is an argument: each call's own, found by its place."""
        by_identity = is_kept_by_identity(type(value))
        check = watch.same_object(value) if by_identity else watch.same_type(value)
        # An object of that address may be another by now: the compiled hit looks no further.
        kind = "object" if by_identity else "content"
        index = self._add(-1, places.Argument(leaf), check, path, kind)
        self._is_new(id(value))
        self._walk_inside(index, path, value)

    def _add(
        self, parent: int, place: Place, check: watch.Check, path: str, kind: str = "content"
    ) -> int:
        self.steps.append(Step(parent, place, check, path, kind))
        return len(self.steps) - 1

    def _is_new(self, mark: Any) -> bool:
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True

    def _walk_container(self, parent: int, place: Place, path: str, value: Any) -> None:
        is_dict = isinstance(value, watch.MAPPING_TYPES)
        items = value.values() if is_dict else value
        if len(value) > MAX_ITEMS and all(map(self._is_whole, items)):
            self._add(parent, place, watch.same_items(value), path)
            return
        if not self._is_new(id(value)):
            # Its items are watched along the first path that led to it.
            self._add(parent, place, watch.same_object(value), path, "object")
            return
        check = watch.same_keys(value) if is_dict else watch.same_length(value)
        index = self._add(parent, place, check, path, "keys" if is_dict else "length")
        for key in list(value) if is_dict else range(len(value)):
            self.walk(index, places.Item(key), f"{path}[{key!r}]", value[key])
        if is_dict:
            self._walk_members(index, path, value)
        if top_module(type(value).__module__) not in STDLIB_MODULES:
            self._walk_attributes(index, path, value)  # a class derived from list

    def _walk_members(self, index: int, path: str, members: Any) -> None:
        """Walk the objects in a set, or among the keys of a dictionary."""
        for i, member in enumerate(members):
            if not self._is_whole(member):
                self.walk(index, places.Member(i), f"member {i} of {path}", member)

    def _is_whole(self, value: Any) -> bool:
        """Say whether a value holds nothing that could change by itself."""
        if type(value) is tuple:
            return all(map(self._is_whole, value))
        return isinstance(value, watch.VALUE_TYPES) or self.adapter.is_array(value)

    def _walk_object(self, parent: int, place: Place, path: str, value: Any) -> None:
        index = self._add(parent, place, watch.same_object(value), path, "object")
        if self._is_new(id(value)):
            self._walk_inside(index, path, value)

    def _walk_inside(self, index: int, path: str, value: Any) -> None:
        if isinstance(value, watch.Opaque) or self.ran.is_host_function(value):
            return
        if isinstance(value, types.FunctionType):
            self.walk_function(index, path, value)
        elif isinstance(value, types.MethodType):
            self._walk_named(index, path, value, ("__self__", "__func__"))
        elif isinstance(value, functools.partial):
            self._walk_named(index, path, value, ("func", "args", "keywords"))
        elif not isinstance(value, types.BuiltinFunctionType):
            self._walk_attributes(index, path, value)

    def _walk_named(self, index: int, path: str, value: Any, names: tuple[str, ...]) -> None:
        for name in names:
            held = getattr(value, name, MISSING)
            self.walk(index, places.Attribute(name), f"{path}.{name}", held)

    def walk_function(self, index: int, path: str, fn: types.FunctionType) -> None:
        """Walk a function's closure and, if it ran, its globals; -1 for the graphed one."""
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            place = places.Cell(cell)
            self.walk(index, place, name, place.read(None))
        if index >= 0:
            self._walk_named(index, path, fn, ("__defaults__", "__kwdefaults__", "__wrapped__"))
        for name, attribute in vars(fn).items():
            if name in self.names or self._holds_arrays(attribute):
                self.walk(-1, places.Global(vars(fn), name), f"{path}.{name}", attribute)
        if fn.__code__ in self.ran.codes:
            if index >= 0:  # a tool that reloads modules gives a function other code
                code = watch.same_object(fn.__code__)
                self._add(index, places.Attribute("__code__"), code, f"{path}.__code__", "object")
            self.walk_globals(fn.__code__, fn.__globals__)

    def walk_globals(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """Walk the globals that a piece of code mentions."""
        names = dict.fromkeys(global_names(code))
        absent = tuple(n for n in names if n not in namespace)  # builtins, most of them
        if absent and self._is_new(("absent", id(namespace), absent)):
            hidden = places.AbsentGlobals(namespace, absent)
            path = f"{', '.join(absent)} in {namespace.get('__name__', 'a module')}"
            self._add(-1, hidden, watch.is_true, path, "value")
        for name in imported_modules(code):
            if self._is_new(("module", name)):
                module = places.Global(cast("dict[str, Any]", sys.modules), name)
                self.walk(-1, module, name, module.read(None))
        for name in names:
            if self._is_new(("global", id(namespace), name)):
                place = places.Global(namespace, name)
                self.walk(-1, place, name, place.read(None))

    def _walk_attributes(self, index: int, path: str, value: Any) -> None:
        in_library = self._in_library(value)
        is_class = isinstance(value, type)
        # The code of the standard library is not observed: all values of its objects count.
        modules = {top_module(base.__module__) for base in type(value).__mro__[1:]}
        modules = {top_module(type(value).__module__), *(modules - _MIXIN_MODULES)}
        is_object = not (is_class or isinstance(value, types.ModuleType))
        all_count = is_object and not modules.isdisjoint(STDLIB_MODULES)
        for name, attribute in attributes_of(value):
            if name in _DESCRIPTIVE:
                continue
            if attribute is MISSING and name in self.names:
                self._add(index, places.Attribute(name), watch.is_missing, f"{path}.{name}")
            mentioned = name == "__wrapped__" or (
                (all_count or name in self.names) and not in_library
            )
            # The parts of a library's object are the library's, such as a generator's state.
            is_part = (
                in_library
                and top_module(type(attribute).__module__) in self.adapter.library_modules
            )
            if mentioned or is_part or self._holds_arrays(attribute):
                if is_class:
                    class_place = places.ClassAttribute(value, name)
                    self.walk(-1, class_place, f"{path}.{name}", class_place.read(None))
                else:
                    self.walk(index, places.Attribute(name), f"{path}.{name}", attribute)
        if not in_library:
            absent = places.AbsentNames(self.names - vars_of(value).keys())
            self._add(index, absent, watch.is_true, f"the attributes of {path}")
            if is_class:
                self.walk_class(value)
            if not isinstance(value, types.ModuleType):
                self.walk_class(type(value))

    def walk_class(self, kind: type) -> None:
        """Watch the values that a class gives its instances, and its methods' closures."""
        for base in kind.__mro__[:-1]:
            if top_module(base.__module__) in self._library or not self._is_new(("class", base)):
                continue
            absent = places.AbsentNames(self.names - vars(base).keys(), base)
            self._add(-1, absent, watch.is_true, f"the attributes of {base.__qualname__}")
            for name in list(vars(base)):
                has_run = getattr(vars(base)[name], "__code__", None) in self.ran.codes
                is_named = name in self.names and not name.startswith("__")
                if name == "__call__" or has_run or is_named:
                    place = places.ClassAttribute(base, name)
                    self.walk(-1, place, f"{base.__qualname__}.{name}", place.read(None))

    def _holds_arrays(self, value: Any) -> bool:
        if self.adapter.is_array(value):
            return True
        if isinstance(value, dict) and len(value) <= MAX_ITEMS:
            value = list(value.values())
        if isinstance(value, (list, tuple)) and len(value) <= MAX_ITEMS:
            return any(self.adapter.is_array(v) for v in value)
        return False

    def _in_library(self, value: Any) -> bool:
        """Say whether a module, a class or an object belongs to code that is not the user's.

        Objects of the standard library hold the user's values: a ``SimpleNamespace``.
        """
        if isinstance(value, types.ModuleType):
            return top_module(value.__name__) in self._library
        if isinstance(value, type):
            return top_module(value.__module__) in self._library
        return top_module(type(value).__module__) in self.adapter.library_modules | OWN_MODULES
