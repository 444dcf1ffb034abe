"""The examples in docstrings run, on the simulated device."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "graphjit"


def has_examples(path: Path) -> bool:
    """Say whether a docstring of a file holds an example."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return any(">>> " in (ast.get_docstring(node) or "") for node in nodes)


MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if has_examples(path)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    """Every line gives what the docstring says."""
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_public_entrances_have_examples():
    """The decorator, the capture block and the helpers for tests show how they are called."""
    assert {"graphjit._graphed", "graphjit._block", "graphjit.testing"} <= set(MODULES)
