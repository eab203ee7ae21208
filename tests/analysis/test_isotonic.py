from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
