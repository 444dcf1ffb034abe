"""Run Python in a process of its own, on this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(
    *arguments: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with arguments and more environment; return the finished process.

    Packages are found where this process finds them. Variables of graphjit are not inherited.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GRAPHJIT_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"PYTHONPATH": path} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
