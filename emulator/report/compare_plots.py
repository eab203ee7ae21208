"""The plots of a comparison: every result a line, published rows as squares, on the same axes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from emulator.record.store import write_whole
from emulator.report import frames, style
from emulator.report import plotkit as kit
from emulator.report.compare import Comparison, Entry
from emulator.report.extras import extra
from emulator.report.frames import Rows
from emulator.report.plotkit import Chart, Key
from emulator.report.plots import to_png, to_svg
from emulator.report.style import Size
from emulator.report.view import marks
from emulator.units import show_rate

Measure = Callable[[Entry], float | None]
LONGEST_NAME = 28
"""Letters of a result's name in a plot's key."""


def _everything(comparison: Comparison) -> list[Entry]:
    return [entry for one in comparison.results for entry in one.entries] + list(comparison.published)


def _qualified(comparison: Comparison) -> str:
    """The marks of all results, with the name of the result where they are not those of all."""
    marked = [[mark.label for mark in marks(one.result)] for one in comparison.results]
    if marked and all(labels == marked[0] for labels in marked):
        return " · ".join(marked[0])
    return " · ".join(
        f"{_short(one.name)}: {label}"
        for one, labels in zip(comparison.results, marked, strict=True)
        for label in labels
    )


def _short(name: str) -> str:
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 + 1 :]}"
    )


def _rows(entries: list[Entry], measure: Measure) -> Rows:
    rows: Rows = []
    for entry in entries:
        value = measure(entry)
        if value is not None and value > 0:
            row = {"ranks": entry.accelerators, "value": value, "flagged": entry.flagged}
            rows.append({**row, "used": entry.used})
    return rows


def _plot(comparison: Comparison, measure: Measure, text: str, y: Callable[[Rows], Any], size: Size) -> Chart:
    rows = _rows(_everything(comparison), measure)
    if not rows:
        return None
    counts = [int(row["ranks"]) for row in rows]
    x, upright = kit.processes(min(counts), max(counts)), y(rows)
    layers: list[Chart] = []
    keys: list[Key] = []
    published = _rows(list(comparison.published), measure)
    if published:
        squares = extra("altair").Chart(kit.data(published))
        layers.append(
            squares.mark_point(shape="square", filled=True, size=34, color=style.IDEAL, opacity=0.75).encode(
                x=x, y=upright
            )
        )
    for number, one in enumerate(comparison.results):
        colour = style.SERIES[number % len(style.SERIES)]
        layers += _series(_rows(one.entries, measure), x, upright, colour)
        keys.append(Key(_short(one.name), colour, "line"))
    if published:
        keys.append(Key("published", style.IDEAL, "box"))
    return kit.finished(layers, keys + kit.flagged_key(rows, style.SOFT), text, _qualified(comparison), size)


def _series(rows: Rows, x: Any, y: Any, colour: str) -> list[Chart]:
    if not rows:
        return []
    return [
        kit.line(frames.line_rows(rows, "value"), x, y, colour),
        *kit.dots(rows, x, y, colour, flagged=colour),
    ]


def throughput(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of all accelerators together against their number."""

    def y(rows: Rows) -> Any:
        values = [float(row["value"]) for row in rows]
        low, high = min(values), max(values)
        if high >= frames.LOG_FROM * low:
            return kit.upright_log("value", low * 0.6, high * 1.8, show_rate)
        return kit.upright_rate("value", high * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.bytes_per_second, "Throughput, all accelerators", y, size)


def per_accelerator(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of one accelerator against their number."""

    def y(rows: Rows) -> Any:
        return kit.upright_rate("value", max(float(row["value"]) for row in rows) * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.per_accelerator, "Throughput of one accelerator", y, size)


def per_host(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of one host against the number of accelerators."""

    def y(rows: Rows) -> Any:
        return kit.upright_rate("value", max(float(row["value"]) for row in rows) * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.per_host, "Throughput of one host", y, size)


def efficiency(comparison: Comparison, size: Size) -> Chart:
    """X/X_ideal in percent against the number of accelerators."""

    def y(rows: Rows) -> Any:
        return kit.upright("value", "", max(106.0, *(float(row["value"]) * 1.04 for row in rows)), "percent")

    def measure(entry: Entry) -> float | None:
        return None if entry.x_ideal is None else entry.x_ideal * 100

    return _plot(comparison, measure, "X/X_ideal", y, size)


PLOTS: dict[str, Callable[[Comparison, Size], Chart]] = {
    "throughput": throughput,
    "per-accelerator": per_accelerator,
    "per-host": per_host,
    "x-ideal": efficiency,
}
"""Name -> plot, in the order of the page."""


def draw(name: str, comparison: Comparison, size: Size) -> str | None:
    """The plot of that name as SVG text; None when there is nothing to draw. Raises MissingError."""
    with kit.unchecked():
        chart = PLOTS[name](comparison, size)
        return None if chart is None else to_svg(chart, None)


def write_picture(comparison: Comparison, path: Path, kind: Literal["png", "svg"]) -> None:
    """Write the plots as one picture, whole or not at all. Raises MissingError, StorageError."""
    with kit.unchecked():
        drawn = [plot(comparison, style.WIDE) for plot in PLOTS.values()]
        chart = kit.grid([chart for chart in drawn if chart is not None], "Comparison")
        content = to_svg(chart, style.PAPER).encode() if kind == "svg" else to_png(chart)
    write_whole(path, lambda file: file.write(content))
