"""Types of scalars that are told apart by their bytes.

``SCALARS`` are Python's own, ``NUMPY_SCALARS`` the numbers of NumPy that have no padding.
"""

from __future__ import annotations

import numpy as np

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
NUMPY_SCALARS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdFD")
