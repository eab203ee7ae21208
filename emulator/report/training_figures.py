"""The figures of a training, and the few formulas that they share with its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.evidence import usable
from emulator.analysis.gate import threshold_of
from emulator.analysis.knee import demand_of_one
from emulator.analysis.point import show_au
from emulator.analysis.search import KneeSearch, believe, observe
from emulator.record.result import BoundKind, Point, RunResult
from emulator.report import charts
from emulator.report.charts import Axis, Dot, Figure, Level, Place, Series, spread
from emulator.report.table import number
from emulator.report.view import marks_line
from emulator.units import show_rate

LIMITS: dict[BoundKind | None, str] = {kind: charts.colour(n) for n, kind in enumerate(LIMIT_NAMES, 1)}
"""Limit of a point -> its colour. The first colour is the fit's."""
PARTS = {"compute": "#4f83cc", "wait": "#e07b39", "barrier": charts.IDEAL, "overshoot": "#a23b72"}
"""Part of a step -> its colour, from the bottom of the stack to its top."""
MOST_LINES = 8
"""Most process counts whose throughput over time is drawn."""


def computes(point: Point) -> bool:
    """Return False for a step time of 0, with which there is no ideal rate, no AU and no X/X_ideal."""
    return math.isfinite(point.ideal_samples_per_second) and point.ideal_samples_per_second > 0


def by_ranks(result: RunResult) -> list[Point]:
    """Return the points with ranks, by rank count."""
    return sorted((point for point in result.points if point.ranks > 0), key=lambda point: point.ranks)


def limit_name(point: Point) -> str:
    """Return the limit of a point in words; empty if it is not known."""
    return LIMIT_NAMES[point.bound.kind] if point.bound else ""


def mean_demand(points: Sequence[Point]) -> float | None:
    """Return the bytes/s that one process asks for, from the points of the knee; None without compute."""
    known = [point for point in points if computes(point) and point.ranks and point.samples and point.bytes]
    return demand_of_one(known) if known else None


def dots_of(points: Sequence[Point], value: Callable[[Point], float]) -> tuple[Dot, ...]:
    """Return `value` of each point against its rank count."""
    used = usable(points)
    return tuple(Dot(p.ranks, value(p), in_words(p), bool(p.flags), p in used) for p in points)


def in_words(point: Point) -> str:
    """Return the figures of a point in words, shown when the pointer is on it."""
    parts = [f"{_processes(point.ranks)}: {show_rate(point.bytes_per_second)}"]
    if computes(point):
        parts += [show_au(point), f"X/X_ideal {point.x_ideal:.3f}"]
    if limit := limit_name(point):
        parts.append(f"limited by {limit}")
    if point.flags:
        parts.append("flagged: " + ", ".join(sorted({flag.name for flag in point.flags})))
    return "; ".join(parts)


def _processes(ranks: int) -> str:
    return "1 process" if ranks == 1 else f"{ranks:,} processes"


def process_axis(points: Sequence[Point]) -> Axis:
    """The x axis of process counts: linear from 0, or logarithmic where they span much."""
    counts = [point.ranks for point in points]
    return Axis(title=charts.PROCESSES, whole=True, log=spread(counts), high=1.06 * max(counts))


def throughput(result: RunResult) -> Figure | None:
    """Draw bytes/s of all processes, with their demand, the knee, and the limit of each point."""
    points = by_ranks(result)
    if not points:
        return None
    log = spread([point.ranks for point in points])
    rates = [point.bytes_per_second for point in points]
    # The ideal line rises beyond what was read: the plot ends a little above the fastest run.
    top = max(rates) * 1.15 or 1.0
    dots = dots_of(points, lambda point: point.bytes_per_second)
    series = [*_course(result, dots, top), *_ideal(points, top, log), *_by_limit(points, dots)]
    caption = "All processes together. Dashed: what processes that never wait would read."
    if any(dot.flagged for dot in dots):
        caption += " Hollow diamonds are flagged."
    return Figure(
        name="throughput",
        title="Throughput and the knee",
        caption=caption,
        x=process_axis(points),
        y=Axis(unit="B/s", log=log, high=top),
        series=series,
        places=knee_place(result),
        qualified=marks_line(result),
    )


def _course(result: RunResult, dots: Sequence[Dot], top: float) -> Iterator[Series]:
    """The fitted curve below `top` (bytes/s); without one, a line through the means of several counts."""
    band = []
    for ranks, low, middle, high in fitted(result):
        if ranks * middle < top:
            band.append((ranks, ranks * low, ranks * middle, min(top, ranks * high)))
    if band:
        yield Series(name="fit, 95 % band", colour=charts.MEASURED, band=band)
    elif len({dot.x for dot in dots}) > 1:
        yield Series(name="measured, mean", colour=charts.MEASURED, dots=dots, drawn=False)


def _ideal(points: Sequence[Point], top: float, log: bool) -> Iterator[Series]:
    """The demand of all processes, up to `top` (bytes/s)."""
    demand = mean_demand(points)
    if demand is not None:
        first = points[0].ranks if log else 0.0
        last = min(points[-1].ranks * 1.02, top / demand)
        line = [Dot(ranks, ranks * demand) for ranks in (first, last)]
        yield Series(name="ideal", colour=charts.IDEAL, dots=line, drawn=False, dashed=True)


def _by_limit(points: Sequence[Point], dots: Sequence[Dot]) -> Iterator[Series]:
    """The dots of the points, a series for each limit."""
    groups: dict[BoundKind | None, list[Dot]] = {}
    for point, dot in zip(points, dots, strict=True):
        kind = point.bound.kind if point.bound else None
        groups.setdefault(kind, []).append(dot)
    for kind, own in groups.items():
        if kind is None:
            name = "runs"
        elif kind == "compute":
            name = "fed"
        else:
            name = f"limited by {LIMIT_NAMES[kind]}"
        yield Series(name=name, colour=LIMITS.get(kind, charts.SOFT), dots=own, line=False)


def knee_place(result: RunResult) -> tuple[Place, ...]:
    """The knee with its interval, or the counts between which it lies."""
    knee = result.knee
    if knee is None:
        return ()
    if knee.n_au is not None:
        name = f"knee {number(knee.n_au, 3)}"
        if knee.interval:
            low, high = knee.interval
            name += f" ({number(low, 3)} to {number(high, 3)})"
        return (Place(knee.n_au, knee.interval, name),)
    if knee.fed is None or knee.kind not in ("at-least", "not-identifiable"):
        return ()
    if knee.kind == "at-least" or knee.starved is None:
        return (Place(knee.fed, None, f"knee: at least {knee.fed:,}"),)
    between = float(knee.fed), float(knee.starved)
    return (Place(knee.fed, between, f"knee: {knee.fed:,} to {knee.starved:,}"),)


def fitted(result: RunResult) -> list[tuple[float, float, float, float]]:
    """Return the curve of the knee: ranks, and bytes/s of one process, low, middle and high (95 %).

    From the same posterior and the same points as the knee. [] without an interval of the knee: then nothing
    was fitted; and where no curve fits the runs, so that the knee is a bare crossing between two counts.
    """
    points, knee = by_ranks(result), result.knee
    demand = mean_demand(points)
    if demand is None or knee is None or knee.n_au is None or knee.interval is None:
        return []
    runs = [observe(point) for point in filter(computes, usable(points))]
    search = KneeSearch(maximum=max(run.ranks for run in runs), threshold=threshold_of(result))
    posterior = believe(runs, search).posterior
    if not posterior.curved:
        return []
    # As many places on the screen between small counts as between large ones.
    first, last = points[0].ranks, points[-1].ranks
    space = np.geomspace if spread([first, last]) else np.linspace
    counts = space(first, last, 60)
    band = demand * np.minimum(1.0, posterior.band(counts.tolist(), (0.025, 0.5, 0.975)))
    return [tuple(row) for row in np.vstack([counts, band]).T.tolist()]


def utilization(result: RunResult) -> Figure | None:
    """Draw accelerator utilization and X/X_ideal against the process count, with the threshold."""
    points = [point for point in by_ranks(result) if computes(point)]
    if not points:
        return None
    threshold = 100 * threshold_of(result)
    known = [point for point in points if not math.isnan(point.au)]
    au, x_ideal = dots_of(known, lambda p: p.au * 100), dots_of(points, lambda p: p.x_ideal * 100)
    return Figure(
        name="utilization",
        title="Accelerator utilization",
        caption="AU: nominal compute over elapsed time, as MLPerf Storage defines it. X/X_ideal: samples per "
        "second over what accelerators that never wait would consume. Both leave out the first step of an "
        "epoch.",
        x=process_axis(points),
        y=Axis(unit="%", high=max(106.0, *(dot.y * 1.02 for dot in (*au, *x_ideal)))),
        series=(
            Series(name="AU", dots=au, colour=charts.MEASURED),
            Series(name="X/X_ideal", dots=x_ideal, colour=charts.colour(2), dashed=True),
        ),
        levels=[Level(threshold, f"threshold {threshold:g} %")],
        places=knee_place(result),
        qualified=marks_line(result),
    )


def over_time(result: RunResult) -> Figure | None:
    """Draw bytes/s of all processes read over the time of each count's last point."""
    courses = {point.ranks: point.course for point in by_ranks(result) if point.course}
    if not courses:
        return None
    shown = list(courses)
    if len(shown) > MOST_LINES:
        shown = [shown[place] for place in np.linspace(0, len(shown) - 1, MOST_LINES).astype(int)]
    series = []
    for place, ranks in enumerate(shown):
        course = courses[ranks]
        width = (course.end - course.begin) / len(course.bytes_per_second)
        # A rate is the mean of its span: its dot is in the middle.
        middles = [course.begin + (span + 0.5) * width for span in range(len(course.bytes_per_second))]
        dots = list(map(Dot, middles, course.bytes_per_second))
        series.append(Series(name=_processes(ranks), colour=charts.colour(place), dots=dots, drawn=False))
    return Figure(
        name="over-time",
        title="Throughput over time",
        caption="Bytes read per second by all processes, a line a process count. A level line is a storage "
        "that has settled; one that falls was read from a cache at first." + _of_some(result),
        x=Axis(title="seconds since the point began"),
        y=Axis(unit="B/s"),
        series=series,
        qualified=marks_line(result),
    )


def _of_some(result: RunResult) -> str:
    """Return what a caption has to say where the step log has the steps of some processes only."""
    return "".join(f" {flag.sentence}" for flag in result.flags if flag.name == "step-log")


def step_time(result: RunResult) -> Figure | None:
    """Divide the mean step: compute, wait, barrier, overshoot, stacked, for each process count."""
    seconds = mean_steps(result)
    if not seconds:
        return None
    bars = []
    for place, (part, colour) in enumerate(PARTS.items()):
        dots = [Dot(ranks, parts[place]) for ranks, parts in seconds.items()]
        bars.append(Series(name=part, colour=colour, dots=dots))
    return Figure(
        name="step-time",
        title="Where a step goes, mean",
        caption="Mean over steps and processes: compute is the emulated accelerator, wait is for "
        "data, overshoot is for a process that took its batch or woke up late. Time at a barrier counts as "
        "what the last process did longer than this one; as barrier where the step log does not tell."
        + _of_some(result),
        x=Axis(title=charts.PROCESSES, names=True),
        y=Axis(unit="s"),
        series=bars,
        stacked=True,
        qualified=marks_line(result),
    )


def mean_steps(result: RunResult) -> dict[int, tuple[float, ...]]:
    """Return rank count -> mean seconds of the PARTS of a step, of the counts with a step log."""
    steps: dict[int, list[list[float]]] = {}
    for point in by_ranks(result):
        if PARTS.keys() <= point.step.keys():
            steps.setdefault(point.ranks, []).append([point.step[part] for part in PARTS])
    # The mean overshoot of ranks that are never late may be a hair below zero.
    return {ranks: tuple(np.mean(repeats, axis=0).clip(0.0).tolist()) for ranks, repeats in steps.items()}


FIGURES = (throughput, utilization, step_time, over_time)
"""Figures in the order of a page."""
