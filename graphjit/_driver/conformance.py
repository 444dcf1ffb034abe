"""What graphjit relies on a driver to do: small checks that both drivers pass.

Input: a driver. Output: ``CHECKS``: name -> check, which takes a ``Bench``; the docstring of
a check says what must hold.
Raises: ``AssertionError`` when the driver does something else; ``DriverError``.
"""

from __future__ import annotations

from graphjit._driver import (
    conformance_capture,
    conformance_children,
    conformance_conditionals,
    conformance_graphs,
    conformance_host,
)
from graphjit._driver.conformance_bench import Check

CHECKS: dict[str, Check] = {
    check.__name__: check
    for checks in (
        conformance_capture,
        conformance_graphs,
        conformance_conditionals,
        conformance_children,
        conformance_host,
    )
    for check in checks.CHECKS
}
