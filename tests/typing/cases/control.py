"""Control flow returns what its functions return, and carries keep their types."""

from typing import reveal_type

from graphjit.control import cond, fori_loop, switch, while_loop
from graphjit.testing import simulated as xp

x = xp.asarray([1.0, 2.0])
y = cond(x.sum() > 0, lambda: x, lambda: x * 2)
reveal_type(y)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"


def pair() -> tuple[xp.Array, int]:
    return x, 1


reveal_type(
    switch(1, [pair, pair])
)  # note: Revealed type is "tuple[graphjit._adapters.simulated_ndarray.Array, int]"
reveal_type(
    while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)
)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
reveal_type(
    fori_loop(0, 3, lambda i, c: c + i, x)
)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
cond(True, pair)  # error: Missing positional argument "false_fn" in call to "cond"
