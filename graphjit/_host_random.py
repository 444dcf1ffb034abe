"""Random numbers drawn on the host: they would be frozen in a graph, and are refused.

Input: the objects that a function reaches. Output: ``HostRandom``, which tells whether a
generator of Python's ``random`` or of NumPy was used since, and puts it back.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from typing import Any

import numpy as np

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


class HostRandom:
    """The states of the host's random generators at one moment."""

    def __init__(self, reached: Iterable[Any]) -> None:
        generators: dict[str, Any] = {
            "the generator of Python's random module": random,
            "the generator of numpy.random": np.random,
        }
        for value in reached:
            if isinstance(value, _GENERATORS):
                generators[f"a {type(value).__qualname__} of random numbers"] = value
        self._before = [(name, g, pickle.dumps(_state(g))) for name, g in generators.items()]

    def changes(self) -> list[str]:
        """Name the generators that were used."""
        return [name for name, g, before in self._before if pickle.dumps(_state(g)) != before]

    def restore(self) -> None:
        """Put every generator back."""
        for _, generator, before in self._before:
            _set_state(generator, pickle.loads(before))


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)
