"""Memory of the simulated device traps what a GPU punishes only sometimes."""

import numpy as np
import pytest

from graphjit.errors import DriverError
from graphjit.testing import SimulatedDriver


@pytest.fixture
def memory():
    return SimulatedDriver(1 << 20).memory


def traps(call) -> bool:
    """Say whether a call fails with CUDA_ERROR_ILLEGAL_ADDRESS."""
    with pytest.raises(DriverError) as caught:
        call()
    return caught.value.code == 700


def test_access_outside_a_block_traps(memory):
    """Straddling the end, the gap behind a block, before it, and nowhere: each is a trap."""
    ptr, _ = memory.allocate(100), memory.allocate(100)
    assert memory.view(ptr + 90, 10).size == 10
    for at, nbytes in ((ptr + 90, 11), (ptr + 100, 1), (ptr - 1, 1), (0, 8), (ptr, 1000)):
        assert traps(lambda at=at, nbytes=nbytes: memory.view(at, nbytes))


def test_reserved_addresses_trap(memory):
    """An address that only was reserved holds nothing, and the message says so."""
    ptr = memory.reserve(1 << 40)
    with pytest.raises(DriverError, match="reserved address") as caught:
        memory.view(ptr + 512, 4)
    assert caught.value.name == "CUDA_ERROR_ILLEGAL_ADDRESS"


def test_freed_memory_traps_and_its_address_is_not_used_again(memory):
    """A use after free never sees a neighbour's data."""
    ptr = memory.allocate(64)
    memory.free(ptr)
    assert traps(lambda: memory.view(ptr, 1))
    assert memory.allocate(64) != ptr
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        memory.free(ptr)


def test_new_memory_is_poisoned(memory):
    """Nobody can rely on zeros."""
    assert set(memory.view(memory.allocate(300), 300).tolist()) == {0xCB}


def test_capacity_and_count(memory):
    """The device's memory ends, and what is freed counts no more."""
    ptr = memory.allocate(1 << 20)
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        memory.allocate(1)
    memory.free(ptr)
    assert memory.live_nbytes == 0
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        memory.allocate(0)


def test_arrays_of_any_strides(memory):
    """``array`` opens exactly the bytes that the strides reach, negative ones included."""
    ptr = memory.allocate(12 * 8)
    whole = memory.array(ptr, (3, 4), np.float64)
    whole[...] = np.arange(12).reshape(3, 4)
    reverse = memory.array(ptr + 11 * 8, (3, 4), np.float64, (-32, -8))
    np.testing.assert_array_equal(reverse, np.arange(12)[::-1].reshape(3, 4))
    assert traps(lambda: memory.array(ptr + 8, (3, 4), np.float64))
    assert traps(lambda: memory.array(ptr, (2,), np.float64, (-8,)))
    assert memory.array(0x123, (0, 4), np.float64).size == 0
