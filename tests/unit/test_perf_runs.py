"""The measurements run, on the simulated device: nothing is asserted about times."""

import itertools
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from perf import bars, report, timing
from perf.subjects import EAGER, FRESH, Subject, check_subjects

ROOT = Path(__file__).parents[2]


def run(*arguments):
    """Run the command as a user does; its output, and its standard error if it fails."""
    command = [sys.executable, str(ROOT / "tests/perf"), "--driver", "simulated", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def times(median):
    """Return what the results say of one subject."""
    return {"median": median, "lower": median, "upper": median, "n_samples": 1}


def test_one_command_measures_everything(tmp_path):
    """The command writes results, a page with a row for each bar, and the drawings."""
    printed = run("--out", str(tmp_path))
    results = json.loads((tmp_path / "benchmarks.json").read_text())
    page = (tmp_path / "benchmarks.md").read_text()
    assert page in printed
    assert results["failed"] == {}
    assert {
        "chains",
        "adds",
        "branches",
        "mlp",
        "memory",
        "signatures",
        "first-call",
    } < results.keys()
    for row in bars.rows(results):
        assert f"| {row.measure} | {row.at} |" in page
    assert results["memory"]["held"][FRESH]["pool_nbytes"] == 0
    drawn = {"host-time.svg", "end-to-end.svg"} if find_spec("matplotlib") else set()
    assert {path.name for path in tmp_path.glob("*.svg")} == drawn


def test_one_measure_alone(tmp_path):
    """``--only`` measures what it names; the other bars are not measured, not passed."""
    target = tmp_path / "one.json"
    run("--only", "first-call", "--out", str(tmp_path), "--json", str(target))
    results = json.loads(target.read_text())
    assert results.keys() == {"command", "environment", "failed", "first-call"}
    verdicts = {row.verdict for row in bars.rows(results) if "instantiation" not in row.measure}
    assert verdicts == {"not measured"}


def test_profile():
    """``--profile`` prints the stages of a hit and what is left."""
    printed = run("--profile")
    assert all(word in printed for word in ("whole hit", "reader.read", "the rest"))


@pytest.mark.parametrize(("hit", "verdict"), [(6.0, "pass"), (6.1, "fail")])
def test_verdicts(hit, verdict):
    """A bar that is reached exactly is passed."""
    results = {"chains": {"1": {"host": {FRESH: times(hit), bars.BARE: times(2.0)}}}}
    first = bars.rows(results)[0]
    assert first.verdict == verdict
    assert report.figure(first.measured) == ("3.00" if verdict == "pass" else "3.05")


def test_wrong_results_are_not_timed():
    """A subject that returns something else than its reference stops the run."""

    class Result:
        def __init__(self, data):
            self.data = data

        def tobytes(self):
            return self.data

    right = Subject(EAGER, lambda x: Result(b"1"), [(0,)], lambda result: result)
    wrong = Subject("peer", lambda x: Result(b"2"), [(0,)], lambda result: result)
    with pytest.raises(AssertionError, match="peer does not return what eager returns"):
        check_subjects([right, wrong])


def test_addresses_change_at_every_call():
    """Consecutive calls never get the same arguments, within a sample and across samples."""
    seen = []
    subject = Subject("any", seen.append, [(i,) for i in range(3)])
    timing.measure_host([subject], lambda: None, n_samples=5, n_calls=4)
    assert all(a != b for a, b in itertools.pairwise(seen))
