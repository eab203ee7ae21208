"""The posterior of the knee after some runs, over families of curves that saturate, on a grid.

A hypothesis is a scale K, log-uniform, and a shape (`emulator.analysis.families`). With y = ln(measured
efficiency), m = ln(efficiency of the hypothesis) and N_AU its knee,

    y - m = error of the run (`emulator.analysis.variation`) + DISCREPANCY ln(N / N_AU) x standard normal

for each run. The second term says that no real system is a member of a family. A curve fits near its knee and
only roughly far away, so runs far from the knee count less (model discrepancy, Kennedy and O'Hagan 2001).

Where no family describes the runs (a cliff, two limits), the best fit is wrong and its interval too narrow.
The bare crossing (`emulator.analysis.crossing`), which only assumes that efficiency crosses the threshold
once, is therefore another hypothesis. Each is weighted by its evidence: curves win where they fit, the bare
crossing wins where runs contradict all curves. With curves alone, a cliff at 50 came out at 44.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from emulator.analysis.crossing import Crossings, crossings
from emulator.analysis.families import (
    LOWEST,
    Indices,
    crossing_ratios,
    grid_log_efficiency,
    log_efficiency,
    saturation_ratios,
    shapes,
)
from emulator.analysis.parts import Floats
from emulator.analysis.variation import Singles, likelihood

DISCREPANCY = 0.03
"""Relative error of the families per e-fold away from the knee, up to two e-folds."""
SCALES = 48
"""Values of K in a pass. Each pass spreads them over what the last one left."""
CLOSER = 2
"""Number of passes after the first."""
CURVELESS = 0.05
"""Probability, before any run, that no family describes the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The hypotheses that are left, with their weights: first the curves, then the bare crossings.

    `log_scale` and `shape` have an element per curve, the other arrays an element per hypothesis.
    """

    threshold: float
    """Efficiency that defines N_AU."""
    log_scale: Floats
    """ln K of the curves."""
    shape: Indices
    weight: Floats
    """Sums to 1."""
    ahead: Floats
    """Expected drift of the next run (ln), if the hypothesis is true; mean over deviations."""
    loose: Floats
    """Variance of `ahead`."""
    deviation: float
    """Relative standard deviation of one run, mean."""
    drift: float
    """Relative standard deviation of the drift, mean."""
    crossings: Crossings | None = None
    """None before the first run."""

    @property
    def curved(self) -> bool:
        """True when curves predicted the runs better than a bare crossing did."""
        return float(self.weight[: len(self.shape)].sum()) > 0.5

    @property
    def log_n_au(self) -> Floats:
        """ln N_AU; far below 0 where a hypothesis is never above the threshold."""
        curves = self.log_scale + crossing_ratios(self.threshold)[self.shape]
        return curves if self.crossings is None else np.concatenate([curves, self.crossings.log_knee])

    @property
    def log_n_saturation(self) -> Floats:
        """ln N* = ln(C / r)."""
        curves = self.log_scale + saturation_ratios()[self.shape]
        if self.crossings is None:
            return curves
        measured = np.full(len(self.weight) - len(curves), self.crossings.log_n_saturation)
        return np.concatenate([curves, measured])

    def quantiles(self, values: Floats, levels: Sequence[float]) -> tuple[float, ...]:
        """exp of the quantiles of `values`, one per hypothesis: for example (0.025, 0.5, 0.975)."""
        return tuple(np.exp(weighted_quantiles(values, self.weight, levels)).tolist())

    def band(self, counts: Sequence[float], levels: Sequence[float]) -> Floats:
        """Quantiles of the fitted efficiency, shape (levels, counts): a curve and its band, for plots."""
        return np.array([self.quantiles(curve, levels) for curve in self.curves(counts)]).T

    def curves(self, counts: Sequence[float], which: Indices | None = None) -> Floats:
        """ln efficiency, shape (counts, hypotheses), of some hypotheses or all."""
        log_counts = np.log(np.asarray(counts, dtype=np.float64))
        rows = np.arange(len(self.weight)) if which is None else which
        is_curve = rows < len(self.shape)
        curve = rows[is_curve]
        result = np.empty((len(log_counts), len(rows)))
        result[:, is_curve] = log_efficiency(log_counts[:, None] - self.log_scale[curve], self.shape[curve])
        if self.crossings is not None and not is_curve.all():
            bare = rows[~is_curve] - len(self.shape)
            result[:, ~is_curve] = self.crossings.curves(log_counts)[:, bare]
        return result


def weighted_quantiles(values: Floats, weight: Floats, levels: Sequence[float]) -> Floats:
    """Quantiles of a weighted sample, straight lines between the middles of the weights."""
    order = np.argsort(values)
    ordered = weight[order]
    middle = np.cumsum(ordered) - ordered / 2
    return np.asarray(np.interp(np.asarray(levels), middle, values[order]))


def posterior(
    ranks: Sequence[float],
    efficiency: Sequence[float],
    threshold: float = 0.9,
    maximum: int = 4096,
    slack: Sequence[float] = (),
) -> Posterior:
    """The posterior after these runs; without runs it is the prior. Repeats of a count are several runs.

    `slack` is the most that each efficiency may be above the measured one; empty means 0. The middle of that
    range is taken for the measurement, and half of the range for its standard deviation.

    Runs are in the order in which they were run, since machines drift. K is between 1/2 and 4 x `maximum`,
    the largest count that could be run. Its grid is refined in CLOSER passes. Deterministic.
    """
    log_n = np.log(np.asarray(ranks, dtype=np.float64))
    half_slack = np.asarray(slack if len(slack) else [0.0] * len(ranks), dtype=np.float64) / 2
    middle = np.maximum(np.asarray(efficiency, dtype=np.float64), 1e-6) + half_slack
    log_y = np.log(middle)
    loose = (half_slack / middle) ** 2
    bounds = math.log(0.5), math.log(4 * maximum)

    weigh = partial(_weighed, log_n, log_y, loose, threshold)
    scales = np.linspace(*bounds, SCALES)
    curves, log_evidence = weigh(scales, np.arange(len(shapes())))
    for _ in range(CLOSER):
        scales = _closer(curves, scales, bounds)
        likely_shapes = np.flatnonzero(np.bincount(curves.shape, curves.weight) > 1e-5)
        curves, log_evidence = weigh(scales, likely_shapes)
    if not len(log_n):
        return curves
    log_prior_odds = math.log((bounds[1] - bounds[0]) * CURVELESS / (1 - CURVELESS))

    def crossings_with(drift: float) -> tuple[Crossings, float]:
        """The bare crossings, and the probability that no curve describes the system."""
        bare = crossings(log_n, log_y, loose, threshold, bounds, drift)
        log_odds = log_prior_odds - log_evidence + bare.log_evidence
        return bare, 1 / (1 + math.exp(min(-log_odds, 500.0)))

    # The drift was learned from the curves. The less they describe the runs, the less it is believed.
    _, curveless = crossings_with(0.0)
    bare, curveless = crossings_with((1 - curveless) * curves.drift)
    no_drift = np.zeros(len(bare.weight))
    return replace(
        curves,
        crossings=bare,
        weight=np.concatenate([(1 - curveless) * curves.weight, curveless * bare.weight]),
        ahead=np.concatenate([curves.ahead, no_drift]),
        loose=np.concatenate([curves.loose, no_drift + curves.drift**2]),
    )


def _closer(hypotheses: Posterior, scales: Floats, bounds: tuple[float, float]) -> Floats:
    """Values of ln K for the next pass: half of them over 99.9 % of the weight, half over 98 %."""
    grids = []
    for tail in (5e-4, 0.01):
        ends = weighted_quantiles(hypotheses.log_scale, hypotheses.weight, (tail, 1 - tail))
        first, last = np.searchsorted(scales, ends)
        low, high = scales[max(0, first - 2)], scales[min(len(scales) - 1, last + 1)]
        grids.append(np.linspace(max(low, bounds[0]), min(high, bounds[1]), SCALES // 2))
    return np.unique(np.concatenate(grids))


def _weighed(
    log_n: Floats, log_y: Floats, loose: Floats, threshold: float, scales: Floats, which: Indices
) -> tuple[Posterior, float]:
    """The posterior of `scales`, ln K, and the numbered shapes, and its log evidence: the likelihood
    integrated over ln K."""
    # Scales x shapes, flat, the shape running fastest.
    log_scale, shape = np.repeat(scales, len(which)), np.tile(which, len(scales))
    log_prior = shapes().log_prior[shape] + np.repeat(np.log(np.gradient(scales)), len(which))
    runs = likelihood(*_residuals(log_n, log_y, loose, threshold, scales, which))
    joint = runs.log + log_prior
    most = float(joint.max())
    joint = np.exp(joint - most)
    total = float(joint.sum())
    joint /= total
    weight = joint.sum(axis=0)
    deviation, drift = joint.sum(axis=1) @ runs.deviations
    share = joint / np.maximum(weight, 1e-300)
    ahead = (share * runs.ahead).sum(axis=0)
    hypotheses = Posterior(
        threshold=threshold,
        log_scale=log_scale,
        shape=shape,
        weight=weight,
        ahead=ahead,
        loose=(share * (runs.loose + runs.ahead**2)).sum(axis=0) - ahead**2,
        deviation=float(deviation),
        drift=float(drift),
    )
    return hypotheses, most + math.log(total)


def _residuals(
    log_n: Floats, log_y: Floats, loose: Floats, threshold: float, scales: Floats, which: Indices
) -> tuple[Singles, Singles]:
    """ln(measured / hypothesis) of each run, shape (runs, hypotheses), and its variance besides run-to-run's.

    The variance is that of the discrepancy, of `loose`, and of the step from one scale to the next.
    """
    ratio = crossing_ratios(threshold)[which]
    knee = (scales[:, None] + np.where(ratio > LOWEST, ratio, 0.0)).ravel()
    errors, extra_variance = (np.empty((len(log_n), len(knee)), dtype=np.float32) for _ in range(2))
    counts, index = np.unique(log_n, return_inverse=True)
    for i, n in enumerate(counts):
        curve = grid_log_efficiency(float(n), scales, which)
        step = np.asarray(np.gradient(curve.reshape(len(scales), -1), axis=0)).ravel()
        discrepancy = DISCREPANCY * np.minimum(np.abs(n - knee), 2.0)
        variance = discrepancy**2 + step**2 / 12  # of a uniform distribution over a step
        for run in np.flatnonzero(index == i):
            errors[run] = log_y[run] - curve
            extra_variance[run] = variance + loose[run]
    return errors, extra_variance
