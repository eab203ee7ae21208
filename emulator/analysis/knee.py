"""The knee of a sweep: N_AU and saturation.

Efficiency is throughput / (N x ideal rate of one process). The ideal rate is known (batch size / step time);
a measured low-count baseline in its place biases the knee by its own error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emulator.analysis.evidence import limited_by_client, usable
from emulator.analysis.parts import Floats
from emulator.analysis.search import BEYOND_DOUBT, CERTAIN, Belief, CountRun, KneeSearch, believe, observe
from emulator.config.workload import TrainingSpec
from emulator.record.result import Knee, KneeKind, Point

WIDE = 3.0
"""Ratio of the ends of an interval from which it is no answer."""
NARROW = 1.1
"""Ratio up to which an interval that reaches beyond the largest count is one."""
INCONCLUSIVE: tuple[KneeKind, ...] = ("at-least", "not-identifiable")
"""The kinds that do not say what the storage feeds."""

NO_KNEE = Knee(n_au=None, n_saturation=None, interval=None)


def means(ranks: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats]:
    """Return distinct counts in rising order, and the mean of `values` at each."""
    count, index = np.unique(np.asarray(ranks, dtype=np.float64), return_inverse=True)
    total = np.bincount(index, weights=np.asarray(values, dtype=np.float64))
    return count, total / np.bincount(index)


def saturated(ranks: Sequence[float], efficiency: Sequence[float], deviation: float) -> bool:
    """True if throughput grows by less than a quarter of the growth of N between some pair of counts.

    Growth is in logarithms. N has to grow by more than four times the relative standard `deviation` of one
    run, so that variation from run to run does not hide a proportional rise.
    """
    count, mean = means(ranks, efficiency)
    log_rate = np.log(np.maximum(count * mean, 1e-12))
    growth_of_count = np.log(count[None, :] / count[:, None])
    growth_of_rate = log_rate[None, :] - log_rate[:, None]
    apart = growth_of_count > max(0.05, 4 * deviation)
    return bool((apart & (growth_of_rate < growth_of_count / 4)).any())


def find_knee(points: Sequence[Point], threshold: float = 0.9) -> Knee:
    """The knee of a sweep. Repeats of a count are several points, in their order.

    N_AU and N* are medians of the posterior (`emulator.analysis.posterior`), and `interval` is its 95 %
    interval, also with one run per count. Only the kind `knee` has numbers. N* has none where no point is
    saturated (`saturated`), and is never above what a point measured. Points that say nothing about the
    storage are left out (`emulator.analysis.evidence`). A workload without compute has no knee.
    Raises ValueError when `points` is empty, SpecError for a threshold of 1 or more.
    """
    TrainingSpec(au_threshold=threshold)  # refuses what is no threshold
    if not points:
        raise ValueError("no point to find a knee in")
    if not all(0 < point.ideal_samples_per_second < math.inf for point in points):
        return NO_KNEE
    used, client_limited = usable(points), list(filter(limited_by_client, points))
    if not used:
        return replace(NO_KNEE, kind="at-least", fed=max(_fed(client_limited, threshold), default=None))
    runs = [observe(point) for point in used]
    ranks, efficiency = [run.ranks for run in runs], [run.efficiency for run in runs]
    belief = believe(runs, KneeSearch(maximum=max(ranks), threshold=threshold))
    knee = _with_kind(belief, runs, client_limited, threshold)
    if knee.kind == "knee":
        knee = _with_number(knee, belief)
    elif knee.kind == "not-identifiable" and knee.fed and knee.starved:
        knee = replace(knee, interval=(float(knee.fed), float(knee.starved)))
    if knee.kind in ("knee", "below") and saturated(ranks, efficiency, belief.deviation):
        count, mean = means(ranks, efficiency)
        knee = replace(knee, n_saturation=min(belief.n_saturation, float((count * mean).max())))
    return knee


def _fed(points: Sequence[Point], threshold: float) -> list[int]:
    """The counts of the points that were fed."""
    return [point.ranks for point in points if point.x_ideal >= threshold]


def _with_number(knee: Knee, belief: Belief) -> Knee:
    """`knee` with N_AU and its interval. N_AU stands for `fed` accelerators or more, and below `starved`."""
    low, middle, high = belief.n_au
    n_au = max(middle, knee.fed or 0)
    if knee.starved is not None:
        n_au = min(n_au, max(0.99 * knee.starved, knee.starved - 0.51))
    return replace(knee, n_au=n_au, interval=(min(low, n_au), max(high, n_au)))


def asked_rate(points: Sequence[Point]) -> float:
    """Bytes/s that one process asks for when it never waits, with the mean sample of these points."""
    size = sum(point.bytes for point in points) / max(1, sum(point.samples for point in points))
    return points[0].ideal_samples_per_second / points[0].ranks * size


def demand_of_one(points: Sequence[Point]) -> float:
    """Bytes/s that one process asks for, from the points that the knee is made from."""
    return asked_rate(usable(points) or points)


def _with_kind(
    belief: Belief, runs: Sequence[CountRun], client_limited: Sequence[Point], threshold: float
) -> Knee:
    """A knee without numbers: its kind, and the counts between which the runs show it to be.

    `runs` are those that are used. Of the `client_limited` points, those that were fed show
    that the storage feeds as many, unless other runs of their count decide. Those that starved show nothing.
    """
    ranks = [run.ranks for run in runs]
    fed_by_client = [count for count in _fed(client_limited, threshold) if count not in ranks]
    denied, fed, starved = _bounds(belief, fed_by_client)
    if not denied and belief.n_au[2] < min(ranks) and not fed_by_client:
        return replace(NO_KNEE, kind="below", starved=min(ranks))
    kind: KneeKind = "not-identifiable" if denied else _kind_of_interval(belief, runs, threshold)
    if kind == "beyond":
        fed = max([*ranks, *fed_by_client])
    elif not denied and kind == "not-identifiable":  # but the interval has a lower end
        fed = max(fed or 0, math.ceil(belief.n_au[0]) - 1) or None
    largest_fed = max([fed or 0, *fed_by_client])
    starved_by_client = max((p.ranks for p in client_limited if p.x_ideal < threshold), default=0)
    if starved is None and kind != "knee" and starved_by_client > largest_fed:
        return replace(NO_KNEE, kind="at-least", fed=largest_fed or None)
    return replace(NO_KNEE, kind=kind, fed=fed, starved=starved)


def _bounds(belief: Belief, fed_by_client: Sequence[int]) -> tuple[bool, int | None, int | None]:
    """Whether repeated runs contradict the fit, and the counts between which the runs show the knee to be.

    The counts are the largest that was fed and the smallest above it that starved; None where there is none.
    `fed_by_client` are counts that were fed although the client was late.
    """
    low, _, high = belief.n_au
    # A single run may have stalled, so only what several runs show contradicts the fit.
    surely_fed, surely_starved = _shown(belief, BEYOND_DOUBT)
    lowest_starved = min(surely_starved, default=math.inf)
    highest_fed = max([*surely_fed, *fed_by_client], default=0)
    contradictory = lowest_starved < highest_fed
    denied = contradictory or highest_fed > high * 1.01 or lowest_starved < low * 0.99
    if denied:
        low, high = 0.0, math.inf
    fed_counts, starved_counts = _shown(belief, CERTAIN)
    fed_counts += fed_by_client
    fed = max((count for count in fed_counts if count < lowest_starved and count <= high), default=None)
    above = max(highest_fed, fed or 0)
    starved = min((count for count in starved_counts if count > above and count >= low), default=None)
    return denied, fed, starved


def _shown(belief: Belief, sure: float) -> tuple[list[int], list[int]]:
    """The counts whose own runs show with probability `sure` that they are fed, and that they starve."""
    crossings = belief.posterior.crossings
    assert crossings is not None, "there are runs"
    counts = np.rint(np.exp(crossings.log_counts)).astype(int)
    return counts[crossings.fed >= sure].tolist(), counts[1 - crossings.fed >= sure].tolist()


def _kind_of_interval(belief: Belief, runs: Sequence[CountRun], threshold: float) -> KneeKind:
    """The kind of answer of an interval that no count denies."""
    low, middle, high = belief.n_au
    largest = max(run.ranks for run in runs)
    # What the client lost may explain a run below the threshold, but does not show that its count is fed.
    is_fed = np.mean([run.efficiency for run in runs if run.ranks == largest]) >= threshold
    if low >= largest or (is_fed and middle >= largest and high / low > NARROW):
        return "beyond"
    return "knee" if high / low <= WIDE else "not-identifiable"


def whole_accelerators(count: float) -> int:
    """The accelerators that a knee at `count` stands for. 4.98 is 5: the curve is known no better."""
    nearest = round(count)
    return nearest if nearest <= 1.005 * count else math.floor(count)
