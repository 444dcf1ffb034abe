"""Make a failing script short: drop lines as long as the same kind of difference stays.

Input: the lines of a script. Output: fewer lines. A line that others need cannot go: without
it both worlds raise the same error, which is no difference.
"""

from __future__ import annotations

from collections.abc import Callable

_MAX_RUNS = 1500


def shorten(
    program: str, steps: list[str], fails: Callable[[str, list[str]], bool]
) -> tuple[str, list[str]]:
    """Drop steps, then lines of the program, largest pieces first."""
    runs = 0

    def still_fails(source: list[str], lines: list[str]) -> bool:
        nonlocal runs
        runs += 1
        return runs <= _MAX_RUNS and fails("\n".join(source) + "\n", lines)

    source = program.splitlines()
    for _ in range(3):
        before = len(source), len(steps)
        steps = _drop(steps, lambda lines: still_fails(source, lines))  # noqa: B023 - used at once
        source = _drop(source, lambda lines: still_fails(lines, steps))  # noqa: B023 - used at once
        if before == (len(source), len(steps)):
            break
    return "\n".join(source) + "\n", steps


def _drop(lines: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    size = max(len(lines) // 2, 1)
    while True:
        k = len(lines)
        while k > 0:
            k = max(k - size, 0)
            fewer = lines[:k] + lines[k + size :]
            if len(fewer) < len(lines) and fails(fewer):
                lines = fewer
        if size == 1:
            return lines
        size //= 2
