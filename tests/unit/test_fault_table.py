"""The tables of faults and of kinds of nodes name tests that exist."""

import re
from pathlib import Path
from typing import get_args

from graphjit._nodes import Node
from graphjit.testing import DRIVER_CHECKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/faults.md"
NODES = ROOT / "docs/guide/nodes.md"


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


def test_every_kind_of_node_has_a_test():
    """The page on nodes names tests that exist, and every kind that a graph can hold."""
    text = NODES.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if "`test_" not in row] == []
    assert set(re.findall(r"`(test_\w+)`", text)) - names_of_tests() == set()
    kinds = {
        kind.kind.replace("mem_alloc", "allocation").replace("mem_free", "free")
        for kind in get_args(Node)
    } - {"unsupported"}
    assert {kind for kind in kinds if kind.replace("_", " ") not in text} == set()
