"""Model-free reading of a curve: means per process count, decreasing regression, crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.flags import invalid, usable
from emulator.analysis.search import Belief, Search, believe, observe
from emulator.record.result import Knee, Point
from emulator.units import show_rate

Floats = NDArray[np.float64]
Where = Literal["inside", "below", "beyond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where efficiency falls through a threshold."""

    ranks: float | None
    """Number of processes, interpolated; None unless `where` is `inside`."""
    where: Where
    """`inside` the counts that were run; `below`: never above; `beyond`: still above at the largest."""


def means(ranks: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Distinct counts in rising order, the mean of `values` at each, and the number of runs of each."""
    count, index = np.unique(np.asarray(ranks, dtype=np.float64), return_inverse=True)
    runs = np.bincount(index).astype(np.float64)
    total = np.bincount(index, weights=np.asarray(values, dtype=np.float64))
    return count, total / runs, runs


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


def crossing(ranks: Sequence[float], efficiency: Sequence[float], threshold: float) -> Crossing:
    """The largest N with efficiency >= threshold, between the counts that were run.

    Means per count, then `decreasing`, then a straight line of ln efficiency along ln N between the last
    count above and the next one below; beyond a hard limit C, efficiency = C / (N r) is that straight line.
    Raises ValueError when there is no run.
    """
    if len(ranks) == 0:
        raise ValueError("no run to find a knee in")
    count, mean, runs = means(ranks, efficiency)
    fit = decreasing(mean, runs)
    above = np.flatnonzero(fit >= threshold)
    if above.size == 0:
        return Crossing(ranks=None, where="below")
    last = int(above[-1])
    if last == len(count) - 1:
        return Crossing(ranks=None, where="beyond")
    low, high = np.log(np.maximum(fit[last : last + 2], 1e-12))
    part = (low - np.log(threshold)) / (low - high)
    return Crossing(ranks=float(count[last] * (count[last + 1] / count[last]) ** part), where="inside")


# ---- The knee of a sweep: N_AU, onset, saturation, peak. Pure functions of counts and efficiencies.
#
# efficiency = throughput / (N x ideal rate of one process). The ideal rate is known (batch size / step time);
# a measured low-count baseline in its place biases the knee by its own noise.


ONSET = 0.98
"""Efficiency at which throughput per process visibly begins to fall."""
PRIOR_NOISE = 0.01
"""Relative standard deviation of one run when no count was repeated (published runs: p90 1.2 %)."""


NO_KNEE = Knee(
    n_au=None,
    n_98=None,
    n_saturation=None,
    peak_samples_per_second=None,
    interval=None,
    sentence="The workload does not compute: without a demand there is no knee, only throughput.",
)


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
    """The saturation knee N* = C / r from the points alone, or None when none is `saturated`.

    C / r is the mean of X = N x efficiency (throughput in units of one process's demand r) over the counts
    whose X is within the noise of the largest.
    """
    if not saturated(ranks, efficiency, noise):
        return None
    count, mean, runs = means(ranks, efficiency)
    rate = count * mean
    near = rate >= rate.max() * (1 - max(0.02, 2 * noise))
    return float(np.average(rate[near], weights=runs[near]))


def saturated(ranks: Sequence[float], efficiency: Sequence[float], noise: float) -> bool:
    """Whether some pair of counts shows a limit: throughput rises by less than a quarter of the rise of N.

    In logarithms, where N rises by more than four times the relative standard deviation `noise` of one run,
    so that noise alone does not hide a proportional rise.
    """
    count, mean, _ = means(ranks, efficiency)
    rate = np.log(np.maximum(count * mean, 1e-12))
    grown = np.log(count[None, :] / count[:, None])
    risen = rate[None, :] - rate[:, None]
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

    N_AU, N_98 and N* are medians of the posterior (`emulator.analysis.posterior`), `interval` is its 95 %
    interval, so it stands for one run per count too. A number is None when it lies outside the counts that
    were run; N* also when no point is saturated (`saturated`). Points that a flag invalidates are left out
    (`emulator.analysis.flags.usable`), and the sentence says so. A workload without compute has no knee.
    Raises ValueError when `points` is empty.
    """
    if not points:
        raise ValueError("no point to find a knee in")
    every, points = points, usable(points)
    if not all(0 < point.ideal_samples_per_second < math.inf for point in points):
        return NO_KNEE
    runs = [observe(point) for point in points]
    ranks = [run.ranks for run in runs]
    now = believe(runs, Search(maximum=max(ranks), threshold=threshold))
    onset = now.posterior.quantiles(now.posterior.log_crossing(ONSET), (0.5,))[0]
    flat = saturated(ranks, [run.efficiency for run in runs], now.noise)
    limit = now.n_saturation[1] if flat else None
    where = _where(now.n_au[1], ranks)
    return Knee(
        n_au=now.n_au[1] if where == "inside" else None,
        n_98=onset if _where(onset, ranks) == "inside" else None,
        n_saturation=limit,
        peak_samples_per_second=peak(ranks, [point.samples_per_second for point in points], now.noise),
        interval=(now.n_au[0], now.n_au[2]) if where == "inside" else None,
        sentence=_sentence(points, now, limit, threshold, subject) + _flagged(points, every) + ".",
    )


def _where(count: float, ranks: Sequence[int]) -> Where:
    """Whether `count` lies among the counts that were run; a knee at 1.0 may come out a hair below."""
    if count < min(ranks) * 0.995:
        return "below"
    return "beyond" if count > max(ranks) else "inside"


def _sentence(
    points: Sequence[Point], now: Belief, limit: float | None, threshold: float, subject: str
) -> str:
    low, middle, high = now.n_au
    least, most = (pick(points, key=lambda point: point.ranks) for pick in (min, max))
    where = _where(middle, [point.ranks for point in points])
    if where == "beyond":
        start = (
            f"No knee up to {most.ranks} processes: {subject[0].lower()}{subject[1:]} still delivers "
            f"{_percent(most.samples_per_second / most.ideal_samples_per_second)} of ideal throughput there"
        )
    elif where == "below":
        start = (
            f"{subject} does not feed {_accelerators(least.ranks)} at {_percent(threshold)} of their demand: "
            f"{_percent(least.samples_per_second / least.ideal_samples_per_second)} of ideal throughput there"
        )
    else:
        whole = math.floor(1.005 * middle)  # 4.98 is 5: the curve is known no better
        start = (
            f"{subject} feeds {_accelerators(whole)} at {_percent(threshold)} of their demand "
            f"(knee at {_count(middle)}, 95 % interval {_count(low)} to {_count(high)})"
        )
    return start + _limit(points, limit)


def _limit(points: Sequence[Point], limit: float | None) -> str:
    if limit is None:
        return ""
    size = sum(point.bytes for point in points) / max(1, sum(point.samples for point in points))
    one = points[0].ideal_samples_per_second / points[0].ranks
    return f"; throughput saturates at {show_rate(limit * one * size)}"


def _flagged(used: Sequence[Point], every: Sequence[Point]) -> str:
    """Which flags the runs that were `used` carry, and how many of `every` run were not used."""
    text = ""
    raised = [point for point in used if point.flags]
    if raised:
        text += f"; flagged runs: {len(raised)} of {len(every)} ({_names(raised)})"
    if len(used) < len(every):
        dropped = [point for point in every if invalid(point)]
        text += f"; runs left out: {len(dropped)} of {len(every)} ({_names(dropped)})"
    return text


def _names(points: Sequence[Point]) -> str:
    return ", ".join(sorted({flag.name for point in points for flag in point.flags}))


def _accelerators(count: int) -> str:
    return f"{count} accelerator" + ("" if count == 1 else "s")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
