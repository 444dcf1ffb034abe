"""Random programs with CuPy: a short run of what ``python tests/stress`` does for hours."""

import pytest
from stress.backends import make_backend
from stress.soak import fuzz
from stress.worlds import Counts


@pytest.mark.conditional
def test_random_programs_leave_what_eager_ones_leave():
    """Every variable of a graphed program equals that of the eager one, after every line."""
    counts = Counts()
    fuzz(make_backend("cuda"), counts, 30, n_steps=8)
    assert counts.hits > 30
