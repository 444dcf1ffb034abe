"""Control flow on the device: branches and loops that a captured function keeps.

Inside a captured function they become conditional nodes of the graph, decided on the device
without a host round trip; elsewhere they run eagerly, with the same result.

Input: 0-d arrays that decide, functions, and nested containers of arrays.
Output: new arrays, in the containers that the functions returned.
Raises: ``ControlFlowError`` for predicates and results of the wrong form.
Source: conditional nodes (CUDA 12.4).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphjit._adapters import registry
from graphjit._bodies import BODY, R, Values, capture_of, check_like, new_values
from graphjit._captured_flow import captured_branch, captured_loop
from graphjit.errors import ControlFlowError

__all__ = ["cond", "fori_loop", "switch", "while_loop"]


def cond(pred: Any, true_fn: Callable[..., R], false_fn: Callable[..., R], *operands: Any) -> R:
    """Call one of two functions.

    Parameters
    ----------
    pred : array of bool, 0-d, or bool
        An array is read on the device; a Python boolean decides at once.
    true_fn, false_fn : callable
        Called with ``operands``. Both return the same containers, with arrays of the same
        shapes and dtypes in the same places. Numbers become 0-d arrays.
    *operands
        Anything; arrays may be changed in place.

    Returns
    -------
    nested containers of arrays
        What the function returned, in new memory.

    Raises
    ------
    ControlFlowError
        ``pred`` is no 0-d boolean, or the functions return different things.

    Notes
    -----
    A conditional node of type IF; a driver older than CUDA 12.8 gets two.

    Examples
    --------
    >>> from graphjit import graphed
    >>> from graphjit.control import cond
    >>> from graphjit.testing import simulated as xp
    >>> @graphed
    ... def step(x):
    ...     return cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, x)
    >>> for x in (xp.ones(2), xp.ones(2), -xp.ones(2)):
    ...     print(step(x))
    [2. 2.]
    [2. 2.]
    [1. 1.]
    """
    _check_callable("cond", true_fn=true_fn, false_fn=false_fn)
    functions = [partial(true_fn, *operands), partial(false_fn, *operands)]
    if isinstance(pred, (bool, np.bool_)):
        return new_values(functions[0] if pred else functions[1])
    _check_decider(pred, "b", "cond", "pred", "a boolean; compare, as in `x != 0`")
    capture = capture_of("control flow", pred)
    if capture is not None:
        return captured_branch(capture, pred, functions, is_truth=True)  # type: ignore[no-any-return]
    return new_values(functions[0] if bool(pred) else functions[1])


def switch(index: Any, branches: Sequence[Callable[..., R]], *operands: Any) -> R:
    """Call one of several functions.

    Parameters
    ----------
    index : array of integers, 0-d, or int
        Which function is called. Below 0 it is the first, beyond the end the last.
    branches : sequence of callable
        Called with ``operands``; as for ``cond``.
    *operands
        Anything; arrays may be changed in place.

    Returns
    -------
    nested containers of arrays
        What the function returned, in new memory.

    Raises
    ------
    ControlFlowError
        ``index`` is no 0-d integer, there are no branches, or they return different things.

    Notes
    -----
    A conditional node of type SWITCH; a driver older than CUDA 12.8 gets one of type IF for
    each branch.
    """
    if callable(branches):
        raise ControlFlowError("switch: branches is one function, and must be a sequence of them")
    _check_callable("switch", **{f"branches[{i}]": fn for i, fn in enumerate(branches)})
    functions = [partial(branch, *operands) for branch in branches]
    if not functions:
        raise ControlFlowError("switch needs at least one branch")
    if registry.is_array(index):
        _check_decider(index, "iu", "switch", "index", "an integer")
        capture = capture_of("control flow", index)
        if capture is not None:
            return captured_branch(capture, index, functions, is_truth=False)  # type: ignore[no-any-return]
        index = int(index)
    try:
        place = operator.index(index)
    except TypeError:
        raise ControlFlowError(
            f"switch: index is a {type(index).__qualname__}, no integer"
        ) from None
    return new_values(functions[min(max(place, 0), len(functions) - 1)])


def while_loop(cond_fn: Callable[[R], Any], body_fn: Callable[[R], R], init: R) -> R:
    """Call a function on its own result for as long as a predicate is true.

    Parameters
    ----------
    cond_fn : callable
        Carry -> 0-d array of bool.
    body_fn : callable
        Carry -> the next carry: the same containers, with arrays of the same shapes and dtypes.
        It may change the arrays of the carry that it is given in place.
    init : nested containers of arrays and numbers
        The first carry; its arrays are not changed. Numbers become 0-d arrays.

    Returns
    -------
    nested containers of arrays
        The last carry, in new memory.

    Raises
    ------
    ControlFlowError
        The predicate is no 0-d boolean, or the carry changes its form.

    Notes
    -----
    A conditional node of type WHILE. Every pass copies the new carry into the memory of the
    old one, unless the body has changed it in place and returns it.

    Examples
    --------
    >>> from graphjit import graphed
    >>> from graphjit.control import while_loop
    >>> from graphjit.testing import simulated as xp
    >>> @graphed
    ... def halve(x):
    ...     return while_loop(lambda x: x.max() > 1, lambda x: x / 2, x)
    >>> for k in (3.0, 8.0, 100.0):
    ...     print(halve(xp.asarray([k])))
    [0.75]
    [1.]
    [0.78125]
    """
    _check_callable("while_loop", cond_fn=cond_fn, body_fn=body_fn)

    def pred_of(value: R) -> Any:
        pred = cond_fn(value)
        _check_pred(pred)
        return pred

    carry = Values.copied(init, "while_loop: init")
    capture = capture_of("control flow", *carry.arrays)
    if capture is not None:
        captured_loop(capture, carry, pred_of, body_fn)
    else:
        while bool(pred_of(carry.value())):
            carry = carry.followed_by(body_fn(carry.value()), BODY)
    return carry.value()  # type: ignore[no-any-return]


def fori_loop(lower: Any, upper: Any, body_fn: Callable[[Any, R], R], init: R) -> R:
    """Call a function for every integer of a range.

    Parameters
    ----------
    lower, upper : int, or array of integers, 0-d
        The first integer, and the one after the last.
    body_fn : callable
        (index, carry) -> the next carry; ``index`` is a 0-d array of int64.
    init : nested containers of arrays and numbers
        The first carry; its arrays are not changed.

    Returns
    -------
    nested containers of arrays
        The last carry, in new memory.

    Raises
    ------
    ControlFlowError
        ``lower`` or ``upper`` is no 0-d integer, or the carry changes its form.

    Notes
    -----
    A ``while_loop`` over the index and the carry.
    """
    _check_callable("fori_loop", body_fn=body_fn)
    for name, bound in (("lower", lower), ("upper", upper)):
        if registry.is_array(bound):
            _check_decider(bound, "iu", "fori_loop", name, "an integer")
        elif isinstance(bound, (bool, np.bool_)) or not isinstance(bound, (int, np.integer)):
            raise ControlFlowError(f"fori_loop: {name} is a {type(bound).__qualname__}, no integer")

    def body(carry: Any) -> Any:
        index, end, value = carry
        result = body_fn(index, value)
        check_like(value, "fori_loop: init", result, BODY)
        return index + 1, end, result

    first, end = (_int64(bound) for bound in (lower, upper))
    *_, last = while_loop(lambda carry: carry[0] < carry[1], body, (first, end, init))
    return last


def _int64(bound: Any) -> Any:
    return bound.astype(np.int64) if registry.is_array(bound) else np.int64(bound)


def _check_callable(function: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if not callable(value):
            kind = type(value).__qualname__
            raise ControlFlowError(f"{function}: {name} is a {kind}, no function")


def _check_pred(pred: Any) -> None:
    if not registry.is_array(pred):
        raise ControlFlowError(
            f"while_loop: cond_fn returns a {type(pred).__qualname__}, which cannot change from "
            f"pass to pass; it must return a 0-d array of bool"
        )
    _check_decider(pred, "b", "while_loop", "the result of cond_fn", "a boolean; compare")


def _check_decider(array: Any, kinds: str, function: str, name: str, wanted: str) -> None:
    if not registry.is_array(array):
        raise ControlFlowError(
            f"{function}: {name} is a {type(array).__qualname__}; it must be {wanted}"
        )
    if array.dtype.kind not in kinds or array.shape != ():
        hint = "; reduce it with any() or all()" if array.dtype.kind == "b" else ""
        raise ControlFlowError(
            f"{function}: {name} is an array {array.dtype} {array.shape}; it must be 0-d, "
            f"and {wanted}{hint}"
        )
