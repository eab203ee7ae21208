"""The fitted curve and its band: there when the knee has an interval, and it goes through the points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_results import EXAMPLES, flagged_sweep, plain_sweep, repeated_sweep, soft_min

from emulator.analysis.flags import invalid
from emulator.analysis.knee import find_knee
from emulator.report.charts import svg
from emulator.report.training_figures import fitted, throughput


def test_the_curve_goes_through_what_made_the_points_and_the_band_holds_it() -> None:
    one = 7 / 0.636 * 146_600_628
    for ranks, low, middle, high in fitted(repeated_sweep()):  # 1 % noise on a known curve
        assert ranks * middle == pytest.approx(soft_min(ranks * one, 26e9), rel=0.03)
        assert low <= middle <= high


def test_the_curve_is_made_from_the_same_points_as_the_knee() -> None:
    made = flagged_sweep()
    wild = [replace(at, samples_per_second=1.0) if invalid(at) else at for at in made.points]
    assert wild != list(made.points)
    assert fitted(replace(made, points=tuple(wild))) == fitted(made)
    assert find_knee(wild).n_au == find_knee(made.points).n_au


def test_nothing_is_fitted_without_an_interval_or_an_ideal() -> None:
    made = plain_sweep()
    assert made.knee is not None
    without = replace(made, knee=replace(made.knee, interval=None))
    for result in (without, EXAMPLES["no-compute"](), EXAMPLES["one-point"](), EXAMPLES["empty"]()):
        assert fitted(result) == []
    with_fit, without_fit = throughput(made), throughput(without)
    assert with_fit is not None and "fit, 95 % band" in svg(with_fit)
    assert without_fit is not None and "fit, 95 % band" not in svg(without_fit)


def test_the_curve_stays_within_the_plot() -> None:
    figure = throughput(plain_sweep())
    assert figure is not None and figure.y.high is not None
    band = figure.series[0].band
    assert len(band) == 60
    assert all(high <= figure.y.high for _, _, _, high in band)
