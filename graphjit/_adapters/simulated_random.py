"""Random numbers on the simulated device whose generator counts on the host, as cuRAND's do.

Input: a seed. Output: arrays of float64 in [0, 1).
Raises: ``DriverError`` when a draw is made while a stream is under a foreign capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphjit._adapters import simulated_device as device
from graphjit._adapters.simulated_kernel import kernel
from graphjit._adapters.simulated_ndarray import Array
from graphjit._adapters.simulated_storage import Shape
from graphjit._driver.simulated_errors import failure


class Generator:
    """A random generator, like CuPy's ``RandomState``.

    Parameters
    ----------
    seed : int
        Two generators of one seed draw the same numbers.

    Examples
    --------
    >>> from graphjit.testing import simulated as xp
    >>> a, b = xp.Generator(3), xp.Generator(3)
    >>> bool((a.uniform(4).get() == b.uniform(4).get()).all())
    True
    """

    def __init__(self, seed: int) -> None:
        self.identity = id(self)
        self._host = np.random.Generator(np.random.PCG64(0))
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        hooks = device.capture_hooks()
        if hooks is not None:
            raise hooks.refuse("it seeds a random generator")
        self._host.bit_generator.state = np.random.PCG64(seed).state
        self._counter = seed

    def serves(self, n: int) -> bool:
        """Say whether ``n`` seeds in a row are left."""
        return self._counter + n < 1 << 64

    def take(self, n: int) -> int:
        """Return the present seed, and advance it by ``n``."""
        before = self._counter
        self._counter += n
        return before

    def uniform(self, shape: Shape) -> Array:
        """Draw by a library call: the host chooses the numbers."""
        out = Array(shape, np.dtype(float))
        hooks = device.capture_hooks()
        if hooks is not None:
            hooks.fill_before_launch(self, self._fill(out.size), out.device_ptr)
        elif device.current_stream().is_capturing():
            raise failure("curandGenerateUniform", "STREAM_CAPTURE_UNSUPPORTED")
        else:
            self._fill(out.size)(out.device_ptr)
        return out

    def _fill(self, size: int) -> Callable[[int], None]:
        def fill(ptr: int) -> None:
            _write(ptr, size, int(self._host.integers(1 << 63)))

        return fill

    def seeded(self, shape: Shape) -> Array:
        """Draw by a kernel that is given a seed, which the host counts up."""
        out = Array(shape, np.dtype(float))
        hooks = device.capture_hooks()
        n = max(out.size, 1)
        seed = self.take(n) if hooks is None else hooks.seed_before_launch(self, n)
        _write(out, out.size, seed)
        return out


@kernel(params=["pointer", "int64", "uint64"])
def _write(memory: Any, out_ptr: int, size: int, seed: int) -> None:
    for i in range(size):
        value = np.random.default_rng(seed + i).random()
        memory.array(out_ptr + 8 * i, (1,), "float64")[...] = value
