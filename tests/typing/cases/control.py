"""Control flow returns what its functions return, and carries keep their types."""

from typing import reveal_type

from graphjit.control import cond, fori_loop, switch, while_loop
from graphjit.testing import simulated as xp

x = xp.asarray([1.0, 2.0])
a = cond(x.sum() > 0, lambda: x, lambda: x * 2)
b = switch(1, [lambda: (x, 1), lambda: (x + 1, 2)])
c = while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)
d = fori_loop(0, 3, lambda i, c: c + i, x)
reveal_type(a)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
reveal_type(b[1])  # note: Revealed type is "int"
reveal_type(c)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
reveal_type(d)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
cond(True, abs)  # error: Missing positional argument "false_fn" in call to "cond"
