"""A sample of CuPy's public functions, walked as ``api_coverage.py`` walks through all of them."""

import warnings

import pytest
from helpers.api_cupy import MODULES, CuPy
from helpers.api_walk import GRAPH, HOST_READ, LIBRARY, public_functions, try_function

SAMPLE = {
    "cupy.add": GRAPH,
    "cupy.percentile": GRAPH,
    "cupy.take_along_axis": GRAPH,
    "cupy.ndarray.__setitem__": GRAPH,
    "cupy.linalg.solve": GRAPH,
    "cupy.linalg.svd": LIBRARY,
    "cupy.fft.rfft": GRAPH,
    "cupy.nonzero": HOST_READ,
    "cupy.random.Generator.standard_normal": GRAPH,
    "cupyx.scatter_add": GRAPH,
    "cupyx.scipy.ndimage.gaussian_filter": GRAPH,
    "cupyx.scipy.special.erf": GRAPH,
}


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of modules that CuPy calls experimental
        return CuPy()


@pytest.mark.parametrize(("name", "outcome"), SAMPLE.items())
def test_outcomes(library, name, outcome):
    """A function is a graph whose calls equal eager ones, or is refused by call and line."""
    row = try_function(library, name)
    assert row.fault == ""
    assert row.outcome == outcome, row


def test_the_walk_finds_the_public_functions(library):
    """Hundreds of names, each once; those of the sample are among them."""
    names = [name for name, alias_of in public_functions(library, MODULES) if not alias_of]
    assert len(names) == len(set(names)) > 700
    assert set(SAMPLE) <= set(names)
