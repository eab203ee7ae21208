"""The count at which efficiency falls through a threshold, without a curve: fed below, starved above.

The only assumption is that there is one crossing. The runs of a count tell how probable it is that the count
is fed (efficiency above the threshold) or starves. The probability that the knee lies between two counts is
the probability that all counts below are fed and all counts above starve.

This is probabilistic bisection (Horstein 1963), averaged over the unknown efficiencies. It needs more runs
than a curve that fits, and is right where no curve fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emulator.analysis.families import Indices
from emulator.analysis.parts import Floats
from emulator.analysis.variation import DEVIATIONS, LOG_DEVIATION_PRIOR, log_density

KNEES_A_CELL = 24
"""Number of knees that represent the range between two neighbouring counts."""


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
    """Probability of each to be fed, by its own runs alone."""

    def curves(self, log_counts: Floats) -> Floats:
        """ln efficiency, shape (counts, knees): steps from the level of one count to that of the next."""
        # A fed count has the level of the next smaller count that was run, a starved one of the next larger.
        before = np.searchsorted(self.log_counts, log_counts + 1e-9)
        after = np.minimum(np.searchsorted(self.log_counts, log_counts - 1e-9), len(self.log_counts) - 1)
        level = np.concatenate([[0.0], self.level])
        beyond = np.maximum(0.0, log_counts - self.log_counts[-1])
        line = math.log(self.threshold)
        fed = np.maximum(level[before], line)[:, None]
        starved = np.minimum(self.level[after] - beyond, line - 0.02)[:, None]
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
    """The knees between `bounds` (ln N) after one run or more. Before any run all ln N are equally likely.

    `log_n` and `log_y` are ln of the count and of the efficiency of each run. `loose` is the variance of each
    run besides run-to-run variation. `drift` is the relative standard deviation of an error that all runs of
    one count share. Deterministic.
    """
    counts, count_of_run = np.unique(log_n, return_inverse=True)
    log_fed, log_starved = _log_sides(log_y, count_of_run, loose, math.log(threshold), drift)

    # Cell j lies between counts j - 1 and j. If the knee is there, the counts below j are fed.
    cell_log = np.zeros((len(counts) + 1, len(DEVIATIONS)))
    cell_log[1:] += np.cumsum(log_fed, axis=0)
    cell_log[:-1] += np.cumsum(log_starved[::-1], axis=0)[::-1]
    edges = np.clip(np.concatenate([[bounds[0]], counts, [bounds[1]]]), *bounds)
    cell_prior = np.diff(edges) / (bounds[1] - bounds[0])
    joint = cell_log + LOG_DEVIATION_PRIOR + np.log(np.maximum(cell_prior, 1e-300))[:, None]
    log_evidence = float(_log_sum(joint.ravel(), 0))
    cell_weight = np.exp(joint - log_evidence).sum(axis=1)

    # Each cell with some weight is represented by a few knees, spread evenly along ln N.
    likely = np.flatnonzero(cell_weight > 1e-6)
    place = (np.arange(KNEES_A_CELL) + 0.5) / KNEES_A_CELL
    knees = edges[likely, None] + (edges[likely + 1] - edges[likely])[:, None] * place
    weight = np.repeat(cell_weight[likely] / KNEES_A_CELL, KNEES_A_CELL)

    median = np.array([np.median(log_y[count_of_run == i]) for i in range(len(counts))])
    runs_of_count = np.bincount(count_of_run).astype(np.float64)
    # Each count is judged by its own runs; only the deviation of a run is learned from all of them.
    log_deviation = LOG_DEVIATION_PRIOR + np.logaddexp(log_fed, log_starved).sum(axis=0)
    deviation_weight = np.exp(log_deviation - _log_sum(log_deviation, 0))
    probability_fed = 1 / (1 + np.exp(np.clip(log_starved - log_fed, -500, 500)))
    return Crossings(
        threshold=threshold,
        log_knee=knees.ravel(),
        weight=weight / weight.sum(),
        log_evidence=log_evidence,
        log_counts=counts,
        level=decreasing(np.minimum(median, 0.0), runs_of_count),
        fed=probability_fed @ deviation_weight,
    )


def _log_sides(
    log_y: Floats, count_of_run: Indices, loose: Floats, log_threshold: float, drift: float
) -> tuple[Floats, Floats]:
    """Log likelihood of the runs of each count if it is fed, and if it starves: (counts, deviations) each."""
    levels, log_prior, is_fed = _levels(log_threshold)
    counts = int(count_of_run.max()) + 1
    variance = (DEVIATIONS**2)[:, None] + loose[:, None, None]
    # Three points of Gauss-Hermite quadrature stand for the normal error that runs of a count share.
    nodes = ((-drift, 1 / 6), (0.0, 2 / 3), (drift, 1 / 6)) if drift else ((0.0, 1.0),)
    by_node = []
    for shared_error, node_weight in nodes:
        error = (log_y[:, None] - levels - math.sqrt(3) * shared_error)[:, None, :]
        log_likelihood = np.zeros((counts, len(DEVIATIONS), len(levels)))
        np.add.at(log_likelihood, count_of_run, log_density(error, variance))
        by_node.append(log_likelihood + math.log(node_weight))
    by_level = _log_sum(np.array(by_node), 0) + log_prior
    return _log_sum(by_level[..., is_fed], -1), _log_sum(by_level[..., ~is_fed], -1)


def _log_sum(values: Floats, axis: int) -> Floats:
    """ln of the sum of exp along an axis."""
    most = values.max(axis=axis, keepdims=True)
    return np.asarray(np.log(np.exp(values - most).sum(axis=axis)) + most.squeeze(axis))


def _levels(line: float) -> tuple[Floats, Floats, np.ndarray]:
    """The prior of ln efficiency at a count: levels, their log probabilities, and which of them are fed.

    The probabilities of the fed levels sum to 1, and so do those of the starved ones. Half of each is spread
    evenly near the threshold; the other half lies near 1, or far below.
    """
    above = line * (1 - (np.arange(72) + 0.5) / 72)
    fed = 0.5 / -line + 0.5 * np.exp(above / 0.02) / 0.02
    edges = np.concatenate([np.linspace(0, 0.12, 49), np.geomspace(0.12, 7, 60)[1:]])
    down, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    starved = (0.5 / 0.12 * (down < 0.12) + 0.5 * np.exp(-down / 0.7) / 0.7) * width
    levels = np.concatenate([above, line - down])
    prior = np.concatenate([fed / fed.sum(), starved / starved.sum()])
    return levels, np.log(prior), levels >= line
