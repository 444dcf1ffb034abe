"""Graphed functions of a module, as workers of a pool import them."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphjit import graphed
from graphjit.testing import simulated as xp


@graphed
def smooth(x: Any) -> Any:
    """Average neighbours."""
    return (x[1:] + x[:-1]) * 0.5


class Model:
    """Has a graphed method."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @graphed
    def apply(self, x: Any) -> Any:
        """Scale."""
        return x * self.scale


def run(call: Any, data: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[int, int]]:
    """Call a graphed function in this process; return results, and hits and misses of its cache."""
    results = [call(xp.asarray(x)).get() for x in data]
    info = call.cache_info()
    return results, (info.hits, info.misses)


other_name = graphed(lambda x: x + 1)
