"""Branches and loops of a function under capture.

Input: the capture, a predicate, the functions. Output: arrays for the results; the items of the
capture's ``Flow``.
Raises: ``ControlFlowError``; ``CaptureError`` for a body that keeps memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphjit._adapters.interface import Adapter
from graphjit._aliasing import are_apart
from graphjit._bodies import BODY, Values, copied_leaf
from graphjit._capture import Capture
from graphjit._driver.interface import CONDITION_SIGNED
from graphjit._flow import Again, Branch, Integer, Item, Loop

_KEEPS = (
    "{what} keeps {n} that it has made, of {nbytes} bytes, beyond its end: in a variable outside "
    "of it, an attribute, or a cache of a library that a call before the first capture "
    "would have filled. Whether they are written is decided on the device; return them"
)


def captured_branch(
    capture: Capture, decider: Any, functions: Sequence[Callable[[], Any]], *, is_truth: bool
) -> Any:
    """Capture each function as a body; return arrays that the one that is run writes to."""
    names = ["cond: what true_fn returns", "what false_fn returns"]
    if not is_truth:
        names = [f"what branches[{i}] returns" for i in range(len(functions))]
        names[0] = f"switch: {names[0]}"
    _refuse_missing(capture)
    capture.cut()
    branch = Branch(_integer(capture, decider), is_truth)
    capture.flow.add(branch)
    results: Values | None = None
    for i, function in enumerate(functions):
        branch.bodies.append([])
        with _body(capture, branch.bodies[-1], f"branch {i}", results) as kept:
            if results is None:
                results = Values.copied(function(), names[0])
                kept += results.arrays
            else:
                _assign(results, results.like(function(), names[i]))
    assert results is not None
    return results.value()


def captured_loop(
    capture: Capture,
    carry: Values,
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
) -> None:
    """Capture the body of a loop that changes the arrays of ``carry`` in place."""
    _refuse_missing(capture)
    pred = cond_fn(carry.value())
    capture.cut()
    loop = Loop(_integer(capture, pred))
    capture.flow.add(loop)
    del pred
    with capture.regions.loop(), _body(capture, loop.body, "the body of the loop", None):
        _assign(carry, carry.like(body_fn(carry.value()), BODY))
        pred = cond_fn(carry.value())
        capture.cut()
        capture.flow.add(Again(loop, _integer(capture, pred)))
        del pred


def _refuse_missing(capture: Capture) -> None:
    """Refuse if the driver has no conditional nodes."""
    missing = capture.driver.missing_for_conditionals()
    if missing:
        raise capture.refuse(f"it has control flow on the device. {missing}")


@contextmanager
def _body(
    capture: Capture, items: list[Item], what: str, results: Values | None
) -> Iterator[list[Any]]:
    """Capture what follows as a body; yield a list for arrays that outlive it."""
    n_before = len(capture.regions.regions)
    kept: list[Any] = [] if results is None else results.arrays
    with capture.flow.body(items), capture.driver.relaxed():
        yield kept
        capture.cut()
    known = {capture.adapter.device_ptr(array) for array in kept}
    made = capture.regions.regions[n_before:]
    left = [r for r in made if r.freed is None and r.ptr not in known]
    if left:
        nbytes = sum(region.nbytes for region in left)
        count = "1 array" if len(left) == 1 else f"{len(left)} arrays"
        raise capture.refuse(_KEEPS.format(what=what, n=count, nbytes=nbytes))


def _integer(capture: Capture, decider: Any) -> Integer:
    dtype = np.dtype(decider.dtype)
    form = dtype.itemsize | (CONDITION_SIGNED if dtype.kind == "i" else 0)
    return Integer(capture.adapter.device_ptr(decider), form)


def _assign(targets: Values, leaves: list[Any]) -> None:
    """Copy results into the arrays of earlier ones, of which they may be views."""
    adapter = targets.adapter
    pairs: list[tuple[Any, Any]] = []
    for target, leaf in zip(targets.leaves, leaves, strict=True):
        if not adapter.is_array(target) or leaf is target:
            continue
        if not adapter.is_array(leaf) or any(_overlap(adapter, leaf, a) for a in targets.arrays):
            leaf = copied_leaf(adapter, leaf)
        pairs.append((target, leaf))
    for target, value in pairs:
        adapter.assign(target, value)


def _overlap(adapter: Adapter, *arrays: Any) -> bool:
    return not are_apart([*map(adapter.device_ptr, arrays)], [*map(adapter.spec, arrays)])
