"""Arguments that the options name: static ones, keyed by content, and dynamic numbers.

Input: the names, and the arguments of a call in one form. Output: the same arguments with
those in boxes, each one leaf whatever it holds.
Raises: ``TypeError`` for names that are no parameters; ``SignatureError``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from graphjit._scalars import DYNAMIC, AnyValue
from graphjit._signature import static_key


class Static:
    """An argument named in ``static``."""

    def __init__(self, value: Any, path: str) -> None:
        self.value = value
        self.key = static_key(value, path, by_content=True)


class Dynamic:
    """A number named in ``dynamic``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = AnyValue(type(value))


class NamedArguments:
    """The names, checked against a function's parameters."""

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: inspect.Signature | None,
        static: tuple[str, ...],
        dynamic: tuple[str, ...],
    ) -> None:
        self.static, self.dynamic = frozenset(static), frozenset(dynamic)
        known = set(signature.parameters) if signature else set()
        for option, names in (("static", self.static), ("dynamic", self.dynamic)):
            if unknown := names - known:
                raise TypeError(
                    f"@graphed({option}=...) names {sorted(unknown)}, but "
                    f"{getattr(fn, '__qualname__', fn)} has the parameters {sorted(known)}"
                )
        if both := self.static & self.dynamic:
            raise TypeError(f"@graphed: {sorted(both)} cannot be both static and dynamic")

    def __bool__(self) -> bool:
        return bool(self.static or self.dynamic)

    def boxed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], positional: list[str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the named arguments in boxes."""
        names = [name.lstrip("*") for name in positional]
        names += names[-1:] * (len(args) - len(names))
        return (
            tuple(self._box(value, name) for value, name in zip(args, names, strict=False)),
            {name: self._box(value, name) for name, value in kwargs.items()},
        )

    def _box(self, value: Any, name: str) -> Any:
        if name in self.static:
            return Static(value, name)
        is_scalar = name in self.dynamic and type(value) in DYNAMIC
        return Dynamic(value) if is_scalar else value
