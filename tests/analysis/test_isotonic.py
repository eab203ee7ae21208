from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_free import crossing

from emulator.analysis.crossing import decreasing
from emulator.analysis.knee import means

VALUES = st.lists(st.floats(0.01, 1.2), min_size=1, max_size=30)


@given(VALUES, st.data())
def test_regression_never_rises_and_keeps_the_mean(values, data):
    weights = np.array(data.draw(st.lists(st.floats(0.5, 5), min_size=len(values), max_size=len(values))))
    fit = decreasing(np.array(values), weights)
    assert (np.diff(fit) <= 1e-12).all()
    assert fit @ weights == pytest.approx(np.array(values) @ weights)


@given(VALUES)
def test_what_already_falls_stays(values):
    falling = np.array(sorted(values, reverse=True))
    assert decreasing(falling, np.ones(len(falling))) == pytest.approx(falling)


def test_repeats_are_averaged():
    count, mean, runs = means([4, 2, 4], [0.5, 1.0, 0.7])
    assert count.tolist() == [2, 4]
    assert mean.tolist() == pytest.approx([1.0, 0.6])
    assert runs.tolist() == [1, 2]


def test_crossing_is_exact_beyond_a_hard_limit():
    assert crossing([1, 7, 20], [1.0, 6.5 / 7, 6.5 / 20], 0.9).ranks == pytest.approx(6.5 / 0.9)


def test_crossing_says_on_which_side_it_is():
    assert crossing([1, 2, 16], [1.0, 0.99, 0.97], 0.9).where == "beyond"
    assert crossing([4, 8], [0.7, 0.4], 0.9).where == "below"
    assert crossing([4, 8], [0.7, 0.4], 0.9).ranks is None


def test_a_dip_before_the_last_good_count_is_averaged_not_the_knee():
    at = crossing([1, 2, 4, 8, 16], [1.0, 0.89, 0.99, 0.95, 0.4], 0.9)
    assert at.ranks is not None
    assert 8 < at.ranks < 10


def test_no_run_is_an_error():
    with pytest.raises(ValueError, match="no run"):
        crossing([], [], 0.9)


@given(st.integers(2, 400), st.floats(0.5, 0.95))
def test_crossing_lies_between_neighbours(limit, threshold):
    ranks = [limit // 2, limit, 2 * limit, 4 * limit]
    at = crossing(ranks, [min(1, limit / n) for n in ranks], threshold)
    assert at.ranks is not None
    assert limit <= at.ranks <= 2 * limit / min(1, 2 * threshold) + 1
