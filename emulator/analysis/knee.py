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
from emulator.analysis.search import BEYOND_DOUBT, CERTAIN, Belief, KneeSearch, believe, observe
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
    """True when some pair of counts shows a limit: throughput rises by less than a quarter of the rise of N.

    In logarithms, where N rises by more than four times the relative standard `deviation` of one
    run, so that variation from run to run does not hide a proportional rise.
    """
    count, mean = means(ranks, efficiency)
    rate = np.log(np.maximum(count * mean, 1e-12))
    grown = np.log(count[None, :] / count[:, None])
    risen = rate[None, :] - rate[:, None]
    return bool(((grown > max(0.05, 4 * deviation)) & (risen < grown / 4)).any())


def find_knee(points: Sequence[Point], threshold: float = 0.9) -> Knee:
    """The knee of a sweep. Repeats of a count are several points, in their order.

    N_AU and N* are medians of the posterior (`emulator.analysis.posterior`), `interval` is its 95 %
    interval, so it stands for one run per count too. What kind of answer the runs carry is decided by
    `_kind`, and only a `knee` has numbers; N* also has none when no point is saturated (`saturated`), and is
    never above what a point measured. Points that say nothing about the storage are left out
    (`emulator.analysis.evidence`). A workload without compute has no knee.
    Raises ValueError when `points` is empty.
    """
    if not points:
        raise ValueError("no point to find a knee in")
    if not all(0 < point.ideal_samples_per_second < math.inf for point in points):
        return NO_KNEE
    used, client_limited = usable(points), [point for point in points if limited_by_client(point)]
    if not used:
        fed = max((point.ranks for point in client_limited if point.x_ideal >= threshold), default=None)
        return replace(NO_KNEE, kind="at-least", fed=fed)
    runs = [observe(point) for point in used]
    ranks, efficiency = [run.ranks for run in runs], [run.efficiency for run in runs]
    belief = believe(runs, KneeSearch(maximum=max(ranks), threshold=threshold))
    kind, fed, starved = _kind(belief, ranks, client_limited, threshold)
    knee = replace(NO_KNEE, kind=kind, fed=fed, starved=starved)
    if kind == "knee":
        low, middle, high = belief.n_au
        n_au = _undenied(middle, fed, starved)
        knee = replace(knee, n_au=n_au, interval=(min(low, n_au), max(high, n_au)))
    elif kind == "not-identifiable" and fed and starved:
        knee = replace(knee, interval=(float(fed), float(starved)))
    if kind in ("knee", "below") and saturated(ranks, efficiency, belief.deviation):
        count, mean = means(ranks, efficiency)
        knee = replace(knee, n_saturation=min(belief.n_saturation, float((count * mean).max())))
    return knee


def _undenied(n_au: float, fed: int | None, starved: int | None) -> float:
    """Return the knee nearest to `n_au` that stands for `fed` accelerators or more, below `starved`."""
    n_au = max(n_au, fed or 0)
    return n_au if starved is None else min(n_au, max(0.99 * starved, starved - 0.51))


def asked_rate(points: Sequence[Point]) -> float:
    """Bytes/s that one process asks for when it never waits, with the mean sample of these points."""
    size = sum(point.bytes for point in points) / max(1, sum(point.samples for point in points))
    return points[0].ideal_samples_per_second / points[0].ranks * size


def _kind(
    belief: Belief, ranks: Sequence[int], client_limited: Sequence[Point], threshold: float
) -> tuple[KneeKind, int | None, int | None]:
    """The kind of answer that the runs carry, and the counts between which they show the knee to be.

    What `client_limited` points were fed, the storage feeds, unless other runs of the count decide; that they
    starved says nothing. The fit is held against the counts that were run: where it denies what they show
    again and again, or leaves more than WIDE open, there is no number.
    """
    lifted = [p.ranks for p in client_limited if p.x_ideal >= threshold and p.ranks not in ranks]
    denied, fed, starved = _bounds(belief, lifted)
    if not denied and belief.n_au[2] < min(ranks) and not lifted:
        return "below", None, min(ranks)
    kind: KneeKind = "not-identifiable" if denied else _kind_of_interval(belief, max(ranks))
    if kind == "beyond":
        fed = max([*ranks, *lifted])
    largest_fed = max([fed or 0, *lifted])
    starving = [point.ranks for point in client_limited if point.x_ideal < threshold]
    if starved is None and kind != "knee" and max(starving, default=0) > largest_fed:
        return "at-least", largest_fed or None, None
    return kind, fed, starved


def _bounds(belief: Belief, lifted: Sequence[int]) -> tuple[bool, int | None, int | None]:
    """Whether runs deny the fit; the largest count that they show to be fed, the smallest beyond to starve.

    `lifted` are counts that were fed though the client held them back.
    """
    low, _, high = belief.n_au
    # A single run may have stalled; what several runs deny is no accident.
    surely_fed, surely_starved = _shown(belief, BEYOND_DOUBT)
    gap, top = min(surely_starved, default=math.inf), max([*surely_fed, *lifted], default=0)
    denied = gap < top or top > high * 1.01 or gap < low * 0.99
    if denied:
        low, high = 0.0, math.inf
    fed_counts, starved_counts = _shown(belief, CERTAIN)
    fed = max((n for n in [*fed_counts, *lifted] if n < gap and n <= high), default=None)
    above = max(top, fed or 0)
    return denied, fed, min((n for n in starved_counts if n > above and n >= low), default=None)


def _shown(belief: Belief, sure: float) -> tuple[list[int], list[int]]:
    """The counts whose own runs show with probability `sure` that they are fed, and that they starve."""
    crossings = belief.posterior.crossings
    assert crossings is not None, "there are runs"
    counts = np.rint(np.exp(crossings.log_counts)).astype(int)
    return counts[crossings.fed >= sure].tolist(), counts[1 - crossings.fed >= sure].tolist()


def _kind_of_interval(belief: Belief, largest: int) -> KneeKind:
    """The kind of answer of an interval that no count denies."""
    low, middle, high = belief.n_au
    if low >= largest or (middle >= largest and high / low > NARROW):
        return "beyond"
    return "knee" if high / low <= WIDE else "not-identifiable"


def whole_accelerators(count: float) -> int:
    """The accelerators that a knee at `count` stands for. 4.98 is 5: the curve is known no better."""
    nearest = round(count)
    return nearest if nearest <= 1.005 * count else math.floor(count)
