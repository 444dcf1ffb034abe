"""The compiled hit by itself: CuPy arrays at made-up addresses, a driver of Python callbacks."""

import ctypes
import inspect
import math
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
from graphjit._binding import make_binder
from graphjit._containers import flatten
from graphjit._scalars import Encoding, ScalarWord, encodings
from graphjit._watch import Step, is_true, same_keys, same_length, same_value

if not hit.IS_COMPILED:
    pytest.skip("the compiled hit is not built, or turned off", allow_module_level=True)

_GetContext = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_IsCapturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_SetParams = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_WaitEvent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_CurrentStream = ctypes.CFUNCTYPE(ctypes.c_ssize_t)
CONTEXT, STREAM, GRAPH_EXEC = 7, 55, 99


class Bench:
    """A driver that notes its calls, memory that does not exist, and one function's hits."""

    def __init__(self):
        self.calls = []
        self.context, self.is_capturing, self.status, self.event_status = CONTEXT, 0, 0, 0
        self.buffer = ctypes.create_string_buffer(16 + 8 * 8)
        self._next_ptr = 0x7E00_0000_0000
        self._callbacks = {
            "cuCtxGetCurrent": _GetContext(self._get_context),
            "cuStreamIsCapturing": _IsCapturing(self._get_capturing),
            "cuGraphExecKernelNodeSetParams": _SetParams(self._set_params),
            "cuGraphLaunch": _Launch(self._launch),
            "cuStreamWaitEvent": _WaitEvent(self._wait_event),
            "cuEventRecord": _Launch(self._record_event),
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

    def _wait_event(self, stream, event, flags):
        self.calls.append(("wait", stream, event, flags))
        return self.event_status

    def _record_event(self, event, stream):
        self.calls.append(("record", event, stream))
        return self.event_status

    def allocate(self, nbytes):
        ptr, self._next_ptr = self._next_ptr, self._next_ptr + (1 << 20)
        memory = cp.cuda.UnownedMemory(ptr, max(nbytes, 1), None, device_id=0)
        return cp.cuda.MemoryPointer(memory, 0)

    def array(self, shape=(4,), dtype=np.float32, byte_offset=0):
        return cp.ndarray(shape, dtype, memptr=self.allocate(1 << 16) + byte_offset)

    def plan(self, args, **changes):
        """Describe an entry for calls like this one."""
        leaves, _ = flatten(args, lambda value: isinstance(value, cp.ndarray))
        n_arrays = sum(isinstance(a, cp.ndarray) for a in leaves) + changes.pop("n_implicit", 0)
        n_slots = n_arrays + 1 + len(changes.get("scalars", ())) + ("scratch_offset" in changes)
        executable = SimpleNamespace(
            lock=hit.Lock(), counts=hit.HitCounts(), fail=self._fail, turns=[]
        )
        settings = {
            "entry": object(), "executable": executable, "graph_exec": GRAPH_EXEC,
            "context": CONTEXT, "spans": [(0, 16)] * n_arrays, "leaders": list(range(n_arrays)),
            "memory_nbytes": [16], "scratch_offset": -1,
            "patches": [(3, 4, ctypes.addressof(self.buffer), None, 0, n_slots, None)],
            "templates": [self.array()], "is_tuple": False, "build": None, "steps": [],
        }  # fmt: skip
        return hit.HitPlan(**settings | changes)

    def serve(self, args, kwargs=None, **changes):
        """Register an entry for calls like this one; return its executable."""
        plan = self.plan((args, kwargs), **changes)
        plan.executable.native = self.hits.add(self.library, args, kwargs, plan)
        plan.executable.native.is_open = True
        return plan.executable

    def slots(self, n):
        """Return the first n slots of the last patch."""
        return struct.unpack_from(f"<{n}Q", self.buffer.raw, 16)

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


def test_containers(bench):
    """Arrays in lists, tuples and dictionaries are read in order; other contents are a miss."""

    def make(changes=()):
        a, b, c, d = (bench.array() for _ in range(4))
        tree = {"w": [a, (b, 2.5)], 3: {"deep": c}, "name": "net"} | dict(changes)
        return (tree, d), [a, b, c, d]

    bench.serve(make()[0])
    for _ in range(2):
        args, arrays = make()
        bench.calls.clear()
        assert bench.hits.call(args) is not hit.MISS
        assert list(bench.calls[0][:4]) == [array.data.ptr for array in arrays]
    for key, value in (
        ("w", [bench.array(), (bench.array(), 3.5)]),
        ("w", (bench.array(), (bench.array(), 2.5))),
        ("w", [bench.array(), [bench.array(), 2.5]]),
        ("w", [bench.array(), (bench.array(), 2.5), ()]),
        ("w", [(bench.array(), bench.array()), 2.5]),
        (3, {"other": bench.array()}),
        ("name", "nets"),
        ("name", b"net"),
        ("new", 1),
    ):
        assert bench.hits.call(make({key: value})[0]) is hit.MISS
    tree, d = make()[0]
    assert bench.hits.call((dict(reversed(tree.items())), d)) is hit.MISS
    assert bench.hits.call(({3.0 if k == 3 else k: v for k, v in tree.items()}, d)) is hit.MISS
    endless = []
    endless.append(endless)
    assert bench.hits.call((endless, d)) is hit.MISS


@pytest.mark.parametrize(
    ("value", "others"),
    [
        (np.float32(1.5), [np.float32(2.5), np.float64(1.5), 1.5]),
        (np.int16(7), [np.int16(8), np.int32(7), 7]),
        (np.bool_(True), [np.bool_(False), True]),
        (1 + 2j, [1 - 2j, 2 + 1j, np.complex128(1 + 2j)]),
        ("four", ["five", "fou", "four ", b"four"]),
        (b"four", [b"five", b"four\0"]),
        ("", [b"", "a", None]),
    ],
    ids=repr,
)
def test_values(bench, value, others):
    """Scalars and short text are told apart by type and contents, not by their address."""
    bench.serve((bench.array(), value))
    same = type(value)(value) if isinstance(value, np.generic) else eval(repr(value))
    assert bench.hits.call((bench.array(), same)) is not hit.MISS
    for other in others:
        assert bench.hits.call((bench.array(), other)) is hit.MISS


def test_keywords_and_defaults(bench):
    """Whatever form the arguments come in, the same entry serves them."""

    def fn(a, b, scale=2.0, *, mode="x", **more):
        pass

    bench.hits.bind_with(make_binder(fn, inspect.signature(fn)), -1)
    a, b = bench.array(), bench.array()
    bench.serve((a, b), {})
    for args, kwargs in (
        ((a, b), {}),
        ((a,), {"b": b}),
        ((), {"b": b, "a": a}),
        ((a, b, 2.0), {"mode": "x"}),
    ):
        bench.calls.clear()
        assert bench.hits.call(args, kwargs) is not hit.MISS
        assert bench.calls[0][:2] == (a.data.ptr, b.data.ptr)
    for kwargs in ({"scale": 3.0}, {"mode": "y"}, {"new": 1}):
        assert bench.hits.call((a, b), kwargs) is hit.MISS
    with pytest.raises(TypeError, match="missing 1 required"):
        bench.hits.call((a,))


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
    words = [(16, 0, 5, 8), (24, 3, minus_eight, 8)]
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
    assert bench.hits.add(bench.library, args, None, bench.plan(args))
    assert bench.hits.call(args) is hit.MISS
    assert not bench.calls


def test_more_slots_than_fit_are_declined(bench):
    """An entry of more outputs than there is room for, fresh or static, is not served natively."""
    args = (bench.array(),)
    for n, declined in ((318, False), (319, True), (400, True)):
        for outputs in (
            {"memory_nbytes": [16] * n},
            {"memory_nbytes": [], "static_ranges": [(1, 2)] * n},
        ):
            plan = bench.plan(args, templates=[args[0]] * n, **outputs)
            assert (bench.hits.add(bench.library, args, None, plan) is False) == declined


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


def test_keywords_are_no_dictionary(bench):
    """A dictionary given by position is another signature than the same keywords."""
    bench.hits.bind_with(lambda *args, **kwargs: (args, kwargs), -1)
    bench.serve((), {"a": bench.array()})
    assert bench.hits.call((), {"a": bench.array()}) is not hit.MISS
    assert bench.hits.call(({"a": bench.array()},)) is hit.MISS


def test_implicit_containers(bench):
    """Lists, tuples and dictionaries that the function reaches are read, and checked, natively."""
    weights = [bench.array(), bench.array()]
    table = {"bias": (bench.array(), 3)}
    namespace = {"weights": weights, "table": table}

    def like(shape):
        return lambda v: isinstance(v, cp.ndarray) and v.shape == shape

    steps = [
        Step(-1, places.Global(namespace, "weights"), same_length(weights), "weights", "length"),
        Step(0, places.Item(0), like((4,)), "weights[0]", "array"),
        Step(0, places.Item(1), like((4,)), "weights[1]", "array"),
        Step(-1, places.Global(namespace, "table"), same_keys(table), "table", "keys"),
        Step(3, places.Item("bias"), same_length(table["bias"]), "table['bias']", "length"),
        Step(4, places.Item(0), like((4,)), "table['bias'][0]", "array"),
        Step(4, places.Item(1), same_value(3, ""), "table['bias'][1]", "value"),
    ]
    a = bench.array()
    bench.serve((a,), n_implicit=3, steps=steps)
    for _ in range(3):
        weights[1] = bench.array()
        bench.calls.clear()
        assert bench.hits.call((a,)) is not hit.MISS
        assert list(bench.calls[0][:4]) == [
            v.data.ptr for v in (a, weights[0], weights[1], table["bias"][0])
        ]
    before = {"weights": list(weights), "table": dict(table)}

    def is_a_miss(name, value):
        namespace[name] = value
        missed = bench.hits.call((a,)) is hit.MISS
        namespace[name] = before[name]
        assert bench.hits.call((a,)) is not hit.MISS
        return missed

    first, second = weights
    for value in (
        [first], [first, second, first], (first, second), [first, bench.array((5,))],
        [first, first], [first, None], [first, bench.array(byte_offset=4, shape=(2,))],
    ):  # fmt: skip
        assert is_a_miss("weights", value)
    for value in (
        {}, {"bias": table["bias"], "new": 1}, {"b": table["bias"]},
        {"bias": (bench.array(), 4)}, {"bias": [bench.array(), 3]},
    ):  # fmt: skip
        assert is_a_miss("table", value)


def test_many_arrays_that_stay(bench):
    """Of many arrays only those that have moved are compared with the others; overlaps are seen."""
    arrays = [bench.array() for _ in range(200)]
    bench.buffer = ctypes.create_string_buffer(16 + 8 * 256)
    bench.serve((arrays,), patches=[(3, 4, ctypes.addressof(bench.buffer), None, 0, 201, None)])
    for k in (0, 7, 199):
        arrays[k] = bench.array()
        assert bench.hits.call((arrays,)) is not hit.MISS
        kept, arrays[k] = arrays[k], arrays[(k + 50) % 200]
        assert bench.hits.call((arrays,)) is hit.MISS
        arrays[k] = kept
        assert bench.hits.call((arrays,)) is not hit.MISS
    assert bench.hits.call((arrays * 2,)) is hit.MISS  # more than there is room for


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


def test_a_container_given_twice_is_left_to_python(bench):
    """Lists and dictionaries that are one object make another signature; tuples do not."""
    a, b = bench.array(), bench.array()
    bench.serve(([a], [b], {"k": (1, 2)}))
    pair = (1, 2)
    for _ in range(2):
        assert bench.hits.call(([a], [b], {"k": pair})) is not hit.MISS
    same = [a]
    bench.hits.clear()
    bench.serve((([a], (), ()), [1], {}))
    assert bench.hits.call((([a], (), ()), [1], {})) is not hit.MISS
    plan = bench.plan(((same, 1, same),))
    assert bench.hits.add(bench.library, ((same, 1, same),), None, plan) is False
    assert bench.hits.call(((same, 1, same),)) is hit.MISS
    empty = {}
    bench.serve((a, {}, {"k": {}}))
    assert bench.hits.call((a, {}, {"k": {}})) is not hit.MISS
    assert bench.hits.call((a, empty, {"k": empty})) is hit.MISS


@pytest.mark.parametrize("n", [1, 60, 500, 600])
def test_many_containers(bench, n):
    """Hundreds of lists are told apart; more than there is room for are left to Python."""
    args = (bench.array(), [[k % 3] for k in range(n)])
    plan = bench.plan(args)
    native = bench.hits.add(bench.library, args, None, plan)
    if n > 511 or n * 48 > 1 << 15:
        assert native is False
        return
    native.is_open = True
    assert bench.hits.call(args) is not hit.MISS
    if n > 1:
        args[1][n // 2] = args[1][0]
        args[1][n // 2][0] = n // 2 % 3
        assert bench.hits.call(args) is hit.MISS


NUMBERS = [
    0, 1, -1, 3, 127, -128, 128, 255, 256, -32768, 65535, 65536, (1 << 24) + 1, -(1 << 24) - 1,
    (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, (1 << 53) + 1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 10**30,
    0.0, -0.0, 0.1, -2.5, 1e-46, 1e39, 3.4028235677973366e38, 65520.0,
    math.inf, -math.inf, math.nan,
    1.5 + 2j, complex(-0.0, math.nan),
    np.float32(0.1), np.float64(0.1), np.float16(0.1), np.int8(-3), np.uint64(1 << 63),
    np.int64(-5), np.complex64(1 + 2j),
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_dynamic_scalars_are_encoded_as_by_numpy(bench, number):
    """A number becomes the bytes of ``ScalarWord.encode`` in every form, or the call is a miss."""
    a, kind = bench.array(), type(number)
    bench.hits.bind_with(None, 2, [1])
    all_forms = encodings(kind(1))
    by_size = [
        tuple(e for e in all_forms if e.nbytes == n and e.dtype[0] != "f") for n in (8, 4, 2)
    ]
    for forms in [*((e,) for e in all_forms), *filter(None, by_size)]:
        word = ScalarWord(0, 0, 0, forms)
        bench.calls.clear()
        bench.hits.clear()
        bench.serve((a, kind(1)), scalars=[(1, word)])
        found = bench.hits.call((a, number))
        try:
            expected = word.encode(number)
        except OverflowError:
            assert found is hit.MISS, forms
            assert bench.calls == []
        else:
            assert found is not hit.MISS, forms
            assert bench.calls[0][2] == expected, forms


def test_dynamic_scalars_have_a_type(bench):
    """Only the value of a dynamic scalar is free; other scalars, and booleans, are as before."""
    a = bench.array()
    bench.hits.bind_with(None, 3, [1])
    word = ScalarWord(0, 0, 0, (Encoding("real", "f4"),))
    executable = bench.serve((a, 1.5, 2.5), scalars=[(1, word)])
    for value in (2.5, -7.0, math.inf):
        assert bench.hits.call((a, value, 2.5)) is not hit.MISS
    assert executable.counts.patches == executable.counts.launches == 3
    assert bench.hits.call((a, math.inf, 2.5)) is not hit.MISS
    for other in ((a, 1, 2.5), (a, 1.5, 3.5), (a, True, 2.5), (a, np.float64(1.5), 2.5)):
        assert bench.hits.call(other) is hit.MISS
    bench.serve((a, True, 2.5))
    assert bench.hits.call((a, True, 2.5)) is not hit.MISS
    assert bench.hits.call((a, False, 2.5)) is hit.MISS


def test_dynamic_scalars_behind_containers(bench):
    """A scalar is found by its leaf, and its slot lies behind all addresses."""
    a, b = bench.array(), bench.array()
    bench.hits.bind_with(None, 2, [1])
    words = [ScalarWord(0, 0, 0, (Encoding("real", form),)) for form in ("f8", "i4")]
    bench.serve(([a, {"b": b}], 3), scalars=[(2, word) for word in words], scratch_offset=512)
    out = bench.hits.call(([a, {"b": b}], 7))
    seven = struct.unpack("<Q", struct.pack("<d", 7))[0]
    first = a.data.ptr, b.data.ptr, out.data.ptr, out.data.ptr + 512
    assert bench.calls[0][:3] == first[:3]
    assert bench.slots(6) == (*first, seven, 7)


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
def test_a_host_patch_writes_as_many_bytes_as_a_parameter_has(bench, nbytes):
    """The bytes behind a narrow parameter stay what they are."""
    a = bench.array()
    bench.hits.bind_with(None, 2, [1])
    word = ScalarWord(0, 0, 0, (Encoding("real", f"i{nbytes}"),))
    bench.buffer.raw = b"." * len(bench.buffer)
    patch = (3, 4, ctypes.addressof(bench.buffer), [(19, 2, 0, nbytes)], 0, 0, None)
    bench.serve((a, 1), scalars=[(1, word)], patches=[patch])
    assert bench.hits.call((a, -2)) is not hit.MISS
    expected = bytearray(b"." * len(bench.buffer))
    expected[19 : 19 + nbytes] = (-2).to_bytes(nbytes, "little", signed=True)
    assert bench.buffer.raw == bytes(expected)


def test_launches_take_turns(bench):
    """A launch waits for the events of shared memory before it and records them behind it."""
    a, b = bench.array(), bench.array()
    executable = bench.serve((a, b))
    executable.turns += [1 << 47 | 6, 8]
    assert bench.hits.call((a, b)) is not hit.MISS
    assert bench.calls[1:] == [
        ("wait", STREAM, 1 << 47 | 6, 0),
        ("wait", STREAM, 8, 0),
        (GRAPH_EXEC, STREAM),
        ("record", 1 << 47 | 6, STREAM),
        ("record", 8, STREAM),
    ]
    assert executable.counts.launches == 1


def test_a_failed_wait_launches_nothing(bench):
    """The error names the driver function, and the next launch can be made."""
    a, b = bench.array(), bench.array()
    bench.serve((a, b)).turns.append(8)
    bench.event_status = 1
    with pytest.raises(RuntimeError, match="cuStreamWaitEvent"):
        bench.hits.call((a, b))
    assert (GRAPH_EXEC, STREAM) not in bench.calls
    bench.event_status = 0
    assert bench.hits.call((a, b)) is not hit.MISS
    assert (GRAPH_EXEC, STREAM) in bench.calls


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
