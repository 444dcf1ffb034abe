"""Random numbers whose generators keep their state on the host: drawn before each launch.

A graph would freeze that state. Two kinds of use are recorded during the capture instead and
done by the host at every launch, in the same order, as the eager call would do them:
a library call that fills memory (cuRAND), and a number that a kernel is given as its seed.
The number takes a slot like an address, because kernels are given it plus a constant.

Input: what the adapter reports through the hooks of the capture.
Output: ``Draws``, which writes the numbers into the slots and fills the memory.
Raises: what the library raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphjit._adapters.interface import HostGenerator
from graphjit._relocation import Target


@dataclass(slots=True)
class Fill:
    """A library call that fills memory at an address, on the current stream."""

    generator: HostGenerator
    call: Callable[[int], None]
    ptr: int
    """Where it filled during the capture; a reserved address."""
    target: Target | None = None


@dataclass(slots=True)
class Seeds:
    """The seeds that one call takes from one generator."""

    generator: HostGenerator
    ptrs: dict[int, int] = field(default_factory=dict)
    """Reserved address that stood for a seed during the capture: numbers taken before it."""
    n: int = 0
    slot: int = -1


@dataclass(slots=True)
class Draws:
    """The draws of one call of a captured function, in order."""

    fills: list[Fill] = field(default_factory=list)
    seeds: dict[Any, Seeds] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fills or self.seeds)

    def __len__(self) -> int:
        return len(self.fills) + sum(len(seeds.ptrs) for seeds in self.seeds.values())

    def add_fill(self, generator: HostGenerator, call: Callable[[int], None], ptr: int) -> None:
        """Note a library call."""
        self.fills.append(Fill(generator, call, ptr))

    def add_seed(self, generator: HostGenerator, n: int, ptr: int) -> None:
        """Note that ``n`` numbers are taken from a generator; ``ptr`` stands for the first."""
        seeds = self.seeds.setdefault(generator.identity, Seeds(generator))
        seeds.ptrs[ptr] = seeds.n
        seeds.n += n

    def targets_of_seeds(self, first_slot: int) -> dict[int, Target]:
        """Give each generator its slot; return what the stand-ins of seeds lead to."""
        targets: dict[int, Target] = {}
        for i, seeds in enumerate(self.seeds.values()):
            seeds.slot = first_slot + i
            targets |= {ptr: Target(seeds.slot, before) for ptr, before in seeds.ptrs.items()}
        return targets

    def serve(self) -> bool:
        """Say whether a call would draw from the same generators now."""
        return all(fill.generator.serves(0) for fill in self.fills) and all(
            seeds.generator.serves(seeds.n) for seeds in self.seeds.values()
        )

    def make(self, slots: list[int]) -> None:
        """Write seeds into the slots of a call, and fill its memory."""
        for seeds in self.seeds.values():
            slots[seeds.slot] = seeds.generator.take(seeds.n)
        for fill in self.fills:
            assert fill.target is not None
            fill.call(slots[fill.target.slot] + fill.target.delta)
