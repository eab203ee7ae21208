"""The figures of a training, each with its caption, and the few formulas that they share with its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.evidence import usable
from emulator.analysis.gate import threshold_of
from emulator.analysis.knee import asked_rate
from emulator.analysis.point import show_au
from emulator.analysis.search import KneeSearch, believe, observe
from emulator.record.host import HostRows
from emulator.record.result import Point, RunResult
from emulator.report import figure as fig
from emulator.report.table import number
from emulator.report.view import marks_line
from emulator.units import show_rate, show_seconds


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


def measured(
    points: Sequence[Point], value: Callable[[Point], float], *, by_limit: bool = False
) -> tuple[fig.Dot, ...]:
    """Return `value` of each point against its rank count; `by_limit`: in the colour of its limit."""
    used = usable(points)
    return tuple(
        fig.Dot(
            point.ranks,
            value(point),
            bool(point.flags),
            point in used,
            told(point),
            LIMITS.get(point.bound.kind, fig.SOFT) if by_limit and point.bound else "",
        )
        for point in points
    )


LIMITS = dict(zip(LIMIT_NAMES, fig.LIMIT_COLOURS, strict=True))
"""Limit of a point -> its colour."""


def told(point: Point) -> str:
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


@dataclass(frozen=True, slots=True)
class StorageLimit:
    """The highest rate at which another tool read from the same storage."""

    bytes_per_second: float
    name: str
    """`fio, sequential 1 MiB reads`."""


def throughput(result: RunResult, limits: Sequence[StorageLimit] = ()) -> fig.Figure | None:
    """Draw bytes/s of all processes, with their demand, the knee, the limit of each point, and `limits`."""
    points, demand = by_ranks(result), mean_demand(by_ranks(result))
    if not points:
        return None
    first, last = points[0].ranks, points[-1].ranks
    log = last >= fig.LOG_FROM * first
    rates = [point.bytes_per_second for point in points]
    top = max(0.0, *rates, *(limit.bytes_per_second for limit in limits)) * (2.0 if log else 1.18) or 1.0
    marks: list[fig.Mark] = [*knee_line(result)]
    legend: list[fig.Key] = []
    if demand is not None:
        ends = (float(first) if log else 0.0, min(last * 1.02, top / demand))
        marks.append(fig.Line(points=tuple((x, x * demand) for x in ends), colour=fig.IDEAL, dashed=True))
        legend.append(fig.Key("ideal", fig.IDEAL, "dash"))
    for place, limit in enumerate(limits, start=1):
        rate, alone = limit.bytes_per_second, len(limits) == 1
        label = f"{limit.name}: {show_rate(rate)}"
        colour = fig.SECOND if alone else fig.series_colour(place)
        marks.append(fig.HorizontalLine(y=rate, colour=colour, label=label if alone else ""))
        legend += [] if alone else [fig.Key(label, colour, "dash")]  # beside each other labels would overlap
    curve = ((ranks, *(ranks * level for level in levels)) for ranks, *levels in fitted(result))
    series = fig.Series(
        name="measured",
        dots=measured(points, lambda point: point.bytes_per_second, by_limit=True),
        colour=fig.MEASURED,
        fit=tuple((x, low, middle, min(top, high)) for x, low, middle, high in curve if middle < top),
    )
    figure = fig.against_processes(
        (
            "throughput",
            "Throughput and the knee",
            "All processes together."
            + (" Dashed: what processes that never wait would read." if demand else ""),
        ),
        [series],
        fig.log_axis(min(rates) * 0.6, top, show_rate) if log else fig.rate_axis(top, show_rate),
        behind=marks,
        legend=legend,
        qualified=marks_line(result),
    )
    dots = []
    for kind in dict.fromkeys(point.bound.kind for point in points if point.bound):
        fed = "fed: " if kind == "compute" else ""
        dots.append(fig.Key(f"{fed}limited by {LIMIT_NAMES[kind]}", LIMITS[kind], "dot"))
    if not dots:
        return figure
    return replace(figure, legend=(*dots, *(key for key in figure.legend if key.kind != "dot")))


def knee_line(result: RunResult) -> tuple[fig.VerticalLine, ...]:
    """Draw the knee as a line with its number and its interval, or the counts between which it lies."""
    knee = result.knee
    if knee is None:
        return ()
    if knee.n_au is not None:
        label = [f"knee {number(knee.n_au, 3)}"]
        if knee.interval is not None:
            label.append(" to ".join(number(end, 3) for end in knee.interval))
        return (fig.VerticalLine(x=knee.n_au, interval=knee.interval, label=tuple(label), colour=fig.KNEE),)
    if knee.fed is None or knee.kind not in ("at-least", "not-identifiable"):
        return ()
    if knee.kind == "at-least" or knee.starved is None:
        ends, words = None, f"at least {knee.fed:,}"
    else:
        ends, words = (float(knee.fed), float(knee.starved)), f"{knee.fed:,} to {knee.starved:,}"
    return (fig.VerticalLine(x=knee.fed, interval=ends, label=("knee", words), colour=fig.KNEE),)


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
    space = np.geomspace if last >= fig.LOG_FROM * first else np.linspace
    counts = space(first, last, 60).tolist()
    band = found.band(counts, (0.025, 0.5, 0.975)).T.tolist()
    return [
        (ranks, *(demand * min(1.0, level) for level in levels))
        for ranks, levels in zip(counts, band, strict=True)
    ]


def utilization(result: RunResult) -> fig.Figure | None:
    """Draw accelerator utilization and X/X_ideal against the process count, with the threshold."""
    points = [point for point in by_ranks(result) if computes(point)]
    if not points:
        return None
    au = measured(points, lambda point: point.au * 100)
    x_ideal = measured(points, lambda point: point.x_ideal * 100)
    threshold = 100 * threshold_of(result)
    return fig.against_processes(
        (
            "utilization",
            "Accelerator utilization",
            "AU: nominal compute over elapsed time, as MLPerf Storage defines it. X/X_ideal: samples per "
            "second over what accelerators that never wait would consume. Both leave out the first step of "
            "an epoch.",
        ),
        [
            fig.Series(name="AU", dots=au, colour=fig.MEASURED),
            fig.Series(name="X/X_ideal", dots=x_ideal, colour=fig.SECOND, area=18, dashed=True),
        ],
        fig.Axis(high=max(100.0, *(dot.y for dot in (*au, *x_ideal))) * 1.06, suffix=" %"),
        behind=(*knee_line(result), fig.HorizontalLine(y=threshold, colour=fig.KNEE)),
        legend=[fig.Key(f"threshold {threshold:g} %", fig.KNEE, "dash")],
        qualified=marks_line(result),
    )


MOST_LINES = 8
"""Most process counts whose throughput over time is drawn."""


def over_time(result: RunResult) -> fig.Figure | None:
    """Draw bytes/s of all processes read over the time of each count's last point."""
    courses = {point.ranks: point.course for point in by_ranks(result) if point.course}
    series = list(courses.items())
    if len(series) > MOST_LINES:
        series = [series[place] for place in np.linspace(0, len(series) - 1, MOST_LINES).astype(int)]
    if not series:
        return None
    lines = {}
    for ranks, course in series:
        rates = np.array(course.bytes_per_second)
        spans = (np.arange(len(rates)) + 0.5) / len(rates)
        lines[f"{ranks:,}"] = course.begin + spans * (course.end - course.begin), rates
    words = (
        "over-time",
        "Throughput over time",
        "Bytes read per second by all processes, a line a process count. A level line is a storage that has "
        "settled; one that falls was read from a cache at first." + _of_some(result),
    )
    end = max(course.end for _, course in series)
    x = fig.Axis(title="seconds since the point began", high=end * 1.04)
    return _curves(words, lines, x, None, result)


def _curves(
    words: tuple[str, str, str],
    lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]],
    x: fig.Axis,
    y: fig.Axis | None,
    result: RunResult,
) -> fig.Figure:
    """Draw values over time, a line a name: bytes/s unless there is a `y`.

    `words` are the figure's name, its title and its caption.
    """
    name, title, caption = words
    points = [tuple(zip(at.tolist(), values.tolist(), strict=True)) for at, values in lines.values()]
    most = max(value for line in points for _, value in line)
    colours = [fig.series_colour(number) for number in range(len(lines))]
    return fig.Figure(
        name=name,
        title=title,
        caption=caption,
        x=x,
        y=y or fig.rate_axis(most * 1.15 or 1.0, show_rate),
        marks=tuple(fig.Line(points=line, colour=each) for line, each in zip(points, colours, strict=True)),
        legend=tuple(map(fig.Key, lines, colours)),
        qualified=marks_line(result),
    )


def hosts_over_time(result: RunResult, rows: HostRows) -> tuple[fig.Figure, ...]:
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
    x = fig.Axis(title="seconds, runs one after the other", high=float(seconds[-1]))
    share = "Share of the cores' time that was not idle, on the host where it was largest."
    words, y = ("hosts-cpu", "CPU over time", share), fig.Axis(high=106.0, suffix=" %")
    cpu = _curves(words, {"busiest host": (seconds, busiest)}, x, y, result)
    if not rates:
        return (cpu,)
    sums = "Bytes per second of all hosts together, every process and file on them counted."
    words = ("hosts-rates", "Network and device over time", sums)
    return _curves(words, rates, x, None, result), cpu


def _of_some(result: RunResult) -> str:
    """Return what a caption has to say where the step log has the steps of some processes only."""
    return "".join(f" {flag.sentence}" for flag in result.flags if flag.name == "step-log")


PARTS = {"compute": "#4f83cc", "wait": "#e07b39", "barrier": "#9aa5b1", "overshoot": "#a23b72"}
"""Part of a step -> its colour, from the bottom of the stack to its top."""


def step_time(result: RunResult) -> fig.Figure | None:
    """Divide the mean step: compute, wait, barrier, overshoot, stacked, for each process count."""
    seconds = mean_steps(result)
    if not seconds:
        return None
    most = max(map(sum, seconds.values()))
    return fig.Figure(
        name="step-time",
        title="Where a step goes, mean",
        caption="Mean over steps and processes: compute is the emulated accelerator, wait is for "
        "data, overshoot is for a process that took its batch or woke up late. Time at a barrier counts as "
        "what the last process did longer than this one; as barrier where the step log does not tell."
        + _of_some(result),
        x=fig.Axis(title=fig.PROCESSES, kind="names", whole=True),
        y=fig.rate_axis(most * 1.15 or 1.0, show_seconds),
        marks=(fig.Bars(stacks=tuple(seconds.items()), colours=tuple(PARTS.values())),),
        legend=tuple(fig.Key(name, colour, "box") for name, colour in PARTS.items()),
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
