"""Drawn step times: pure, the same for any number of ranks, and distributed as the profile says."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.workload import AcceleratorSpec
from emulator.run.accelerator import endless, step_times, uniforms

KNOWN = [0.32764966676698604, 0.27489410178842777, 0.7868614503464917]
MEASURED = np.sort(np.random.Generator(np.random.Philox(5)).lognormal(math.log(0.050), 0.03, 200))


def spec(times=MEASURED, compute="empirical") -> AcceleratorSpec:
    return AcceleratorSpec(
        name="x",
        step_seconds=float(np.mean(times)),
        step_batch_size=4,
        provenance="measured",
        compute=compute,
        quantiles=tuple(map(float, times)),
    )


def ks_p(one, two) -> float:
    """p of the two-sample Kolmogorov-Smirnov test, asymptotic (Smirnov 1948)."""
    one, two = np.sort(one), np.sort(two)
    at = np.concatenate([one, two])
    below = [np.searchsorted(sample, at, side="right") / len(sample) for sample in (one, two)]
    root = math.sqrt(len(one) * len(two) / (len(one) + len(two)))
    x = (root + 0.12 + 0.11 / root) * float(np.abs(below[0] - below[1]).max())
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101)))


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 5000), st.integers(1, 50))
def test_a_step_time_depends_on_seed_rank_and_step_alone(seed, rank, first, steps):
    whole = step_times(spec(), seed, rank, 0, first + steps)
    assert step_times(spec(), seed, rank, first, steps).tolist() == whole[first:].tolist()
    assert 0 <= uniforms(seed, rank, first, steps).min() <= uniforms(seed, rank, first, steps).max() < 1


def test_known_values_so_that_runs_of_different_versions_compare():
    assert uniforms(7, 3, 0, 3).tolist() == pytest.approx(KNOWN, abs=0)


def test_steps_of_ranks_that_were_recorded_together_are_as_long_for_all():
    together = replace(spec(), together=True)
    draws = {tuple(step_times(together, 4, rank, 0, 50)) for rank in range(4)}
    assert draws == {tuple(step_times(spec(), 4, 0, 0, 50))}


def test_the_rank_and_the_simulator_see_the_same_times():
    assert list(islice(endless(spec(), 3, 2), 600)) == step_times(spec(), 3, 2, 0, 600).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_2000_draws_follow_the_profile(seed):
    draws = step_times(spec(), seed, 0, 0, 2000)
    assert ks_p(draws, MEASURED) > 0.01
    assert draws.mean() == pytest.approx(MEASURED.mean(), rel=4 * 0.03 / math.sqrt(2000))
    lag1 = np.corrcoef(draws[1:], draws[:-1])[0, 1]
    assert abs(lag1) < 4 / math.sqrt(2000)
