"""The older random functions of CuPy under capture: their generators keep state on the host.

``RandomState`` draws by cuRAND, whose generators count on the host, or gives kernels a seed
that it counts up itself. In the capturing thread both are recorded instead of done.

Input: the hooks of a capture. Output: a context in which draws are recorded.
Raises: ``CaptureError`` when the function seeds a generator, or calls cuRAND by itself.
Source: CuPy 14, cupy/random/_generator.py; curandGenerate and its family.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import cupy
from cupy.random import RandomState
from cupy.random import _generator as cupy_generator

from graphjit._adapters.interface import CaptureHooks

_FILL = (
    "generate",
    "generateUniform",
    "generateUniformDouble",
    "generateNormal",
    "generateNormalDouble",
    "generateLogNormal",
    "generateLogNormalDouble",
)
_SEED = ("createGenerator", "setPseudoRandomGeneratorSeed")
_END_OF_SEEDS = (1 << 64) - 1  # RandomState counts modulo this


class HostState:
    """A ``RandomState`` as a captured function used it."""

    def __init__(self, state: RandomState) -> None:
        self.identity = state
        # The function may have got it from CuPy, which can be given another one.
        self._is_default = state is _default_state()

    def serves(self, n: int) -> bool:
        state = self.identity
        if self._is_default and _default_state() is not state:
            return False
        return bool(state._rk_seed + n < _END_OF_SEEDS)

    def take(self, n: int) -> int:
        return int(self.identity._get_seed(n))


def _default_state() -> RandomState | None:
    """Return what cupy.random draws from on the current device; None if there is none yet."""
    return cupy_generator._random_states.get(cupy.cuda.Device().id)


@contextmanager
def recorded(hooks: CaptureHooks) -> Iterator[None]:
    """Record the draws of this thread until the context ends."""
    curand = _loaded_curand()
    thread = threading.get_ident()
    with ExitStack() as stack:
        for name in _FILL if curand is not None else ():
            _replace(stack, curand, name, partial(_fill, hooks, thread))
        for name in _SEED if curand is not None else ():
            _replace(stack, curand, name, partial(_seed, hooks, thread))
        _replace(stack, RandomState, "_get_seed", partial(_take, hooks, thread))
        yield


def _loaded_curand() -> Any:
    """Return CuPy's module of cuRAND; the eager call has loaded it if the function uses it."""
    return sys.modules.get("cupy_backends.cuda.libs.curand")


def _replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    stack.callback(setattr, owner, name, original)


def _fill(hooks: CaptureHooks, thread: int, original: Any) -> Any:
    def generate(generator: int, ptr: int, *args: Any) -> None:
        if threading.get_ident() != thread:
            original(generator, ptr, *args)
            return
        state = sys._getframe(1).f_locals.get("self")
        if not isinstance(state, RandomState) or state._generator != generator:
            raise hooks.refuse("it calls cuRAND without a cupy.random.RandomState")

        def draw(address: int) -> None:
            with state._lock:
                original(state._generator, address, *args)

        hooks.fill_before_launch(HostState(state), draw, ptr)

    return generate


def _seed(hooks: CaptureHooks, thread: int, original: Any) -> Any:
    def seed(*args: Any) -> Any:
        if threading.get_ident() == thread:
            raise hooks.refuse(
                "it seeds a random generator, or makes one, which a launch would not repeat"
            )
        return original(*args)

    return seed


def _take(hooks: CaptureHooks, thread: int, original: Any) -> Any:
    def get_seed(self: Any, size: int) -> int:
        if threading.get_ident() != thread:
            return int(original(self, size))
        return hooks.seed_before_launch(HostState(self), size)

    return get_seed
