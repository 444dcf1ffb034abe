"""The quick start on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quick_start_runs_on_the_simulated_device():
    """Without a device the quick start says so, runs to its end, and compares itself with eager."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "quick_start.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("running on the simulated device")
    assert "bit for bit" in done.stdout
    assert "times as fast" not in done.stdout
