"""The walk through public functions, on functions made for it and on the simulated arrays."""

import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import api_walk
from helpers.api_recipes import NOT_APPLICABLE, RECIPES, SUBJECTS
from helpers.api_walk import (
    GRAPH,
    HOST_READ,
    NOT_CALLED,
    NOTHING,
    REFUSED,
    Library,
    public_functions,
    try_function,
)

import graphjit
from graphjit.testing import simulated as xp

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import api_coverage


@pytest.fixture
def fake(monkeypatch):
    """A module of functions that do what a walk has to tell apart."""
    module = types.ModuleType("fake_library")
    calls = []
    module.good = lambda x, y: x + y
    module.alias = module.good
    module.reads = lambda x: x * float(x.sum())
    module.host_only = lambda x: x.ndim
    module.in_place = lambda x: x.fill(3)
    module.view = lambda x: x.T
    module.never = lambda *, nobody_knows: nobody_knows
    module.raises_later = lambda x: calls.append(1) or (1 / 0 if len(calls) > 4 else x + 1)
    monkeypatch.setitem(sys.modules, "fake_library", module)
    return module


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("good", GRAPH),
        ("reads", HOST_READ),
        ("host_only", NOTHING),
        ("in_place", GRAPH),
        ("view", GRAPH),
        ("never", NOT_CALLED),
    ],
)
def test_outcomes(fake, name, outcome):
    """What a function does decides what the walk says of it, and none of these is a fault."""
    row = try_function(Library(xp), f"fake_library.{name}")
    assert (row.outcome, row.fault) == (outcome, "")


def test_a_result_that_is_frozen_is_a_fault(fake, monkeypatch):
    """A wrong result of the graphed function is found."""

    def frozen(fn):
        first = []

        def call(*args):
            if not first:
                first.append(fn(*args))
            return first[0]

        call.cache_clear = lambda: None
        return call

    monkeypatch.setattr(api_walk, "graphed", frozen)
    assert "differs from eager" in try_function(Library(xp), "fake_library.good").fault


def test_a_refusal_without_a_line_is_a_fault(fake, monkeypatch):
    """An error that does not say where is reported as one."""

    def refuse(fn):
        def call(*args):
            error = graphjit.CaptureError("no")
            error.eager_result = fn(*args)
            raise error

        call.cache_clear = lambda: None
        return call

    monkeypatch.setattr(api_walk, "graphed", refuse)
    row = try_function(Library(xp), "fake_library.good")
    assert (row.outcome, "names no line" in row.fault) == (REFUSED, True)


def test_aliases_are_walked_once(fake):
    """Two names of one function are one function."""
    found = dict(public_functions(Library(xp), ["fake_library"]))
    assert found["fake_library.alias"] == ""
    assert found["fake_library.good"] == "fake_library.alias"


def test_the_functions_of_the_simulated_arrays():
    """Every public function of the simulated device is called, and none does anything wrong."""
    library = Library(xp)
    module = "graphjit._adapters.simulated_array"
    rows = [
        try_function(library, name)
        for name, alias_of in public_functions(library, [module])
        if not alias_of and name.rpartition(".")[2] in xp.__all__
    ]
    assert {row.name: row.fault for row in rows if row.fault} == {}
    assert sum(row.outcome == GRAPH for row in rows) > 50


def test_recipes_fit_numpy():
    """The arguments written for CuPy's main module are arguments of NumPy's functions."""
    library = Library(np)
    library.asarray, library.get = np.array, np.asarray
    unfit = {}
    warnings.simplefilter("ignore")  # NumPy's, of names that go; pytest puts the filters back
    for name in [name for name in RECIPES if name.rpartition(".")[0] == "cupy"]:
        function = getattr(np, name.rpartition(".")[2], None)
        if function is not None and not api_walk.Trial(library, name).find_arguments(function):
            unfit[name] = RECIPES[name]
    assert unfit == {}


def test_no_function_is_in_two_tables():
    """A recipe for what is not called would never be used."""
    assert set(RECIPES) & set(NOT_APPLICABLE) == set()
    assert set(SUBJECTS) & set(RECIPES) == set()


def test_a_walk_goes_on_after_a_process_that_dies_or_hangs(tmp_path):
    """A dead worker costs the function that it had, and so does one that takes too long."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys, time\n"
        "print('row: ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    name = line.strip()\n"
        "    if name == 'dies': os._exit(3)\n"
        "    if name == 'hangs': time.sleep(60)\n"
        "    row = dict(name=name, outcome='graph', fault='the device is gone' * (name == 'ill'))\n"
        "    print('row: ' + json.dumps(row), flush=True)\n"
    )
    names = ["one", "dies", "two", "hangs", "three", "ill", "four"]
    seen = []
    rows = api_coverage.walk(
        names, [sys.executable, str(script)], 2, 3, lambda row, seconds: seen.append(row.name)
    )
    assert [row.name for row in rows] == names
    assert sorted(seen) == sorted(names)
    assert {row.name for row in rows if row.fault} == {"dies", "hangs", "ill"}
    assert rows[1].fault.startswith("the process died")
    assert rows[3].fault.startswith("took more than 3 s")
    assert "| all | 5 |" in "\n".join(api_coverage.summary(rows))
    assert len(api_coverage.table(rows)) == len(rows) + 2
