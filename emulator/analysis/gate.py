"""Gates for pipelines: are N accelerators fed, and is a new result worse than an old one?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from emulator.analysis.evidence import limited_by_client, usable
from emulator.analysis.flags import invalid
from emulator.analysis.knee import NO_KNEE, means, whole_accelerators
from emulator.analysis.variation import PRIOR_DEVIATION
from emulator.errors import NOT_MET, Inconclusive
from emulator.record.result import Knee, KneeKind, Point, RunResult

MET, UNKNOWN = 0, Inconclusive.exit_code
"""Exit statuses, with NOT_MET."""
TWO_SIDED = 1.96
"""Standard deviations of a 95 % interval."""
_WORDS = {MET: "met", NOT_MET: "not met", UNKNOWN: "cannot be told from these runs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of a gate."""

    asked: str
    """The option, for example `--require 8`."""
    status: int
    evidence: str
    """The numbers that decided."""

    @property
    def line(self) -> str:
        return f"{self.asked}: {_WORDS[self.status]}: {self.evidence}"

    def as_plain(self) -> dict[str, Any]:
        """The verdict for programs: its fields, and the status in words."""
        return {**asdict(self), "verdict": _WORDS[self.status]}


def require(required: int, result: RunResult) -> Verdict:
    """Decide whether `required` accelerators are fed, at the result's threshold (`threshold_of`)."""
    low, high = fed_range(knee_of(result))
    fed, most = whole_accelerators(low), None if high is None else whole_accelerators(high)
    evidence = f"{_between(fed, most)} at {threshold_of(result) * 100:g} % of their demand"
    status = UNKNOWN
    if required <= fed:
        status = MET
    elif most is not None and required > most:
        status = NOT_MET
    elif most is not None:
        evidence += f"; more runs (--precision) may raise the lower end, {low:.3g}, to {required:,}"
    return Verdict(asked=f"--require {required}", status=status, evidence=evidence)


def _between(fed: int, most: int | None) -> str:
    """`at least 4 and at most 6 are fed`; 0 and None bound nothing."""
    if fed == most:
        return f"{fed:,} are fed"
    ends = [f"at least {fed:,}"] if fed else []
    if most is not None:
        ends.append(f"at most {most:,}")
    return f"{' and '.join(ends)} are fed" if ends else "no count is known to be fed or starved"


def knee_of(result: RunResult) -> Knee:
    """The knee of a result; of runs of one count, what they say of the counts that are fed."""
    if result.knee is not None:
        return result.knee
    points = [point for point in result.points if math.isfinite(point.ideal_samples_per_second)]
    largest, threshold = max((point.ranks for point in points), default=0), threshold_of(result)
    if result.status == "incomplete":  # nobody knows whether the client starved a run that was cut off
        points = [point for point in points if point.bound or point.x_ideal >= threshold]
    fed, starved = _counts_of(points, threshold)
    if starved is not None:
        kind: KneeKind = "not-identifiable" if fed else "below"
    elif any(map(limited_by_client, points)):
        kind = "at-least"
    else:
        kind = "beyond" if fed == largest else "not-identifiable"
    return replace(NO_KNEE, kind=kind, fed=fed, starved=starved)


def _counts_of(points: Sequence[Point], threshold: float) -> tuple[int | None, int | None]:
    """The largest count fed on average, and the smallest above that starved in all runs; None: none is."""
    # What was fed although the client was late, the storage feeds.
    fed = [point for point in points if point.x_ideal >= threshold]
    starved = [point for point in usable(points) if point.x_ideal < threshold]
    evidence = [point for point in fed + starved if not invalid(point)]
    counts, shares = means([point.ranks for point in evidence], [point.x_ideal for point in evidence])
    largest_fed = int(counts[shares >= threshold].max(initial=0))
    never_fed = {point.ranks for point in starved} - {point.ranks for point in fed}
    return largest_fed or None, min((count for count in never_fed if count > largest_fed), default=None)


def fed_range(knee: Knee) -> tuple[float, float | None]:
    """Between which ends the largest fed count lies; 0 and None where nothing bounds it."""
    if knee.kind == "knee":
        return knee.interval or (0.0, None)
    # A count that starved because of the client bounds nothing.
    starved = None if knee.kind == "at-least" else knee.starved
    return float(knee.fed or 0), None if starved is None else starved - 1.0


def knee_range(result: RunResult) -> tuple[float, float]:
    """The 95 % interval of the knee, or the counts that bound it; 0 and infinity where nothing does."""
    knee = knee_of(result)
    low, high = fed_range(knee)
    if high is None:
        return low, math.inf
    # A knee is a real number: where 12 starve, it is below 12, and 11.9 is possible.
    return low, high if knee.kind == "knee" else math.nextafter(high + 1, 0)


def no_worse(share: float, names: tuple[str, str], old: RunResult, new: RunResult) -> Verdict:
    """Decide whether `new` is worse than `old` by more than `share` (0 to 1).

    Compares the knees, or without them the throughput of the counts that both results have.
    """
    ratio = _ratio_of_knees(old, new)
    does, where = "feeds", ""
    if ratio is None:
        ratio = _ratio_of_rates(old, new)
        does, where = "reads", ", at the same counts"
    low, high = ratio
    if not low and math.isinf(high):
        evidence = "the client was the limit, or they have no count in common"
    else:
        range_of = f"{low:.3g} or more" if math.isinf(high) else f"{low:.3g} to {high:.3g}"
        evidence = f"{names[1]} {does} {range_of} of what {names[0]} {does}{where}"
    status = UNKNOWN
    if low >= 1 - share:
        status = MET
    elif high < 1 - share:
        status = NOT_MET
    return Verdict(asked=f"--fail-if-worse {share * 100:g}%", status=status, evidence=evidence)


def _ratio_of_knees(old: RunResult, new: RunResult) -> tuple[float, float] | None:
    """The 95 % interval of new knee / old knee; None where a result has none."""
    if not (old.knee and new.knee and old.knee.kind and new.knee.kind):
        return None
    (old_low, old_high), (low, high) = knee_range(old), knee_range(new)
    old_knee, knee = old.knee.n_au, new.knee.n_au
    if old_knee and knee and old_low > 0 and low > 0:
        # Errors of two results are independent: their logarithms add up in quadrature.
        down = math.hypot(math.log(knee / low), math.log(old_high / old_knee))
        up = math.hypot(math.log(high / knee), math.log(old_knee / old_low))
        return knee / old_knee * math.exp(-down), knee / old_knee * math.exp(up)
    if math.isinf(old_high):
        old_high = old_low  # the old result promises no more than it showed
    least = low / old_high if old_high else 0.0
    most = high / old_low if old_low else math.inf
    return least, most


def _ratio_of_rates(old: RunResult, new: RunResult) -> tuple[float, float]:
    """The 95 % interval of new throughput / old throughput, mean over the counts that both have."""
    before, after = _log_rates(old), _log_rates(new)
    both = sorted(set(before) & set(after))
    if not both:
        return 0.0, math.inf
    middle = float(np.mean([np.mean(after[ranks]) - np.mean(before[ranks]) for ranks in both]))
    variance = sum(
        max(PRIOR_DEVIATION, float(np.std(runs))) ** 2 / len(runs)
        for ranks in both
        for runs in (before[ranks], after[ranks])
    )
    reach = TWO_SIDED * math.sqrt(variance) / len(both)
    return math.exp(middle - reach), math.exp(middle + reach)


def _log_rates(result: RunResult) -> dict[int, list[float]]:
    """Count -> logarithm of each run's throughput, of runs that say something about the storage."""
    log_rates: dict[int, list[float]] = {}
    for point in result.points:
        if not limited_by_client(point) and not invalid(point) and point.samples_per_second > 0:
            log_rates.setdefault(point.ranks, []).append(math.log(point.samples_per_second))
    return log_rates


def threshold_of(result: RunResult) -> float:
    """The share of ideal throughput that defines a result's knee (0 to 1)."""
    return float(result.workload.get("training", {}).get("au_threshold", 0.9))
