"""How much is measured: sizes, repetitions.

Input: the driver and whether it has to be quick. Output: ``Settings``. The whole run on CUDA
is to stay below 150 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and repetitions of one run."""

    samples: dict[int, int] = field(
        default_factory=lambda: {1: 400, 10: 400, 100: 300, 1000: 80},
    )
    """Samples of each chain, by its number of kernels."""
    queued_calls: int = 10
    """Calls in a row in each sample of the queued host time."""
    chain_elements: int = 1024
    adds_elements: int = 1 << 20
    n_inputs: int = 7
    """Sets of arguments that the calls go through in turn: addresses change at every call."""
    n_branches: int = 8
    branch_kernels: int = 20
    branch_elements: int = 1 << 16
    mlp_layers: int = 8
    mlp_width: int = 256
    mlp_batch: int = 64
    other_samples: int = 300
    """Samples where the workload has one size."""
    memory_signatures: int = 64
    many_signatures: int = 1000
    many_signatures_seconds: float = 45.0
    """Stop adding signatures after this time; the report says how many there were."""
    first_call_sizes: tuple[int, ...] = (10, 100, 1000)
    first_calls: int = 7

    @property
    def sizes(self) -> list[int]:
        """Numbers of kernels."""
        return list(self.samples)


def choose(driver: str, quick: bool) -> Settings:
    """Return the settings of a run."""
    if driver == "simulated":
        return Settings(
            samples={1: 2, 10: 2},
            queued_calls=2,
            chain_elements=16,
            adds_elements=16,
            n_inputs=3,
            n_branches=2,
            branch_kernels=3,
            branch_elements=8,
            mlp_layers=2,
            mlp_width=4,
            mlp_batch=2,
            other_samples=2,
            memory_signatures=3,
            many_signatures=5,
            first_call_sizes=(10,),
            first_calls=2,
        )
    whole = Settings()
    if not quick:
        return whole
    return replace(
        whole,
        samples={n: max(count // 10, 8) for n, count in whole.samples.items()},
        other_samples=30,
        memory_signatures=8,
        many_signatures=100,
        first_calls=3,
    )
