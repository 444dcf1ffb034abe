"""Every example runs to its end on a GPU: each one ends with its own assertions."""

import pytest
from helpers.processes import ROOT, run_python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples():
    """The examples that the documentation promises are there."""
    names = {path.stem for path in EXAMPLES}
    assert names >= {
        "quick_start",
        "heat_equation",
        "kmeans",
        "fft_filter",
        "mlp",
        "raw_kernel_pipeline",
        "conjugate_gradient",
        "decoding",
    }


@pytest.mark.slow
@pytest.mark.conditional
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path):
    """The example ends without an error or a warning, and compares itself with eager."""
    done = run_python("-W", "error", str(path), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "times as fast" in done.stdout
    if path.stem == "quick_start":
        assert done.stdout.startswith("running on the GPU: ")
