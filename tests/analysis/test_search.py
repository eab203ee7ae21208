from __future__ import annotations

import numpy as np
import pytest
from curves import FORMS, Trial, curve, trial, trial_random
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.analysis.search import CountRun, KneeSearch, believe, next_count, runs_left

HARD = ("roofline", "collapse")


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """Searches at a deviation of 1 %, two on each hard limit; the whole table is benchmarks/knee.py."""
    jobs = [trial_random(name, 0.01, 0) for name in FORMS]
    jobs += [trial_random(name, 0.01, 1) for name in HARD]
    return [trial(truth, 0.01, random, KneeSearch(maximum=4096)) for truth, random in jobs]


def test_the_knee_is_found(trials):
    assert np.median([abs(t.error) for t in trials]) <= 0.01
    assert max(abs(t.error) for t in trials) < 0.08


def test_the_interval_can_be_trusted(trials):
    assert np.mean([t.covers() for t in trials]) >= 0.9


def test_few_runs_are_enough(trials):
    """A limit that is felt before it is reached takes more: the slope at the knee is small."""
    hard = [len(t.runs) for t in trials if t.curve.name in HARD]
    assert np.median(hard) <= 9
    assert max(len(t.runs) for t in trials) <= 24


def test_a_precise_stop_is_precise(trials):
    for t in trials:
        assert len(t.runs) == 24 if "24 runs" in t.stop else t.belief.width < 0.05


@pytest.mark.parametrize("maximum", [8, 16, 512])
def test_no_knee_is_said_after_looking_at_the_maximum(maximum):
    found = trial(curve("roofline", 4000.0), 0.01, np.random.default_rng(8), KneeSearch(maximum=maximum))
    assert found.stop == f"no knee up to {maximum} processes"
    assert maximum in [run.ranks for run in found.runs]
    assert len(found.runs) <= 5
    assert found.belief.n_au[0] >= 0.95 * maximum


def test_a_process_that_starves_alone():
    found = trial(curve("roofline", 0.4), 0.01, np.random.default_rng(9), KneeSearch(maximum=16))
    assert found.stop == "even one process gets less than 90 % of its demand"


def test_a_knee_has_a_count_that_is_fed_and_one_that_is_not():
    """However certain it is that 2 starve, "1 is fed" takes a run of 1."""
    for seed in (1, 5):
        search = KneeSearch(maximum=4, max_runs=9)
        found = trial(curve("roofline", 1.7), 0.04, np.random.default_rng(seed), search)
        assert min(run.ranks for run in found.runs) == 1


def test_what_runs_of_a_count_show_again_and_again_bounds_the_interval():
    """One process was fed four times: a curve with drift would have the knee at 0.7 to 2."""
    seen = ((3, 0.55), (2, 0.68), (1, 0.97), (1, 1.0), (2, 0.74), (3, 0.54), (2, 0.67), (1, 1.0), (1, 0.99))
    history = [CountRun(ranks=n, efficiency=e) for n, e in seen]
    low, _, high = believe(history, KneeSearch(maximum=3)).n_au
    assert low >= 1 and high <= 2


@pytest.mark.parametrize("name", ["root", "second tier"])
def test_the_knee_of_a_limit_beyond_which_throughput_still_grows(name):
    truth, random = trial_random(name, 0.01, 1)
    found = trial(truth, 0.01, random, KneeSearch(maximum=4096))
    assert found.covers() and found.belief.width < 0.15


def test_runs_that_vary_much_end_wide_and_say_so():
    found = trial(
        curve("soft p=3", 100.0), 0.15, np.random.default_rng(10), KneeSearch(maximum=4096, max_runs=10)
    )
    assert "10 runs" in found.stop
    assert found.belief.width > 0.15
    assert found.covers()


def test_a_wish_can_be_predicted():
    history = [CountRun(ranks=n, efficiency=e) for n, e in ((64, 0.99), (256, 0.4), (110, 0.93))]
    search = KneeSearch(maximum=4096)
    assert 1 <= runs_left(history, search, believe(history, search)) <= 17
    done = trial(curve("roofline", 60.0), 0.003, np.random.default_rng(12), search)
    assert runs_left(done.runs, search, done.belief) == 0


@settings(max_examples=6)
@given(st.integers(1, 32), st.lists(st.tuples(st.integers(1, 32), st.floats(0.01, 1.1)), max_size=6))
def test_every_wish_can_be_run(maximum, runs):
    history = [CountRun(ranks=min(n, maximum), efficiency=e) for n, e in runs]
    wish = next_count(history, KneeSearch(maximum=maximum))
    assert isinstance(wish, str) or 1 <= wish <= maximum
