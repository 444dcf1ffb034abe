"""The times of nodes on the GPU."""

import json

import cupy as cp
import pytest
from helpers.gpu_checks import normal, same_bits

from graphjit import graphed
from graphjit.control import while_loop


@graphed
def small(x):
    return x * 2 + 1


def work(x, big):
    x += 1
    y = small(x)
    z = cp.sort(big @ big, axis=0)
    return while_loop(lambda c: abs(c).max() > 1, lambda c: c / 2, y), z


@pytest.mark.conditional
@pytest.mark.parametrize("patch", ["host", "device"])
def test_a_large_kernel_takes_the_most_time(patch):
    """Products of large matrices take longer than additions of a few numbers."""
    call = graphed(patch=patch)(work)
    x, big = normal(8), normal(4096, 4096)
    call(x, big)
    call(x, big)
    before = x.copy()
    profile = call.profile(x, big)
    assert same_bits(x, before)
    assert profile.device == cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    longest = max(profile.times, key=lambda t: t.duration_us)
    names = [str(w) for p in longest.node.params for w in p.words]
    assert longest.duration_us > 50
    assert any("big" in name or "result" in name or "scratch" in name for name in names)
    shortest = min(t.duration_us for t in profile.times if t.node.kind == "kernel")
    assert 0 < shortest < 50
    begins = [t.begin_us for t in profile.times]
    assert begins == sorted(begins)
    assert {t.node.kind for t in profile.times} >= {"kernel", "child_graph", "conditional"}
    assert json.loads(profile.to_chrome_trace())["traceEvents"]
