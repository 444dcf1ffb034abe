"""Where in the user's code something happened."""

import functools
import sys

import pytest

from graphjit import _source

LIBRARY = frozenset({"functools", "traceback", "numpy"})


def test_the_innermost_line_of_the_user():
    """Frames of libraries are skipped; file, line, function and text are given."""
    found = functools.reduce(lambda *_: _source.user_line(LIBRARY), [1, 2])  # this line
    assert found.startswith(f"{__file__}:")
    assert "test_the_innermost_line_of_the_user.<locals>.<lambda>: " in found
    assert found.endswith("# this line")


def test_lines_of_tracebacks():
    """The last line of a traceback that is the user's own."""

    def fail():
        functools.partial(int, "no number")()  # fails here

    with pytest.raises(ValueError, match="invalid literal") as caught:
        fail()
    found = _source.traceback_line(caught.value.__traceback__, LIBRARY)
    assert found.endswith('fail: functools.partial(int, "no number")()  # fails here')
    assert _source.traceback_line(None, LIBRARY) == "an unknown line"


def test_library_calls():
    """The library function that the user's line called, not what that called in turn."""
    source = "def outer(call): return inner(call)\ndef inner(call): return call(modules)"
    library = {"__name__": "library.part", "modules": frozenset({"library"})}
    exec(source, library)
    assert library["outer"](_source.library_call) == "library.part.outer"
    assert library["inner"](_source.library_call) == "library.part.inner"
    assert _source.library_call(LIBRARY) == ""


def test_lines_without_text():
    """Code that has no file has a name and a number all the same."""
    assert _source.describe_line("<made up>", 3, "fn") == "<made up>:3, in fn"
    found = _source.describe_frame(sys._getframe())
    assert found.startswith(f"{__file__}:")
    assert "in test_lines_without_text: found = " in found


def test_the_depth_of_the_caller():
    """From graphjit's own frames up to the user's line; one for the user's own code."""
    assert _source.caller_depth() == 1
