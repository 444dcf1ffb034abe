"""A sample of the walk through CuPy's public functions; the whole is ``api_coverage.py``."""

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).with_name("api_coverage.py")
_spec = importlib.util.spec_from_file_location("api_coverage", _PATH)
coverage = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(coverage)

SAMPLE = {
    "cupy.arctan2": "graph",
    "cupy.asnumpy": "not applicable",
    "cupy.broadcast_to": "not applicable",
    "cupy.flatnonzero": "host read",
    "cupy.linalg.solve": "graph",
    "cupy.fft.rfft": "graph",
    "cupy.random.gamma": "graph",
    "cupy.searchsorted": "graph",
    "cupy.stack": "graph",
    "cupyx.scipy.ndimage.gaussian_filter": "graph",
    "cupyx.scipy.special.erf": "graph",
}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_function(name):
    """The outcome is what it was, and the device is as it was."""
    found = coverage.examine(name)
    assert found["outcome"] == SAMPLE[name], found
    assert coverage.check_device() == ""


def test_the_walk_finds_the_functions():
    """Hundreds of them, each under one name."""
    names = coverage.functions()
    assert len(names) == len(set(names)) > 600
    assert set(SAMPLE) <= set(names)


def test_the_page_counts_what_is_wrong():
    """A wrong result lowers the share, and is listed."""
    found = {
        "cupy.a": {"outcome": "graph", "detail": "1 kernel"},
        "cupy.b": {"outcome": "WRONG", "detail": "call 2 differs"},
        "cupy.c": {"outcome": "host read", "detail": "reads"},
    }
    text = coverage.page(found, "head")
    assert "| cupy | 1 | 1 | 0 | 0 | 0 | 50 % |" in text
    assert "| cupy.b | WRONG | call 2 differs |" in text
