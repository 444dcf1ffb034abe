"""The options of ``@graphed``, checked when a function is decorated, and the off switch.

Input: keyword arguments; the environment. Output: ``Options``.
Raises: ``ValueError`` naming the option and its choices.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DISABLED = os.environ.get("GRAPHJIT_DISABLE", "") not in ("", "0")


def is_disabled() -> bool:
    """Say whether ``GRAPHJIT_DISABLE`` turns every graphed function into the plain one.

    The variable is read once, when graphjit is imported: a look-up costs as much as a launch.
    """
    return _DISABLED


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``@graphed``."""

    static: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    max_entries: int | None = 128
    on_unsupported: str = "raise"
    warmup: int = 1
    outputs: str = "fresh"
    verify: bool = False
    patch: str = "auto"
    optimize: bool = False

    def __post_init__(self) -> None:
        _check_choice("on_unsupported", self.on_unsupported, ("raise", "eager", "split"))
        _check_choice("outputs", self.outputs, ("fresh", "static"))
        _check_choice("patch", self.patch, ("auto", "host", "device"))
        for name in ("verify", "optimize"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"@graphed({name}={getattr(self, name)!r}): must be True or False")
        if self.on_unsupported == "split" and (self.outputs == "static" or self.dynamic):
            raise ValueError(
                "@graphed(on_unsupported='split') cannot be combined with outputs='static' or "
                "dynamic=...: the parts of a function share the memory of one call"
            )
        if self.warmup < 1:
            raise ValueError(
                f"@graphed(warmup={self.warmup}): at least one eager call is needed before the "
                f"capture; it compiles kernels and gives the first result"
            )
        if self.max_entries is not None and self.max_entries < 1:
            raise ValueError(f"@graphed(max_entries={self.max_entries}): must be positive or None")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"@graphed({name}={value!r}): must be one of {', '.join(choices)}")


def refuse_generators(wrapped: Callable[..., Any]) -> None:
    """Refuse what runs its code later, or in pieces: there is no one call to capture."""
    fn = getattr(wrapped, "__func__", wrapped)
    for test, kind in (
        (inspect.isgeneratorfunction, "a generator function"),
        (inspect.iscoroutinefunction, "a coroutine function"),
        (inspect.isasyncgenfunction, "an asynchronous generator function"),
    ):
        if test(fn):
            raise TypeError(
                f"{getattr(fn, '__qualname__', fn)} is {kind}, whose code does not run when it "
                f"is called. Decorate the function that launches the GPU work in it."
            )
