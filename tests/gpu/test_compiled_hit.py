"""The compiled hit by itself: CuPy arrays at made-up addresses, a driver of Python callbacks."""

import ctypes
import struct
import sys
import threading
from types import SimpleNamespace

import cupy as cp
import numpy as np
import pytest

from graphjit import _hit as hit
from graphjit import _places as places
from graphjit._adapters.cupy_layout import find_layout
from graphjit._watch import Step, is_true, same_value

if not hit.IS_COMPILED:
    pytest.skip("the compiled hit is not built, or turned off", allow_module_level=True)

_GetContext = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_IsCapturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_SetParams = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_CurrentStream = ctypes.CFUNCTYPE(ctypes.c_ssize_t)
CONTEXT, STREAM, GRAPH_EXEC = 7, 55, 99


class Bench:
    """A driver that notes its calls, memory that does not exist, and one function's hits."""

    def __init__(self):
        self.calls = []
        self.context, self.is_capturing, self.status = CONTEXT, 0, 0
        self.buffer = ctypes.create_string_buffer(16 + 8 * 8)
        self._next_ptr = 0x7E00_0000_0000
        self._callbacks = {
            "cuCtxGetCurrent": _GetContext(self._get_context),
            "cuStreamIsCapturing": _IsCapturing(self._get_capturing),
            "cuGraphExecKernelNodeSetParams": _SetParams(self._set_params),
            "cuGraphLaunch": _Launch(self._launch),
            "current stream": _CurrentStream(lambda: STREAM),
        }
        addresses = {
            name: ctypes.cast(function, ctypes.c_void_p).value
            for name, function in self._callbacks.items()
        }
        current_stream = addresses.pop("current stream")
        make_view = cp.ndarray.__mro__[1].view
        self.library = hit.NativeLibrary(
            addresses, find_layout(), cp.ndarray, self.allocate, current_stream, make_view
        )
        self.hits = hit.FastHits(hit.Clock())

    def _get_context(self, result):
        result[0] = self.context
        return 0

    def _get_capturing(self, stream, result):
        result[0] = self.is_capturing
        return 0

    def _set_params(self, graph_exec, node, params):
        self.calls.append(struct.unpack_from("<8Q", self.buffer.raw, 16))
        return self.status

    def _launch(self, graph_exec, stream):
        self.calls.append((graph_exec, stream))
        return 0

    def allocate(self, nbytes):
        ptr, self._next_ptr = self._next_ptr, self._next_ptr + (1 << 20)
        memory = cp.cuda.UnownedMemory(ptr, max(nbytes, 1), None, device_id=0)
        return cp.cuda.MemoryPointer(memory, 0)

    def array(self, shape=(4,), dtype=np.float32, byte_offset=0):
        return cp.ndarray(shape, dtype, memptr=self.allocate(1 << 16) + byte_offset)

    def plan(self, args, **changes):
        """Describe an entry for calls like this one."""
        n_arrays = sum(isinstance(a, cp.ndarray) for a in args) + changes.pop("n_implicit", 0)
        executable = SimpleNamespace(lock=hit.Lock(), counts=hit.HitCounts(), fail=self._fail)
        settings = {
            "entry": object(), "executable": executable, "graph_exec": GRAPH_EXEC,
            "context": CONTEXT, "spans": [(0, 16)] * n_arrays, "leaders": list(range(n_arrays)),
            "memory_nbytes": [16], "scratch_offset": -1,
            "patches": [(3, 4, ctypes.addressof(self.buffer), None, 0, n_arrays + 1, None)],
            "templates": [self.array()], "is_tuple": False, "build": None, "steps": [],
        }  # fmt: skip
        return hit.HitPlan(**settings | changes)

    def serve(self, args, **changes):
        """Register an entry for calls like this one; return its executable."""
        plan = self.plan(args, **changes)
        plan.executable.native = self.hits.add(self.library, args, plan)
        plan.executable.native.is_open = True
        return plan.executable

    @staticmethod
    def _fail(call, status):
        raise RuntimeError(call, status)


@pytest.fixture
def bench():
    return Bench()


def test_addresses_reach_the_driver(bench):
    """A hit writes the addresses of its arrays and of a fresh output, then launches."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b))
    out = bench.hits.call((a, b))
    assert bench.calls == [
        (a.data.ptr, b.data.ptr, out.data.ptr, 0, 0, 0, 0, 0),
        (GRAPH_EXEC, STREAM),
    ]
    assert (type(out), out.base, out.shape) == (cp.ndarray, None, (4,))


def test_what_is_not_the_signature_is_a_miss(bench):
    """Another shape, dtype, alignment, number, type or overlap is left to the Python path."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b, 2.0, 3))
    assert bench.hits.call((a, b, 2.0, 3)) is not hit.MISS
    for other in (
        (bench.array((5,)), b, 2.0, 3),
        (bench.array(dtype=np.int32), b, 2.0, 3),
        (bench.array(byte_offset=4), b, 2.0, 3),
        (a, a, 2.0, 3),
        (a, b, -2.0, 3),
        (a, b, 2, 3),
        (a, b, 2.0, True),
        (a, b, 2.0, 1 << 63),
        (a, b, 2.0, "3"),
        (a, b, 2.0),
        ([a], b, 2.0, 3),
    ):
        assert bench.hits.call(other) is hit.MISS


def test_circumstances_that_are_a_miss(bench):
    """While capturing, in another context, or while a function is watched, nothing is served."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b))
    bench.is_capturing = 1
    assert bench.hits.call((a, b)) is hit.MISS
    bench.is_capturing, bench.context = 0, CONTEXT + 1
    assert bench.hits.call((a, b)) is hit.MISS
    bench.context = CONTEXT
    hit.pause_hits(1)
    assert bench.hits.call((a, b)) is hit.MISS
    hit.pause_hits(-1)
    assert bench.hits.call((a, b)) is not hit.MISS


def test_references_are_balanced(bench):
    """Hits neither keep nor lose references to arrays, dtypes and memory."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b))
    out = bench.hits.call((a, b))
    pointer = out.data
    held = sys.getrefcount(pointer)
    del out
    assert sys.getrefcount(pointer) == held - 1
    before = [sys.getrefcount(obj) for obj in (a, b)]
    of_dtype = sys.getrefcount(a.dtype)
    for _ in range(2000):
        bench.hits.call((a, b))
    assert [sys.getrefcount(obj) for obj in (a, b)] == before
    assert abs(sys.getrefcount(a.dtype) - of_dtype) < 100  # shared with arrays of others


def test_host_patch_and_shared_scratch(bench):
    """Words of a host patch get slot plus delta; scratch lies behind the first output."""
    a, b = bench.array(), bench.array()
    minus_eight = -8 & (1 << 64) - 1
    words = [(16, 0, 5), (24, 3, minus_eight)]
    patch = (3, 4, ctypes.addressof(bench.buffer), words, 0, 0, None)
    bench.serve((a, b), scratch_offset=512, patches=[patch])
    out = bench.hits.call((a, b))
    assert bench.calls[0][:2] == (a.data.ptr + 5, out.data.ptr + 512 - 8)


def test_unchanged_addresses_are_not_written_again(bench):
    """With static outputs and the same arrays a call is a launch and nothing else."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b), memory_nbytes=[], static_ranges=[(0x1234, 0x1244)], static_result="static")
    assert [bench.hits.call((a, b)) for _ in range(2)] == ["static"] * 2
    assert bench.calls[1:] == [(GRAPH_EXEC, STREAM)] * 2


def test_a_closed_entry_is_not_launched_and_let_go(bench):
    """An entry launches nothing before it is opened and after it is closed, and can be dropped."""
    args = (bench.array(),)
    held = bench.array()
    executable = bench.serve(args, templates=[held])
    n_held = sys.getrefcount(held)
    executable.native.is_open = False
    assert bench.hits.call(args) is hit.MISS
    bench.hits.drop_closed()
    del executable.native
    assert sys.getrefcount(held) == n_held - 1
    assert bench.hits.add(bench.library, args, bench.plan(args))
    assert bench.hits.call(args) is hit.MISS
    assert not bench.calls


def test_more_slots_than_fit_are_declined(bench):
    """An entry of more outputs than there is room for, fresh or static, is not served natively."""
    args = (bench.array(),)
    for n, declined in ((62, False), (63, True), (200, True)):
        for outputs in (
            {"memory_nbytes": [16] * n},
            {"memory_nbytes": [], "static_ranges": [(1, 2)] * n},
        ):
            plan = bench.plan(args, templates=[args[0]] * n, **outputs)
            assert (bench.hits.add(bench.library, args, plan) is False) == declined


def test_a_static_result_as_an_argument_is_a_miss(bench):
    """An array in the memory that the launch would overwrite is left to another entry."""
    a, b = bench.array(), bench.array()
    begin = b.data.ptr + 8
    settings = {"memory_nbytes": [], "static_ranges": [(begin, begin + 64)], "static_result": "s"}
    bench.serve((a, bench.array()), **settings)
    assert bench.hits.call((a, b)) is hit.MISS
    assert bench.hits.call((b, a)) is hit.MISS
    assert bench.hits.call((a, bench.array())) == "s"


def test_implicit_arguments(bench):
    """What the function reaches is read on every call: values checked, arrays passed on."""
    namespace = {"scale": 1.5}
    model = SimpleNamespace(k=3, w=bench.array())
    steps = [
        Step(-1, places.Global(namespace, "scale"), same_value(1.5, ""), "scale", "value"),
        Step(-1, places.AbsentGlobals(namespace, ("range",)), is_true, "range", "value"),
        Step(-1, places.Argument(1), lambda v: type(v) is SimpleNamespace, "model", "content"),
        Step(2, places.Attribute("k"), same_value(3, ""), "model.k", "value"),
        Step(2, places.Attribute("w"), lambda v: v.shape == (4,), "model.w", "array"),
    ]
    a = bench.array()
    bench.serve((a, model), n_implicit=1, steps=steps)
    for _ in range(2):
        model.w = bench.array()
        bench.calls.clear()
        assert bench.hits.call((a, model)) is not hit.MISS
        assert bench.calls[0][1] == model.w.data.ptr
    for change in ({"scale": 2.5}, {"scale": 1.5, "range": 1}):
        namespace.update(change)
        assert bench.hits.call((a, model)) is hit.MISS
    del namespace["range"]
    model.k = 4
    assert bench.hits.call((a, model)) is hit.MISS
    model.k, model.w = 3, a
    assert bench.hits.call((a, model)) is hit.MISS  # it shares memory with the argument now


def test_a_failed_patch_is_forgotten(bench):
    """After a driver error the lock is free, and the addresses are written anew."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b))
    bench.status = 1
    with pytest.raises(RuntimeError, match="cuGraphExecKernelNodeSetParams"):
        bench.hits.call((a, b))
    bench.status = 0
    bench.calls.clear()
    assert bench.hits.call((a, b)) is not hit.MISS
    assert len(bench.calls) == 2


def test_threads(bench):
    """Eight threads are served at once, each with its own arrays."""
    executable = bench.serve((bench.array(), bench.array()))
    missed = []

    def work():
        results = [bench.hits.call((bench.array(), bench.array())) for _ in range(500)]
        missed.extend(result for result in results if result is hit.MISS)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed
    assert executable.counts.launches == 4000
