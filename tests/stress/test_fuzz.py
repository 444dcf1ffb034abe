"""Random programs on the simulated device, and proof that a fault in one would be found."""

import pytest

from stress import worlds
from stress.backends import make_backend
from stress.soak import Kept, Soak, fuzz, replay
from stress.worlds import Counts, Difference


def test_random_programs_leave_what_eager_ones_leave():
    """Every variable of a graphed program equals that of the eager one, after every line."""
    counts = Counts()
    fuzz(make_backend("simulated"), counts, 80, n_steps=10)
    assert counts.hits > 150


def test_a_planted_fault_is_found_and_made_short(monkeypatch):
    """A decorator that returns the first result for ever is found, in a script of a few lines."""

    def frozen(**options):
        def decorate(fn):
            results = []

            def call(*arguments):
                if not results:
                    results.append(fn(*arguments))
                return results[0]

            call.cache_info = worlds.real_graphed(fn).cache_info
            return call

        return decorate

    monkeypatch.setattr(worlds, "real_graphed", frozen)
    with pytest.raises(Difference) as caught:
        fuzz(make_backend("simulated"), Counts(), 40)
    script = str(caught.value).partition("The script:\n\n")[2]
    assert "@graphed" in script
    assert len(script.splitlines()) < 15


def replay_lines(made, *lines):
    for line in lines:
        made.run(line)


@pytest.mark.parametrize(
    ("first", "second"), [("x", "x + 0.0"), ("x", "x.copy()"), ("x.T", "x.T.copy()")]
)
def test_the_comparison_sees_what_is_shared_and_how_arrays_lie(first, second):
    """A copy where eager gives a view shows at the next write, or in its strides."""
    source = f"def f(x):\n    return {first} if graphed is None else {second}\n"
    made = worlds.Worlds(make_backend("simulated"), Counts())
    made.eager.variables["graphed"] = None
    try:
        with pytest.raises(Difference):
            replay_lines(made, source, "x = data((2, 3), 'f8', 1)", "r = f(x)", "x *= 2")
    finally:
        made.close()


def test_a_soak_reports_what_is_kept(capsys):
    """A script whose arrays outlive it is a leak, and the command says so."""
    backend = make_backend("simulated")
    soak = Soak(backend, 0, 0)
    soak.kept = [Kept(("x = data((3,), 'f8', 1)",), (), False)]
    soak.repeat(0)
    assert soak.problems == []
    kept = []
    backend.poison = lambda: kept.append(backend.xp.zeros(3))
    soak.repeat(0)
    assert any("array_nbytes" in problem for problem in soak.problems)
    assert "repetition 1" in capsys.readouterr().out


def test_a_script_can_be_run_again():
    """The lines that a failure prints are a program."""
    script = Kept(
        ("@graphed\ndef f(x):\n    return x + 1\n", "r = f(data((3,), 'f8', 1))"), (), False
    )
    counts = Counts()
    replay(make_backend("simulated"), counts, script)
    assert counts.calls == 1
