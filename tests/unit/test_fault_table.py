"""The tables of faults and of kinds of nodes name tests that exist."""

import re
from pathlib import Path
from typing import get_args

from graphjit._nodes import Node
from graphjit.testing import DRIVER_CHECKS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs/design/faults.md"
NODES = ROOT / "docs/guide/nodes.md"

PLACE = re.compile(r"`([\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?`")
"""A file below tests/, a test in it and, in brackets, a check of drivers."""
ROWS_OF_NODES = {
    "mem_alloc": "memory allocation and free",
    "mem_free": "memory allocation and free",
}
"""Kinds whose row is not called what they are."""


def names_in(path: Path) -> set[str]:
    """Return the names of the tests in a file; none if there is no such file."""
    text = path.read_text() if path.is_file() else ""
    return set(re.findall(r"^ *def (test_\w+)", text, re.MULTILINE))


def names_of_tests() -> set[str]:
    """Return the names of all tests, and of the checks of drivers as tests."""
    found = {name for path in TESTS.rglob("test_*.py") for name in names_in(path)}
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


def rows_of_nodes() -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return the kinds of the first table on nodes, and kind -> tests of the second."""
    kinds, tests = [], {}
    for line in NODES.read_text().splitlines():
        kind, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not line.startswith("| ") or kind.startswith("kind"):
            continue
        if "::" in line:
            tests[kind] = cells[0], cells[1]
        else:
            kinds.append(kind)
    return kinds, tests


def test_every_test_of_a_kind_of_node_exists():
    """Each is in the file that is named, on the device of its column."""
    places = PLACE.findall(NODES.read_text())
    assert len(places) == NODES.read_text().count("::") >= 22
    missing = [
        f"{file}::{name}[{check}]"
        for file, name, check in places
        if name not in names_in(TESTS / file) or (check and check not in DRIVER_CHECKS)
    ]
    assert missing == []
    for simulated, gpu in rows_of_nodes()[1].values():
        assert not [file for file, *_ in PLACE.findall(simulated) if file.startswith("gpu/")]
        assert {file.split("/")[0] for file, *_ in PLACE.findall(gpu)} <= {"gpu", "conformance"}


def test_every_kind_of_node_has_a_test():
    """What stands in the one table stands in the other, with a test on the simulated device."""
    kinds, tests = rows_of_nodes()
    assert kinds == list(tests)
    assert [kind for kind, (simulated, _) in tests.items() if not PLACE.search(simulated)] == []


def test_every_class_of_nodes_has_a_row():
    """Whatever a graph can hold is on the page; what cannot be rebuilt is refused."""
    _, tests = rows_of_nodes()
    missing = [
        node.kind
        for node in get_args(Node)
        if node.kind != "unsupported"
        and not any(
            re.match(rf"{ROWS_OF_NODES.get(node.kind, node.kind.replace('_', ' '))}\b", row)
            for row in tests
        )
    ]
    assert missing == []
