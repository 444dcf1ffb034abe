"""Imports go one way: from the wrapper down to the driver interface.

The rules hold for imports inside functions too, apart from the direction, which concerns
what a module needs to be loaded.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "graphjit"
FILES = sorted(PACKAGE.rglob("*.py"))

CUDA_PACKAGES = frozenset({"cuda"})
ARRAY_LIBRARIES = frozenset({"cupy", "cupyx", "cupy_backends", "torch", "jax", "numba"})

# Importer -> why it may import CUDA's packages and array libraries.
LIBRARY_EXCEPTIONS = {
    "graphjit._doctor": "it examines the installation, and nothing else imports it",
}

# From the top down. A module imports modules of its own layer and of layers below it.
LAYERS = (
    ("graphjit", "graphjit.__main__"),
    ("graphjit.testing", "graphjit._doctor"),
    (
        "graphjit._graphed",
        "graphjit._offered",
        "graphjit._typing",
        "graphjit._block",
        "graphjit._explicit",
        "graphjit._explicit_nodes",
        "graphjit._launcher",
        "graphjit._load",
        "graphjit.control",
        "graphjit.host",
        "graphjit.inspection",
    ),
    None,  # every module that is not named elsewhere
    ("graphjit._driver", "graphjit._driver.*", "graphjit._simulated.*"),
    ("graphjit._nodes", "graphjit._whole_file", "graphjit.errors"),
)
# (importer, imported): why this one may go upwards.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def layer_of(module: str) -> int:
    """Return the index of a module's layer, 0 at the top."""
    parent = module.rpartition(".")[0] + ".*"
    for index, names in enumerate(LAYERS):
        if names is not None and (module in names or parent in names):
            return index
    return LAYERS.index(None)


def imported_modules(nodes) -> set[str]:
    """Return the dotted names that the import statements among ``nodes`` name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module
                for alias in node.names
            }
    return found


def top_level_imports(path: Path) -> set[str]:
    """Return what is imported when the module is loaded."""
    tree = ast.parse(path.read_text())
    nodes = []
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        nodes.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return imported_modules(nodes)


def all_imports(path: Path) -> set[str]:
    """Return everything that a module imports, at whatever time."""
    return imported_modules(ast.walk(ast.parse(path.read_text())))


@pytest.mark.parametrize("module", MODULES)
def test_only_the_cuda_driver_imports_cuda(module):
    """CUDA's Python packages are imported by _driver/cuda*.py alone."""
    path = MODULES[module]
    if path.parent.name == "_driver" and path.name.startswith("cuda"):
        return
    if module in LIBRARY_EXCEPTIONS:
        return
    assert [n for n in all_imports(path) if n.partition(".")[0] in CUDA_PACKAGES] == []


@pytest.mark.parametrize("module", MODULES)
def test_only_adapters_import_array_libraries(module):
    """Array libraries are imported by the files in _adapters alone."""
    path = MODULES[module]
    if path.parent.name == "_adapters" or module in LIBRARY_EXCEPTIONS:
        return
    assert [n for n in all_imports(path) if n.partition(".")[0] in ARRAY_LIBRARIES] == []


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_upwards(module):
    """A module is loaded without any module of a layer above it."""
    upwards = [
        name
        for name in top_level_imports(MODULES[module])
        if name in MODULES
        and layer_of(name) < layer_of(module)
        and (module, name) not in EXCEPTIONS
    ]
    assert upwards == []


def test_no_import_cycle():
    """Modules can be loaded one after another: no two need each other."""
    needs = {
        module: {name for name in top_level_imports(path) if name in MODULES}
        for module, path in MODULES.items()
    }
    while ready := [module for module, names in needs.items() if not names & needs.keys()]:
        for module in ready:
            del needs[module]
    assert needs == {}


def test_every_exception_is_needed():
    """An exception that no import uses any more is removed."""
    used = {
        (module, name)
        for module, path in MODULES.items()
        for name in top_level_imports(path)
        if name in MODULES and layer_of(name) < layer_of(module)
    }
    assert set(EXCEPTIONS) - used == set()
    libraries = CUDA_PACKAGES | ARRAY_LIBRARIES
    unused = {
        module
        for module in LIBRARY_EXCEPTIONS
        if module not in MODULES
        or not {name.partition(".")[0] for name in all_imports(MODULES[module])} & libraries
    }
    assert unused == set()
