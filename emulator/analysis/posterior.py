"""What runs say about the knee: a posterior over families of curves that saturate, on a grid.

The families, as efficiency against ln(N / K); K is the scale in processes:

    soft     (1 - d) (1 + x^p)^(-1/p) / (1 + k max(0, x - 1))    x = N / K
    usl      (1 - d) / (1 + q x / 2 + (1 - q) x^2)

`soft` is the p-norm of "N processes at their own rate" and "the limit K": p large is a hard roofline, p = 1
a rectangular hyperbola; k > 0 declines beyond the limit. `usl` is Gunther's universal scalability law (1993)
with contention q and coherency 1 - q. d is what a process loses even when alone: latency that nothing hides.
Everything depends on N / K alone, so knee, onset and saturation of a shape are constants times K.

A hypothesis is a scale K, log-uniform, and a shape. With y = ln(measured efficiency), m = ln(efficiency of
the hypothesis) and N_AU its knee, a run at N has the likelihood

    y - m ~ sqrt(s^2 + (DISCREPANCY ln(N / N_AU))^2) x Student t with FREEDOM degrees of freedom

s, the noise of a run, is averaged over a grid, so nobody has to state it: repeats of a count teach it, since
no hypothesis explains their scatter. The second term says that no real system is a member of a family: a
curve fits near its knee and only roughly far away, so far runs count less (model discrepancy, Kennedy and
O'Hagan 2001). Student t: one stalled run must not move the knee (Lange, Little and Taylor 1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]

SHARPNESS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 12.0, 20.0, 60.0)
"""p of `soft`: a geometric grid, on purpose not the round numbers that tests use."""
DECLINE = (0.0, 0.2, 0.45, 1.0)
"""k of `soft`, for p >= 2."""
CONTENTION = (0.0, 0.3, 0.6, 0.85)
"""q of `usl`."""
OVERHEAD = (0.0, 0.01, 0.025, 0.05, 0.08, 0.15)
"""d of both."""
LOWEST, HIGHEST = -12.0, 9.0
"""ln(N / K) that is looked at."""

NOISE = np.array([0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.1, 0.2])
"""Relative standard deviations of one run that are considered."""
LOG_NOISE_PRIOR = -0.5 * (np.log(NOISE / 0.015) / 1.2) ** 2
"""Lognormal about 1.5 %: published runs scatter by 0.3 % (p90 1.2 %), shared machines by several times
that. A smaller centre would stop searches on a few runs that agree by luck."""
FREEDOM = 6.0
"""Degrees of freedom of the Student t of a run's error."""
DISCREPANCY = 0.03
"""Relative error of the families per e-fold away from the knee, up to two e-folds."""
SCALES = 120
"""Values of K per pass; each pass looks closer at what the last one left."""
PASSES = 5
KEEP = 14.0
"""Hypotheses whose rough log posterior is lower than the best by more are dropped (e^-14 = 10^-6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Every shape of the grid, column by column; a shape's number is its row."""

    soft: NDArray[np.bool_]
    power: Floats
    """p of `soft`, q of `usl`."""
    decline: Floats
    """k of `soft`; 0 for `usl`."""
    overhead: Floats
    """d."""
    log_prior: Floats
    """Unnormalised. A decline is half as likely as none; overhead is less likely the larger, exp(-d / 0.025):
    a process alone is expected to come near its ideal rate."""

    def __len__(self) -> int:
        return len(self.power)


@cache
def shapes() -> Shapes:
    """The grid, about 230 shapes."""
    soft = [(True, p, k) for p in SHARPNESS for k in (DECLINE if p >= 2 else (0.0,))]
    usl = [(False, q, 0.0) for q in CONTENTION]
    rows = [(*row, d) for row in soft + usl for d in OVERHEAD]  # overhead runs fastest
    kind, power, decline, overhead = (np.array(column) for column in zip(*rows, strict=True))
    prior = -math.log(2) * (decline > 0) - overhead / 0.025
    return Shapes(soft=kind.astype(bool), power=power, decline=decline, overhead=overhead, log_prior=prior)


def log_efficiency(ratio: Floats, shape: Numbers) -> Floats:
    """ln efficiency at ratio = ln(N / K) for the numbered shapes; `ratio` broadcasts against `shape`."""
    grid = shapes()
    soft, power = grid.soft[shape], grid.power[shape]
    u = np.minimum(ratio, HIGHEST)
    x = np.exp(u)
    p = np.where(soft, power, 1.0)
    q = np.where(soft, 0.0, power)
    steep = p * u
    bend = np.where(steep > 30, steep, np.log1p(np.exp(np.minimum(steep, 30.0)))) / p
    bend += np.log1p(grid.decline[shape] * np.maximum(0.0, x - 1))
    bend = np.where(soft, bend, np.log1p(x * (0.5 * q + (1 - q) * x)))
    return np.asarray(np.log1p(-grid.overhead[shape]) - bend)


def grid_log_efficiency(log_n: float, log_scales: Floats, which: Numbers) -> Floats:
    """ln efficiency at one count for every scale x shape, flat, the shape running fastest.

    Shapes that differ only in overhead share one curve: computed once, a sixth of the work.
    """
    first, member = np.unique(which // len(OVERHEAD), return_inverse=True)
    curve = log_efficiency(log_n - log_scales[:, None], first[None, :] * len(OVERHEAD))  # overhead 0
    loss = np.log1p(-shapes().overhead[which])
    return np.asarray(curve[:, member] + loss).ravel()


@cache
def crossing_ratios(threshold: float) -> Floats:
    """ln(N / K) where each shape falls through `threshold`; LOWEST when it is never above.

    Every shape is non-increasing in N, so bisection finds it.
    """
    shape = np.arange(len(shapes()))
    low, high = np.full(len(shape), LOWEST), np.full(len(shape), HIGHEST)
    for _ in range(50):
        middle = (low + high) / 2
        above = log_efficiency(middle, shape) >= math.log(threshold)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


@cache
def saturation_ratios() -> Floats:
    """ln(C / (r K)) of each shape, C its largest throughput: maximum of ln x + ln efficiency on a grid."""
    shape = np.arange(len(shapes()))
    u = np.linspace(-3, HIGHEST, 1200)[:, None]
    return np.asarray((log_efficiency(u, shape[None, :]) + u).max(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Hypotheses that are left, one per row, with their weights."""

    threshold: float
    """Efficiency that defines N_AU."""
    log_scale: Floats
    """ln K."""
    shape: Numbers
    weight: Floats
    """Sums to 1."""
    noise: float
    """Relative standard deviation of one run, posterior mean."""

    @property
    def log_n_au(self) -> Floats:
        """ln N_AU; far below 0 where a hypothesis is never above the threshold."""
        return self.log_crossing(self.threshold)

    def log_crossing(self, threshold: float) -> Floats:
        """ln of the count where each hypothesis falls through `threshold` (0 to 1)."""
        return self.log_scale + crossing_ratios(threshold)[self.shape]

    @property
    def log_n_saturation(self) -> Floats:
        """ln N* = ln(C / r)."""
        return self.log_scale + saturation_ratios()[self.shape]

    def quantiles(self, values: Floats, levels: Sequence[float]) -> tuple[float, ...]:
        """exp of the weighted quantiles of `values`, one per hypothesis: for example (0.025, 0.5, 0.975)."""
        return tuple(float(x) for x in np.exp(weighted_quantiles(values, self.weight, levels)))

    def band(self, counts: Sequence[float], levels: Sequence[float]) -> Floats:
        """Quantiles of the fitted efficiency, shape (levels, counts): a curve and its band, for plots."""
        curves = self.curves(counts)
        columns = [weighted_quantiles(curve, self.weight, levels) for curve in curves]
        return np.asarray(np.exp(np.array(columns).T))

    def curves(self, counts: Sequence[float], which: Numbers | slice = slice(None)) -> Floats:
        """ln efficiency, shape (counts, hypotheses), of some hypotheses or all."""
        log_counts = np.log(np.asarray(counts, dtype=np.float64))[:, None]
        return log_efficiency(log_counts - self.log_scale[which], self.shape[which])


def weighted_quantiles(values: Floats, weight: Floats, levels: Sequence[float]) -> Floats:
    """Quantiles of a weighted sample, straight lines between the middles of the weights."""
    order = np.argsort(values)
    ordered = weight[order]
    middle = np.cumsum(ordered) - ordered / 2
    return np.asarray(np.interp(np.asarray(levels), middle, values[order]))


def posterior(
    ranks: Sequence[float], efficiency: Sequence[float], threshold: float = 0.9, maximum: int = 4096
) -> Posterior:
    """The posterior after these runs (none: the prior). Repeats of a count are several runs.

    Formula and sources at the head of the module. K is between 1/2 and 4 x `maximum`, the largest count that
    could be run. The grid is refined around what is left until it is finer than the answer. Deterministic.
    """
    log_n = np.log(np.asarray(ranks, dtype=np.float64))
    log_y = np.log(np.maximum(np.asarray(efficiency, dtype=np.float64), 1e-6))
    low, high = math.log(0.5), math.log(4 * maximum)
    which = np.arange(len(shapes()))
    for _ in range(PASSES):
        found, step = _weigh(log_n, log_y, threshold, np.linspace(low, high, SCALES), which)
        near = weighted_quantiles(found.log_scale, found.weight, (5e-4, 1 - 5e-4))
        begin, end = max(low, near[0] - 2 * step), min(high, near[1] + 2 * step)
        if end - begin > 0.6 * (high - low):
            break
        low, high = begin, end
        mass = np.bincount(found.shape, weights=found.weight, minlength=len(shapes()))
        which = np.flatnonzero(mass > 1e-5)
    return found


def _weigh(
    log_n: Floats, log_y: Floats, threshold: float, scales: Floats, which: Numbers
) -> tuple[Posterior, float]:
    """The posterior on scales x shapes, and the step of ln K."""
    log_scale, shape = np.repeat(scales, len(which)), np.tile(which, len(scales))
    off, far = _misfit(log_n, log_y, threshold, scales, which)

    # A cheap posterior first, Gaussian with noise about 1 % (two degrees of freedom) integrated out: most
    # hypotheses are far too unlikely to be weighed with every noise.
    variance = 1e-4 + far
    squares = (off / variance).sum(axis=0)
    fit = 0.5 * (2 + len(off)) * np.log(2 + squares) + 0.5 * np.log(variance).sum(axis=0)
    rough = shapes().log_prior[shape] - fit
    keep = rough > rough.max() - KEEP
    log_scale, shape, off, far = log_scale[keep], shape[keep], off[:, keep], far[:, keep]

    joint = np.empty((len(NOISE), len(shape)))
    for i, noise in enumerate(NOISE):
        variance = noise**2 + far
        tails = np.log1p(off / (FREEDOM * variance)).sum(axis=0)
        joint[i] = LOG_NOISE_PRIOR[i] - 0.5 * np.log(variance).sum(axis=0) - 0.5 * (FREEDOM + 1) * tails
    joint += shapes().log_prior[shape]
    joint = np.exp(joint - joint.max())
    joint /= joint.sum()
    found = Posterior(
        threshold=threshold,
        log_scale=log_scale,
        shape=shape,
        weight=joint.sum(axis=0),
        noise=float(joint.sum(axis=1) @ NOISE),
    )
    return found, float(scales[1] - scales[0])


def _misfit(
    log_n: Floats, log_y: Floats, threshold: float, scales: Floats, which: Numbers
) -> tuple[Floats, Floats]:
    """Squared residual and discrepancy variance, each of shape (runs, scales x shapes)."""
    ratio = crossing_ratios(threshold)[which]
    knee = (scales[:, None] + np.where(ratio > LOWEST, ratio, 0.0)).ravel()
    off, far = np.empty((len(log_n), len(knee))), np.empty((len(log_n), len(knee)))
    counts, index = np.unique(log_n, return_inverse=True)
    for i, n in enumerate(counts):
        curve = grid_log_efficiency(float(n), scales, which)
        away = (DISCREPANCY * np.minimum(np.abs(n - knee), 2.0)) ** 2
        for run in np.flatnonzero(index == i):
            off[run] = (log_y[run] - curve) ** 2
            far[run] = away
    return off, far
