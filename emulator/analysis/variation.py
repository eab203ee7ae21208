"""Run-to-run variation: how far a run's throughput lies from the truth.

The logarithm of a run's throughput has the error e + w:

    w  independent from run to run: Student t, FREEDOM degrees of freedom, scaled by the deviation of a run
    e  drift, an AR(1) process: a part of it is left at the next run

One run in fifty stalled, because another job ran, and may be off by anything; it must not move the knee, so
tails are heavy (Lange, Little and Taylor 1989). Drift is in the model because machines warm up and neighbours
come and go: without it, ten runs that are all 3 % too low look precise.

The sizes of deviation and drift need not be known: the likelihood averages over a grid of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.parts import Floats

Singles = NDArray[np.float32]

DEVIATIONS = np.array([0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.1, 0.2])
"""Grid of relative standard deviations of one run."""
PRIOR_DEVIATION = 0.01
"""Relative standard deviation of one run where nothing says it (published runs: p90 1.2 %)."""
FREEDOM = 6.0
"""Degrees of freedom of the Student t of w."""
STALLED = 0.02
"""Share of runs that stalled."""
DRIFTS = 0.2
"""Prior probability that the machine drifts. Twenty runs without drift deny it only weakly: with 1/2,
intervals were up to twice as wide, and covered no more (results/knee.md)."""


# Published runs vary by 0.3 % (p90 1.2 %), shared machines by several times that. A smaller centre would stop
# searches on a few runs that agree by luck.
_WEIGHT = -0.5 * (np.log(DEVIATIONS / 0.015) / 1.2) ** 2
LOG_DEVIATION_PRIOR = _WEIGHT - np.log(np.exp(_WEIGHT).sum())
"""Log prior probability of each of DEVIATIONS: lognormal about 1.5 %."""
DRIFTING = np.array([(s, d, k) for s in (0.005, 0.02) for d, k in ((0.03, 0.9), (0.06, 0.97))])
"""Grid for machines that drift: deviation of a run, standard deviation of the drift, and the correlation of
that of two consecutive runs. Some go to and fro within ten runs, some only away."""


def log_density(error: Floats, variance: Floats) -> Floats:
    """Log density of errors in logarithms, `variance` being that of a run that did not stall."""
    squares = error * error
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
    """Likelihood of the runs under each hypothesis: arrays of shape (deviations, hypotheses)."""

    log: Floats
    """Log likelihood plus log prior of the deviation."""
    ahead: Floats
    """Expected drift of the next run, if hypothesis and deviation are true."""
    loose: Floats
    """Variance of `ahead`."""
    deviations: Floats
    """(of a run, of the drift): relative standard deviations, shape (deviations, 2)."""


def likelihood(errors: Singles, extra_variance: Singles) -> Likelihood:
    """Likelihood of the runs under each deviation x hypothesis.

    `errors` are those of each run against each hypothesis, in logarithms; the hypothesis adds
    `extra_variance` to that of a run. Both have the shape (runs, hypotheses), in the order of the runs.
    """
    runs, hypotheses = errors.shape
    stalled = _stalled(errors * errors)
    log = np.zeros((len(DEVIATIONS) + len(DRIFTING), hypotheses))
    steady, moving = log[: len(DEVIATIONS)], log[len(DEVIATIONS) :]
    for i, deviation in enumerate(DEVIATIONS):
        usual = _usual(errors * errors, deviation**2 + extra_variance)
        steady[i] = np.log(usual + stalled).sum(axis=0)
    steady += LOG_DEVIATION_PRIOR[:, None] + math.log(1 - DRIFTS)

    # A Kalman filter per hypothesis. A run updates it by the probability that it did not stall.
    ahead, loose = np.zeros_like(log), np.zeros_like(log)
    white, drift, correlation = DRIFTING.T[:, :, None].astype(np.float32)
    white, drift = white**2, drift**2
    mean, variance = np.zeros(moving.shape, np.float32), np.broadcast_to(drift, moving.shape)
    for run in range(runs):
        total = variance + white + extra_variance[run]
        miss = errors[run] - mean
        squares = miss * miss
        usual = (1 - STALLED) * 0.3989 * np.exp(-0.5 * squares / total) / np.sqrt(total)
        density = usual + _stalled(squares)
        moving += np.log(density)
        gain, believed = variance / total, usual / density
        change = believed * gain
        mean = correlation * (mean + change * miss)
        left = variance * (1 - change) + (1 - believed) * change * gain * squares
        variance = correlation**2 * left + (1 - correlation**2) * drift
    moving += math.log(DRIFTS) - math.log(len(DRIFTING))
    ahead[len(DEVIATIONS) :], loose[len(DEVIATIONS) :] = mean, variance
    deviations = np.concatenate([np.column_stack([DEVIATIONS, np.zeros_like(DEVIATIONS)]), DRIFTING[:, :2]])
    return Likelihood(log=log, ahead=ahead, loose=loose, deviations=deviations)
