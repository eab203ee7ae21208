"""The count at which efficiency falls through a threshold, without a curve: fed below, starved above.

The only claim is that there is one crossing. With the level at a count unknown, its runs say how likely it is
to be fed (level above the threshold) or starved; a knee between two counts is as likely as all counts below
it are fed and all above it starved. Between the two nothing is known, so the interval narrows only by
bisection: more runs than a curve needs where a curve fits, and right where none does. It is probabilistic
bisection (Horstein 1963) with levels that are averaged over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emulator.analysis.parts import Floats
from emulator.analysis.variation import DEVIATIONS, LOG_DEVIATION_PRIOR, log_density

KNEES_A_CELL = 24
"""Knees that stand for the space between two counts."""
CLEAR = 0.02
"""A curve of this hypothesis is off the threshold by that much, in logarithms, on the starved side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossings:
    """Knees that the runs leave, one per row, and what is known of the counts that were run."""

    threshold: float
    log_knee: Floats
    weight: Floats
    """Sums to 1."""
    log_evidence: float
    """Log probability of the runs under this hypothesis as a whole."""
    log_counts: Floats
    """ln of the counts that were run, rising."""
    level: Floats
    """ln efficiency at each, never rising."""
    fed: Floats
    """Probability that the runs of a count alone give it to be fed."""

    def curves(self, log_counts: Floats) -> Floats:
        """ln efficiency, shape (counts, knees): steps from the level of one count to that of the next."""
        before = np.searchsorted(self.log_counts, log_counts + 1e-9)
        after = np.minimum(np.searchsorted(self.log_counts, log_counts - 1e-9), len(self.log_counts) - 1)
        level = np.concatenate([[0.0], self.level])
        beyond = np.maximum(0.0, log_counts - self.log_counts[-1])
        line = math.log(self.threshold)
        fed = np.maximum(level[before], line)[:, None]
        starved = np.minimum(self.level[after] - beyond, line - CLEAR)[:, None]
        return np.asarray(np.where(log_counts[:, None] <= self.log_knee, fed, starved))

    @property
    def log_n_saturation(self) -> float:
        """ln of the largest throughput that was seen, in units of one process's demand."""
        return float((self.log_counts + self.level).max())


def decreasing(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence nearest to `values` in weighted least squares.

    Pool-adjacent-violators (Ayer, Brunk, Ewing, Reid, Silverman 1955): neighbours that rise are
    replaced by their weighted mean until none does.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, size = float(value), float(weight), 1
        while blocks and blocks[-1][0] < mean:
            last, last_total, last_size = blocks.pop()
            mean = (last * last_total + mean * total) / (last_total + total)
            total += last_total
            size += last_size
        blocks.append((mean, total, size))
    return np.concatenate([np.full(size, mean) for mean, _, size in blocks])


def crossings(
    log_n: Floats,
    log_y: Floats,
    loose: Floats,
    threshold: float,
    bounds: tuple[float, float],
    drift: float = 0.0,
) -> Crossings:
    """The knees that these runs allow between `bounds` (ln N), all equally likely along ln N before.

    `loose` is the variance of each run beyond run-to-run variation, `drift` the relative standard deviation
    that all runs of a count may share. There must be a run. Deterministic.
    """
    counts, index = np.unique(log_n, return_inverse=True)
    levels, log_prior, side = _levels(math.log(threshold))
    nodes = ((0.0, 1.0),) if not drift else ((-drift, 1 / 6), (0.0, 2 / 3), (drift, 1 / 6))
    shares = []
    for e, share in nodes:
        off = (log_y[:, None] - levels - math.sqrt(3) * e)[:, None, :]
        each = np.zeros((len(counts), len(DEVIATIONS), len(levels)))
        np.add.at(each, index, log_density(off, (DEVIATIONS**2)[:, None] + loose[:, None, None]))
        shares.append(each + math.log(share))
    likelihood = _log_sum(np.array(shares), 0) + log_prior
    fed, starved = _log_sum(likelihood[..., side], -1), _log_sum(likelihood[..., ~side], -1)

    # cell j: between count j - 1 and count j
    sums = np.zeros((len(counts) + 1, len(DEVIATIONS)))
    sums[1:] += np.cumsum(fed, axis=0)
    sums[:-1] += np.cumsum(starved[::-1], axis=0)[::-1]
    edges = np.clip(np.concatenate([[bounds[0]], counts, [bounds[1]]]), *bounds)
    size = np.diff(edges) / (bounds[1] - bounds[0])
    joint = sums + LOG_DEVIATION_PRIOR + np.log(np.maximum(size, 1e-300))[:, None]
    evidence = float(_log_sum(joint.ravel(), 0))
    cell = np.exp(joint - evidence).sum(axis=1)
    alone = LOG_DEVIATION_PRIOR + np.logaddexp(fed, starved).sum(axis=0)  # no claim on any other count
    deviation = np.exp(alone - _log_sum(alone, 0))
    keep = np.flatnonzero(cell > 1e-6)
    inner = (np.arange(KNEES_A_CELL) + 0.5) / KNEES_A_CELL
    knees = (edges[keep, None] + (edges[keep + 1] - edges[keep])[:, None] * inner).ravel()
    spread = np.repeat(cell[keep] / KNEES_A_CELL, KNEES_A_CELL)

    middle = np.array([np.median(log_y[index == i]) for i in range(len(counts))])
    runs_each = np.bincount(index).astype(np.float64)
    return Crossings(
        threshold=threshold,
        log_knee=knees,
        weight=spread / spread.sum(),
        log_evidence=evidence,
        log_counts=counts,
        level=decreasing(np.minimum(middle, 0.0), runs_each),
        fed=(1 / (1 + np.exp(np.clip(starved - fed, -500, 500)))) @ deviation,
    )


def _log_sum(values: Floats, axis: int) -> Floats:
    """ln of the sum of exp along an axis."""
    most = values.max(axis=axis, keepdims=True)
    return np.asarray(np.log(np.exp(values - most).sum(axis=axis)) + most.squeeze(axis))


def _levels(line: float) -> tuple[Floats, Floats, np.ndarray]:
    """ln efficiency at a count before it was run: levels, their log probabilities, and which are fed.

    Fed and starved are each certain here; which of them a count is, is the question. Half of each is spread
    evenly near the threshold, the other half near 1 or far below.
    """
    above = line * (1 - (np.arange(72) + 0.5) / 72)
    fed = 0.5 / -line + 0.5 * np.exp(above / 0.02) / 0.02
    edges = np.concatenate([np.linspace(0, 0.12, 49), np.geomspace(0.12, 7, 60)[1:]])
    down, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    starved = (0.5 / 0.12 * (down < 0.12) + 0.5 * np.exp(-down / 0.7) / 0.7) * width
    levels = np.concatenate([above, line - down])
    prior = np.concatenate([fed / fed.sum(), starved / starved.sum()])
    return levels, np.log(prior), levels >= line
