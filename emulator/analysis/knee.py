"""The knee of a sweep: N_AU, onset, saturation, peak, and a sentence for people.

Efficiency is throughput / (N x ideal rate of one process). The ideal rate is known (batch size / step time);
a measured low-count baseline in its place biases the knee by its own noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.flags import invalid, usable
from emulator.analysis.search import Belief, Search, believe, observe
from emulator.record.result import Knee, Point
from emulator.units import show_rate

Floats = NDArray[np.float64]
Where = Literal["inside", "below", "beyond"]

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


def means(ranks: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Distinct counts in rising order, the mean of `values` at each, and the number of runs of each."""
    count, index = np.unique(np.asarray(ranks, dtype=np.float64), return_inverse=True)
    runs = np.bincount(index).astype(np.float64)
    total = np.bincount(index, weights=np.asarray(values, dtype=np.float64))
    return count, total / runs, runs


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
    used = usable(points)
    if not all(0 < point.ideal_samples_per_second < math.inf for point in used):
        return NO_KNEE
    runs = [observe(point) for point in used]
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
        peak_samples_per_second=peak(ranks, [point.samples_per_second for point in used], now.noise),
        interval=(now.n_au[0], now.n_au[2]) if where == "inside" else None,
        sentence=_sentence(used, points, now, limit, threshold, subject),
    )


def _where(count: float, ranks: Sequence[int]) -> Where:
    """Whether `count` lies among the counts that were run; a knee at 1.0 may come out a hair below."""
    if count < min(ranks) * 0.995:
        return "below"
    return "beyond" if count > max(ranks) else "inside"


def _sentence(
    used: Sequence[Point],
    every: Sequence[Point],
    now: Belief,
    limit: float | None,
    threshold: float,
    subject: str,
) -> str:
    """What the knee says of `subject`, and which of `every` run was flagged or not `used`."""

    def accelerators(count: int) -> str:
        return "1 accelerator" if count == 1 else f"{count} accelerators"

    def count(value: float) -> str:
        return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"

    def delivered(point: Point) -> str:
        share = point.samples_per_second / point.ideal_samples_per_second
        return f"{100 * share:.3g} % of ideal throughput there"

    low, middle, high = now.n_au
    least, most = (pick(used, key=lambda point: point.ranks) for pick in (min, max))
    where = _where(middle, [point.ranks for point in used])
    demand = f"{100 * threshold:.3g} % of their demand"
    if where == "beyond":
        subject = subject[0].lower() + subject[1:]
        text = f"No knee up to {most.ranks} processes: {subject} still delivers {delivered(most)}"
    elif where == "below":
        text = f"{subject} does not feed {accelerators(least.ranks)} at {demand}: {delivered(least)}"
    else:
        whole = math.floor(1.005 * middle)  # 4.98 is 5: the curve is known no better
        interval = f"knee at {count(middle)}, 95 % interval {count(low)} to {count(high)}"
        text = f"{subject} feeds {accelerators(whole)} at {demand} ({interval})"
    if limit is not None:
        size = sum(point.bytes for point in used) / max(1, sum(point.samples for point in used))
        each = used[0].ideal_samples_per_second / used[0].ranks
        text += f"; throughput saturates at {show_rate(limit * each * size)}"
    raised = [point for point in used if point.flags]
    if raised:
        text += f"; flagged runs: {len(raised)} of {len(every)} ({_names(raised)})"
    if len(used) < len(every):
        dropped = [point for point in every if invalid(point)]
        text += f"; runs left out: {len(dropped)} of {len(every)} ({_names(dropped)})"
    return f"{text}."


def _names(points: Sequence[Point]) -> str:
    return ", ".join(sorted({flag.name for point in points for flag in point.flags}))
