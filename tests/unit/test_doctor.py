"""``python -m graphjit doctor`` says what is there, what is missing, and how to get it."""

import sys
from pathlib import Path

import pytest
from helpers.processes import run_python

import graphjit
from graphjit import __main__ as command
from graphjit import _doctor
from graphjit._doctor import Finding, examine

ROOT = Path(__file__).parents[2]


def test_whatever_is_missing_has_a_cure():
    """Each bad finding says how to get what it lacks."""
    findings = examine()
    assert findings[0] == Finding("graphjit", graphjit.__version__)
    assert {"cupy", "cuda.bindings", "cuda.core"} <= {finding.what for finding in findings}
    assert [finding for finding in findings if not finding.is_good and not finding.cure] == []


def test_without_cupy(monkeypatch):
    """A missing package is named with the command that installs it; there is no device."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(_doctor, "_version", lambda name: None)
    found = {finding.what: finding for finding in examine()}
    assert found["cupy"].state == "missing"
    assert found["cupy"].cure == "pip install cupy-cuda13x[ctk]"
    assert found["device"].state.startswith("none: ")
    assert "simulated" in found["device"].cure


@pytest.mark.parametrize("is_good", [True, False])
def test_the_exit_status(monkeypatch, capsys, is_good):
    """0 if nothing is missing, 1 otherwise; every finding is in the table."""
    findings = [Finding("first", "fine"), Finding("second", "[state]", is_good, "[cure]")]
    monkeypatch.setattr(command, "examine", lambda: findings)
    assert command.main(["doctor"]) == (0 if is_good else 1)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("first", "fine", "second", "[state]", "[cure]"))


def test_unknown_commands_are_refused(capsys):
    """Argparse's message, and its exit status."""
    with pytest.raises(SystemExit) as caught:
        command.main(["surgeon"])
    assert caught.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_as_a_module():
    """``python -m graphjit doctor`` runs, with a GPU or without."""
    done = run_python("-m", "graphjit", "doctor")
    assert done.returncode in (0, 1)
    assert "graphjit doctor" in done.stdout
    assert done.stderr == ""
