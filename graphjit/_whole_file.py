"""A file that others see whole, or not at all.

Input: the path of a file, in a folder that exists.
Output: a new path beside it; what is written there replaces the file when the block ends.
Raises: ``OSError``. Whatever is raised, also in the block: the file is as it was, and nothing
is left beside it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to; nothing exists there yet."""
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
