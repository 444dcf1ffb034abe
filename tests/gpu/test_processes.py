"""Forks and pools on a real GPU."""

import pytest
from helpers.processes import run_python

PRELUDE = """
import os, sys, threading
import cupy as cp
from graphjit import graphed, GraphjitError

@graphed
def fn(x):
    return x * 2 + 1

x = cp.arange(4.0)
fn(x), fn(x)
"""


def test_a_forked_process_is_told():
    """The child gets an error that says what to do, at once; the parent goes on."""
    done = run_python(
        "-c",
        PRELUDE
        + """
pid = os.fork()
if not pid:
    try:
        fn(x)
    except GraphjitError as error:
        print(str(error)[:40], flush=True)
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
print(fn(x).get().tolist(), fn.cache_info().hits)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "this process was forked from one that ha\n[1.0, 3.0, 5.0, 7.0] 2\n"


@pytest.mark.parametrize(
    "end",
    [
        "",
        "cycle = [fn]; cycle.append(cycle); del fn",
        "[fn(x) for _ in range(200)]",
        "import atexit; atexit.register(fn, x)",
        "threading.Thread(target=lambda: [fn(x) for _ in iter(int, 1)], daemon=True).start()",
    ],
    ids=["plain", "cycle", "launches in flight", "atexit", "daemon"],
)
def test_the_interpreter_ends_in_silence(end):
    """Whatever holds graphs when the interpreter goes: no error, no output, exit code 0."""
    done = run_python("-c", PRELUDE + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
