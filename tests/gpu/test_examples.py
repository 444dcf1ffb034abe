"""Every example runs to its end on a GPU: each one ends with its own assertions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path):
    """The example ends without an error or a warning, and compares itself with eager."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert "times as fast" in done.stdout
    if path.stem == "quick_start":
        assert done.stdout.startswith("running on the GPU: ")
