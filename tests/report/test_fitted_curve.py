"""The fitted curve and its band: there when the knee has an interval, and it goes through the points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic_results import EXAMPLES, flagged_sweep, plain_sweep, repeated_sweep, soft_min

from emulator.analysis.flags import invalid
from emulator.analysis.knee import find_knee
from emulator.record.steps import STEP
from emulator.report.drawing import WIDE
from emulator.report.figures import draw
from emulator.report.rows import Unit, fit_rows

BYTES = Unit(name="B/s", size=1.0)


def test_the_curve_goes_through_what_made_the_points_and_the_band_holds_it() -> None:
    one = 7 / 0.636 * 146_600_628
    for row in fit_rows(repeated_sweep(), BYTES, 1e15):  # 1 % noise on a known curve
        truth = soft_min(float(row["ranks"]) * one, 26e9)
        assert row["rate"] == pytest.approx(truth, rel=0.03)
        assert row["rate_low"] <= row["rate"] <= row["rate_high"]
        assert row["each"] == pytest.approx(float(row["rate"]) / float(row["ranks"]))


def test_the_curve_is_made_from_the_same_points_as_the_knee() -> None:
    made = flagged_sweep()
    wild = [replace(at, samples_per_second=1.0) if invalid(at) else at for at in made.points]
    assert wild != list(made.points)
    assert fit_rows(replace(made, points=tuple(wild)), BYTES, 1e15) == fit_rows(made, BYTES, 1e15)
    assert find_knee(wild).n_au == find_knee(made.points).n_au


def test_the_curve_stays_within_the_plot() -> None:
    assert all(row["rate_high"] <= 20e9 for row in fit_rows(plain_sweep(), BYTES, 20e9))


def test_nothing_is_fitted_without_an_interval_or_an_ideal() -> None:
    made = plain_sweep()
    assert made.knee is not None
    without = replace(made, knee=replace(made.knee, interval=None))
    for one in (without, EXAMPLES["no-compute"](), EXAMPLES["one-point"](), EXAMPLES["empty"]()):
        assert fit_rows(one, BYTES, 1e15) == []
    steps = np.zeros(0, dtype=STEP)
    assert "fit, 95 % band" in (draw("throughput", made, steps, WIDE) or "")
    assert "fit, 95 % band" not in (draw("throughput", without, steps, WIDE) or "fit, 95 % band")
