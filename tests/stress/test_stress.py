"""Random programs on the simulated device: a small part of what ``python tests/stress`` runs."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from stress.__main__ import Sample, growth
from stress.backends import make_backend
from stress.machine import make_machine
from stress.worlds import Counts

QUICK = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_random_programs_give_the_bits_of_eager_calls():
    """Results, arguments and state are equal after every step, and nothing stays behind."""
    backend = make_backend("simulated")
    before = backend.held()
    counts = Counts()
    run_state_machine_as_test(make_machine(backend, counts), settings=QUICK)
    assert counts.hits > 50
    assert backend.held() == before


def test_growth_is_a_trend():
    """What grows from third to third is a leak; a late step or noise is none."""
    rising = [Sample(1000, 3, 0, 100 + i) for i in range(30)]
    noisy = [Sample(1000 + i % 7, 3, 0, 100) for i in range(30)]
    late = [Sample(1000 if i < 25 else 5000, 3, 0, 100) for i in range(30)]
    assert growth(rising) == {"objects": (109, 120)}
    assert growth(noisy) == growth(late) == growth(rising[:5]) == {}
