"""The functions that are measured, written as a user would write them.

They use nothing of an array library but operators, so that CuPy, torch and the simulated
arrays run the very same functions. Input: arrays; output: one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[..., Any]


def make_chain(n_kernels: int) -> Function:
    """Return a function of two arrays that launches that many dependent additions."""

    def chain(x: Any, y: Any) -> Any:
        for _ in range(n_kernels):
            x = x + y
        return x

    chain.__qualname__ = f"chain_{n_kernels}"
    return chain


def make_branches(n_branches: int, n_kernels: int) -> Function:
    """Return a function of two arrays: chains that share their inputs only, and their sum."""

    def branches(x: Any, y: Any) -> Any:
        ends = []
        for i in range(n_branches):
            z = x * (i + 1)
            for _ in range(n_kernels - 1):
                z = z + y
            ends.append(z)
        total = ends[0]
        for z in ends[1:]:
            total = total + z
        return total

    return branches


def make_waiting_chain(n_kernels: int, synchronize: Callable[[], None]) -> Function:
    """Return the same chain, which waits for the device after each addition."""

    def chain(x: Any, y: Any) -> Any:
        for _ in range(n_kernels):
            x = x + y
            synchronize()
        return x

    return chain


def make_mlp(weights: list[Any], biases: list[Any], maximum: Function) -> Function:
    """Return a residual network of one input: 5 kernels a layer, one of them a matrix product."""

    def mlp(x: Any) -> Any:
        for weight, bias in zip(weights, biases, strict=True):
            x = x + maximum(x @ weight + bias, 0) * 0.5
        return x

    return mlp


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Return float32 random numbers: zeros would hide what a wrong address does."""
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def pairs(asarray: Function, n: int, *shape: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Return n pairs of random arrays, each at an address of its own."""
    rng = np.random.default_rng(seed)
    return [(asarray(normal(rng, *shape)), asarray(normal(rng, *shape))) for _ in range(n)]


def parameters(
    asarray: Function, n_layers: int, width: int, seed: int = 1
) -> tuple[list[Any], list[Any]]:
    """Return random weights and biases of the network."""
    rng = np.random.default_rng(seed)
    scale = float(width) ** -0.5
    weights = [asarray(normal(rng, width, width, scale=scale)) for _ in range(n_layers)]
    biases = [asarray(normal(rng, width)) for _ in range(n_layers)]
    return weights, biases
