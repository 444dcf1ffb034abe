"""What ``mypy --strict`` says of code that uses graphjit; the expected lines are beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))


@pytest.fixture(scope="module")
def reported() -> dict[str, set[tuple[int, str, str]]]:
    """Return (line, kind, text) of each message, for each file."""
    done = subprocess.run(  # in a process of its own: the checker leaves a large heap behind
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={ROOT / '.mypy_cache'}",
            "--hide-error-codes",
            "--no-error-summary",
            *map(str, CASES),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout
    assert done.stderr == ""
    found: dict[str, set[tuple[int, str, str]]] = {case.name: set() for case in CASES}
    for path, line, kind, text in re.findall(r"^(.*?):(\d+): (error|note): (.*)$", output, re.M):
        assert Path(path).name in found, output
        found[Path(path).name].add((int(line), kind, text))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_messages_are_those_beside_the_code(case, reported):
    """Every expected message comes, with its text, and no other error."""
    expected = {
        number: found.groups()
        for number, line in enumerate(case.read_text().splitlines(), 1)
        if (found := re.search(r"  # (error|note): (.*)$", line))
    }
    messages = reported[case.name]
    missing = {
        number: text
        for number, (kind, text) in expected.items()
        if not any((n, k) == (number, kind) and text in t for n, k, t in messages)
    }
    assert missing == {}
    assert {m for m in messages if m[1] == "error" and m[0] not in expected} == set()
