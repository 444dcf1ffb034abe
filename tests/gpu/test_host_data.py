"""Host data: what the function sends to the device is right, what it reads back is refused."""

import contextlib
import linecache
import re

import cupy as cp
import numpy as np
import pytest
from helpers.gpu_checks import agrees, check_libraries, hits, normal, same_bits

import graphjit
from graphjit import graphed


def churn_host_memory():
    """Use pinned and pageable host memory, so that a buffer that was let go is overwritten."""
    for _ in range(4):
        for size in (3, 100, 1 << 12, 1 << 18):
            junk = np.full(size, np.nan)
            cp.asarray(junk).sum()
            cp.asnumpy(cp.full(size, np.nan))


def from_numpy(x):
    table = np.linspace(0, 1, x.size, dtype=np.float32)
    y = x * cp.asarray(table)
    table[:] = np.nan
    return y


def from_lists(x):
    return x + cp.array([1.0, 2.0, 3.0, 4.0] * (x.size // 4), dtype=np.float32)


def list_index(x):
    return x[[0, 2, 5]] + x[np.array([1, 1, 1])]


def mixed_index(x):
    m = x.reshape(4, -1)
    return m[[0, 2], 1:3], m[:, [-1, 0]]


def assignment_by_list(x):
    y = x.copy()
    y[[1, 3]] = cp.asarray(np.float32([7, 8]))
    y[[0, 2]] = 9
    return y


def table_of_pointers(x):
    return cp.concatenate([x * k for k in range(9)])


def two_tables_of_pointers(x):
    y = cp.concatenate([x + k for k in range(12)])
    return cp.stack([y, y * 2, y * 3, y, y, y, y, y, y - 1])


def constant_that_is_changed(x):
    counter = cp.asarray(np.zeros(x.size, np.float32))
    counter += x
    return counter


def zero_dimensional(x):
    return x * cp.asarray(2.5, dtype=np.float32) + cp.float32(1)


HOST_DATA = [
    from_numpy,
    from_lists,
    list_index,
    mixed_index,
    assignment_by_list,
    table_of_pointers,
    two_tables_of_pointers,
    constant_that_is_changed,
    zero_dimensional,
]


@pytest.mark.parametrize("patch", ["host", "device"])
@pytest.mark.parametrize("fn", HOST_DATA, ids=lambda fn: fn.__name__)
def test_host_data_is_right_after_its_buffer_is_gone(fn, patch):
    """Data from the host are what they were at the call, although the buffer is used again."""
    graphed_fn = graphed(patch=patch)(fn)
    kept = []
    for _ in range(5):
        kept.append(normal(64))
        assert agrees(graphed_fn, fn, kept[-1])
        churn_host_memory()
    assert hits(graphed_fn) == 4


def captured_block(fn, x):
    with graphjit.capture(inputs={"x": x}) as block:
        block.outputs = fn(block.inputs["x"])
    return block


def explicit_graph(fn, x):
    graph = graphjit.Graph(inputs={"x": x})
    graph.outputs = graph.add(fn, graph.inputs["x"]).result
    return graph


@pytest.mark.parametrize("make", [captured_block, explicit_graph], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("fn", HOST_DATA, ids=lambda fn: fn.__name__)
def test_host_data_in_blocks_and_explicit_graphs(fn, make):
    """Host data can be sent where the code is captured without a call before, and only once."""
    fn(normal(64))
    launcher = make(fn, normal(64))
    kept = []
    for _ in range(4):
        churn_host_memory()
        x = normal(64)
        kept.append((launcher.launch(x=x), fn(x)))
    assert all(same_bits(got, expected) for got, expected in kept)
    assert launcher.info().launches == 4
    launcher.close()


@pytest.mark.parametrize("make", [captured_block, explicit_graph], ids=lambda fn: fn.__name__)
def test_copies_between_inputs_and_arrays_that_are_used_where_they_are(make):
    """Both directions, whole arrays and parts; the stand-ins themselves hold no memory."""
    source, sink = normal(64), cp.zeros(64, np.float32)

    def fn(x):
        sink[...] = x
        sink[3:9] = x[:6]
        y = x.copy()
        y[20:40] = source[:20]
        x[...] = source
        return y

    fn(normal(64))
    launcher = make(fn, normal(64))
    for _ in range(3):
        source[...] = normal(64)
        sink[...] = np.nan
        x = normal(64)
        same_x = x.copy()
        got, got_sink = launcher.launch(x=x), sink.copy()
        assert same_bits((got, got_sink, x), (fn(same_x), sink, same_x))
    check_libraries()


def test_constants_are_listed():
    """The bytes of host data that an entry owns can be read, and are few for a small table."""
    fn = graphed(from_numpy)
    fn(normal(64))
    (entry,) = fn.cache_entries()
    assert 64 * 4 <= entry.constant_nbytes <= 64 * 4 + 512


def test_a_host_array_that_changes_is_seen():
    """A NumPy array of the enclosing function that is changed in place gives new results."""
    table = np.arange(5, dtype=np.float32)
    fn = graphed(lambda x: x * cp.asarray(table))
    for k in range(6):
        table[1] = k // 2
        x = normal(5)
        assert same_bits(fn(x), x * cp.asarray(table))
    assert fn.cache_info()[:2] == (3, 3)


def float_of_sum(x):
    return x * float(x.sum())


def branch_on_sum(x):
    return x + 1 if x.sum() > 0 else x - 1


def loop_until_small(x):
    while abs(x).max() > 1e-3:
        x = x * 0.1
    return x


def nonzero(x):
    return cp.nonzero(x > 0)


def boolean_mask(x):
    return x[x > 0]


def assign_by_boolean_mask(x):
    y = x.copy()
    y[y > 0] = 0
    return y


def integer_index(x):
    return x[int(x.argmax())]


def formatted(x):
    return len(f"{x}")


def to_list(x):
    return x.tolist()


def iterate(x):
    return sum(float(v) for v in x[:3])


def get(x):
    return cp.asarray(x.get() * 2)


def median_filter(x):
    from cupyx.scipy import ndimage

    return ndimage.median_filter(x.reshape(8, -1), size=3)


HOST_READS = [
    float_of_sum,
    branch_on_sum,
    loop_until_small,
    nonzero,
    boolean_mask,
    integer_index,
    formatted,
    to_list,
    iterate,
    get,
]


@pytest.mark.parametrize("fn", HOST_READS, ids=lambda fn: fn.__name__)
def test_a_host_read_names_the_line_and_the_call(fn):
    """Reading the device on the host is refused with the user's line; all works afterwards."""
    x = normal(64)
    with pytest.raises(graphjit.HostReadError) as caught:
        graphed(fn)(x)
    text = str(caught.value)
    assert re.match(r"\S+ reads the contents", text), text
    named = re.search(rf"{re.escape(__file__)}:(\d+)", text)
    assert named, text
    line = int(named[1])
    assert line in {number for _, _, number in fn.__code__.co_lines()}
    assert linecache.getline(__file__, line).strip() in text
    assert same_bits(caught.value.eager_result, fn(x))
    check_libraries()


@pytest.mark.parametrize(
    "fn", [*HOST_READS, median_filter, assign_by_boolean_mask], ids=lambda fn: fn.__name__
)
def test_a_host_read_runs_eagerly_on_request(fn):
    """With on_unsupported="eager" results are right, and calls without a graph are counted."""
    graphed_fn = graphed(on_unsupported="eager")(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(64))
    info = graphed_fn.cache_info()
    assert info.misses == 1
    assert info.hits + info.eager_calls == 3
    if info.eager_calls:
        assert "runs eagerly" in str(graphed_fn.explain(normal(64)))


@pytest.mark.parametrize("fn", [median_filter, assign_by_boolean_mask], ids=lambda f: f.__name__)
def test_library_functions_with_hidden_reads(fn):
    """A library function that may read on the host is a graph that is right, or is refused with
    the user's line.
    """
    graphed_fn = graphed(fn)
    for _ in range(3):
        x = normal(64)
        try:
            got, reason = graphed_fn(x), __file__
        except graphjit.GraphjitError as error:
            got, reason = error.eager_result, str(error)
        assert same_bits(got, fn(x))
        assert __file__ in reason


def test_a_host_read_that_is_caught_is_refused_all_the_same():
    """A function that swallows the error is not captured with a value that it never read."""

    def fn(x):
        try:
            factor = float(x.sum())
        except Exception:  # noqa: BLE001 - as careless as users' code
            factor = 0.0
        return x * factor

    x = normal(10)
    with pytest.raises(graphjit.HostReadError):
        graphed(fn)(x)


def test_a_stand_in_that_escapes_says_what_it_is():
    """An array that was kept from a capture is refused when it is read."""
    kept = []

    def keep_what_is_sent():
        while True:
            kept.append((yield))

    sink = keep_what_is_sent()
    next(sink)

    def fn(x):
        sink.send(x)
        return x + 1

    with contextlib.suppress(graphjit.CaptureError):
        graphed(fn)(normal(4))
    _, stand_in = kept
    with pytest.raises(graphjit.CaptureError, match="stand-in"):
        stand_in.get()
