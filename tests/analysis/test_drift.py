from __future__ import annotations

import numpy as np

from emulator.analysis.drift import drift
from emulator.analysis.flags import non_stationary


def test_variation_is_no_drift():
    random = np.random.default_rng(2)
    assert np.mean([drift(random.normal(1, 0.1, 300)) != 0 for _ in range(400)]) <= 0.03
    assert drift([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == drift([2.0] * 20) == 0


def test_flag_needs_a_certain_and_large_drift():
    random = np.random.default_rng(3)
    varied = random.normal(0, 0.02, 200)
    flag = non_stationary(np.linspace(1.1, 0.9, 200) + varied)
    assert flag is not None
    assert flag.name == "non-stationary"
    assert "fell by 1" in flag.sentence and "from 1." in flag.sentence and "to 0." in flag.sentence
    assert non_stationary(np.linspace(1.01, 0.99, 200) + varied) is None
    assert non_stationary(random.normal(1, 0.5, 20)) is None
