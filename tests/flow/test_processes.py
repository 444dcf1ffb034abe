"""Other processes: pickling, pools, forks, and the end of the interpreter."""

import concurrent.futures
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers import pool_functions
from helpers.flow_checks import normal
from helpers.processes import run_python

from graphjit.testing import simulated as xp

ROOT = Path(__file__).parents[2]
rng = np.random.default_rng(8)


def data(n=3):
    return [rng.standard_normal(6) for _ in range(n)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_of_processes_captures_anew(method, monkeypatch):
    """A graphed function goes to a worker by its name, and has a cache of its own there."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    inputs = data()
    pool_functions.smooth(xp.asarray(inputs[0]))
    before = pool_functions.smooth.cache_info()
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        results, counts = pool.submit(pool_functions.run, pool_functions.smooth, inputs).result(60)
    for x, result in zip(inputs, results, strict=True):
        assert result.tobytes() == ((x[1:] + x[:-1]) * 0.5).tobytes()
    assert counts == (2, 1)
    assert pool_functions.smooth.cache_info() == before
    pool_functions.smooth.cache_clear()


def test_pickling_is_by_name():
    """What comes back is the function itself; one that is not found by its name is refused."""
    assert pickle.loads(pickle.dumps(pool_functions.smooth)) is pool_functions.smooth
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(pool_functions.other_name)


def test_methods_go_with_their_objects():
    """A bound graphed method is pickled as its object and its name."""
    model = pool_functions.Model(3.0)
    apply = pickle.loads(pickle.dumps(model.apply))
    x = normal(4)
    assert apply(x).get().tobytes() == (x * 3.0).get().tobytes()
    assert apply.__self__ is not model
    pool_functions.Model.apply.cache_clear()


def run_script(text):
    """Run a script in a process of its own; return the finished process."""
    return run_python("-W", "error", "-c", text)


PRELUDE = """
import threading, os, sys
from graphjit import graphed
from graphjit.testing import simulated as xp

@graphed
def fn(x):
    return x * 2 + 1

x = xp.ones(4)
fn(x), fn(x)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "cycle = [fn]; cycle.append(cycle); del fn",
        "local = threading.local(); local.fn = graphed(lambda x: x + 1); local.fn(x)",
        "sys.modules['kept'] = fn",
        "class Late:\n    def __del__(self): fn(x)\nlate = Late()",
        "import atexit; atexit.register(fn, x)",
        "threading.Thread(target=lambda: [fn(x) for _ in iter(int, 1)], daemon=True).start()",
        "sys.exit(0)",
    ],
    ids=["plain", "cycle", "thread-local", "module", "finaliser", "atexit", "daemon", "exit"],
)
def test_the_interpreter_ends_in_silence(end):
    """Whatever holds graphs when the interpreter goes: no error, no output, exit code 0."""
    done = run_script(PRELUDE + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_process_goes_on():
    """On the simulated device, parent and child both call what was captured before the fork."""
    done = run_script(
        PRELUDE
        + """
pid = os.fork()
assert fn(x).get().tolist() == [3.0] * 4
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print(fn.cache_info().hits)
"""
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_dask_worker_captures_anew(monkeypatch):
    """Dask sends a graphed function to its worker processes as it sends others."""
    import dask
    from distributed import Client, LocalCluster

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    inputs = data()
    settings = {
        "distributed.admin.log-format": "%(message)s",
        "distributed.logging.distributed": 50,
    }
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        results, counts = client.submit(pool_functions.run, pool_functions.smooth, inputs).result(
            60
        )
    for x, result in zip(inputs, results, strict=True):
        assert result.tobytes() == ((x[1:] + x[:-1]) * 0.5).tobytes()
    assert counts == (2, 1)
