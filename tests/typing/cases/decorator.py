"""Graphed functions keep the types of the functions; options are checked."""

import functools
from typing import reveal_type

from graphjit import graphed


@graphed
def scale(x: float, factor: int = 2) -> float:
    """Scale."""
    return x * factor


reveal_type(scale(1.0))  # note: Revealed type is "float"
reveal_type(scale(1.0, factor=3))  # note: Revealed type is "float"
scale("text")  # error: has incompatible type "str"; expected "float"
scale(1.0, shift=1)  # error: Unexpected keyword argument "shift"
reveal_type(scale.cache_info().hits)  # note: Revealed type is "int"
reveal_type(scale.eager(1.0))  # note: Revealed type is "float"
scale.explain("text")  # error: has incompatible type "str"; expected "float"
scale.cache_clean()  # error: has no attribute "cache_clean"


@graphed(static="table", max_entries=None, outputs="static", verify=True)
def look_up(x: float, table: list[int]) -> tuple[float, int]:
    """Look up."""
    return x, table[0]


reveal_type(look_up(1.0, [1]))  # note: Revealed type is "tuple[float, int]"


class Model:
    """A model."""

    @graphed
    def forward(self, x: float) -> float:
        """Run."""
        return x

    @staticmethod
    @graphed
    def helper(x: float) -> str:
        """Help."""
        return str(x)


reveal_type(Model().forward(1.0))  # note: Revealed type is "float"
reveal_type(Model.forward(Model(), 1.0))  # note: Revealed type is "float"
Model().forward()  # error: Missing positional argument "x"
Model().forward.cache_clear()
reveal_type(Model().helper(1.0))  # note: Revealed type is "str"
reveal_type(Model.helper(1.0))  # note: Revealed type is "str"

reveal_type(graphed(functools.partial(scale, 1.0))())  # note: Revealed type is "float"
reveal_type(graphed(lambda x: 1)(0))  # note: Revealed type is "int"
graphed(outputs="old")  # error: No overload variant of "graphed" matches argument type "str"
graphed(1)  # error: No overload variant of "graphed" matches argument type "int"
