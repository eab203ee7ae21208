"""The emulated accelerator: absolute deadlines, and step times that are drawn as the profile says."""

import math
from dataclasses import replace
from itertools import islice, repeat

import numpy as np
import pytest
from clocks import LateClock
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.workload import AcceleratorSpec
from emulator.run.accelerator import Accelerator, endless, step_times, uniforms

KNOWN = [0.32764966676698604, 0.27489410178842777, 0.7868614503464917]
MEASURED = np.sort(np.random.Generator(np.random.Philox(5)).lognormal(math.log(0.050), 0.03, 200))
SPEC = AcceleratorSpec(
    name="x", step_seconds=float(MEASURED.mean()), step_batch_size=4, provenance="measured",
    compute="empirical", quantiles=tuple(MEASURED.tolist()),
)  # fmt: skip


@given(st.floats(0.0, 0.004), st.integers(2, 300))
def test_late_wake_ups_do_not_add_up(late, steps):
    clock = LateClock(late)
    accelerator, begin = Accelerator(repeat(0.005), clock), clock.now()
    free = begin
    for _ in range(steps):
        _, free = accelerator.compute(free)
    assert clock.now() - begin == pytest.approx(0.005 * steps + late, abs=1e-6)


@pytest.mark.parametrize(("busy", "end"), [(0.04, 0.1), (0.3, 0.3)])
def test_work_is_hidden_behind_a_step_unless_it_takes_longer(busy, end):
    clock = LateClock(0.0)
    begin = clock.now()
    clock.time += busy
    nominal, ended = Accelerator(repeat(0.1), clock).compute(begin)
    assert (nominal, ended - begin, clock.now()) == (0.1, pytest.approx(end), ended)


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 5000), st.integers(1, 50))
def test_a_step_time_depends_on_seed_rank_and_step_alone(seed, rank, first, steps):
    whole = step_times(SPEC, seed, rank, 0, first + steps)
    assert step_times(SPEC, seed, rank, first, steps).tolist() == whole[first:].tolist()


def test_known_values_so_that_runs_of_different_versions_compare():
    assert uniforms(7, 3, 0, 3).tolist() == KNOWN


def test_steps_of_ranks_that_were_recorded_together_are_as_long_for_all():
    together = replace(SPEC, together=True)
    draws = {tuple(step_times(together, 4, rank, 0, 50)) for rank in range(4)}
    assert draws == {tuple(step_times(SPEC, 4, 0, 0, 50))}


def test_times_are_drawn_on_and_on():
    assert list(islice(endless(SPEC, 3, 2), 600)) == step_times(SPEC, 3, 2, 0, 600).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_2000_draws_follow_the_profile(seed):
    """Each time comes as often as any other (chi-square at odds of one in a million), in no order."""
    draws = step_times(SPEC, seed, 0, 0, 2000)
    _, seen = np.unique(draws, return_counts=True)
    missing = len(MEASURED) - len(seen)
    assert ((seen - 10) ** 2 / 10).sum() + 10 * missing < 309
    lag1 = np.corrcoef(draws[1:], draws[:-1])[0, 1]
    assert abs(lag1) < 4 / math.sqrt(2000)
