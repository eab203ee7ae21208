"""The knee of a sweep: N_AU, onset, saturation, peak. Pure functions of counts and efficiencies.

efficiency = throughput / (N x ideal rate of one process). The ideal rate is known (batch size / step time);
a measured low-count baseline in its place biases the knee by its own noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from emulator.analysis.isotonic import Crossing, crossing, means
from emulator.record.result import Knee, Point
from emulator.units import show_rate

ONSET = 0.98
"""Efficiency at which throughput per process visibly begins to fall."""
PRIOR_NOISE = 0.01
"""Relative standard deviation of one run when no count was repeated (published runs: p90 1.2 %)."""


def n_au(ranks: Sequence[float], efficiency: Sequence[float], threshold: float = 0.9) -> Crossing:
    """N_AU: the largest N with throughput >= threshold x ideal, interpolated along ln N (see `crossing`)."""
    return crossing(ranks, efficiency, threshold)


def n_98(ranks: Sequence[float], efficiency: Sequence[float]) -> Crossing:
    """N_98, the onset: the largest N with throughput >= 98 % of ideal, interpolated along ln N."""
    return crossing(ranks, efficiency, ONSET)


def run_noise(ranks: Sequence[float], values: Sequence[float]) -> float:
    """Relative standard deviation of one run, pooled over the counts that were run more than once.

    sqrt(sum of squared deviations of ln value from the mean of its count / degrees of freedom), with
    two degrees of freedom of PRIOR_NOISE added, so that few repeats that happen to agree claim no precision.
    """
    logs = np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-12))
    count, mean, runs = means(ranks, logs.tolist())
    off = logs - mean[np.searchsorted(count, np.asarray(ranks, dtype=np.float64))]
    freedom = float(runs.sum()) - len(runs)
    return math.sqrt((float(off @ off) + 2 * PRIOR_NOISE**2) / (freedom + 2))


def n_saturation(ranks: Sequence[float], efficiency: Sequence[float], noise: float) -> float | None:
    """The saturation knee N* = C / r, or None when no point is saturated.

    With X = N x efficiency (throughput in units of one process's demand r), a pair of counts a < b shows
    saturation when X rises by less than a quarter of the rise of N, in logarithms, and N rises by more
    than the noise (relative standard deviation of one run) could hide.
    C / r is the mean X of the counts within the noise of the largest X.
    """
    count, mean, runs = means(ranks, efficiency)
    if not _saturated(count, count * mean, noise):
        return None
    rate = count * mean
    near = rate >= rate.max() * (1 - max(0.02, 2 * noise))
    return float(np.average(rate[near], weights=runs[near]))


def _saturated(count: np.ndarray, rate: np.ndarray, noise: float) -> bool:
    grown = np.log(count[None, :] / count[:, None])
    risen = np.log(np.maximum(rate, 1e-12)[None, :] / np.maximum(rate, 1e-12)[:, None])
    return bool(((grown > max(0.05, 4 * noise)) & (risen < grown / 4)).any())


def peak(ranks: Sequence[float], throughput: Sequence[float], noise: float) -> float | None:
    """Maximum mean throughput, only when it measurably falls at a larger count; otherwise None.

    Falls: a larger count's mean is lower by 2 % and by three standard errors of the difference,
    3 x noise x sqrt(1/n_a + 1/n_b). Three, not two: the maximum of several equal means
    is itself picked for its luck. `noise` is the relative standard deviation of one run.
    """
    _, mean, runs = means(ranks, throughput)
    top = int(np.argmax(mean))
    fall = 1 - mean[top + 1 :] / mean[top]
    needed = np.maximum(0.02, 3 * noise * np.sqrt(1 / runs[top] + 1 / runs[top + 1 :]))
    return float(mean[top]) if bool((fall > needed).any()) else None


def find_knee(points: Sequence[Point], threshold: float = 0.9, subject: str = "This storage") -> Knee:
    """The knee of a sweep, with a sentence for people. Repeats of a count are several points.

    Raises ValueError when `points` is empty.
    """
    ranks = [point.ranks for point in points]
    efficiency = [point.samples_per_second / point.ideal_samples_per_second for point in points]
    noise = run_noise(ranks, efficiency)
    at = n_au(ranks, efficiency, threshold)
    limit = n_saturation(ranks, efficiency, noise)
    return Knee(
        n_au=at.ranks,
        n_98=n_98(ranks, efficiency).ranks,
        n_saturation=limit,
        peak_samples_per_second=peak(ranks, [point.samples_per_second for point in points], noise),
        interval=None,
        sentence=_sentence(points, at, limit, threshold, subject),
    )


def _sentence(
    points: Sequence[Point], at: Crossing, limit: float | None, threshold: float, subject: str
) -> str:
    most = max(points, key=lambda point: point.ranks)
    if at.where == "beyond":
        start = (
            f"No knee up to {most.ranks} processes: the largest count reaches "
            f"{most.samples_per_second / most.ideal_samples_per_second:.1%} of ideal throughput"
        )
    elif at.ranks is None:
        least = min(points, key=lambda point: point.ranks)
        start = f"{subject} does not feed {least.ranks} accelerators at {threshold:.0%} of their demand"
    else:
        start = (
            f"{subject} feeds {math.floor(at.ranks + 1e-9)} accelerators (knee at {at.ranks:.3g}; no "
            f"interval) at {threshold:.0%} of their demand"
        )
    if limit is None:
        return start + "."
    size = sum(point.bytes for point in points) / max(1, sum(point.samples for point in points))
    one = most.ideal_samples_per_second / most.ranks
    return f"{start}; throughput saturates at {show_rate(limit * one * size)}."
