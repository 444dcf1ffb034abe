"""The options of the decorator, and the switches of the environment."""

from pathlib import Path

import pytest
from helpers.processes import run_python

from graphjit import graphed
from graphjit._options import Options, is_disabled

ROOT = Path(__file__).parents[2]

PROGRAM = """
import itertools
import graphjit
from graphjit import _hit
from graphjit.testing import simulated as xp

runs = itertools.count()

@graphjit.graphed
def fn(x):
    next(runs)
    return x * 2

for k in range(4):
    assert fn(xp.full(2, k)).tolist() == [2 * k] * 2
try:
    with graphjit.capture(inputs={"x": xp.ones(2)}) as block:
        block.outputs = block.inputs["x"] + 1
    print(block.launch(x=xp.ones(2)).tolist())
except graphjit.CaptureError as error:
    print(error)
print(next(runs), fn.cache_info().hits, _hit.IS_COMPILED)
"""


def run_program(**environment) -> list[str]:
    """Run the program above in a fresh interpreter; return the lines that it prints."""
    done = run_python("-W", "error", "-c", PROGRAM, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_graphs_are_used_by_default():
    """Two runs of the function for the first call, none for the others."""
    block, counts = run_program()
    assert block == "[2.0, 2.0]"
    assert counts.startswith("2 3 ")


@pytest.mark.parametrize(("value", "off"), [("1", True), ("0", False), ("", False)])
def test_the_off_switch(value, off):
    """``GRAPHJIT_DISABLE=1`` makes graphed functions plain ones, and refuses blocks."""
    block, counts = run_program(GRAPHJIT_DISABLE=value)
    assert ("GRAPHJIT_DISABLE" in block) == off
    assert counts.startswith("4 0 " if off else "2 3 ")


def test_the_plain_twin_of_the_compiled_hit():
    """``GRAPHJIT_PURE_PYTHON=1`` does without the extension, with the same results."""
    block, counts = run_program(GRAPHJIT_PURE_PYTHON="1")
    assert (block, counts) == ("[2.0, 2.0]", "2 3 False")


def test_the_defaults():
    """What ``@graphed`` without options means."""
    options = Options()
    assert (options.static, options.max_entries, options.warmup) == ((), 128, 1)
    assert (options.on_unsupported, options.outputs, options.patch) == ("raise", "fresh", "auto")
    assert not options.verify
    assert not is_disabled()


@pytest.mark.parametrize("name", ["on_unsupported", "outputs", "patch"])
def test_unknown_choices_are_named(name):
    """The message has the option, the value and the choices."""
    with pytest.raises(ValueError, match=rf"@graphed\({name}='nothing'\): must be one of \w+, "):
        Options(**{name: "nothing"})


@pytest.mark.parametrize(
    ("name", "value"), [("warmup", 0), ("warmup", -1), ("max_entries", 0), ("max_entries", -3)]
)
def test_counts_must_be_positive(name, value):
    """The message has the option and the value."""
    with pytest.raises(ValueError, match=rf"@graphed\({name}={value}\)"):
        Options(**{name: value})


@pytest.mark.parametrize(
    ("wrapped", "message"), [(3, "takes a function, not 3"), (dict, "dict is a class")]
)
def test_what_is_no_function(wrapped, message):
    """It is refused when it is decorated, and not at its first call."""
    with pytest.raises(TypeError, match=message):
        graphed(wrapped)


@pytest.mark.parametrize("options", [{"max_entries": "5"}, {"warmup": "2"}, {"warmup": None}])
def test_numbers_that_are_none(options):
    """The message names the option."""
    (name,) = options
    with pytest.raises(TypeError, match=rf"@graphed\({name}=.*must be an integer"):
        graphed(**options)
