"""The quick start on a machine without a GPU."""

from helpers.processes import ROOT, run_python


def test_the_quick_start_runs_on_the_simulated_device():
    """Without a device the quick start says so, runs to its end, and compares itself with eager."""
    example = ROOT / "examples" / "quick_start.py"
    done = run_python("-W", "error", str(example), CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("running on the simulated device")
    assert "bit for bit" in done.stdout
    assert "times as fast" not in done.stdout
