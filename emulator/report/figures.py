"""The plots of a result as Altair charts, and as SVG or PNG. No network, no browser."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from emulator.files import write_whole
from emulator.record.result import Knee, Point, RunResult
from emulator.record.steps import Steps
from emulator.report import drawing
from emulator.report import rows as frames
from emulator.report.drawing import Chart, Key, Size, extra
from emulator.report.rows import Rows, fit_rows
from emulator.report.view import computes, marks_line, number, title
from emulator.units import show_rate, show_seconds

Plot = Callable[[RunResult, Steps, Size], Chart | None]
"""Draws a result, its step log, at a size; None when there is nothing to draw."""


def _processes(points: list[Point]) -> Any:
    return drawing.processes(points[0].ranks, points[-1].ranks)


def _knee(result: RunResult, points: list[Point], x: Any, size: Size) -> list[Chart]:
    """The knee as a line with its number, and its interval as a band."""
    alt = extra("altair")
    knee = result.knee
    if knee is None or knee.n_au is None:
        return []
    at: Rows = [{"ranks": knee.n_au}]
    layers = [alt.Chart(drawing.data(at)).mark_rule(color=drawing.KNEE, strokeWidth=1.6).encode(x=x)]
    if knee.interval is not None:
        band: Rows = [{"ranks": knee.interval[0], "end": knee.interval[1]}]
        layers.insert(
            0,
            alt.Chart(drawing.data(band)).mark_rect(color=drawing.KNEE, opacity=0.18).encode(x=x, x2="end:Q"),
        )
    layers.append(_knee_label(knee, points, x, size))
    return layers


def _knee_label(knee: Knee, points: list[Point], x: Any, size: Size) -> Chart:
    """The knee's number and interval, on the side of the line that has more room."""
    at = knee.n_au or 0.0
    first, last = points[0].ranks, points[-1].ranks
    left = at > (first * last) ** 0.5 if frames.logarithmic(first, last) else at > last * 0.55
    lines = [f"knee {number(at, 3)}"]
    if knee.interval is not None:
        lines.append(f"{number(knee.interval[0], 3)} to {number(knee.interval[1], 3)}")
    bottom = size.height - 8 - 15 * (len(lines) - 1)
    return (
        extra("altair")
        .Chart(drawing.data([{"ranks": at}]))
        .mark_text(
            text=lines, align="right" if left else "left", dx=-7 if left else 7, baseline="line-bottom",
            color=drawing.KNEE, fontSize=drawing.TEXT, fontWeight=600, lineHeight=15, y=bottom,
        )
        .encode(x=x)
    )  # fmt: skip


def _made(result: RunResult) -> str:
    return "simulated" if result.kind == "simulated" else "measured"


def _curve(
    result: RunResult, rows: Rows, fitted: Rows, x: Any, y: Any, column: str
) -> tuple[list[Chart], list[Key]]:
    """The points, and through them the fitted curve where there is one, else their means; with the key."""
    points = drawing.dots(rows, x, y, drawing.MEASURED)
    if not fitted:
        through = drawing.line(frames.line_rows(rows, column), x, y, drawing.MEASURED)
        return [through, *points], [Key(_made(result), drawing.MEASURED, "line")]
    keys = [Key(_made(result), drawing.MEASURED, "dot"), Key("fit, 95 % band", drawing.MEASURED, "line")]
    return [*drawing.band(fitted, x, y, column, drawing.MEASURED), *points], keys


def throughput(result: RunResult, steps: Steps, size: Size) -> Chart | None:
    """All processes together: bytes/s against the process count, with the ideal line and the knee."""
    points = frames.ordered(result)
    if not points:
        return None
    log = frames.logarithmic(points[0].ranks, points[-1].ranks)
    most = max(point.bytes_per_second for point in points)
    unit = frames.Unit(name="", size=1.0) if log else frames.rate_unit(most)
    rows = frames.throughput_rows(points, unit)
    rates = [float(row["rate"]) for row in rows]
    top = max(rates) * (2.0 if log else 1.18) or 1.0
    x = _processes(points)
    y = drawing.upright("rate", unit.name, top)
    if log:
        y = drawing.upright_log("rate", min(rates) * 0.6, top, show_rate)
    ideal = frames.ideal_rows(points, top, unit)
    layers = _knee(result, points, x, size)
    layers += [drawing.line(ideal, x, y, drawing.IDEAL, dash=True)] if ideal else []
    curve, keys = _curve(result, rows, fit_rows(result, unit, top), x, y, "rate")
    keys += [Key("ideal", drawing.IDEAL, "dash")] if ideal else []
    keys += drawing.flagged_key(rows)
    return drawing.finished(layers + curve, keys, "Throughput, all processes", marks_line(result), size)


def per_process(result: RunResult, steps: Steps, size: Size) -> Chart | None:
    """MB/s of one process against the process count, with what it asks for and the knee."""
    points = frames.ordered(result)
    if not points:
        return None
    one = frames.mean_demand(points)
    unit = frames.rate_unit(max([point.bytes_per_second / point.ranks for point in points] + [one or 0]))
    rows = frames.throughput_rows(points, unit)
    top = max([float(row["each"]) for row in rows] + [one / unit.size if one else 0.0]) * 1.15 or 1.0
    x, y = _processes(points), drawing.upright("each", f"{unit.name} per process", top)
    layers = _knee(result, points, x, size)
    curve, keys = _curve(result, rows, fit_rows(result, unit, math.inf), x, y, "each")
    if one is not None:
        layers.append(_level(one / unit.size, y, drawing.IDEAL))
        keys.append(Key(f"ideal, {number(one / unit.size, 4)} {unit.name}", drawing.IDEAL, "dash"))
    keys += drawing.flagged_key(rows)
    return drawing.finished(layers + curve, keys, "Throughput of one process", marks_line(result), size)


def _level(value: float, y: Any, colour: str) -> Chart:
    """A dashed horizontal line."""
    alt = extra("altair")
    column = str(y.shorthand).partition(":")[0]
    rule = alt.Chart(drawing.data([{column: value}])).mark_rule(
        color=colour, strokeWidth=1.6, strokeDash=[5, 3]
    )
    return rule.encode(y=y)


def utilisation(result: RunResult, steps: Steps, size: Size) -> Chart | None:
    """Accelerator utilisation and X/X_ideal in percent against the process count, with the threshold."""
    points = [point for point in frames.ordered(result) if computes(point)]
    if not points:
        return None
    rows = frames.throughput_rows(points, frames.Unit(name="", size=1.0))
    top = max([100.0] + [float(row[column]) for row in rows for column in ("au", "x_ideal")]) * 1.06
    x = _processes(points)
    y, other = drawing.upright("au", "", top, "percent"), drawing.upright("x_ideal", "", top, "percent")
    threshold = result.workload.get("training", {}).get("au_threshold")
    layers, keys = [], [Key("AU", drawing.MEASURED, "line"), Key("X/X_ideal", drawing.SECOND, "dash")]
    if threshold is not None:
        layers.append(_level(threshold * 100, y, drawing.KNEE))
        keys.append(Key(f"threshold {threshold * 100:g} %", drawing.KNEE, "dash"))
    layers += [drawing.line(frames.line_rows(rows, "au"), x, y, drawing.MEASURED)]
    layers += drawing.dots(rows, x, y, drawing.MEASURED)
    layers += [drawing.line(frames.line_rows(rows, "x_ideal"), x, other, drawing.SECOND, dash=True)]
    layers += drawing.dots(rows, x, other, drawing.SECOND, small=True)
    return drawing.finished(
        layers, keys + drawing.flagged_key(rows), "Accelerator utilisation", marks_line(result), size
    )


def _colours(column: str, colours: dict[str, str]) -> Any:
    alt = extra("altair")
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{column}:N", legend=None, scale=scale)


def step_time(result: RunResult, steps: Steps, size: Size) -> Chart | None:
    """Where the mean step goes: compute, wait, barrier, overshoot, stacked, for each process count."""
    alt = extra("altair")
    rows = frames.step_rows(result, steps)
    if not rows:
        return None
    totals: dict[object, float] = {}
    for row in rows:
        totals[row["ranks"]] = totals.get(row["ranks"], 0.0) + float(row["seconds"])
    unit = frames.time_unit(max(totals.values()))
    shown: Rows = [{**row, "time": float(row["seconds"]) / unit.size} for row in rows]
    bar = min(46.0, size.width / len(totals) * 0.7)
    axis = alt.Axis(title=drawing.PROCESSES, labelAngle=0, ticks=False, labelExpr=drawing.SHORT_COUNT)
    bars = (
        alt.Chart(drawing.data(shown))
        .mark_bar(size=bar)
        .encode(
            x=alt.X("ranks:O", axis=axis),
            y=alt.Y("time:Q", axis=alt.Axis(title=f"{unit.name} per step", tickCount=5), stack="zero"),
            color=_colours("part", drawing.PART_COLOURS),
            order=alt.Order("order:Q"),
        )
    )
    keys = [Key(name, drawing.PART_COLOURS[name], "box") for name in frames.PARTS]
    return drawing.finished([bars], keys, "Where a step goes, mean", marks_line(result), size)


def latency(result: RunResult, steps: Steps, size: Size) -> Chart | None:
    """Percentiles of the latency of read requests against the process count."""
    alt = extra("altair")
    rows = frames.latency_rows(frames.ordered(result))
    if not rows:
        return None
    seconds = [float(row["seconds"]) for row in rows]
    points = [point for point in frames.ordered(result) if point.read_latency]
    x = _processes(points)
    y = drawing.upright_log("seconds", min(seconds) / 1.6, max(seconds) * 1.6, show_seconds)
    colour = _colours("percentile", drawing.PERCENTILE_COLOURS)
    base = alt.Chart(drawing.data(rows)).encode(x=x, y=y, color=colour)
    layers = [base.mark_line(strokeWidth=2.2), base.mark_point(filled=True, size=34, opacity=1)]
    keys = [Key(name, shade, "line") for name, shade in drawing.PERCENTILE_COLOURS.items()]
    return drawing.finished(layers, keys, "Latency of read requests", marks_line(result), size)


PLOTS: dict[str, Plot] = {
    "throughput": throughput,
    "per-process": per_process,
    "utilisation": utilisation,
    "step-time": step_time,
    "latency": latency,
}
"""Name -> plot, in the order of the page."""
PICTURE = ("throughput", "per-process", "utilisation", "step-time")
"""The plots of the one picture that --png and --svg write."""


def draw(name: str, result: RunResult, steps: Steps, size: Size) -> str | None:
    """The plot of that name as SVG text, transparent; None when there is nothing to draw.

    Raises MissingError.
    """
    with drawing.unchecked():
        chart = PLOTS[name](result, steps, size)
        return None if chart is None else to_svg(chart, None)


def to_svg(chart: Chart, paper: str | None) -> str:
    """The chart as SVG text; transparent without `paper`. Raises MissingError."""
    return str(extra("vl_convert").vegalite_to_svg(_spec(chart, paper)))


def to_png(chart: Chart) -> bytes:
    """The chart as a PNG on white, two px a px. Raises MissingError."""
    return bytes(extra("vl_convert").vegalite_to_png(_spec(chart, drawing.PAPER), scale=2))


def _spec(chart: Chart, paper: str | None) -> dict[str, Any]:
    spec: dict[str, Any] = chart.configure(**drawing.config(paper)).to_dict(validate=False)
    return spec


def picture(result: RunResult, steps: Steps) -> Chart:
    """The four plots as one chart, with the workload's title."""
    drawn = [PLOTS[name](result, steps, drawing.WIDE) for name in PICTURE]
    return drawing.grid([chart for chart in drawn if chart is not None], title(result), marks_line(result))


def write_picture(result: RunResult, steps: Steps, path: Path, kind: Literal["png", "svg"]) -> None:
    """Write the picture whole or not at all. Raises MissingError, StorageError."""
    with drawing.unchecked():
        chart = picture(result, steps)
        content = to_svg(chart, drawing.PAPER).encode() if kind == "svg" else to_png(chart)
    write_whole(path, content)
