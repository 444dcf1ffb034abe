"""The commands in the README are the ones that CI runs, and the pages name every error."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ERROR_CLASSES = sorted(
    node.name
    for node in ast.parse((ROOT / "graphjit" / "errors.py").read_text()).body
    if isinstance(node, ast.ClassDef)
)


def readme_command(title: str) -> str:
    """Return the single line in the code block behind ``<!-- title -->``."""
    found = re.findall(rf"<!-- {title} -->\n```sh\n(.*?)\n```\n", README, re.DOTALL)
    assert len(found) == 1, f"README.md has {len(found)} commands titled {title!r}"
    return found[0]


@pytest.mark.parametrize("title", ["quick start", "tests"])
def test_readme_commands_are_single_lines(title):
    """A stranger pastes one line."""
    assert "\n" not in readme_command(title)


def test_ci_runs_the_test_command_of_the_readme():
    """CI executes the README's test command character for character."""
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert lines.count(readme_command("tests")) == 1


def test_quick_start_command_runs_files_that_exist():
    """Every Python file that the quick start command names is in the repository."""
    files = re.findall(r"[\w./]+\.py\b", readme_command("quick start"))
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_links_of_the_readme_lead_to_files():
    """A relative link in the README has a target."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("name", ERROR_CLASSES)
def test_every_error_has_cause_and_cure(name):
    """docs/errors.md describes each class of errors.py under its own heading."""
    page = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert name in sections
    assert "**Cause.**" in sections[name]
    assert "**Cure.**" in sections[name]


def test_errors_page_names_no_class_that_is_gone():
    """docs/errors.md has no heading without a class."""
    page = (ROOT / "docs" / "errors.md").read_text()
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == ERROR_CLASSES
