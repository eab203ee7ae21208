"""How far runs lie off the truth: white noise, runs that stalled, and drift, each as likely as runs show it.

A run is off by e + w, in logarithms. w is Student t with FREEDOM degrees of freedom about the noise of a run,
or, one run in fifty, anything at all: another job ran. e is drift: machines warm, neighbours come and go, so
that runs after each other are off together, by an AR(1) of which DRIFT_KEPT is left at the next run. Without
it ten runs that are all off by 3 % look precise. A stalled run must not move a knee, so tails are heavy
(Lange, Little and Taylor 1989).

Nobody has to state how large noise and drift are: both are averaged over a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

NOISE = np.array([0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.1, 0.2])
"""Relative standard deviations of one run that are considered."""
FREEDOM = 6.0
"""Degrees of freedom of the Student t of a run's error."""
STALLED = 0.02
"""Share of runs that are off by anything."""
DRIFT_KEPT = 0.9
"""Correlation of the drift of two runs after each other."""
DRIFTS = 0.95
"""Probability, before any run, that the machine drifts, for the interval: in a few minutes nobody sees what a
machine does in an hour, so the runs have to show that it does not."""
SHOWN = 0.02
"""The same for the middle of the interval and for when to stop: there the runs have to show that it does."""


def log_noise_prior(noise: Floats) -> Floats:
    """Lognormal about 1.5 %: published runs scatter by 0.3 % (p90 1.2 %), shared machines by several times
    that. A smaller centre would stop searches on a few runs that agree by luck.
    """
    weight = -0.5 * (np.log(noise / 0.015) / 1.2) ** 2
    return np.asarray(weight - np.log(np.exp(weight).sum()))


LOG_NOISE_PRIOR = log_noise_prior(NOISE)
DRIFTING = np.array([(s, d) for s in (0.005, 0.02) for d in (0.03, 0.06)])
"""Noise of a run and standard deviation of the drift, where there is drift."""
LOG_DRIFTING_PRIOR = np.full(len(DRIFTING), -math.log(len(DRIFTING)))


def log_density(off: Floats, variance: Floats) -> Floats:
    """Log density of runs that are `off` (in logarithms), the variance of one that did not stall given."""
    squares = off * off
    return np.asarray(np.log(_usual(squares, variance) + _stalled(squares)))


def _usual(squares: Floats | Singles, variance: Floats | Singles) -> Floats:
    """(1 - STALLED) x density of a Student t with FREEDOM = 6."""
    tail = variance / (variance + squares / FREEDOM)  # density in proportion to tail^3.5
    return np.asarray((1 - STALLED) * 0.3827 * tail * tail * tail * np.sqrt(tail / variance))


def _stalled(squares: Floats | Singles) -> Floats:
    """STALLED x density of a Student t with two degrees of freedom and scale 1/4."""
    root = 1 + squares * 8
    return np.asarray(STALLED * math.sqrt(2) / (root * np.sqrt(root)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """What runs say of hypotheses: arrays of (noises, hypotheses)."""

    log: Floats
    """Log likelihood and log prior of the noise."""
    ahead: Floats
    """How far the next run will be off by drift, if hypothesis and noise hold."""
    loose: Floats
    """Variance of that."""
    noises: Floats
    """(noise of a run, drift): relative standard deviations, shape (noises, 2)."""


def likelihood(off: Singles, far: Singles) -> Likelihood:
    """How likely runs are under each noise x hypothesis.

    `off` and `far`: how far each run is off each hypothesis, and the variance that this hypothesis allows it
    beside noise; both of shape (runs, hypotheses), runs in the order they were run.
    """
    runs, hypotheses = off.shape
    stalled = _stalled(off * off)
    log = np.zeros((len(NOISE) + len(DRIFTING), hypotheses))
    steady, moving = log[: len(NOISE)], log[len(NOISE) :]
    for i, noise in enumerate(NOISE):
        steady[i] = np.log(_usual(off * off, noise**2 + far) + stalled).sum(axis=0)
    steady += LOG_NOISE_PRIOR[:, None] + math.log(1 - DRIFTS)

    # A Kalman filter per hypothesis. A run that may have stalled updates it as much as it is believed.
    ahead, loose = np.zeros_like(log), np.zeros_like(log)
    noise, drift = (DRIFTING[:, i, None].astype(np.float32) ** 2 for i in (0, 1))
    mean, variance = np.zeros(moving.shape, np.float32), np.broadcast_to(drift, moving.shape)
    for run in range(runs):
        total = variance + noise + far[run]
        miss = off[run] - mean
        squares = miss * miss
        usual = (1 - STALLED) * 0.3989 * np.exp(-0.5 * squares / total) / np.sqrt(total)
        density = usual + _stalled(squares)
        moving += np.log(density)
        gain, believed = variance / total, usual / density
        change = believed * gain
        mean = DRIFT_KEPT * (mean + change * miss)
        left = variance * (1 - change) + (1 - believed) * change * gain * squares
        variance = DRIFT_KEPT**2 * left + (1 - DRIFT_KEPT**2) * drift
    moving += LOG_DRIFTING_PRIOR[:, None] + math.log(DRIFTS)
    ahead[len(NOISE) :], loose[len(NOISE) :] = mean, variance
    noises = np.concatenate([np.column_stack([NOISE, np.zeros_like(NOISE)]), DRIFTING])
    return Likelihood(log=log, ahead=ahead, loose=loose, noises=noises)
