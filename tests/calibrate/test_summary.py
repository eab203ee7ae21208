"""Profiles of measured times: exact means, a line with intervals that hold, autocorrelation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.plugins.calibrate.measure import fit_line, timing_of
from emulator.run.accelerator import KEPT

TIMES = st.lists(st.floats(1e-4, 10), min_size=2, max_size=500)


@given(TIMES)
def test_what_is_kept_has_exactly_the_mean_and_never_more_than_the_range(times):
    kept = timing_of(4, times, 20, 0.0)
    assert len(kept.quantiles) == min(KEPT, len(times))
    assert np.mean(kept.quantiles) == pytest.approx(np.mean(times), rel=1e-9)
    assert min(times) * (1 - 1e-9) <= kept.quantiles[0] <= kept.quantiles[-1] <= max(times) * (1 + 1e-9)


@given(
    st.floats(0, 1), st.floats(0.001, 1), st.lists(st.integers(1, 64), min_size=2, max_size=8, unique=True)
)
def test_an_exact_line_is_found_exactly(t0, t1, sizes):
    line = fit_line(sizes, [t0 + size * t1 for size in sizes])
    assert (line["t0"], line["t1"]) == pytest.approx((t0, t1), rel=1e-6, abs=1e-9)
    assert line["worst_residual"] < 1e-6
    assert (line["t0_interval"] is None) == (len(sizes) == 2)


def test_intervals_cover_the_truth_as_often_as_they_say():
    random = np.random.Generator(np.random.Philox(1))
    sizes, covered = np.array([1, 2, 4, 7, 8]), np.zeros(2)
    for _ in range(1000):
        line = fit_line(sizes, 0.02 + 0.05 * sizes + random.normal(0, 0.002, 5))
        covered += [
            line["t0_interval"][0] < 0.02 < line["t0_interval"][1],
            line["t1_interval"][0] < 0.05 < line["t1_interval"][1],
        ]
    assert covered / 1000 == pytest.approx([0.95, 0.95], abs=0.025)
