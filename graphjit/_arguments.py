"""Arguments -> leaves and back: nested containers, arrays, scalars, a path of each.

Input: the arguments of one call. Output: ``Call``: arrays with their addresses, the key
under which the cache looks, and what is needed to call the function again on other arrays.
Raises: ``SignatureError`` before anything is launched.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import optree

from graphjit._adapters import registry
from graphjit._adapters.interface import Adapter, ArraySpec
from graphjit._aliasing import alias_pattern
from graphjit._binding import count_positional, make_binder
from graphjit._containers import (
    flatten,
    path_text,
    share_containers,
    shared_containers,
    unflatten,
)
from graphjit._named import Dynamic, NamedArguments, Static
from graphjit._regions import alignment_class
from graphjit._scalars import NUMPY_SCALARS, SCALARS, AnyValue
from graphjit._signature import (
    IdentityKey,
    Signature,
    attribute_keys,
    float_bits,
    is_kept_by_identity,
    static_key,
)
from graphjit._watch import VALUE_TYPES
from graphjit.errors import SignatureError

_CONTAINERS = {tuple, list, dict}
_MAX_DYNAMIC_INDEX = 64
"""The compiled hit has a bit for each of the first positions."""


@dataclass(slots=True)
class Call:
    """One call of a graphed function, taken apart."""

    adapter: Adapter
    key: Hashable
    leaves: list[Any]
    """Arrays and static values in order."""
    tree: Any
    """optree's PyTreeSpec of ((positional...), {keyword...})."""
    arrays: list[Any]
    array_ptrs: list[int]
    array_index: list[int]
    """Index into ``leaves`` of each array."""
    scalar_index: tuple[int, ...] = ()
    """Index into ``leaves`` of each dynamic scalar."""
    static_index: frozenset[int] = frozenset()
    """Index into ``leaves`` of each argument that is keyed by its content."""
    shared: tuple[int, ...] = ()
    """Which lists and dictionaries are one object; see ``shared_containers``."""
    paths: list[str] | None = None

    @property
    def scalars(self) -> list[Any]:
        """The dynamic scalars."""
        return [self.leaves[i] for i in self.scalar_index]

    def with_scalars(self, scalars: Sequence[Any]) -> Call:
        """Return the call with other dynamic scalars."""
        leaves = list(self.leaves)
        for index, scalar in zip(self.scalar_index, scalars, strict=True):
            leaves[index] = scalar
        return replace(self, leaves=leaves)

    def rebuild(self, arrays: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other arrays in the places of the arrays."""
        leaves = list(self.leaves)
        for index, array in zip(self.array_index, arrays, strict=True):
            leaves[index] = array
        args, kwargs = unflatten(self.tree, leaves)
        if self.shared:
            args, kwargs = share_containers((args, kwargs), self.shared)
        return tuple(args), kwargs


class ArgumentReader:
    """Reads the calls of one function; made once, when the function is decorated."""

    def __init__(
        self, fn: Callable[..., Any], static: tuple[str, ...], dynamic: tuple[str, ...] = ()
    ) -> None:
        self._fn = fn
        try:
            self._signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        self.positional = self._positional_names()
        """Names of what is passed by position, ``"*name"`` last."""
        self.n_positional = count_positional(self._signature)
        self.bind = make_binder(fn, self._signature)
        """Gives keyword, positional and default arguments one form; None if nothing is known."""
        self._named = NamedArguments(fn, self._signature, static, dynamic)
        self.dynamic_index = [i for i, n in enumerate(self.positional) if n in self._named.dynamic]
        """Positions of the arguments that may be dynamic scalars, as far as they have one."""

    def _positional_names(self) -> list[str]:
        """Return the names of what is passed by position, ``"*name"`` last."""
        parameters = self._signature.parameters.values() if self._signature else ()
        star = inspect.Parameter.VAR_POSITIONAL
        keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return ["*" * (p.kind is star) + p.name for p in parameters if p.kind not in keyword]

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Take a call apart. The common case is decided without optree or binding."""
        if self.bind is not None and (kwargs or len(args) != self.n_positional):
            args, kwargs = self.bind(*args, **kwargs)
        if not kwargs and not self._named:
            call = self._read_plain(args)
            if call is not None:
                return call
        return self._read_any(args, kwargs)

    def is_plain(self, call: Call) -> bool:
        """Say whether the compiled hit can read calls like this one."""
        return (
            not self._named.static
            and len(self.dynamic_index) == len(self._named.dynamic)
            and max(self.dynamic_index, default=0) < _MAX_DYNAMIC_INDEX
            and self.classes(call) <= _CONTAINERS
            and all(_is_plain(leaf, call.adapter.array_types) for leaf in call.leaves)
        )

    def _read_plain(self, args: tuple[Any, ...]) -> Call | None:
        """Read positional arrays and scalars; None if anything else is among them."""
        adapter = registry.find(args)
        types = adapter.array_types
        key: list[Hashable] = []
        arrays: list[Any] = []
        ptrs: list[int] = []
        index: list[int] = []
        for i, value in enumerate(args):
            kind = type(value)
            if kind in types:
                ptr = adapter.device_ptr(value)
                key.append((*adapter.key(value), alignment_class(ptr)))
                arrays.append(value)
                ptrs.append(ptr)
                index.append(i)
            elif kind is float:
                key.append((kind, float_bits(value)))
            elif kind in SCALARS and kind is not complex:
                key.append((kind, value))
            elif _is_opaque(value, kind):
                key.append(IdentityKey(value))
            else:
                return None
        tree = _plain_tree(len(args))
        return Call(
            adapter,
            (adapter.name, adapter.current_device(), tuple(key)),
            list(args),
            tree,
            arrays,
            ptrs,
            index,
        )

    def _read_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if self._named:
            args, kwargs = self._named.boxed(args, kwargs, self.positional)
        leaves, tree = flatten((args, kwargs), registry.is_array)
        adapter = registry.find(leaves)
        call = Call(adapter, None, leaves, tree, [], [], [])
        key: list[Hashable] = []
        for i, value in enumerate(leaves):
            if adapter.is_array(value):
                ptr = adapter.device_ptr(value)
                key.append((*adapter.key(value), alignment_class(ptr)))
                key += attribute_keys(value)
                call.arrays.append(value)
                call.array_ptrs.append(ptr)
                call.array_index.append(i)
            elif registry.is_array(value):
                raise SignatureError(
                    f"{self._path(call, i)} is an array of another library than the other "
                    f"arguments; one call works on the arrays of one library"
                )
            elif isinstance(value, Static):
                key.append(value.key)
                leaves[i] = value.value
                call.static_index |= {i}
            elif isinstance(value, Dynamic):
                key.append(value.key)
                leaves[i] = value.value
                call.scalar_index += (i,)
            else:
                key.append(self._leaf_key(call, i, value))
        call.key = (adapter.name, adapter.current_device(), tuple(key))
        if kwargs or tree != _plain_tree(len(leaves)):
            call.shared = shared_containers((args, kwargs))
            # Keys of dictionaries that are equal can be of different types: 1 and 1.0.
            call.key += (tree, tuple(map(type, chain(*tree.paths()))), call.shared)
        return call

    def _leaf_key(self, call: Call, i: int, value: Any) -> Hashable:
        try:
            return static_key(value, "")
        except SignatureError:
            return static_key(value, self._path(call, i))  # the path is costly: only for errors

    def _path(self, call: Call, i: int) -> str:
        return self.paths(call)[i]

    def paths(self, call: Call) -> list[str]:
        """Return a printable path of each leaf, such as ``x['w'][0]``."""
        if call.paths is None:
            paths = optree.treespec_paths(call.tree)
            call.paths = [path_text(path, self.positional) for path in paths]
        return call.paths

    def objects(self, call: Call) -> list[tuple[str, int, Any]]:
        """Return the arguments that are neither arrays nor plain values: path, index, object."""
        in_arrays = set(call.array_index)
        return [
            (self.paths(call)[i], i, leaf)
            for i, leaf in enumerate(call.leaves)
            if i not in in_arrays | call.static_index and not isinstance(leaf, VALUE_TYPES)
        ]

    def classes(self, call: Call) -> set[type]:
        """Return the classes of the containers that the arguments came in."""
        trees = [call.tree]
        for tree in trees:
            trees += tree.children()
        return {tree.type for tree in trees} - {None}

    def describe(self, call: Call, specs: list[ArraySpec]) -> Signature:
        """Describe a call for people; ``specs`` are those of its arrays."""
        paths = self.paths(call)
        arrays = {
            paths[i]: (str(s.dtype), s.shape, s.strides, alignment_class(ptr), s.device)
            for i, s, ptr in zip(call.array_index, specs, call.array_ptrs, strict=True)
        }
        in_arrays = set(call.array_index)
        static: dict[str, Any] = {
            paths[i]: static_key(leaf, paths[i], by_content=True)
            for i, leaf in enumerate(call.leaves)
            if i not in in_arrays
        }
        static |= {paths[i]: AnyValue(type(call.leaves[i])) for i in call.scalar_index}
        names = [paths[i] for i in call.array_index]
        aliasing = {
            names[i]: f"{names[leader]} + {offset} bytes"
            for i, leader, offset in alias_pattern(call.array_ptrs, specs)
        }
        return Signature(arrays, static, str(call.tree), aliasing, {})


_opaque: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_opaque(value: Any, kind: type) -> bool:
    """Say whether objects of a type are keyed by identity: a model, ``self``."""
    known = _opaque.get(kind)
    if known is None:
        leaves, _ = flatten(value, registry.is_array)
        by_identity = len(leaves) == 1 and leaves[0] is value and not registry.is_array(value)
        known = _opaque[kind] = by_identity and is_kept_by_identity(kind)
    return known


def _is_plain(leaf: Any, array_types: tuple[type, ...]) -> bool:
    kind = type(leaf)
    known = kind in array_types or kind in SCALARS or kind in NUMPY_SCALARS
    return known or _is_opaque(leaf, kind)


_plain_trees: dict[int, Any] = {}


def _plain_tree(n: int) -> Any:
    """Return the tree of n positional leaves and no keywords."""
    tree = _plain_trees.get(n)
    if tree is None:
        _, tree = flatten(((0,) * n, {}), lambda _: False)
        _plain_trees[n] = tree
    return tree
