"""The table of faults names tests that exist."""

import re
from pathlib import Path

from graphjit.testing import DRIVER_CHECKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/faults.md"


def names_of_tests() -> set[str]:
    """Return the names of all tests, and of the checks of drivers as tests."""
    files = (ROOT / "tests").rglob("test_*.py")
    found = {
        name
        for path in files
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    return found | {f"test_{getattr(check, '__name__', check)}" for check in DRIVER_CHECKS}


def test_every_test_of_the_table_exists():
    """A kind of fault whose test is gone is no longer covered."""
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 60
    assert named - names_of_tests() == set()


def test_every_kind_has_a_test():
    """No row is without one."""
    rows = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| kind ")
    ]
    assert len(rows) >= 35
    assert [row for row in rows if "`test_" not in row] == []
