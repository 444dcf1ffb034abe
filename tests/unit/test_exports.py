"""What is public exists, is documented, and shows itself under its public name."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC_MODULES = sorted(
    "graphjit" if path.name == "__init__.py" else f"graphjit.{path.stem}"
    for path in (ROOT / "graphjit").glob("*.py")
    if not path.name.startswith("_") or path.name == "__init__.py"
)


def exported(module_name: str) -> list[str]:
    """Return the names in ``__all__`` of a module, or none."""
    return list(getattr(importlib.import_module(module_name), "__all__", ()))


def api_directives() -> list[tuple[str, str, str]]:
    """Return (directive, target, options) of each autodoc directive in docs/api."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))
    return re.findall(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", pages, re.MULTILINE)


def excluded(options: str) -> set[str]:
    """Return the names that an automodule directive leaves to directives of their own."""
    found = re.search(r":exclude-members: (.*)", options)
    return set(found[1].replace(",", " ").split()) if found else set()


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_exported_names_exist_once(module_name):
    """``__all__`` names each thing once, and each of them exists."""
    names = exported(module_name)
    module = importlib.import_module(module_name)
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_exported_names_are_documented(module_name):
    """docs/api has a directive for each exported name, or one for all of the module's."""
    directives = api_directives()
    modules = {target: options for kind, target, options in directives if kind == "module"}
    single = {target.rstrip("()") for kind, target, _ in directives if kind != "module"}
    documented = single | {
        f"{target}.{name}"
        for target, options in modules.items()
        if ":members:" in options and target in PUBLIC_MODULES
        for name in set(exported(target)) - excluded(options)
    }
    missing = [
        name
        for name in exported(module_name)
        if not {f"{module_name}.{name}", f"graphjit.{name}"} & documented
    ]
    assert missing == []


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_exported_names_have_docstrings(module_name):
    """Autodoc shows only what has a docstring."""
    module = importlib.import_module(module_name)
    undocumented = [
        name
        for name in exported(module_name)
        if (inspect.isroutine(value := getattr(module, name)) or inspect.isclass(value))
        and not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.skipif("graphjit" not in PUBLIC_MODULES, reason="graphjit/__init__.py is missing")
def test_errors_are_names_of_the_package():
    """Each class of errors.py is exported by the package, whose name it carries."""
    errors = importlib.import_module("graphjit.errors")
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert classes <= set(exported("graphjit"))
    assert {name for name in classes if getattr(errors, name).__module__ != "graphjit"} == set()
