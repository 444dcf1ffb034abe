# Shows: a graph in a file. One process captures the step of a simulation and writes it down;
# another, which has neither the function nor its source, launches it.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cupy as cp
import numpy as np

import graphjit
from graphjit import graphed

SHAPE = (64, 64)
SERVER = """
import sys
import cupy as cp
import graphjit

step = graphjit.load(sys.argv[1])
u, v = cp.load(sys.argv[2]), cp.load(sys.argv[3])
for k in range(100):
    u, v = step.launch(u=u, v=v, feed=0.03 + 1e-5 * k)
cp.save(sys.argv[4], u)
"""


def react(u, v, feed, kill=0.06, n=4):
    """Gray-Scott: n steps of a reaction between two substances that spread."""
    for _ in range(n):
        spread = [
            sum(cp.roll(w, shift, axis) for shift in (-1, 1) for axis in (0, 1)) - 4 * w
            for w in (u, v)
        ]
        reaction = u * v * v
        u = u + 0.16 * spread[0] - reaction + feed * (1 - u)
        v = v + 0.08 * spread[1] + reaction - feed * v - kill * v
    return u, v


graphed_react = graphed(dynamic=("feed",))(react)


def start():
    rng = np.random.default_rng(0)
    return cp.asarray(rng.uniform(0.5, 1, SHAPE)), cp.asarray(rng.uniform(0, 0.5, SHAPE))


def simulate(function, n_steps=100):
    u, v = start()
    for k in range(n_steps):
        u, v = function(u, v, 0.03 + 1e-5 * k)
    return u


def seconds(function):
    simulate(function, 10)
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    simulate(function)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - begin


with tempfile.TemporaryDirectory() as folder:
    paths = [Path(folder) / name for name in ("react.graph", "u.npy", "v.npy", "result.npy")]
    u, v = start()
    graphed_react(u, v, 0.03)
    graphed_react.export(paths[0], u, v, 0.03)
    cp.save(paths[1], u)
    cp.save(paths[2], v)
    subprocess.run([sys.executable, "-c", SERVER, *map(str, paths)], check=True)
    result = np.load(paths[3])
    loaded = graphjit.load(paths[0])
    size = paths[0].stat().st_size

assert np.array_equal(result, cp.asnumpy(simulate(react)))
print(
    f"{loaded.info().nodes['kernel']} kernels in a file of {size} bytes; the other process agrees"
)


def launch(u, v, feed):
    return loaded.launch(u=u, v=v, feed=feed)


print(f"loaded: {seconds(react) / seconds(launch):.1f} times as fast as eager")
