"""Arguments to try the functions of an array library with.

A recipe makes fresh random arguments each time it is called: ``(args, kwargs)``. Functions
whose name is in ``SPECIAL`` have recipes of their own; for the others ``GENERIC`` are tried in
turn until one is accepted by the plain call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Recipe = Callable[["Maker"], Arguments]


class Maker:
    """Makes random arrays of one library."""

    def __init__(self, xp: Any, seed: int) -> None:
        self.xp = xp
        self.rng = np.random.default_rng(seed)

    def x(self, *shape: int, dtype: str = "f8") -> Any:
        """Return normal numbers."""
        return self.xp.asarray(self.rng.standard_normal(shape or (4, 4)).astype(dtype))

    def unit(self, *shape: int) -> Any:
        """Return numbers between 0.05 and 0.95."""
        return self.xp.asarray(self.rng.uniform(0.05, 0.95, shape or (8,)))

    def c(self, *shape: int) -> Any:
        """Return complex numbers."""
        return self.x(*shape) + 1j * self.x(*shape)

    def i(self, *shape: int, high: int = 4) -> Any:
        """Return integers from 0."""
        return self.xp.asarray(self.rng.integers(0, high, shape or (8,)))

    def b(self, *shape: int) -> Any:
        """Return booleans."""
        return self.xp.asarray(self.rng.integers(0, 2, shape or (8,)).astype(bool))

    def up(self, n: int = 8) -> Any:
        """Return ascending numbers."""
        return self.xp.asarray(np.cumsum(self.rng.uniform(0.1, 1, n)))

    def spd(self, n: int = 4) -> Any:
        """Return a symmetric positive definite matrix."""
        a = self.rng.standard_normal((n, n))
        return self.xp.asarray(a @ a.T + n * np.eye(n))


def plain(make: Callable[[Maker], Any]) -> Recipe:
    """Turn a maker of positional arguments into a recipe."""

    def recipe(m: Maker) -> Arguments:
        args = make(m)
        return (args if isinstance(args, tuple) else (args,)), {}

    return recipe


GENERIC: tuple[Recipe, ...] = tuple(
    plain(make)
    for make in (
        lambda m: m.x(),
        lambda m: (m.x(), m.x()),
        lambda m: m.x(8),
        lambda m: (m.x(8), m.x(8)),
        lambda m: m.unit(8),
        lambda m: (m.unit(8), m.unit(8)),
        lambda m: (m.unit(8), m.unit(8), m.unit(8)),
        lambda m: (m.unit(8), m.unit(8), m.unit(8), m.unit(8)),
        lambda m: m.i(),
        lambda m: (m.i(), m.i()),
        lambda m: m.b(),
        lambda m: (m.b(), m.b()),
        lambda m: m.c(8),
        lambda m: (m.i(8), m.unit(8)),
        lambda m: (m.x(), 1),
        lambda m: (m.x(8), 2),
        lambda m: (m.x(), 0, 1),
        lambda m: ([m.x(8), m.x(8)],),
        lambda m: (m.x(), m.i(2)),
        lambda m: m.x(4, 4, 4),
        lambda m: (m.spd(), m.x()),
        lambda m: (m.x(4, 4, 4), m.x(3, 3, 3)),
        lambda m: (m.x(8, 8), m.x(3, 3)),
        lambda m: 5,
        lambda m: (5, 3),
        lambda m: ((3, 4),),
        lambda m: (m.x(16), 3),
        lambda m: (m.x(16), m.x(3)),
        lambda m: (m.x(16), m.x(3), m.x(16)),
        lambda m: (m.up(), m.x(8)),
        lambda m: (m.up(), m.x(8), m.unit(3)),
        lambda m: (16, 0.5),
        lambda m: (16, 4, 0.5),
        lambda m: (0.5, 5),
        lambda m: (0.5, 0.5, 5),
        lambda m: (3, 0.5, 5),
        lambda m: (3, 3, 3, 5),
        lambda m: (0.5, 1.5, 2.5, 5),
        lambda m: (),
    )
)

SPECIAL: dict[str, tuple[Recipe, ...]] = {
    name: (plain(make),)
    for name, make in {
        "arange": lambda m: (2, 9),
        "astype": lambda m: (m.x(), "f4"),
        "multinomial": lambda m: (5, [0.2, 0.3, 0.5], 4),
        "fht": lambda m: (m.x(16), 0.1, 0.5),
        "ifht": lambda m: (m.x(16), 0.1, 0.5),
        "array_split": lambda m: (m.x(9), 3),
        "split": lambda m: (m.x(9), 3),
        "hsplit": lambda m: (m.x(), 2),
        "vsplit": lambda m: (m.x(), 2),
        "dsplit": lambda m: (m.x(2, 2, 4), 2),
        "bincount": lambda m: (m.i(), m.unit(8), 4),
        "broadcast_arrays": lambda m: (m.x(4), m.x(4, 4)),
        "broadcast_to": lambda m: (m.x(4), (3, 4)),
        "choose": lambda m: (m.i(8, high=2), [m.x(8), m.x(8)]),
        "clip": lambda m: (m.x(), -0.5, 0.5),
        "column_stack": lambda m: ([m.x(4), m.x(4)],),
        "concatenate": lambda m: ([m.x(), m.x()],),
        "copyto": lambda m: (m.x(), m.x()),
        "cov": lambda m: (m.x(),),
        "cross": lambda m: (m.x(5, 3), m.x(5, 3)),
        "diag_indices_from": lambda m: (m.x(),),
        "digitize": lambda m: (m.x(8), m.up()),
        "einsum": lambda m: ("ij,jk->ik", m.x(), m.x()),
        "expand_dims": lambda m: (m.x(), 1),
        "extract": lambda m: (m.b(4, 4), m.x()),
        "eye": lambda m: (4,),
        "fill_diagonal": lambda m: (m.x(), 3),
        "flip": lambda m: (m.x(), 0),
        "full": lambda m: ((3, 4), 2.5),
        "full_like": lambda m: (m.x(), 2.5),
        "gradient": lambda m: (m.x(8),),
        "identity": lambda m: (4,),
        "indices": lambda m: ((3, 4),),
        "interp": lambda m: (m.x(5), m.up(), m.x(8)),
        "isin": lambda m: (m.i(), m.i(3)),
        "in1d": lambda m: (m.i(), m.i(3)),
        "ix_": lambda m: (m.i(2), m.i(3)),
        "lexsort": lambda m: (m.x(2, 8),),
        "linspace": lambda m: (0.0, 1.0, 7),
        "logspace": lambda m: (0.0, 1.0, 7),
        "geomspace": lambda m: (1.0, 9.0, 7),
        "matmul": lambda m: (m.x(), m.x()),
        "meshgrid": lambda m: (m.x(3), m.x(4)),
        "moveaxis": lambda m: (m.x(2, 3, 4), 0, 2),
        "rollaxis": lambda m: (m.x(2, 3, 4), 2),
        "swapaxes": lambda m: (m.x(), 0, 1),
        "packbits": lambda m: (m.b(16),),
        "unpackbits": lambda m: (m.i(8).astype("u1"),),
        "pad": lambda m: (m.x(), 2),
        "partition": lambda m: (m.x(8), 3),
        "argpartition": lambda m: (m.x(8), 3),
        "percentile": lambda m: (m.x(), 30, 0),
        "quantile": lambda m: (m.x(), 0.3, 0),
        "piecewise": lambda m: (m.x(8), [m.b(8), m.b(8)], [1.0, 2.0]),
        "place": lambda m: (m.x(8), m.b(8), m.x(3)),
        "put": lambda m: (m.x(8), m.i(3), m.x(3)),
        "putmask": lambda m: (m.x(8), m.b(8), m.x(8)),
        "put_along_axis": lambda m: (m.x(4, 4), m.i(4, 1), m.x(4, 1), 1),
        "ravel_multi_index": lambda m: ((m.i(5), m.i(5)), (4, 4)),
        "unravel_index": lambda m: (m.i(5, high=16), (4, 4)),
        "repeat": lambda m: (m.x(8), 3),
        "reshape": lambda m: (m.x(), (2, 8)),
        "resize": lambda m: (m.x(), (3, 8)),
        "roll": lambda m: (m.x(), 2, 0),
        "rot90": lambda m: (m.x(),),
        "searchsorted": lambda m: (m.up(), m.x(5)),
        "select": lambda m: ([m.b(), m.b()], [m.x(8), m.x(8)], 3),
        "stack": lambda m: ([m.x(), m.x()],),
        "take": lambda m: (m.x(8), m.i(5)),
        "take_along_axis": lambda m: (m.x(4, 4), m.i(4, 2), 1),
        "tensordot": lambda m: (m.x(), m.x(), 1),
        "tile": lambda m: (m.x(), (2, 3)),
        "transpose": lambda m: (m.x(),),
        "tri": lambda m: (4, 4),
        "vander": lambda m: (m.x(5), 4),
        "where": lambda m: (m.b(4, 4), m.x(), m.x()),
        "polyfit": lambda m: (m.up(), m.x(8), 2),
        "cholesky": lambda m: m.spd(),
        "matrix_power": lambda m: (m.x(), 3),
        "solve": lambda m: (m.spd(), m.x()),
        "tensorsolve": lambda m: (m.spd(), m.x(4)),
        "tensorinv": lambda m: (m.spd().reshape(2, 2, 2, 2), 2),
        "lu_solve": lambda m: ((m.spd(), m.xp.arange(4, dtype="i4")), m.x(4)),
        "solve_triangular": lambda m: (m.spd(), m.x(4)),
        "affine_transform": lambda m: (m.x(8, 8), m.spd(2) / 4),
        "map_coordinates": lambda m: (m.x(8, 8), m.unit(2, 5) * 7),
        "shift": lambda m: (m.x(8, 8), 1.5),
        "rotate": lambda m: (m.x(8, 8), 30.0),
        "zoom": lambda m: (m.x(8, 8), 2.0),
        "gaussian_filter": lambda m: (m.x(8, 8), 1.0),
        "gaussian_filter1d": lambda m: (m.x(16), 1.0),
        "generic_filter": lambda m: (),
        "percentile_filter": lambda m: (m.x(8, 8), 30, 3),
        "rank_filter": lambda m: (m.x(8, 8), 1, 3),
        "convolve1d": lambda m: (m.x(16), m.x(3)),
        "correlate1d": lambda m: (m.x(16), m.x(3)),
        "lfilter": lambda m: (m.x(3), m.xp.asarray([1.0, 0.2]), m.x(16)),
        "filtfilt": lambda m: (m.x(3), m.xp.asarray([1.0, 0.2]), m.x(32)),
        "sosfilt": lambda m: (m.xp.asarray([[1.0, 0.5, 0.2, 1.0, 0.3, 0.1]]), m.x(16)),
        "resample": lambda m: (m.x(16), 8),
        "resample_poly": lambda m: (m.x(16), 2, 3),
        "upfirdn": lambda m: (m.x(3), m.x(16), 2, 1),
        "savgol_filter": lambda m: (m.x(16), 5, 2),
        "wiener": lambda m: (m.x(8, 8), 3),
        "medfilt": lambda m: (m.x(8, 8), 3),
        "medfilt2d": lambda m: (m.x(8, 8), 3),
        "firwin": lambda m: (5, 0.3),
        "choice": lambda m: (8, 5),
        "randint": lambda m: (0, 64, 5),
        "random_integers": lambda m: (0, 63, 5),
        "dirichlet": lambda m: (m.unit(3), 4),
        "multivariate_normal": lambda m: (m.x(3), m.spd(3), 4),
        "hypergeometric": lambda m: (9, 8, 7, 5),
        "triangular": lambda m: (0.0, 1.0, 3.0, 5),
        "geometric": lambda m: (0.3, 5),
        "logseries": lambda m: (0.4, 5),
        "binomial": lambda m: (10, 0.4, 5),
        "negative_binomial": lambda m: (5, 0.4, 5),
        "zipf": lambda m: (2.5, 5),
        "scatter_add": lambda m: (m.x(8), m.i(5), m.x(5)),
        "scatter_max": lambda m: (m.x(8), m.i(5), m.x(5)),
        "scatter_min": lambda m: (m.x(8), m.i(5), m.x(5)),
    }.items()
}
"""A function that is tried with nothing else, where the generic ones would mislead."""


def recipes_for(name: str) -> tuple[Recipe, ...]:
    """Return the recipes to try, in order."""
    return SPECIAL.get(name, GENERIC)
