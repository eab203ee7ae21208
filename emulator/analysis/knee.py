"""The knee of a sweep: N_AU, saturation, and a sentence for people.

Efficiency is throughput / (N x ideal rate of one process). The ideal rate is known (batch size / step time);
a measured low-count baseline in its place biases the knee by its own error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import held, left_out, usable
from emulator.analysis.parts import Floats
from emulator.analysis.search import BEYOND_DOUBT, CERTAIN, Belief, KneeSearch, believe, observe
from emulator.record.result import Knee, KneeKind, Point
from emulator.units import counted, show_rate

WIDE = 3.0
"""Ratio of the ends of an interval from which it is no answer."""
NARROW = 1.1
"""Ratio up to which an interval that reaches beyond the largest count is one."""
INCONCLUSIVE: tuple[KneeKind, ...] = ("at-least", "not-identifiable")
"""The kinds that do not say what the storage feeds."""

NO_KNEE = Knee(
    n_au=None,
    n_saturation=None,
    interval=None,
    sentence="The workload does not compute: without a demand there is no knee, only throughput.",
)


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
    """The knee of a sweep, with a sentence for people. Repeats of a count are several points, in their order.

    N_AU and N* are medians of the posterior (`emulator.analysis.posterior`), `interval` is its 95 %
    interval, so it stands for one run per count too. What kind of answer the runs carry is decided by
    `_kind`, and only a `knee` has numbers; N* also has none when no point is saturated (`saturated`), and is
    never above what a point measured. Points that say nothing about the storage are left out
    (`emulator.analysis.evidence`), and the sentence says so. A workload without compute has no knee.
    Raises ValueError when `points` is empty.
    """
    if not points:
        raise ValueError("no point to find a knee in")
    if not all(0 < point.ideal_samples_per_second < math.inf for point in points):
        return NO_KNEE
    used, behind = usable(points), [point for point in points if held(point)]
    if not used:
        at_least = max((point.ranks for point in behind if _share(point) >= threshold), default=None)
        found = replace(NO_KNEE, kind="at-least", fed=at_least)
        return replace(found, sentence=_sentence(found, points, threshold))
    runs = [observe(point) for point in used]
    ranks = [run.ranks for run in runs]
    now = believe(runs, KneeSearch(maximum=max(ranks), threshold=threshold))
    kind, fed, starved = _kind(now, ranks, behind, threshold)
    low, n_au, high = now.n_au
    n_au = _undenied(n_au, fed, starved)
    known = kind == "knee"
    count, mean = means(ranks, [run.efficiency for run in runs])
    flat = kind in ("knee", "below") and saturated(ranks, [run.efficiency for run in runs], now.deviation)
    between = (float(fed), float(starved)) if kind == "not-identifiable" and fed and starved else None
    found = Knee(
        kind=kind,
        n_au=n_au if known else None,
        n_saturation=min(now.n_saturation, float((count * mean).max())) if flat else None,
        interval=(min(low, n_au), max(high, n_au)) if known else between,
        fed=fed,
        starved=starved,
        sentence="",
    )
    return replace(found, sentence=_sentence(found, points, threshold))


def _undenied(n_au: float, fed: int | None, starved: int | None) -> float:
    """Return the knee nearest to `n_au` that stands for `fed` accelerators or more, below `starved`."""
    n_au = max(n_au, fed or 0)
    return n_au if starved is None else min(n_au, max(0.99 * starved, starved - 0.51))


def asked(points: Sequence[Point]) -> float:
    """Bytes/s that one process asks for when it never waits, with the mean sample of these points."""
    size = sum(point.bytes for point in points) / max(1, sum(point.samples for point in points))
    return points[0].ideal_samples_per_second / points[0].ranks * size


def _share(point: Point) -> float:
    """Throughput / ideal."""
    return point.samples_per_second / point.ideal_samples_per_second


def _kind(
    now: Belief, ranks: Sequence[int], behind: Sequence[Point], threshold: float
) -> tuple[KneeKind, int | None, int | None]:
    """The kind of answer that the runs carry, and the counts between which they show the knee to be.

    `behind` are the points that the client held back: what they were fed, the storage feeds, unless other
    runs of the count decide; that they starved says nothing. The fit is held against the counts that were
    run: where it denies what they show again and again, or leaves more than WIDE open, there is no number.
    """
    bare = now.posterior.crossings
    assert bare is not None, "there are runs"
    counts = np.rint(np.exp(bare.log_counts)).astype(int)
    lifted = [p.ranks for p in behind if _share(p) >= threshold and p.ranks not in ranks]

    def those(sure: float, is_fed: bool) -> list[int]:
        probability = bare.fed if is_fed else 1 - bare.fed
        return [*counts[probability >= sure].tolist(), *(lifted if is_fed else ())]

    # A single run may have stalled; what several runs deny is no accident.
    gap, top = min(those(BEYOND_DOUBT, False), default=math.inf), max(those(BEYOND_DOUBT, True), default=0)
    low, middle, high = now.n_au
    least, most = min(ranks), max(ranks)
    denied = gap < top or top > high * 1.01 or gap < low * 0.99
    fed = max((n for n in those(CERTAIN, True) if n < gap and (denied or n <= high)), default=None)
    above = max(top, fed or 0)
    starved = min((n for n in those(CERTAIN, False) if n > above and (denied or n >= low)), default=None)
    if denied:
        kind: KneeKind = "not-identifiable"
    elif high < least and not lifted:
        return "below", None, least
    elif low >= most or (middle >= most and high / low > NARROW):
        kind = "beyond"
    else:
        kind = "knee" if high / low <= WIDE else "not-identifiable"
    starving = [point.ranks for point in behind if _share(point) < threshold]
    if starved is None and starving and kind != "knee":
        fed = max([*lifted, *([most] if kind == "beyond" else [fed or 0])]) or None
        if max(starving) > (fed or 0):
            return "at-least", fed, None
    if kind == "beyond":
        fed = max([most, *lifted])
    return kind, fed, starved


def _sentence(knee: Knee, points: Sequence[Point], threshold: float) -> str:
    """The sentence of `knee`, with the `points` that were flagged or left out."""
    used = usable(points)
    fed, starved = knee.fed, knee.starved
    least, most = (pick((point.ranks for point in used), default=0) for pick in (min, max))
    if knee.kind == "at-least":
        text = _at_least(knee, points, threshold)
    elif knee.kind == "beyond":
        text = f"No knee up to {most} processes: this storage still delivers {_delivered(used, most)}"
    elif knee.kind == "below":
        text = f"This storage does not feed {_accelerators(least, threshold)}: {_delivered(used, least)}"
    elif knee.kind == "not-identifiable":
        text = f"The knee is not identifiable: {_between(fed, starved)} at {100 * threshold:.3g} % of their"
        text += " demand, since runs contradict each other or are too few"
    else:
        assert knee.n_au is not None and knee.interval is not None
        whole = whole_accelerators(knee.n_au)
        low, high = (_count(end) for end in knee.interval)
        interval = f"knee at {_count(knee.n_au)}, 95 % interval {low} to {high}"
        text = f"This storage feeds {_accelerators(whole, threshold)} ({interval})"
    if knee.n_saturation is not None:
        text += f"; throughput saturates at {show_rate(knee.n_saturation * asked(used))}"
    raised = [point for point in used if point.flags]
    if raised:
        names = ", ".join(sorted({flag.name for point in raised for flag in point.flags}))
        text += f"; flagged, but used: {len(raised)} of {len(points)} runs ({names})"
    if dropped := left_out(points):
        text += f"; left out: {', '.join(dropped)}"
    return f"{text}."


def whole_accelerators(count: float) -> int:
    """The accelerators that a knee at `count` stands for. 4.98 is 5: the curve is known no better."""
    nearest = round(count)
    return nearest if nearest <= 1.005 * count else math.floor(count)


def _at_least(knee: Knee, points: Sequence[Point], threshold: float) -> str:
    """The sentence where the client was the limit."""
    fed = knee.fed or 0
    starving = [p for p in points if held(p) and _share(p) < threshold and p.ranks > fed]
    where = ", ".join(map(str, sorted({point.ranks for point in starving or points})))
    bounds = [point.bound for point in sorted(starving, key=lambda point: -point.ranks) if point.bound]
    why = " and ".join(dict.fromkeys(LIMIT_NAMES[bound.kind] for bound in bounds))
    helps = bounds[0].help or HELPS[bounds[0].kind] if bounds else "use more hosts"
    limit = f"at {where} processes the limit was {why}, not what this storage can deliver: {helps}"
    if knee.fed is None:
        return f"How many this storage feeds is not known: {limit}"
    return f"At least {_accelerators(knee.fed, threshold)}: {limit}"


def _between(fed: int | None, starved: int | None) -> str:
    if fed and starved:
        return f"between {fed} (fed) and {starved} (not)"
    return f"beyond {fed} (fed)" if fed else f"below {starved} (not fed)" if starved else "anywhere"


def _accelerators(count: int, threshold: float) -> str:
    whose = "its" if count == 1 else "their"
    return f"{counted(count, 'accelerator')} at {100 * threshold:.3g} % of {whose} demand"


def _count(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _delivered(points: Sequence[Point], ranks: int) -> str:
    share = [_share(point) for point in points if point.ranks == ranks]
    return f"{100 * sum(share) / len(share):.3g} % of ideal throughput there"
