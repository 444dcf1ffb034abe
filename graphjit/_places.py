"""Places that hold a value, and can be read and restored: attributes, items, globals, cells.

Input: the object that a place belongs to. Output: what is there now; ``MISSING`` for nothing.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Protocol

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Place(Protocol):
    """A place that holds a value: an attribute, an item, a global, a closure cell."""

    def read(self, parent: Any) -> Any: ...
    def write(self, parent: Any, value: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Attribute:
    """``parent.name``."""

    name: str

    def read(self, parent: Any) -> Any:
        return getattr(parent, self.name, MISSING)

    def write(self, parent: Any, value: Any) -> None:
        if value is MISSING:
            delattr(parent, self.name)
        else:
            setattr(parent, self.name, value)


@dataclass(frozen=True, slots=True)
class Item:
    """``parent[key]``; a container's contents are restored as a whole."""

    key: Any

    def read(self, parent: Any) -> Any:
        try:
            return parent[self.key]
        except (IndexError, KeyError):
            return MISSING

    def write(self, parent: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a set, or a key of a dictionary, by its place."""

    index: int

    def read(self, parent: Any) -> Any:
        members = list(parent)
        return members[self.index] if self.index < len(members) else MISSING

    def write(self, parent: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable of an enclosing function."""

    cell: Any

    def read(self, parent: Any) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def write(self, parent: Any, value: Any) -> None:
        self.cell.cell_contents = value


@dataclass(frozen=True, slots=True)
class Global:
    """A variable of a module."""

    namespace: dict[str, Any]
    name: str

    def read(self, parent: Any) -> Any:
        return self.namespace.get(self.name, MISSING)

    def write(self, parent: Any, value: Any) -> None:
        self.namespace[self.name] = value


@dataclass(frozen=True, slots=True)
class ClassAttribute:
    """What a class gives its instances; methods count by their function."""

    owner: type
    name: str

    def read(self, parent: Any) -> Any:
        value = vars(self.owner).get(self.name, MISSING)
        value = getattr(value, "__func__", value)
        return value.fget if isinstance(value, property) else value

    def write(self, parent: Any, value: Any) -> None:
        if not callable(value):
            setattr(self.owner, self.name, value)


@dataclass(frozen=True, slots=True)
class AbsentNames:
    """Names that an object, or ``owner``, does not have by itself: True as long as it has none.

    A name that appears later can hide what was found elsewhere, in the class of the object.
    """

    names: frozenset[str]
    owner: Any = None

    def read(self, parent: Any) -> Any:
        holder = parent if self.owner is None else self.owner
        return self.names.isdisjoint(getattr(holder, "__dict__", ()))

    def write(self, parent: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class AbsentGlobals:
    """Builtins that a module does not hide: True as long as it has no such names of its own."""

    namespace: dict[str, Any]
    names: tuple[str, ...]

    def read(self, parent: Any) -> Any:
        return not any(name in self.namespace for name in self.names)

    def write(self, parent: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the call that is an object, by its index among the leaves of the call."""

    index: int

    def read(self, parent: Any) -> Any:
        return parent[self.index]

    def write(self, parent: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Held:
    """The graphed callable itself."""

    value: Any

    def read(self, parent: Any) -> Any:
        return self.value

    def write(self, parent: Any, value: Any) -> None:
        pass


def vars_of(value: Any) -> dict[str, Any]:
    """Return an object's own dictionary; empty if it has none."""
    try:
        # Not `getattr`: a type alias such as dict[str, int] would give the dictionary of dict.
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """List an object's own attributes, from its dictionary and its slots."""
    found = dict(vars_of(value))
    for base in type(value).__mro__:
        if "__slots__" in vars(base):
            for name, slot in vars(base).items():  # the name of a private one is a mangled one
                if isinstance(slot, types.MemberDescriptorType):
                    found[name] = getattr(value, name, MISSING)
    return list(found.items())
