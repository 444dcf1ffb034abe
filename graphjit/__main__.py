"""``python -m graphjit doctor``: what works on this machine, and how to get what is missing."""

from __future__ import annotations

import argparse
import sys

from graphjit._doctor import examine


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m graphjit", description=__doc__)
    parser.add_argument("command", choices=["doctor"])
    parser.parse_args(arguments)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="graphjit doctor")
    for column in ("what", "state", "how to get it"):
        table.add_column(column, overflow="fold")
    findings = examine()
    for finding in findings:
        table.add_row(finding.what, escape(finding.state), escape(finding.cure))
    Console().print(table)
    return 0 if all(finding.is_good for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
