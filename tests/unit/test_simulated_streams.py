"""The simulated driver refuses during a capture what CUDA refuses, beyond the common suite."""

import struct
import threading

import pytest

from graphjit._driver.interface import FILL_LAYOUT, KernelLaunch
from graphjit.errors import DriverError
from graphjit.testing import SimulatedDriver


@pytest.fixture
def device():
    return SimulatedDriver()


def refusal(call, *args) -> str:
    """Return the name of the error that a call fails with, without the common prefix."""
    with pytest.raises(DriverError) as caught:
        call(*args)
    return caught.value.name.removeprefix("CUDA_ERROR_").removeprefix("STREAM_CAPTURE_")


def launch(device, stream):
    """Launch a fill at an address that holds nothing."""
    settings = KernelLaunch(device.builtin_kernel("fill"), (1, 1, 1), (1, 1, 1), 0, FILL_LAYOUT)
    device.launch_kernel(settings, struct.pack("<6Q", 0, 0, 1, 0, 0, 0), stream)


def begin(device, mode="thread_local", **options) -> int:
    """Return a stream under capture."""
    stream = device.stream_create(**options)
    device.stream_begin_capture(stream, mode)
    return stream


def wait(device, stream, other):
    """Let a stream wait for another."""
    device.stream_wait_stream(stream, other)


USER_CALLS = {
    "mem_alloc": lambda d, ptr: d.user_mem_alloc(8),
    "mem_free": lambda d, ptr: d.user_mem_free(ptr),
    "htod": lambda d, ptr: d.user_memcpy_htod(ptr, b"x"),
    "dtoh": lambda d, ptr: d.user_memcpy_dtoh(ptr, 1),
    "device_synchronize": lambda d, ptr: d.device_synchronize(),
}


@pytest.mark.parametrize("name", USER_CALLS)
@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_users_unsafe_calls_invalidate_the_capture(device, name, mode):
    """What allocates or waits is refused, and the capture ends without a graph."""
    ptr = device.mem_alloc(8)
    stream = begin(device, mode)
    assert refusal(USER_CALLS[name], device, ptr) == "UNSUPPORTED"
    assert device.stream_is_capturing(stream)
    assert refusal(launch, device, stream) == "INVALIDATED"
    assert refusal(device.stream_end_capture, stream) == "INVALIDATED"
    USER_CALLS[name](device, ptr)


def test_relaxed_capture_allows_unsafe_calls(device):
    """In relaxed mode allocation and copies are legal, waiting for the device is not."""
    stream = begin(device, "relaxed")
    device.user_mem_free(device.user_mem_alloc(8))
    assert device.stream_end_capture(stream).nodes == []


@pytest.mark.parametrize(("mode", "expected"), [("global", True), ("thread_local", False)])
def test_only_a_global_capture_concerns_other_threads(device, mode, expected):
    """An allocation in another thread breaks a global capture, and no other."""
    stream = begin(device, mode)
    refused = []

    def allocate():
        try:
            device.user_mem_alloc(8)
        except DriverError as error:
            refused.append(error.code)

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    assert refused == ([900] if expected else [])
    if expected:
        assert refusal(device.stream_end_capture, stream) == "INVALIDATED"
    else:
        device.stream_end_capture(stream)


def test_legacy_stream(device):
    """It cannot be captured; using it breaks captures of blocking streams only."""
    assert refusal(device.stream_begin_capture, 0, "relaxed") == "UNSUPPORTED"
    stream = begin(device)
    launch(device, 0)
    device.stream_end_capture(stream)
    stream = begin(device, is_blocking=True)
    assert refusal(launch, device, 0) == "IMPLICIT"
    assert refusal(device.stream_end_capture, stream) == "INVALIDATED"
    stream = begin(device)
    assert refusal(wait, device, 0, stream) == "IMPLICIT"


def test_two_captures_cannot_be_merged(device):
    """A stream of one capture cannot wait for another capture; both are invalidated."""
    first, second = begin(device), begin(device)
    assert refusal(wait, device, first, second) == "MERGE"
    assert refusal(device.stream_end_capture, first) == "INVALIDATED"
    assert refusal(device.stream_end_capture, second) == "INVALIDATED"


def test_a_capture_cannot_wait_for_work_outside(device):
    """An event recorded outside of any capture cannot be waited for in one."""
    outside, stream = device.stream_create(), begin(device)
    assert refusal(wait, device, stream, outside) == "ISOLATION"
    assert refusal(device.stream_end_capture, stream) == "INVALIDATED"


def test_captured_events_cannot_be_waited_for_by_the_host(device):
    """The host cannot wait for what has not run; nor can a stream, once the capture is over."""
    stream, other = begin(device), device.stream_create()
    event = device.event_create()
    device.event_record(event, stream)
    assert refusal(device.event_synchronize, event) == "CAPTURED_EVENT"
    device.stream_abandon_capture(stream)
    assert refusal(device.stream_wait_event, other, event) == "CAPTURED_EVENT"
    device.event_record(event, other)
    device.event_synchronize(event)
    device.stream_wait_event(other, event)


def test_event_that_was_never_recorded_is_no_event_to_wait_for(device):
    """Waiting for it does nothing, in a capture too; a destroyed one is refused."""
    stream, event = begin(device), device.event_create()
    device.stream_wait_event(stream, event)
    device.stream_end_capture(stream)
    device.event_destroy(event)
    assert refusal(device.stream_wait_event, stream, event) == "INVALID_HANDLE"


def test_forks(device):
    """A fork without work needs no join; one with work does; only the origin can end."""
    stream, other = begin(device), device.stream_create()
    wait(device, other, stream)
    assert refusal(device.stream_end_capture, other) == "UNMATCHED"
    device.stream_end_capture(stream)
    device.stream_begin_capture(stream, "thread_local")
    wait(device, other, stream)
    launch(device, other)
    wait(device, stream, other)
    launch(device, stream)
    wait(device, other, stream)
    graph = device.graph_read(device.stream_end_capture(stream))
    assert [(edge.from_, edge.to) for edge in graph.edges] == [(0, 1)]
    assert not device.stream_is_capturing(other)


def test_destroyed_streams(device):
    """A stream that is gone, or that is captured and goes, is an error."""
    stream = device.stream_create()
    device.stream_destroy(stream)
    assert refusal(device.stream_begin_capture, stream, "relaxed") == "INVALID_HANDLE"
    assert refusal(device.stream_synchronize, stream) == "INVALID_HANDLE"
    assert refusal(device.stream_destroy, 0) == "INVALID_HANDLE"
    origin, fork = begin(device), device.stream_create()
    wait(device, fork, origin)
    device.stream_destroy(fork)
    assert refusal(device.stream_end_capture, origin) == "INVALIDATED"
    assert refusal(device.stream_begin_capture, origin, "sideways") == "INVALID_VALUE"


def test_allocation_nodes(device):
    """Freed addresses are used again where the order allows it, and only there."""
    stream, other = begin(device), device.stream_create()
    first = device.mem_alloc_async(64, stream)
    wait(device, other, stream)
    device.mem_free_async(first, stream)
    assert device.mem_alloc_async(64, other) != first
    assert device.mem_alloc_async(128, stream) != first
    assert device.mem_alloc_async(64, stream) == first
    assert device.mem_get_address_range(first) is None
    device.stream_abandon_capture(stream)
