"""One function for each kind of node that programs record by themselves, on the GPU."""

import cupy as cp
import pytest
from cupy.cuda import runtime
from helpers.gpu_checks import agrees, normal

from graphjit import graphed


def stream():
    return cp.cuda.get_current_stream().ptr


def memcpy_on_the_device(x):
    y = cp.empty_like(x)
    runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, runtime.memcpyDeviceToDevice, stream())
    return y + 1


def memcpy_of_rows(x):
    y = cp.zeros((4, 8), "f4")
    runtime.memcpy2DAsync(
        y.data.ptr, 32, x.data.ptr, 16, 16, 4, runtime.memcpyDeviceToDevice, stream()
    )
    return y


def memset(x):
    runtime.memsetAsync(x.data.ptr + 16, 0, 32, stream())
    return x * 2


def memory_of_a_library(x):
    y = cp.empty_like(x)
    ptr = runtime.mallocAsync(x.nbytes, stream())
    runtime.memcpyAsync(ptr, x.data.ptr, x.nbytes, runtime.memcpyDeviceToDevice, stream())
    runtime.memcpyAsync(y.data.ptr, ptr, x.nbytes, runtime.memcpyDeviceToDevice, stream())
    runtime.freeAsync(ptr, stream())
    return y + x


KINDS = {
    memcpy_on_the_device: ["memcpy"],
    memcpy_of_rows: ["memcpy"],
    memset: ["memset"],
    memory_of_a_library: ["mem_alloc", "mem_free", "memcpy"],
}


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("fn", KINDS, ids=lambda fn: fn.__name__)
def test_every_kind_of_node(fn, patch):
    """The kind is in the captured graph, and what is launched does the same as the eager call."""
    call = graphed(patch=patch)(fn)
    for _ in range(6):
        assert agrees(call, fn, normal(4, 4))
    assert call.cache_info()[:2] == (5, 1)
    assert set(call.cache_entries()[0].nodes) >= set(KINDS[fn])
