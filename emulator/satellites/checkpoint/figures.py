"""The plot of a checkpoint run: throughput of every write and read, in the order they were made."""

from __future__ import annotations

from collections.abc import Callable

from emulator.record.result import RunResult
from emulator.report import drawing
from emulator.report.drawing import Chart, Key, Size, extra
from emulator.report.figures import to_svg
from emulator.report.rows import Rows
from emulator.report.view import marks_line
from emulator.units import show_rate

CAPTION = "All ranks together, by the slowest one. Left to right in the order they were made."


def rates(result: RunResult, size: Size) -> Chart | None:
    """Bytes/s of each checkpoint; None when there are fewer than two."""
    if len(result.checkpoints) < 2:
        return None
    alt = extra("altair")
    most, count = max(one.bytes_per_second for one in result.checkpoints), len(result.checkpoints)
    axis = alt.Axis(title="checkpoint", tickMinStep=1, format="d")
    x = alt.X("number:Q", scale=alt.Scale(domain=[0.5, count + 0.5], nice=False), axis=axis)
    y = drawing.upright_rate("value", most * 1.15, show_rate)
    layers: list[Chart] = []
    keys = []
    for place, direction in enumerate(("write", "read")):
        rows: Rows = [
            {"number": number, "value": one.bytes_per_second, "flagged": False}
            for number, one in enumerate(result.checkpoints, start=1)
            if one.direction == direction
        ]
        if rows:
            colour = drawing.SERIES[place]
            layers += [drawing.line(rows, x, y, colour), *drawing.dots(rows, x, y, colour, small=True)]
            keys.append(Key(direction, colour, "line"))
    return drawing.finished(layers, keys, "Checkpoints written and read", marks_line(result), size)


def drawings(result: RunResult) -> list[tuple[dict[str, str], Callable[[str, Size], str | None]]]:
    """The caption of the plot by its name, and what draws it; none for other kinds of results."""
    if result.kind != "checkpoint":
        return []

    def drawn(name: str, size: Size) -> str | None:
        with drawing.unchecked():
            chart = rates(result, size)
            return None if chart is None else to_svg(chart, None)

    return [({"checkpoints": CAPTION}, drawn)]
