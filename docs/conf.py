"""Sphinx configuration: MyST pages, furo theme, docstrings in NumPy sections.

Input: the pages in this folder, the docstrings of graphjit, and the tables in ``generated/``.
Output: HTML; build with ``just docs``, in which a warning is an error.
``GRAPHJIT_DOCS_INTERSPHINX=1`` links to the pages of Python, NumPy and CuPy; that needs a network.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "graphjit"
copyright = "the graphjit developers"
author = "the graphjit developers"
release = installed_version("graphjit")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "changelog.d", "generated"]
html_theme = "furo"
html_title = f"graphjit {release}"
html_static_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

intersphinx_mapping = {}
# Private classes may stand in the signature of a public function; they have no page.
nitpick_ignore_regex = [("py:.*", r"graphjit\._.*")]
if os.environ.get("GRAPHJIT_DOCS_INTERSPHINX") == "1":
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "cupy": ("https://docs.cupy.dev/en/stable", None),
    }
else:
    # Without the other projects' inventories only references to graphjit can be checked.
    nitpick_ignore_regex.append(("py:.*", r"(?!graphjit).*"))


def has_module(name: str) -> bool:
    """Say whether the source of a module is in this checkout, without importing anything."""
    path = HERE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def missing_api_pages() -> list[str]:
    """Find the pages of ``api/`` whose module does not exist in this checkout."""
    missing = []
    for page in sorted((HERE / "api").glob("*.md")):
        modules = re.findall(r"^\.\. automodule:: (\S+)", page.read_text(), re.MULTILINE)
        if not all(map(has_module, modules)):
            missing.append(f"api/{page.name}")
    return missing


exclude_patterns += missing_api_pages()


def graph_picture(_: re.Match[str]) -> str:
    """Capture a function on the simulated device and return the picture of its graph."""
    from graphjit import graphed, inspection
    from graphjit.control import while_loop
    from graphjit.testing import simulated as xp

    @graphed
    def layer(x, w):  # type: ignore[no-untyped-def]
        return xp.sin(xp.matmul(x, w))

    @graphed
    def network(x, w):  # type: ignore[no-untyped-def]
        y = layer(x, w) + x
        return while_loop(lambda c: abs(c).max() > 1, lambda c: c / 2, y)

    network(xp.ones((2, 3)), xp.ones((3, 3)))
    svg = inspection.to_svg(network.cache_entries()[0].graph)
    network.cache_clear()
    svg = re.sub(r'xlink:href="#node\d+"', "", svg[svg.index("<svg") :])
    return "<figure>" + " ".join(svg.split()) + "</figure>"


def include_generated(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace ``<!-- generated: NAME -->`` by ``generated/NAME``, or say that it is not there."""

    def text_of(match: re.Match[str]) -> str:
        path = HERE / "generated" / match[1]
        if path.is_file():
            return path.read_text()
        return f"*`docs/generated/{match[1]}` has not been made in this checkout.*"

    source[0] = re.sub(
        r"^<!-- picture of a graph -->$", graph_picture, source[0], flags=re.MULTILINE
    )
    source[0] = re.sub(r"^<!-- generated: (\S+) -->$", text_of, source[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Register what the pages need beyond Sphinx and MyST."""
    app.connect("source-read", include_generated)
