"""The measures of the house style, with every exception and its reason."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FILES = sorted((ROOT / "graphjit").rglob("*.py"))
PYTHON_FILES = PACKAGE_FILES + sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40

# Path -> (limit, reason). A limit is a little above what the file needs, not a free pass.
LONGER_FILES: dict[str, tuple[int, str]] = {}
# "path::function" -> (limit, reason).
LONGER_FUNCTIONS: dict[str, tuple[int, str]] = {}

# Abbreviations that CUDA does not use, and the words that the house uses instead.
BANNED_NAMES = {
    "arr": "array",
    "addr": "ptr",
    "sz": "nbytes",
    "cnt": "n_ or count",
    "idx": "index",
    "buf": "buffer",
    "cfg": "config",
    "ctx": "context",
    "sig": "signature",
    "tmp": "temporary",
    "fut": "future",
    "impl": "implementation",
}


def relative(path: Path) -> str:
    """Return a path as the tables above write it."""
    return path.relative_to(ROOT).as_posix()


def docstring_lines(function) -> int:
    """Return how many lines a docstring takes: a long one makes no function hard to read."""
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return function.body[0].end_lineno - function.body[0].lineno + 1


def functions(path: Path):
    """Yield each function of a file: qualified name, number of lines without the docstring."""

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield name, child.end_lineno - child.lineno + 1 - docstring_lines(child)
                yield from visit(child, f"{name}.")
            else:
                yield from visit(child, f"{name}." if isinstance(child, ast.ClassDef) else prefix)

    yield from visit(ast.parse(path.read_text()), "")


def identifiers(path: Path) -> set[str]:
    """Return the names that a file defines: functions, classes, parameters, variables."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_modules_have_a_docstring(path):
    """The first lines of a module say what it is for."""
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative)
def test_files_are_short(path):
    """One concept a file: at most 300 lines."""
    limit, _ = LONGER_FILES.get(relative(path), (MAX_FILE_LINES, ""))
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative)
def test_functions_are_short(path):
    """A function fits on a screen: at most 40 lines without its docstring."""
    too_long = {
        name: n_lines
        for name, n_lines in functions(path)
        if n_lines > LONGER_FUNCTIONS.get(f"{relative(path)}::{name}", (MAX_FUNCTION_LINES, ""))[0]
    }
    assert too_long == {}


def test_every_exception_is_needed():
    """An exception for something that is short, or gone, is removed from its table."""
    long_files = {
        relative(path)
        for path in PACKAGE_FILES
        if len(path.read_text().splitlines()) > MAX_FILE_LINES
    }
    long_functions = {
        f"{relative(path)}::{name}"
        for path in PACKAGE_FILES
        for name, n_lines in functions(path)
        if n_lines > MAX_FUNCTION_LINES
    }
    assert set(LONGER_FILES) - long_files == set()
    assert set(LONGER_FUNCTIONS) - long_functions == set()


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=relative)
def test_names_are_words(path):
    """No part of a name is an abbreviation that CUDA does not use."""
    banned = {
        name: BANNED_NAMES[part]
        for name in identifiers(path)
        for part in re.findall(r"[A-Z]?[a-z0-9]+", name)
        if part.lower() in BANNED_NAMES
    }
    assert banned == {}


def test_no_absolute_paths_of_a_workplace():
    """Tracked text files name no folder that exists on one machine only."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(?<![\w.~}])/(?:work|root|home|opt|Users)/\w+")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.suffix in {".png", ".npz"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}")
    assert found == []
