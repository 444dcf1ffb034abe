"""The code of the guide's pages runs as it stands, on the simulated device."""

import re

import pytest
from helpers.processes import ROOT, run_python

PAGES = sorted((ROOT / "docs" / "guide").glob("*.md"))
IMPORT = re.compile(r"import cupy as cp( *#.*)?$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(page) -> list[str]:
    """Return the code of a page, on the simulated device."""
    blocks = BLOCK.findall(page.read_text())
    return [IMPORT.sub("from graphjit.testing import simulated as cp", block) for block in blocks]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks_of(p)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    """One block after the other, in an empty folder."""
    program = tmp_path / "page.py"
    program.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(blocks_of(page)))
    done = run_python("-W", "error", str(program))
    assert done.returncode == 0, done.stderr
