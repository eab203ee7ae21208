from __future__ import annotations

import itertools

import curves
import numpy as np
import pytest
from curves import curve
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.analysis.families import log_efficiency, shapes
from emulator.analysis.posterior import posterior


def test_every_shape_falls_from_at_most_one():
    u = np.linspace(-12, 9, 500)[:, None]
    curves = log_efficiency(u, np.arange(len(shapes()))[None, :])
    assert (curves <= 1e-12).all()
    assert (np.diff(curves, axis=0) <= 1e-9).all()


def test_one_stalled_run_does_not_move_the_knee():
    truth = curve("roofline", 50.0)
    ranks = [10, 20, 40, 50, 55, 60, 60, 70, 100, 200]
    efficiency = [truth.at(n) for n in ranks]
    clean = posterior(ranks, efficiency)
    efficiency[4] *= 0.6
    stalled = posterior(ranks, efficiency)
    (before,), (after,) = (p.quantiles(p.log_n_au, [0.5]) for p in (clean, stalled))
    assert before == pytest.approx(truth.knee(), rel=0.01)
    assert after == pytest.approx(truth.knee(), rel=0.03)


def test_repeats_teach_the_deviation():
    random = np.random.default_rng(5)
    for variation in (0.003, 0.03):
        efficiency = np.exp(random.normal(0, variation, 30)) * 0.99
        assert posterior([8] * 30, efficiency.tolist()).deviation == pytest.approx(variation, rel=0.6)


@pytest.mark.parametrize("kind", ["white", "drifting"])
def test_a_finer_grid_gives_the_same_knee(kind, monkeypatch):
    """Of a machine that drifts, too: a curve that is off by a drift is as likely as one that follows it."""
    truth, random = curve("mva", 200.0), np.random.default_rng(2)
    errors = itertools.islice(getattr(curves, kind)(random, {"white": 0.01, "drifting": 0.03}[kind]), 20)
    ranks = [79, 1500, 320, 140, 175, 196, 216, 193, 213, 225] * 2
    efficiency = [truth.at(n) * np.exp(error) for n, error in zip(ranks, errors, strict=True)]
    found = posterior(ranks, efficiency)
    monkeypatch.setattr("emulator.analysis.posterior.SCALES", 200)
    monkeypatch.setattr("emulator.analysis.posterior.CLOSER", 4)
    finer = posterior(ranks, efficiency)
    levels = (0.025, 0.5, 0.975)
    assert found.quantiles(found.log_n_au, levels) == pytest.approx(
        finer.quantiles(finer.log_n_au, levels), rel=0.01
    )


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 1.3)), max_size=12))
def test_any_history_gives_a_proper_posterior(runs):
    found = posterior([n for n, _ in runs], [e for _, e in runs], maximum=64)
    low, middle, high = found.quantiles(found.log_n_au, [0.025, 0.5, 0.975])
    assert found.weight.sum() == pytest.approx(1)
    assert 0 < low <= middle <= high < np.inf
    assert 0 < found.deviation < 0.3
