"""What a graphed function is to a type checker: the function's own types, and the cache's.

Input / Output: only annotations; at run time a ``GraphedFunction`` is all of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from graphjit._cache import CacheInfo
from graphjit._explanation import Explanation
from graphjit._profile import Profile
from graphjit.inspection import EntryInfo

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")


class Graphed(Protocol[P, R]):
    """A graphed function, called as the function is; found on an instance, it is bound to it."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Graphed[P, R]: ...
    @overload
    def __get__(
        self: Graphed[Concatenate[S, Q], R], instance: S, owner: Any = ...
    ) -> Graphed[Q, R]: ...
    def eager(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation: ...
    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile: ...
    def cache_info(self) -> CacheInfo: ...
    def cache_clear(self) -> None: ...
    def cache_entries(self) -> list[EntryInfo]: ...


class Decorator(Protocol):
    """What ``graphed(...)`` returns: it takes the function."""

    def __call__(self, fn: Callable[P, R], /) -> Graphed[P, R]: ...
