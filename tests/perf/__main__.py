"""The command: measure, and write JSON, a page of tables and drawings.

``python tests/perf`` measures on the GPU and writes ``docs/generated``; ``--help`` names the
options. ``--quick``, ``--only`` and the simulated device write to ``build/perf`` instead, so
that rough figures never replace those of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ("chains", "adds", "branches", "mlp", "memory", "signatures", "first-call")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python tests/perf", description=__doc__)
    add = parser.add_argument
    add("--driver", choices=("cuda", "simulated"), default="cuda", help="default: cuda")
    add("--quick", action="store_true", help="a tenth of the repetitions")
    add("--only", choices=EXPERIMENTS, action="append", help="measure only this; may be repeated")
    add("--out", type=Path, help="folder of the page and the drawings")
    add("--json", type=Path, help="file of the results; default: benchmarks.json in the folder")
    add("--commit", help="what was measured, where git cannot tell")
    add("--profile", action="store_true", help="print what a hit in plain Python is made of")
    return parser.parse_args(arguments)


def out_folder(options: argparse.Namespace) -> Path:
    """Return the folder to write to."""
    if options.out is not None:
        return Path(options.out)
    is_whole = options.driver == "cuda" and not options.quick and not options.only
    return ROOT / ("docs/generated" if is_whole else "build/perf")


def command(options: argparse.Namespace) -> str:
    """Return the command without the places that it writes to."""
    words = ["python tests/perf"]
    words += [f"--driver {options.driver}"] * (options.driver != "cuda")
    words += ["--quick"] * options.quick
    words += [f"--only {name}" for name in options.only or ()]
    return " ".join(words)


def main(arguments: list[str]) -> int:
    """Run the command.

    A bar that is not reached is reported and is no failure; a measure that raises is one, but
    the others are taken and written all the same.
    """
    options = parse(arguments)
    if options.profile:
        os.environ["GRAPHJIT_PURE_PYTHON"] = "1"  # read when graphjit is imported
    from perf import costs, plots, report, settings, stages, times
    from perf.devices import make_device

    chosen = settings.choose(options.driver, options.quick)
    device = make_device(options.driver)
    if options.profile:
        with device.running():
            print(stages.profile(device, chosen))
        return 0
    results: dict[str, Any] = {
        "command": command(options),
        "environment": device.describe(options.commit),
        "failed": {},
    }
    experiments = {**times.EXPERIMENTS, **costs.EXPERIMENTS}
    with device.running():
        for name in options.only or EXPERIMENTS:
            began = time.monotonic()
            try:
                results[name] = experiments[name](device, chosen)
            except Exception as error:  # noqa: BLE001 - the other measures are worth having
                traceback.print_exc()
                results["failed"][name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    folder = out_folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    target = options.json or folder / "benchmarks.json"
    target.write_text(json.dumps(results, indent=1) + "\n")
    drawings = plots.write(results, folder)
    page = report.page(results, drawings)
    (folder / "benchmarks.md").write_text(page)
    print(page)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    # `python tests/perf` puts this folder in front, where its files would hide other modules.
    here = str(Path(__file__).parent)
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if p != here)]
    sys.exit(main(sys.argv[1:]))
