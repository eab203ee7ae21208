"""The figures of a training, each with its caption, and the few formulas that they share with its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.evidence import usable
from emulator.analysis.knee import asked
from emulator.analysis.point import show_au
from emulator.analysis.posterior import posterior
from emulator.analysis.search import observe
from emulator.record.result import BoundKind, Point, RunResult
from emulator.report import figure as fig
from emulator.report.table import number, percent
from emulator.report.view import marks_line
from emulator.units import show_rate, show_seconds


def computes(point: Point) -> bool:
    """False when the workload does not compute: then there is no ideal rate, no AU and no X/X_ideal."""
    return math.isfinite(point.ideal_samples_per_second) and point.ideal_samples_per_second > 0


def by_ranks(result: RunResult) -> list[Point]:
    """The points that can be drawn, by rank count."""
    return sorted((point for point in result.points if point.ranks > 0), key=lambda point: point.ranks)


def mean_demand(points: Sequence[Point]) -> float | None:
    """Bytes/s that one process asks for, of the points that the knee is made from; None without compute."""
    known = [point for point in points if computes(point) and point.ranks and point.samples and point.bytes]
    return asked(usable(known) or known) if known else None


def measured(
    points: Sequence[Point], value: Callable[[Point], float], *, by_limit: bool = False
) -> tuple[fig.Dot, ...]:
    """`value` of each point against its rank count; `by_limit` in the colour of what limits the point."""
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


LIMITS = dict(zip(LIMIT_NAMES, fig.LIMIT_COLOURS, strict=False))
"""Limit of a point -> its colour."""


def told(point: Point) -> str:
    """A point in words, for who points at it."""
    parts = [
        f"{point.ranks:,} process{'' if point.ranks == 1 else 'es'}: {show_rate(point.bytes_per_second)}",
        f"{number(point.samples_per_second)} samples/s of the workload",
    ]
    if computes(point):
        parts += [show_au(point), f"X/X_ideal {point.x_ideal:.3f}"]
        parts += [] if point.au_here is None else [f"AU here {percent(point.au_here)} %"]
    if point.bound:
        parts.append(f"limited by {LIMIT_NAMES[point.bound.kind]}")
    if point.flags:
        parts.append("flagged: " + ", ".join(sorted({flag.name for flag in point.flags})))
    return "; ".join(parts)


RATES = (("PB/s", 1e15), ("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def unit_for(largest: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Name and size of the unit that keeps the numbers of an axis up to `largest` short."""
    return next((unit for unit in units if largest >= 2 * unit[1]), units[-1])


@dataclass(frozen=True, slots=True)
class StorageLimit:
    """The highest rate at which another tool read from the same storage."""

    bytes_per_second: float
    name: str
    """`fio, sequential 1 MiB reads`."""


def hero(result: RunResult, limit: StorageLimit | None = None) -> fig.Figure | None:
    """The answer as one picture: throughput, knee, interval, ideal, limits, and what limits each point.

    None where there are no two counts to compare.
    """
    if len({point.ranks for point in by_ranks(result)}) < 2:
        return None
    most = max(point.bytes_per_second for point in result.points)
    limits = [limit] if limit is not None and limit.bytes_per_second <= 3 * most else []
    figure = throughput(result, limits, by_limit=True)
    return figure and replace(figure, name="answer", title="Throughput and the knee")


def throughput(
    result: RunResult, limits: Sequence[StorageLimit] = (), by_limit: bool = False
) -> fig.Figure | None:
    """All processes together: bytes/s against the process count, with the ideal line, the knee, and `limits`.

    `by_limit`: points in the colours of what limits them.
    """
    points = by_ranks(result)
    if not points:
        return None
    x = fig.process_axis([point.ranks for point in points])
    log = x.kind == "log"
    most = max(point.bytes_per_second for point in points)
    most = max(most, *(limit.bytes_per_second for limit in limits), 0.0)
    name, unit = ("", 1.0) if log else unit_for(most, RATES)
    dots = measured(points, lambda point: point.bytes_per_second / unit, by_limit=by_limit)
    top = most / unit * (2.0 if log else 1.18) or 1.0
    low = min(dot.y for dot in dots) * 0.6
    marks, legend = list(_knee(result)), []
    demand = mean_demand(points)
    if demand is not None:
        legend = [fig.Key("ideal", fig.IDEAL, "dash")]
        each = demand / unit
        ends = (float(points[0].ranks) if log else 0.0, min(points[-1].ranks * 1.02, top / each))
        marks.append(fig.Line(points=tuple((end, end * each) for end in ends), colour=fig.IDEAL, dashed=True))
    for place, limit in enumerate(limits, start=1):
        rate, alone = limit.bytes_per_second, len(limits) == 1
        label = f"{limit.name}: {show_rate(rate)}"
        colour = fig.SECOND if alone else fig.series_colour(place)
        marks.append(fig.HorizontalLine(y=rate / unit, colour=colour, label=label if alone else ""))
        legend += [] if alone else [fig.Key(label, colour, "dash")]  # beside each other labels would overlap
    fit = [
        (ranks, *(ranks * level / unit for level in levels))
        for ranks, *levels in fitted(result)
        if ranks * levels[1] / unit < top
    ]
    curve, keys = _curve(result, dots, [(ranks, low, mid, min(top, high)) for ranks, low, mid, high in fit])
    if by_limit:
        kinds = {point.bound.kind: None for point in points if point.bound}
        keys = (
            *(key for key in keys if key.kind != "dot" or not kinds),
            *(fig.Key(_limit_key(kind), LIMITS.get(kind, fig.SOFT), "dot") for kind in kinds),
        )
    return fig.Figure(
        name="throughput",
        title="Throughput, all processes",
        caption="All processes together."
        + (" Dashed: what processes that never wait would read." if demand else ""),
        x=x,
        y=fig.log_axis(low, top, show_rate) if log else fig.Axis(title=name, high=top),
        marks=(*marks, *curve),
        legend=(*keys, *legend, *fig.flagged_key(dots)),
        qualified=marks_line(result),
    )


def _limit_key(kind: BoundKind) -> str:
    """Name the limit of a point for the legend: that compute is the limit is what one wants."""
    return "fed: limited by compute" if kind == "compute" else f"limited by {LIMIT_NAMES[kind]}"


def per_process(result: RunResult) -> fig.Figure | None:
    """Bytes/s of one process against the process count, with what it asks for and the knee."""
    points = by_ranks(result)
    if not points:
        return None
    demand = mean_demand(points)
    most = max([point.bytes_per_second / point.ranks for point in points] + [demand or 0])
    name, unit = unit_for(most, RATES)
    dots = measured(points, lambda point: point.bytes_per_second / point.ranks / unit)
    marks, legend = list(_knee(result)), []
    if demand is not None:
        marks.append(fig.HorizontalLine(y=demand / unit, colour=fig.IDEAL))
        legend = [fig.Key(f"ideal, {number(demand / unit, 4)} {name}", fig.IDEAL, "dash")]
    fit = [(ranks, *(level / unit for level in levels)) for ranks, *levels in fitted(result)]
    curve, keys = _curve(result, dots, fit)
    top = max([dot.y for dot in dots] + [(demand or 0.0) / unit]) * 1.15 or 1.0
    return fig.Figure(
        name="per-process",
        title="Throughput of one process",
        caption="Bytes per second that each process gets." + (" Dashed: what it asks for." if demand else ""),
        x=fig.process_axis([point.ranks for point in points]),
        y=fig.Axis(title=f"{name} per process", high=top),
        marks=(*marks, *curve),
        legend=(*keys, *legend, *fig.flagged_key(dots)),
        qualified=marks_line(result),
    )


def _knee(result: RunResult) -> tuple[fig.Mark, ...]:
    """The knee as a line with its number and its interval as a band, or between which counts it lies."""
    knee = result.knee
    if knee is None:
        return ()
    if knee.n_au is None:
        if knee.fed is None or knee.kind not in ("at-least", "not-identifiable"):
            return ()
        open_ended = knee.kind == "at-least" or knee.starved is None
        ends = None if open_ended else (float(knee.fed), float(knee.starved or 0))
        words = f"at least {knee.fed:,}" if ends is None else f"{knee.fed:,} to {knee.starved:,}"
        return (fig.VerticalLine(x=knee.fed, interval=ends, label=("knee", words), colour=fig.KNEE),)
    label = [f"knee {number(knee.n_au, 3)}"]
    if knee.interval is not None:
        label.append(f"{number(knee.interval[0], 3)} to {number(knee.interval[1], 3)}")
    return (fig.VerticalLine(x=knee.n_au, interval=knee.interval, label=tuple(label), colour=fig.KNEE),)


def _curve(
    result: RunResult, dots: tuple[fig.Dot, ...], fit: Sequence[tuple[float, ...]]
) -> tuple[tuple[fig.Mark, ...], tuple[fig.Key, ...]]:
    """The points, and through them the fitted curve where there is one, else their means; with the legend."""
    made = "simulated" if result.kind == "simulated" else "measured"
    if not fit:
        return fig.through(dots, fig.MEASURED), (fig.Key(made, fig.MEASURED),)
    band = fig.Band(points=tuple((x, low, high) for x, low, _, high in fit), colour=fig.MEASURED)
    line = fig.Line(points=tuple((x, middle) for x, _, middle, _ in fit), colour=fig.MEASURED)
    keys = (fig.Key(made, fig.MEASURED, "dot"), fig.Key("fit, 95 % band", fig.MEASURED))
    return (band, line, fig.Dots(dots=dots, colour=fig.MEASURED)), keys


def fitted(result: RunResult) -> list[tuple[float, float, float, float]]:
    """The curve that the knee was read from: ranks, and bytes/s of one process, low, middle and high (95 %).

    From the same posterior and the same points as the knee. [] without an interval of the knee: then nothing
    was fitted; and where no curve fits the runs, so that the knee is a bare crossing between two counts.
    """
    points = by_ranks(result)
    demand = mean_demand(points)
    used = [point for point in usable(result.points) if computes(point) and point.ranks > 0]
    if result.knee is None or result.knee.n_au is None or result.knee.interval is None or demand is None:
        return []
    first, last = points[0].ranks, points[-1].ranks
    space = np.geomspace if last >= fig.LOG_FROM * first else np.linspace
    counts = tuple(space(first, last, 60).tolist())
    band = _band(
        tuple(point.ranks for point in used),
        tuple(run.efficiency for run in map(observe, used)),
        tuple(run.slack for run in map(observe, used)),
        result.workload.get("training", {}).get("au_threshold", 0.9),
        counts,
    )
    return [
        (ranks, *(demand * min(1.0, level) for level in levels))
        for ranks, levels in zip(counts, band, strict=bool(band))
    ]


@lru_cache(maxsize=8)
def _band(
    ranks: tuple[int, ...],
    efficiency: tuple[float, ...],
    slack: tuple[float, ...],
    threshold: float,
    counts: tuple[float, ...],
) -> tuple[tuple[float, float, float], ...]:
    """Quantiles of the fitted efficiency at each count; kept, since several figures draw the same."""
    found = posterior(ranks, efficiency, threshold, max(ranks), slack)
    if not found.curved:
        return ()
    band = found.band(counts, (0.025, 0.5, 0.975))
    return tuple((float(low), float(middle), float(high)) for low, middle, high in band.T)


def utilisation(result: RunResult) -> fig.Figure | None:
    """Accelerator utilisation and X/X_ideal in percent against the process count, with the threshold."""
    points = [point for point in by_ranks(result) if computes(point)]
    if not points:
        return None
    au = measured(points, lambda point: point.au * 100)
    x_ideal = measured(points, lambda point: point.x_ideal * 100)
    marks: list[fig.Mark] = list(_knee(result))
    legend = [fig.Key("AU", fig.MEASURED), fig.Key("X/X_ideal", fig.SECOND, "dash")]
    threshold = result.workload.get("training", {}).get("au_threshold")
    if threshold is not None:
        marks.append(fig.HorizontalLine(y=threshold * 100, colour=fig.KNEE))
        legend.append(fig.Key(f"threshold {threshold * 100:g} %", fig.KNEE, "dash"))
    return fig.Figure(
        name="utilisation",
        title="Accelerator utilisation",
        caption="AU: nominal compute over elapsed time, as MLPerf Storage defines it. X/X_ideal: samples per "
        "second over what accelerators that never wait would consume. Both leave out the first step of an "
        "epoch.",
        x=fig.process_axis([point.ranks for point in points]),
        y=fig.Axis(high=max(100.0, *(dot.y for dot in (*au, *x_ideal))) * 1.06, suffix=" %"),
        marks=(
            *marks,
            *fig.through(au, fig.MEASURED),
            *fig.through(x_ideal, fig.SECOND, area=18, dashed=True),
        ),
        legend=(*legend, *fig.flagged_key(au)),
        qualified=marks_line(result),
    )


MOST_LINES = 8
"""Process counts whose course is drawn."""


def over_time(result: RunResult) -> fig.Figure | None:
    """Bytes/s of all processes over the time of each count's last point, the first steps left out."""
    courses = {point.ranks: point.course for point in by_ranks(result) if point.course}
    series = list(courses.items())
    if len(series) > MOST_LINES:
        series = [series[place] for place in np.linspace(0, len(series) - 1, MOST_LINES).astype(int)]
    if not series:
        return None
    most = max(max(course.bytes_per_second) for _, course in series)
    name, unit = unit_for(most, RATES)
    marks: list[fig.Mark] = []
    for place, (_, course) in enumerate(series):
        rates = np.array(course.bytes_per_second)
        times = course.begin + (np.arange(len(rates)) + 0.5) / len(rates) * (course.end - course.begin)
        points = tuple(zip(times.tolist(), (rates / unit).tolist(), strict=True))
        marks.append(fig.Line(points=points, colour=fig.series_colour(place)))
    return fig.Figure(
        name="over-time",
        title="Throughput over time",
        caption="Bytes per second of all processes together, a line a process count. A level line is a "
        "storage that has settled; one that falls was read from a cache at first." + _of_some(result),
        x=fig.Axis(
            title="seconds since the point began", high=max(course.end for _, course in series) * 1.04
        ),
        y=fig.Axis(title=name, high=most / unit * 1.15),
        marks=tuple(marks),
        legend=tuple(
            fig.Key(f"{ranks:,}", fig.series_colour(place)) for place, (ranks, _) in enumerate(series)
        ),
        qualified=marks_line(result),
    )


def _of_some(result: RunResult) -> str:
    """Caption for figures of steps: says that they are some processes' alone, where they are."""
    return "".join(f" {flag.sentence}" for flag in result.flags if flag.name == "step-log")


PARTS = {"compute": "#4f83cc", "wait": "#e07b39", "barrier": "#9aa5b1", "overshoot": "#a23b72"}
"""Part of a step -> its colour, from the bottom of the stack to its top."""


def step_time(result: RunResult) -> fig.Figure | None:
    """Divide the mean step: compute, wait, barrier, overshoot, stacked, for each process count."""
    seconds = mean_steps(result)
    if not seconds:
        return None
    name, unit = unit_for(max(map(sum, seconds.values())), TIMES)
    return fig.Figure(
        name="step-time",
        title="Where a step goes, mean",
        caption="Mean over steps and processes: compute is the emulated accelerator, wait is for "
        "data, overshoot is the emulator itself. Time at a barrier counts as what the last process did "
        "longer than this one; as barrier where the step log does not tell." + _of_some(result),
        x=fig.Axis(title=fig.PROCESSES, kind="names", whole=True),
        y=fig.Axis(title=f"{name} per step"),
        marks=(
            fig.Bars(
                stacks=tuple(
                    (ranks, tuple(part / unit for part in parts)) for ranks, parts in seconds.items()
                ),
                colours=tuple(PARTS.values()),
            ),
        ),
        legend=tuple(fig.Key(name, colour, "box") for name, colour in PARTS.items()),
        qualified=marks_line(result),
    )


def mean_steps(result: RunResult) -> dict[int, tuple[float, ...]]:
    """Rank count -> mean seconds of the PARTS of a step, as measured or else from the points' shares."""
    found: dict[int, list[list[float]]] = {}
    for at in result.points:
        known = [at.step[part] for part in PARTS] if PARTS.keys() <= at.step.keys() else _estimated(at)
        found.setdefault(at.ranks, []).append(known)
    return {
        ranks: tuple(max(0.0, sum(part) / len(part)) for part in zip(*repeats, strict=True))
        for ranks, repeats in sorted(found.items())
    }


def _estimated(point: Point) -> list[float]:
    """Estimate the parts from the shares that the result keeps; the rest is overshoot."""
    step = point.seconds / point.steps if point.steps else 0.0
    compute = point.au_first if computes(point) else 0.0
    rest = max(0.0, 1 - point.wait_share - point.barrier_share - compute)
    return [share * step for share in (compute, point.wait_share, point.barrier_share, rest)]


PERCENTILES = {50.0: "#4f83cc", 90.0: "#0f8a6d", 99.0: "#e07b39", 99.9: "#a23b72", 100.0: ""}
"""Percentile of read latency -> its colour; the maximum is not drawn."""


def latency(result: RunResult) -> fig.Figure | None:
    """Percentiles of the latency of read requests against the process count."""
    found = [(point.ranks, seconds) for point, seconds in with_latency(result) if point.ranks > 0]
    series = {
        percentile: tuple(
            fig.Dot(ranks, seconds[place]) for ranks, seconds in found if 0 < seconds[place] < math.inf
        )
        for place, percentile in enumerate(PERCENTILES)
        if percentile < 100
    }
    values = [dot.y for dots in series.values() for dot in dots]
    if not values:
        return None
    marks = [fig.through(dots, PERCENTILES[percentile], area=34) for percentile, dots in series.items()]
    return fig.Figure(
        name="latency",
        title="Latency of read requests",
        caption="One read request, as the loader sends it. Percentiles are upper edges of histogram buckets; "
        "the maximum in the table is the longest request itself.",
        x=fig.process_axis([ranks for ranks, _ in found]),
        y=fig.log_axis(min(values) / 1.6, max(values) * 1.6, show_seconds),
        marks=tuple(mark for pair in marks for mark in pair),
        legend=tuple(fig.Key(f"p{percentile:g}", PERCENTILES[percentile]) for percentile in series),
        qualified=marks_line(result),
    )


def with_latency(result: RunResult) -> list[tuple[Point, tuple[float, ...]]]:
    """The points that have a histogram of read latency, by rank count, with their percentiles in seconds."""
    ordered = sorted(result.points, key=lambda point: point.ranks)
    found = [(point, _with_maximum(point)) for point in ordered]
    return [(point, seconds) for point, seconds in found if seconds]


def _with_maximum(point: Point) -> tuple[float, ...]:
    """The percentiles with the longest request itself, where it is known, in place of its bucket's edge."""
    seconds = percentiles(point.read_latency)
    longest = point.read_latency_max
    if not seconds or longest is None:
        return seconds
    return (*(min(edge, longest) for edge in seconds[:-1]), longest)


def percentiles(histogram: Mapping[str, int]) -> tuple[float, ...]:
    """Seconds at or below which each of the PERCENTILES of the requests ended; () without requests.

    `histogram` maps the upper edge of a bucket in microseconds to requests. The answer is the upper edge
    of the bucket that the percentile falls into, so it never flatters.
    """
    edges = np.array([_edge(name) for name in histogram])
    counts = np.array(list(histogram.values()), dtype=np.int64)
    if not len(edges) or counts.sum() <= 0:
        return ()
    order = np.argsort(edges)
    total = np.cumsum(counts[order])
    places = np.searchsorted(total, np.ceil(total[-1] * np.array(list(PERCENTILES)) / 100 - 1e-9))
    return tuple((edges[order][np.minimum(places, len(edges) - 1)] * 1e-6).tolist())


def _edge(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf  # a bucket without an upper edge, whatever it is called


FIGURES = (throughput, per_process, utilisation, step_time, over_time, latency)
"""In the order of a page."""
