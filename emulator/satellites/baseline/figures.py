"""Plots of a baseline: throughput and latency against queue depth; training on fio's axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emulator.analysis.flags import usable
from emulator.record.result import Corner, RunResult
from emulator.report import drawing
from emulator.report import rows as frames
from emulator.report.drawing import Chart, Key, Size, extra
from emulator.report.figures import to_svg
from emulator.report.rows import Rows
from emulator.report.view import marks_line
from emulator.satellites.baseline.report import bytes_per_second, iops, maxima, sides, tool, workloads
from emulator.units import show_rate, show_seconds

Lines = dict[str, tuple[Corner, ...]]


def _lines(result: RunResult, pattern: str) -> Lines:
    """Workload -> its corners at the largest number of clients, by depth."""
    found = {name: some for name, some in workloads(result.baseline).items() if some[0].pattern == pattern}
    return {
        name: tuple(corner for corner in some if corner.clients == some[-1].clients)
        for name, some in found.items()
    }


def _depths(lines: Lines) -> Any:
    alt = extra("altair")
    depths = sorted({corner.depth for some in lines.values() for corner in some})
    scale = alt.Scale(type="log", base=2, domain=[depths[0] * 0.9, depths[-1] * 1.1], nice=False)
    return alt.X(
        "depth:Q", scale=scale, axis=alt.Axis(title="queue depth of a job", values=depths, format="d")
    )


def _colour(number: int) -> str:
    return drawing.SERIES[number % len(drawing.SERIES)]


def _series(rows: Rows, x: Any, y: Any, colour: str, dash: bool = False) -> list[Chart]:
    return [
        drawing.line(rows, x, y, colour, dash),
        *([] if dash else drawing.dots(rows, x, y, colour, small=True)),
    ]


def _rates(result: RunResult, size: Size, pattern: str, name: str, measure: Callable[[Corner], float],
           show: Callable[[float], str]) -> Chart | None:  # fmt: skip
    lines = _lines(result, pattern)
    values = [measure(corner) for some in lines.values() for corner in some]
    if not values or max(values) <= 0:
        return None
    x, y = _depths(lines), drawing.upright_rate("value", max(values) * 1.15, show)
    layers: list[Chart] = []
    for number, some in enumerate(lines.values()):
        rows: Rows = [{"depth": c.depth, "value": measure(c), "flagged": False} for c in some]
        layers += _series(rows, x, y, _colour(number))
    keys = [Key(name, _colour(number), "line") for number, name in enumerate(lines)]
    return drawing.finished(layers, keys, name, marks_line(result), size)


def random(result: RunResult, size: Size) -> Chart | None:
    """IOPS of the random workloads against queue depth."""

    def show(value: float) -> str:
        return (
            f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
        )

    return _rates(result, size, "random", "Random access, requests per second", iops, show)


def sequential(result: RunResult, size: Size) -> Chart | None:
    """Bytes/s of the sequential workloads against queue depth."""
    return _rates(result, size, "sequential", "Sequential access", bytes_per_second, show_rate)


def latency(result: RunResult, size: Size) -> Chart | None:
    """Mean latency (solid) and the 99.99 % one (dashed) against queue depth; of mixes the slower side."""
    lines = {**_lines(result, "sequential"), **_lines(result, "random")}
    lines = {name: some for name, some in lines.items() if all(map(sides, some))}
    if not lines:
        return None
    values = [value for some in lines.values() for c in some for s in sides(c)
              for value in (s.latency_mean, s.latency_p9999)]  # fmt: skip
    x = _depths(lines)
    y = drawing.upright_log("value", min(values) / 1.6, max(values) * 1.6, show_seconds)
    layers: list[Chart] = []
    for number, some in enumerate(lines.values()):
        mean: Rows = [
            {"depth": c.depth, "value": max(s.latency_mean for s in sides(c)), "flagged": False} for c in some
        ]
        tail: Rows = [
            {"depth": c.depth, "value": max(s.latency_p9999 for s in sides(c)), "flagged": False}
            for c in some
        ]
        layers += _series(mean, x, y, _colour(number)) + _series(tail, x, y, _colour(number), dash=True)
    keys = [Key(name, _colour(number), "line") for number, name in enumerate(lines)]
    keys.append(Key("99.99 %", drawing.SOFT, "dash"))
    return drawing.finished(layers, keys, "Latency of requests", marks_line(result), size)


def beside(training: RunResult, baseline: RunResult, size: Size) -> Chart | None:
    """Training throughput against processes, and what fio reads at most as dashed levels."""
    alt = extra("altair")
    points = frames.ordered(training)
    levels = {name: c.read.bytes_per_second for name, c in maxima(baseline.baseline).items()
              if c.read and c.read_share == 1}  # fmt: skip
    if not points or not levels:
        return None
    most = max([point.bytes_per_second for point in points] + list(levels.values()))
    used = usable(points)
    rows: Rows = [
        {"ranks": p.ranks, "value": p.bytes_per_second, "flagged": bool(p.flags), "used": p in used}
        for p in points
    ]
    x = drawing.processes(points[0].ranks, points[-1].ranks)
    y = drawing.upright_rate("value", most * 1.15, show_rate)
    layers, keys = [], [Key("training", drawing.MEASURED, "line")]
    for number, (name, rate) in enumerate(levels.items(), start=1):
        rule = alt.Chart(drawing.data([{"value": rate}]))
        layers.append(rule.mark_rule(color=_colour(number), strokeWidth=1.6, strokeDash=[5, 3]).encode(y=y))
        keys.append(Key(f"{tool(baseline)}, {name}", _colour(number), "dash"))
    layers.append(drawing.line(frames.line_rows(rows, "value"), x, y, drawing.MEASURED))
    layers += drawing.dots(rows, x, y, drawing.MEASURED)
    text = f"Training beside {tool(baseline)}"
    return drawing.finished(layers, keys + drawing.flagged_key(rows), text, marks_line(training), size)


CAPTIONS = {
    "beside": "What training reads, all processes together. Dashed: the most that the baseline read.",
    "sequential": "All clients together, at the largest number of clients.",
    "random": "Reads and writes of all clients together, at the largest number of clients.",
    "latency": "Solid: mean. Dashed: within which 99.99 % of the requests completed. Mixes: the slower side.",
}
"""What each plot shows, in words, in the order of the page."""


PLOTS: dict[str, Callable[[RunResult, Size], Chart | None]] = {
    "sequential": sequential,
    "random": random,
    "latency": latency,
}
"""Name -> plot of a baseline alone."""


def draw(name: str, training: RunResult | None, baseline: RunResult, size: Size) -> str | None:
    """The plot of that name as SVG text; None when there is nothing to draw. Raises MissingError."""
    with drawing.unchecked():
        if name == "beside":
            chart = None if training is None else beside(training, baseline, size)
        else:
            chart = PLOTS[name](baseline, size)
        return None if chart is None else to_svg(chart, None)


def drawings(
    result: RunResult, baselines: Sequence[RunResult]
) -> list[tuple[dict[str, str], Callable[[str, Size], str | None]]]:
    """For each baseline on a page its captions by plot name, and what draws them."""
    shown = [result] if result.kind == "baseline" else list(baselines)
    training = None if result.kind == "baseline" else result
    found: list[tuple[dict[str, str], Callable[[str, Size], str | None]]] = []
    for number, one in enumerate(shown, start=1):
        captions = {f"fio{number}-{name}": text for name, text in CAPTIONS.items()}

        def drawn(name: str, size: Size, baseline: RunResult = one) -> str | None:
            return draw(name.partition("-")[2], training, baseline, size)

        found.append((captions, drawn))
    return found
