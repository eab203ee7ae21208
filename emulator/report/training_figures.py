"""The figures of a training, and the few formulas that they share with its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.evidence import usable
from emulator.analysis.gate import threshold_of
from emulator.analysis.knee import asked_rate
from emulator.analysis.point import show_au
from emulator.analysis.search import KneeSearch, believe, observe
from emulator.record.host import HostRows
from emulator.record.result import Point, RunResult
from emulator.report import charts
from emulator.report.charts import Axis, Dot, Figure, Level, Place, Series, spread
from emulator.report.table import number
from emulator.report.view import marks_line
from emulator.units import show_rate

LIMITS = {
    kind: charts.colour(place) if kind != "compute" else charts.MEASURED
    for place, kind in enumerate(LIMIT_NAMES)
}
"""Limit of a point -> its colour."""
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


def mean_demand(points: Sequence[Point]) -> float | None:
    """Return the bytes/s that one process asks for, from the points of the knee; None without compute."""
    known = [point for point in points if computes(point) and point.ranks and point.samples and point.bytes]
    return asked_rate(usable(known) or known) if known else None


def dots_of(points: Sequence[Point], value: Callable[[Point], float]) -> tuple[Dot, ...]:
    """Return `value` of each point against its rank count."""
    used = usable(points)
    return tuple(Dot(p.ranks, value(p), in_words(p), bool(p.flags), p in used) for p in points)


def in_words(point: Point) -> str:
    """Return the figures of a point in words, shown when the pointer is on it."""
    parts = [
        f"{point.ranks:,} process{'' if point.ranks == 1 else 'es'}: {show_rate(point.bytes_per_second)}",
        f"{number(point.samples_per_second)} samples/s of the workload",
    ]
    if computes(point):
        parts += [show_au(point), f"X/X_ideal {point.x_ideal:.3f}"]
    if point.bound:
        parts.append(f"limited by {LIMIT_NAMES[point.bound.kind]}")
    if point.flags:
        parts.append("flagged: " + ", ".join(sorted({flag.name for flag in point.flags})))
    return "; ".join(parts)


def process_axis(points: Sequence[Point]) -> Axis:
    """The x axis of process counts: linear from 0, or logarithmic where they span much."""
    counts = [point.ranks for point in points]
    return Axis(title=charts.PROCESSES, whole=True, log=spread(counts), high=1.06 * max(counts))


@dataclass(frozen=True, slots=True)
class StorageLimit:
    """The highest rate at which another tool read from the same storage."""

    bytes_per_second: float
    name: str
    """`fio, sequential 1 MiB reads`."""


def throughput(result: RunResult, limits: Sequence[StorageLimit] = ()) -> Figure | None:
    """Draw bytes/s of all processes, with their demand, the knee, the limit of each point, and `limits`."""
    points = by_ranks(result)
    if not points:
        return None
    demand, log = mean_demand(points), spread([point.ranks for point in points])
    rates = [point.bytes_per_second for point in points]
    top = max(0.0, *rates, *(limit.bytes_per_second for limit in limits)) * 1.15 or 1.0
    fit = [(n, n * low, n * mid, min(top, n * high)) for n, low, mid, high in fitted(result) if n * mid < top]
    every, used = dots_of(points, lambda point: point.bytes_per_second), usable(points)
    series = []
    if fit:
        series.append(Series(name="fit, 95 % band", colour=charts.MEASURED, band=fit))
    elif len({point.ranks for point in points}) > 1:
        series.append(Series(name="measured, mean", colour=charts.MEASURED, dots=every, drawn=False))
    if demand is not None:
        ends = (points[0].ranks if log else 0.0, min(points[-1].ranks * 1.02, top / demand))
        line = [Dot(x, x * demand) for x in ends]
        series.append(Series(name="ideal", colour=charts.IDEAL, dots=line, drawn=False, dashed=True))
    kinds = dict.fromkeys(point.bound.kind if point.bound else None for point in points)
    for kind in kinds:
        own = [point for point in points if (point.bound.kind if point.bound else None) == kind]
        name = f"limited by {LIMIT_NAMES[kind]}" if kind else "runs"
        name = "fed" if kind == "compute" else name
        dots = [Dot(p.ranks, p.bytes_per_second, in_words(p), bool(p.flags), p in used) for p in own]
        series.append(Series(name=name, colour=LIMITS[kind] if kind else charts.SOFT, dots=dots, line=False))
    caption = "All processes together." + (
        " Dashed: what processes that never wait would read." if demand else ""
    )
    if any(dot.flagged for dot in every):
        caption += " Hollow diamonds are flagged."
    return Figure(
        name="throughput",
        title="Throughput and the knee",
        caption=caption,
        x=process_axis(points),
        y=Axis(unit="B/s", log=log, high=top),
        series=series,
        levels=[
            Level(limit.bytes_per_second, f"{limit.name}: {show_rate(limit.bytes_per_second)}")
            for limit in limits
        ],
        places=knee_place(result),
        qualified=marks_line(result),
    )


def knee_place(result: RunResult) -> tuple[Place, ...]:
    """The knee with its interval, or the counts between which it lies."""
    knee = result.knee
    if knee is None:
        return ()
    if knee.n_au is not None:
        ends = f" ({' to '.join(number(end, 3) for end in knee.interval)})" if knee.interval else ""
        return (Place(knee.n_au, knee.interval, f"knee {number(knee.n_au, 3)}{ends}"),)
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
    points = by_ranks(result)
    demand = mean_demand(points)
    if result.knee is None or result.knee.n_au is None or result.knee.interval is None or demand is None:
        return []
    runs = [observe(point) for point in usable(result.points) if computes(point) and point.ranks > 0]
    search = KneeSearch(maximum=max(run.ranks for run in runs), threshold=threshold_of(result))
    found = believe(runs, search).posterior
    if not found.curved:
        return []
    first, last = points[0].ranks, points[-1].ranks
    space = np.geomspace if spread([first, last]) else np.linspace
    counts = space(first, last, 60).tolist()
    band = found.band(counts, (0.025, 0.5, 0.975)).T.tolist()
    return [
        (ranks, *(demand * min(1.0, level) for level in levels))
        for ranks, levels in zip(counts, band, strict=True)
    ]


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
    courses = [(point.ranks, point.course) for point in by_ranks(result) if point.course]
    latest = list(dict(courses).items())
    if not latest:
        return None
    if len(latest) > MOST_LINES:
        latest = [latest[place] for place in np.linspace(0, len(latest) - 1, MOST_LINES).astype(int)]
    lines = {}
    for ranks, course in latest:
        rates = np.array(course.bytes_per_second)
        spans = (np.arange(len(rates)) + 0.5) / len(rates)
        lines[f"{ranks:,} process{'' if ranks == 1 else 'es'}"] = (
            course.begin + spans * (course.end - course.begin),
            rates,
        )
    return _curves(
        "over-time",
        "Throughput over time",
        "Bytes read per second by all processes, a line a process count. A level line is a storage that has "
        "settled; one that falls was read from a cache at first." + _of_some(result),
        lines,
        Axis(title="seconds since the point began"),
        Axis(unit="B/s"),
        result,
    )


def _curves(
    name: str, title: str, caption: str, lines: dict[str, tuple[np.ndarray, np.ndarray]], x: Axis, y: Axis,
    result: RunResult,
) -> Figure:  # fmt: skip
    """Draw values over time, a line a name."""
    series = [
        Series(
            name=label, colour=charts.colour(place), drawn=False,
            dots=[Dot(at, value) for at, value in zip(ats.tolist(), values.tolist(), strict=True)],
        )
        for place, (label, (ats, values)) in enumerate(lines.items())
    ]  # fmt: skip
    return Figure(
        name=name, title=title, caption=caption, x=x, y=y, series=series, qualified=marks_line(result)
    )


def hosts_over_time(result: RunResult, rows: HostRows) -> tuple[Figure, ...]:
    """Draw the rates of networks and devices, and the busiest host's CPU, second by second over all runs.

    `rows` are those of OUT/hosts.parquet. Nothing for less than two seconds.
    """
    points, which = np.unique(rows["point"], return_inverse=True)
    lengths = [math.ceil(rows["second"][which == place].max()) for place in range(len(points))]
    begins = np.cumsum([0, *lengths])
    seconds, place = np.unique(begins[which] + np.round(rows["second"]), return_inverse=True)
    if len(seconds) < 2:
        return ()
    columns = {"received by network": "received", "read from device": "device_read"}
    rates = {
        name: (seconds, np.bincount(place, rows[column]))
        for name, column in columns.items()
        if np.isfinite(rows[column]).all()
    }
    busiest = np.zeros(len(seconds))
    np.maximum.at(busiest, place, np.clip(np.nan_to_num(rows["busy"]), 0, 1) * 100)
    x = Axis(title="seconds, runs one after the other")
    share = "Share of the cores' time that was not idle, on the host where it was largest."
    lines = {"busiest host": (seconds, busiest)}
    cpu = _curves("hosts-cpu", "CPU over time", share, lines, x, Axis(unit="%", high=106.0), result)
    if not rates:
        return (cpu,)
    sums = "Bytes per second of all hosts together, every process and file on them counted."
    drawn = _curves("hosts-rates", "Network and device over time", sums, rates, x, Axis(unit="B/s"), result)
    return drawn, cpu


def _of_some(result: RunResult) -> str:
    """Return what a caption has to say where the step log has the steps of some processes only."""
    return "".join(f" {flag.sentence}" for flag in result.flags if flag.name == "step-log")


def step_time(result: RunResult) -> Figure | None:
    """Divide the mean step: compute, wait, barrier, overshoot, stacked, for each process count."""
    seconds = mean_steps(result)
    if not seconds:
        return None
    return Figure(
        name="step-time",
        title="Where a step goes, mean",
        caption="Mean over steps and processes: compute is the emulated accelerator, wait is for "
        "data, overshoot is for a process that took its batch or woke up late. Time at a barrier counts as "
        "what the last process did longer than this one; as barrier where the step log does not tell."
        + _of_some(result),
        x=Axis(title=charts.PROCESSES, names=True),
        y=Axis(unit="s"),
        series=[
            Series(name=part, colour=colour, dots=[Dot(n, values[place]) for n, values in seconds.items()])
            for place, (part, colour) in enumerate(PARTS.items())
        ],
        stacked=True,
        qualified=marks_line(result),
    )


def mean_steps(result: RunResult) -> dict[int, tuple[float, ...]]:
    """Return rank count -> mean seconds of the PARTS of a step, of the counts with a step log."""
    found: dict[int, list[list[float]]] = {}
    for point in result.points:
        if PARTS.keys() <= point.step.keys():
            found.setdefault(point.ranks, []).append([point.step[part] for part in PARTS])
    return {
        ranks: tuple(max(0.0, sum(part) / len(part)) for part in zip(*repeats, strict=True))
        for ranks, repeats in sorted(found.items())
    }


FIGURES = (throughput, utilization, step_time, over_time)
"""Figures in the order of a page."""
