"""The command: fuzz for a time, with an eye on memory.

``python tests/stress --seconds N --seed S`` on CuPy, ``--driver simulated`` without a GPU.
Exits with 1 after a difference, printing the shrunk program, or after a leak.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Run the command."""
    from stress.backends import make_backend
    from stress.soak import Soak

    parser = argparse.ArgumentParser(prog="python tests/stress", description=__doc__)
    parser.add_argument("--driver", choices=("cuda", "simulated"), default="cuda")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    return Soak(make_backend(options.driver), options.seconds, options.seed).run()


if __name__ == "__main__":
    # `python tests/stress` puts this folder in front, where its files would hide other modules.
    here = str(Path(__file__).parent)
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if p != here)]
    sys.exit(main(sys.argv[1:]))
