"""What the plots draw, as plain rows: pure functions of a result and its step log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.analysis.flags import usable
from emulator.analysis.posterior import posterior
from emulator.record.result import Point, RunResult
from emulator.record.steps import Steps
from emulator.report.view import PERCENTILES, computes, demand, measured

Rows = list[dict[str, float | str | bool]]

PARTS = ("compute", "wait", "barrier", "overshoot")
"""Parts of a step, from the bottom of the stack to its top."""
LOG_FROM = 100
"""Largest over smallest rank count from which axes become logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit that keeps the numbers of an axis short."""

    name: str
    size: float
    """Bytes/s, or seconds, of one unit."""


def rate_unit(largest: float) -> Unit:
    """kB/s to PB/s for rates of up to `largest` bytes/s."""
    for name, power in (("PB/s", 15), ("TB/s", 12), ("GB/s", 9), ("MB/s", 6)):
        if largest >= 2 * 10**power:
            return Unit(name=name, size=10.0**power)
    return Unit(name="kB/s", size=1e3)


def time_unit(largest: float) -> Unit:
    """us, ms or s for durations of up to `largest` seconds."""
    if largest >= 2:
        return Unit(name="s", size=1.0)
    return Unit(name="ms", size=1e-3) if largest >= 2e-3 else Unit(name="us", size=1e-6)


def ordered(result: RunResult) -> list[Point]:
    """The points that can be drawn, by rank count."""
    return sorted((point for point in result.points if point.ranks > 0), key=lambda point: point.ranks)


def logarithmic(least: int, most: int) -> bool:
    """True when the rank counts span so much that a linear axis would hide the small ones."""
    return most >= LOG_FROM * least


def throughput_rows(points: list[Point], unit: Unit) -> Rows:
    """ranks, rate in `unit`, rate per process in `unit`, AU and X/X_ideal in percent, flagged, used."""
    used = usable(points)
    return [
        {
            "ranks": point.ranks,
            "rate": point.bytes_per_second / unit.size,
            "each": point.bytes_per_second / point.ranks / unit.size,
            "au": point.au * 100,
            "x_ideal": point.x_ideal * 100,
            "flagged": bool(point.flags),
            "used": point in used,
        }
        for point in points
    ]


def line_rows(found: Rows, column: str) -> Rows:
    """The mean of `column` per rank count; points that the knee is not made from do not bend the line."""
    groups: dict[float, list[float]] = {}
    for row in (row for row in found if row.get("used", True)):
        groups.setdefault(float(row["ranks"]), []).append(float(row[column]))
    return [{"ranks": ranks, column: sum(values) / len(values)} for ranks, values in sorted(groups.items())]


def mean_demand(points: list[Point]) -> float | None:
    """Bytes/s that one process asks for, mean of the points; None when the workload does not compute."""
    known = [value for value in map(demand, points) if value]
    return sum(known) / len(known) if known else None


def ideal_rows(points: list[Point], top: float, unit: Unit) -> Rows:
    """Two ends of the line N x demand that stay below `top` units; [] without an ideal."""
    one = mean_demand(points)
    if one is None or not points:
        return []
    first = float(points[0].ranks) if logarithmic(points[0].ranks, points[-1].ranks) else 0.0
    last = min(points[-1].ranks * 1.02, top * unit.size / one)
    return [{"ranks": ranks, "rate": ranks * one / unit.size} for ranks in (first, last)]


def step_rows(result: RunResult, steps: Steps) -> Rows:
    """Mean seconds of the parts of a step for each rank count, from the step log or else from the points."""
    logged = _logged(steps)
    sums: dict[int, list[dict[str, float]]] = {}
    for number, point in enumerate(result.points):
        sums.setdefault(point.ranks, []).append(logged.get(number) or _estimated(point))
    return [
        {
            "ranks": ranks,
            "part": part,
            "order": place,
            "seconds": max(0.0, sum(one[part] for one in found) / len(found)),
        }
        for ranks, found in sorted(sums.items())
        for place, part in enumerate(PARTS)
    ]


def _logged(steps: Steps) -> dict[int, dict[str, float]]:
    """Point -> part -> mean seconds over all its steps."""
    point = steps["point"]
    count = np.bincount(point[point >= 0])
    sums = {part: np.bincount(point[point >= 0], weights=steps[part][point >= 0]) for part in PARTS}
    return {
        int(number): {part: float(sums[part][number] / count[number]) for part in PARTS}
        for number in np.flatnonzero(count)
    }


def _estimated(point: Point) -> dict[str, float]:
    """From the shares that the result keeps; what they leave over is overshoot."""
    step = point.seconds / point.steps if point.steps else 0.0
    compute = point.au_first if computes(point) else 0.0
    rest = max(0.0, 1 - point.wait_share - point.barrier_share - compute)
    shares = {"wait": point.wait_share, "barrier": point.barrier_share, "compute": compute, "overshoot": rest}
    return {part: share * step for part, share in shares.items()}


def latency_rows(points: list[Point]) -> Rows:
    """Read latency in seconds at each percentile, for each point that has a histogram."""
    names = {50.0: "p50", 90.0: "p90", 99.0: "p99", 99.9: "p99.9", 100.0: "max"}
    return [
        {"ranks": point.ranks, "percentile": names[wanted], "seconds": value}
        for point, values in measured(tuple(points))
        for wanted, value in zip(PERCENTILES, values, strict=True)
        if math.isfinite(value) and value > 0 and wanted < 100
    ]


# ---- The fitted curve and its 95 % band, from the same posterior as the knee's interval.


LEVELS = (0.025, 0.5, 0.975)
PLACES = 60
"""Process counts at which the curve is drawn."""


def fit_rows(result: RunResult, unit: Unit, top: float) -> Rows:
    """The curve where it stays below `top` units: ranks, and rate and each with low and high ends.

    [] without an interval of the knee: then nothing was fitted. From the same points as the knee.
    """
    points = ordered(result)
    one = mean_demand(points)
    used = [point for point in usable(points) if computes(point)]
    if result.knee is None or result.knee.interval is None or one is None:
        return []
    first, last = points[0].ranks, points[-1].ranks
    space = np.geomspace if logarithmic(first, last) else np.linspace
    counts = tuple(space(first, last, PLACES).tolist())
    band = _band(
        tuple(point.ranks for point in used),
        tuple(point.samples_per_second / point.ideal_samples_per_second for point in used),
        result.workload.get("training", {}).get("au_threshold", 0.9),
        counts,
    )
    rows: Rows = []
    for place, ranks in enumerate(counts):
        low, middle, high = (one / unit.size * min(1.0, level[place]) for level in band)
        if ranks * middle < top:
            rows.append(
                {
                    "ranks": ranks, "rate": ranks * middle, "rate_low": ranks * low,
                    "rate_high": min(top, ranks * high), "each": middle, "each_low": low, "each_high": high,
                }
            )  # fmt: skip
    return rows


@lru_cache(maxsize=8)
def _band(
    ranks: tuple[int, ...], efficiency: tuple[float, ...], threshold: float, counts: tuple[float, ...]
) -> tuple[tuple[float, ...], ...]:
    """Quantiles of the fitted efficiency at each count; kept, since several plots draw the same."""
    found = posterior(ranks, efficiency, threshold, max(ranks))
    return tuple(tuple(level) for level in found.band(counts, LEVELS).tolist())
