"""The statements that random programs are made of, as text with holes.

``{0}``, ``{1}``, ``{2}`` are arrays; the other holes are drawn from ``HOLES``. A statement is
tried on NumPy arrays before it becomes part of a program, so that most of what is drawn fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HOLES: dict[str, tuple[str, ...]] = {
    "axis": ("0", "-1", "None", "1"),
    "one_axis": ("0", "-1", "1"),
    "scalar": ("2", "-0.5", "3.0", "scale", "model.scale"),
    "dtype": ("'f8'", "'f4'", "'i4'", "bool", "'c8'", "'i8'"),
    "slice": (
        "1:",
        "::-1",
        ":-1",
        "::2",
        "..., 0",
        "None",
        ":, ::-2",
        "0",
        "-1:",
        "..., None",
        "1:1",
    ),
    "list": ("[0, -1]", "[1, 1, 0]", "[-1]", "[[0], [1]]"),
}


@dataclass(frozen=True)
class Operation:
    """A statement with holes.

    ``is_expression``: its value gets a new name. ``writes``: the hole that it changes in place.
    ``is_refused``: it may not be part of a graph. ``draws``: it moves the state of ``rng``.
    """

    text: str
    is_expression: bool = True
    writes: int | None = None
    is_refused: bool = False
    draws: bool = False

    @property
    def n_arrays(self) -> int:
        """Return how many arrays it takes."""
        return len(set(re.findall(r"\{(\d)\}", self.text)))

    @property
    def holes(self) -> list[str]:
        """Return the names of its other holes."""
        return sorted(set(re.findall(r"\{([a-z_]+)\}", self.text)))


def _expressions(text: str) -> list[Operation]:
    return [Operation(line.strip()) for line in text.strip().splitlines()]


def _in_place(text: str, target: int = 0) -> list[Operation]:
    lines = text.strip().splitlines()
    return [Operation(line.strip(), is_expression=False, writes=target) for line in lines]


SHARED = _expressions(
    """
    {0} + {1}
    {0} * {1}
    {0} - {1}
    {0} / {1}
    {0} * {scalar}
    {scalar} - {0}
    -{0}
    abs({0})
    {0} < {1}
    {0} == {1}
    xp.maximum({0}, {1})
    xp.minimum({0}, {scalar})
    xp.where({0} > {1}, {0}, {1})
    xp.where({0} != 0, {0}, {scalar})
    xp.sin({0})
    xp.tanh({0})
    xp.sqrt(abs({0}))
    xp.floor({0} * 3.0)
    xp.square({0})
    xp.isnan({0})
    xp.clip({0}, -1, 1)
    {0}.astype({dtype})
    {0}.sum({axis})
    {0}.max({axis})
    {0}.min({axis}, keepdims=True)
    {0}.mean({axis})
    {0}.var({axis})
    {0}.prod({axis})
    xp.any({0}, {axis})
    xp.all({0}, {axis})
    xp.argmax({0}, {axis})
    xp.cumsum({0}, {axis})
    xp.sort({0}, {one_axis})
    xp.argsort({0}, {one_axis})
    {0} @ {1}
    {0} @ {0}.T
    xp.einsum('ij,kj->ik', {0}, {1})
    xp.einsum('i,i->', {0}, {1})
    {0}[{slice}]
    {0}[{list}]
    {0}[{1} % len({0})]
    {0}[xp.argsort({1}) % len({0})]
    xp.take({0}, {list}, axis={one_axis})
    xp.take({0}, {1} % len({0}), axis=0)
    {0}.T
    {0}.reshape(-1)
    {0}.reshape(2, -1)
    {0}.ravel()
    {0}.swapaxes(0, -1)
    {0}.squeeze()
    {0}.view()
    xp.expand_dims({0}, 0)
    xp.flip({0}, {axis})
    xp.broadcast_to({0}, (2, *{0}.shape))
    xp.concatenate([{0}, {1}])
    xp.concatenate([{0}, {1}], axis=-1)
    xp.concatenate([{0}, {1}] * 5)
    xp.stack([{0}, {1}], axis=-1)
    {0}.copy()
    xp.asarray({0})
    xp.array({0})
    {0} + xp.asarray([0.5, -2.0, 4.0])
    {0} * xp.arange(3.0)
    {0} + xp.zeros({0}.shape)
    xp.full_like({0}, 3) - {0}
    xp.ones_like({0})
    xp.zeros_like({0})
    sum([{0}, {1}])
    (lambda t: t + {scalar})({0})
    [row * 2 for row in {0}][-1]
    dict(a={0}, b=({1},))['b'][0] + {0}
    {0} + {1} if scale > 1 else {0} - {1}
    """
)
SHARED += _in_place(
    """
    {0} += {1}
    {0} *= {scalar}
    {0} -= {1}.sum()
    {0}[{slice}] = {1}
    {0}[{slice}] = {scalar}
    {0}[...] = {1}
    {0}[1:] = {0}[:-1]
    {0}[{list}] = {scalar}
    {0}[{slice}] += {1}
    {0}.fill(2)
    xp.copyto({0}, {1})
    """
)
SHARED += _in_place("xp.add({0}, {1}, out={2})\nxp.multiply({0}, {1}, out={2})", target=2)
SHARED += _in_place("xp.sin({0}, out={1})", target=1)

# Decided on the device. Without `c.size` a loop over an empty array would be endless.
CONTROL = _expressions(
    """
    cond(abs({0}).sum() > 2, lambda: {0} + {1}, lambda: {0} - {1})
    cond(abs({0}).sum() > 2, lambda: {1}, lambda: {1}[::-1])
    cond(abs({0}).sum() > 2, lambda x: x.T, lambda x: -x.T, {1})
    switch(({0} != 0).sum() % 4, [lambda: {1} * 2, lambda: {1} + {1}, lambda: {1}])
    fori_loop(0, 3, lambda i, c: c + {1}, {0})
    fori_loop(0, ({1} != 0).sum(), lambda i, c: c[::-1], {0})
    fori_loop(0, 2, lambda i, c: c.__imul__({1}), {0})
    fori_loop(1, 3, lambda i, c: cond(abs(c).sum() > 3, lambda: c - {1}, lambda: c * c), {0})
    fori_loop(0, 3, lambda i, c: (c[1], c[0] + c[1]), ({0}, {1}))[1]
    while_loop(lambda c: (abs(c) < 9).all() & (c.size > 0), lambda c: c + abs({1}) + 1, {0})
    """
)
CONTROL += _in_place("cond(abs({0}).sum() > 2, lambda x: x.__iadd__({1}), lambda x: x, {0})")

# Calls of the host: refused beside dynamic scalars. `note` keeps what it is given.
HOST = [
    Operation("(host_callback(note, {0}), {0} * 2)[1]", is_refused=True),
    Operation("(host_callback(note, [{0}.T, {1}]), {1})[1]", is_refused=True),
    Operation("{0} + pinned(({0} * 2,))", is_refused=True),
]

# What a graph cannot hold: the error brings the eager result, and the program goes on.
REFUSED = [
    Operation("{0} * float({1}.sum())", is_refused=True),
    Operation("{0} if {0}.sum() > 0 else -{0}", is_refused=True),
    Operation("xp.nonzero({0})[0]", is_refused=True),
]

CUDA = _expressions(
    """
    xp.tensordot({0}, {1}, 1)
    xp.outer({0}, {1})
    xp.kron({0}, {1})
    xp.dot({0}, {1})
    xp.inner({0}, {1})
    xp.linalg.norm({0})
    xp.linalg.solve({0} @ {0}.T + 9 * xp.eye(len({0}), dtype={0}.dtype), {1})
    xp.linalg.inv({0} @ {0}.T + 9 * xp.eye(len({0}), dtype={0}.dtype))
    xp.linalg.cholesky({0} @ {0}.T + 9 * xp.eye(len({0}), dtype={0}.dtype))
    xp.fft.fft({0}, axis={one_axis})
    xp.fft.rfft({0}.real)
    xp.fft.irfft({0}, 7)
    xp.fft.ifft2({0})
    xp.fft.fftshift({0})
    xp.roll({0}, {scalar} // 1 != 0, {axis})
    xp.roll({0}, 2, {one_axis})
    xp.pad({0}, 1)
    xp.pad({0}, 1, mode='edge')
    xp.tile({0}, (2, 1))
    xp.repeat({0}, 2, {axis})
    xp.split({0}, 3)[1]
    xp.array_split({0}, 2, {one_axis})[-1]
    xp.take_along_axis({0}, xp.argsort({0}, -1), -1)
    xp.select([{0} > 1, {0} < 0], [{0}, -{0}], 5)
    xp.tril({0})
    xp.diag({0})
    xp.trace({0})
    xp.median({0}, {axis})
    xp.percentile({0}, 30, {axis})
    xp.histogram({0}.real, bins=5, range=(-3, 3))[0]
    xp.searchsorted(xp.sort({0}.ravel()), {1})
    xp.diff({0}, axis={one_axis})
    xp.cumprod({0}, {axis})
    xp.partition({0}, 1, {one_axis})
    xp.lexsort({0})
    xp.nan_to_num({0})
    xp.around({0}, 1)
    xp.rot90({0})
    xp.nansum({0}, {axis})
    {0}.std({axis})
    xp.linalg.qr({0})[1]
    xp.convolve({0}, {1})
    xp.moveaxis({0}, 0, -1)
    xp.atleast_3d({0})
    xp.linspace(0, 1, 3) * {0}
    xp.divmod({0}, {1} + 7)[1]
    xp.exp({0} * 1j)
    {0}.conj() * {0}
    {0}.real
    xp.ascontiguousarray({0}.T)
    xp.asfortranarray({0}) + {0}
    fused({0}, {1})
    xp.count_nonzero({0}, {axis})
    xp.ptp({0}, {axis})
    xp.meshgrid({0}, {0})[0]
    """
)
CUDA += _in_place(
    """
    {0}.sort()
    {0}.put([0, 1], {scalar})
    xp.add.at({0}, [0, 1], 1)
    xp.maximum.at({0}, {1} % len({0}), 1)
    xp.fill_diagonal({0}, {scalar})
    xp.put({0}, [0, -1], 7)
    xp.putmask({0}, {0} > 0, xp.ones((1, 1, 1, 1, 2), {0}.dtype))
    """
)
CUDA += [
    Operation("{0} + rng.standard_normal({0}.shape)", draws=True),
    Operation("rng.random({0}.shape)", draws=True),
    Operation("xp.choose(({0} > 0).astype('i8'), xp.stack([{0}, -{0}]))", is_refused=True),
    Operation("{0}[{0} > 0]", is_refused=True),
    Operation("xp.putmask({0}, {0} > 0, 1)", is_expression=False, writes=0, is_refused=True),
    Operation("xp.linalg.svd({0})[1]", is_refused=True),
]
