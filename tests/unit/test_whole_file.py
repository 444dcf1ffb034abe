"""A file is there whole, or not at all: saved graphs and compiled kernels rely on it."""

import pytest
from helpers.flow_checks import in_threads

from graphjit._driver import cuda_kernels
from graphjit._whole_file import whole_file


def test_the_file_is_replaced_at_the_end(tmp_path):
    """Until then others see what was there."""
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with whole_file(path) as partial:
        assert not partial.exists()
        partial.write_bytes(b"after")
        assert path.read_bytes() == b"before"
        assert partial.parent == tmp_path
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, error):
    """And nothing beside it."""
    path = tmp_path / "file"

    def fail_half_way():
        with whole_file(path) as partial:
            partial.write_bytes(b"half")
            raise error

    for before in ([], [path]):
        with pytest.raises(error):
            fail_half_way()
        assert list(tmp_path.iterdir()) == before
        path.write_bytes(b"before")
    assert path.read_bytes() == b"before"


def test_a_file_that_cannot_be_replaced(tmp_path):
    """A folder stays where it is, and what was written goes."""
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(OSError, match="folder"), whole_file(path) as partial:
        partial.write_bytes(b"whole")
    assert list(tmp_path.iterdir()) == [path]


def test_compiled_kernels_are_kept_where_that_is_possible(tmp_path):
    """The folder is made; where nothing can be written, nothing is said and nothing is left."""
    path = tmp_path / "a" / "b" / "kernel.cubin"
    for data in (b"code", b"other code"):
        cuda_kernels._write_atomically(path, data)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o600
    cuda_kernels._write_atomically(path / "below a file", b"code")
    cuda_kernels._write_atomically(path.parent, b"code")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_compiled_kernels_of_several_threads(tmp_path):
    """Whoever reads meanwhile sees all of one of them."""
    path, seen = tmp_path / "kernel.cubin", set()

    def write(k):
        for _ in range(20):
            cuda_kernels._write_atomically(path, bytes([k]) * 100_000)
            seen.update([path.read_bytes()])

    in_threads(4, write)
    assert seen <= {bytes([k]) * 100_000 for k in range(4)}
    assert list(tmp_path.iterdir()) == [path]
