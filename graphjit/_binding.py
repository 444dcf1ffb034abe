"""The arguments of a call in one form: by position what can be, with defaults filled in.

Input: a signature. Output: a function with the same parameters that returns ``(args, kwargs)``,
made once, so that Python's own calls do the binding: ``inspect.Signature.bind`` costs more than
a hit.
Raises: ``TypeError``, in the words of a call of the function itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Binder = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


def make_binder(fn: Callable[..., Any], signature: inspect.Signature | None) -> Binder | None:
    """Return a function that takes what ``fn`` takes and returns ``(args, kwargs)``.

    None if nothing is known of the parameters, as of some functions that are not in Python.
    """
    if signature is None:
        return None
    defaults: dict[str, Any] = {}
    bare = []
    for p in signature.parameters.values():
        default: Any = p.empty
        if p.default is not p.empty:
            defaults[f"default_{len(defaults)}"] = p.default
            default = _Name(f"default_{len(defaults) - 1}")
        bare.append(p.replace(default=default, annotation=p.empty))
    head = inspect.Signature(bare)
    source = f"def bind{head}: return {_returned(bare)}"
    exec(compile(source, "<graphjit>", "exec"), defaults)
    bind: Any = defaults.pop("bind")
    bind.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)  # for its errors
    return bind  # type: ignore[no-any-return]


class _Name(str):
    """A name that ``inspect`` writes as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _returned(parameters: list[inspect.Parameter]) -> str:
    """Return the text of ``(args, kwargs)``."""
    args, kwargs = "", ""
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY:
            kwargs += f"{p.name!r}: {p.name}, "
        elif p.kind is p.VAR_KEYWORD:
            kwargs += f"**{p.name}, "
        else:
            args += f"*{p.name}, " if p.kind is p.VAR_POSITIONAL else f"{p.name}, "
    return f"({args}), {{{kwargs}}}"


def count_positional(signature: inspect.Signature | None) -> int:
    """Return n if there are n parameters, all of which can be given by position; else -1."""
    if signature is None:
        return -1
    parameters = signature.parameters.values()
    simple = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return len(parameters) if simple else -1
