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

from graphjit._driver.interface import CAPTURE_MODES

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
        check_options(
            "@graphed",
            on_unsupported=self.on_unsupported,
            outputs=self.outputs,
            patch=self.patch,
            verify=self.verify,
            optimize=self.optimize,
        )
        for name in ("warmup", "max_entries"):
            value = getattr(self, name)
            if not isinstance(value, int) and (value is not None or name == "warmup"):
                raise TypeError(f"@graphed({name}={value!r}): must be an integer")
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


_CHOICES: dict[str, tuple[str, ...]] = {
    "on_unsupported": ("raise", "eager", "split"),
    "outputs": ("fresh", "static"),
    "patch": ("auto", "host", "device"),
    "mode": CAPTURE_MODES,
}


def check_options(what: str, **options: Any) -> None:
    """Refuse an option that is none of its choices; those without choices are true or false."""
    for name, value in options.items():
        if name not in _CHOICES and not isinstance(value, bool):
            raise ValueError(f"{what}({name}={value!r}): must be True or False")
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(_CHOICES[name])
            raise ValueError(f"{what}({name}={value!r}): must be one of {choices}")


def refuse_other_callables(wrapped: Callable[..., Any]) -> None:
    """Refuse classes, and what runs its code later or in pieces: there is no call to capture."""
    fn = getattr(wrapped, "__func__", wrapped)
    if not callable(fn):
        raise TypeError(f"graphed() takes a function, not {wrapped!r}")
    if isinstance(fn, type):
        raise TypeError(f"{fn.__qualname__} is a class: decorate the method that does the work")
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
