"""The optional packages of the report, or one line that says how to get them."""

from __future__ import annotations

import importlib
import json
import math
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from emulator.errors import MissingError
from emulator.report import rows as frames
from emulator.report.rows import Rows


def extra(name: str) -> ModuleType:
    """The module altair, vl_convert or jinja2. Raises MissingError with the pip line."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the package {name.replace('_', '-')} is not installed", "pip install 'feedrate[report]'"
        ) from None


# ---- How the plots look: colours, fonts, sizes. page.css maps the colours to their dark twins by value.


INK = "#1f2933"
SOFT = "#5b6673"
GRID = "#e4e7eb"
MEASURED = "#1d5fd1"
IDEAL = "#8a94a0"
KNEE = "#c2410c"
FLAGGED = "#b7791f"
SECOND = "#0f8a6d"
PAPER = "#ffffff"
PART_COLOURS = {"compute": "#4f83cc", "wait": "#e07b39", "barrier": "#9aa5b1", "overshoot": "#a23b72"}
PERCENTILE_COLOURS = {"p50": "#4f83cc", "p90": "#0f8a6d", "p99": "#e07b39", "p99.9": "#a23b72"}
SERIES = ("#1d5fd1", "#e07b39", "#0f8a6d", "#a23b72", "#7353ba", "#4f83cc", "#c2410c", "#5b6673")
"""Colours of compared results, in their order; a ninth begins again."""
DARK = {
    INK: "#e8ecf1",
    SOFT: "#a9b4c0",
    GRID: "#2c353f",
    MEASURED: "#74a7ff",
    IDEAL: "#7d8894",
    KNEE: "#ff9561",
    FLAGGED: "#f0b84a",
    SECOND: "#4fd1ae",
    "#4f83cc": "#6d9fe6",
    "#e07b39": "#ee9355",
    "#9aa5b1": "#77828e",
    "#a23b72": "#d873ab",
    "#7353ba": "#b39df0",
}
"""Colour on white -> its twin on black, for the page."""
FONT = "Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Size:
    """A plot's drawing area in px, and the characters of a subtitle that fit in a line."""

    width: int
    height: int
    characters: int
    narrow: bool


WIDE = Size(520, 270, 80, False)
NARROW = Size(282, 230, 46, True)


def config(paper: str | None = None) -> dict[str, Any]:
    """The Vega-Lite config of every plot; without `paper` the background is transparent."""
    return {
        "background": paper or "transparent",
        "font": FONT,
        "padding": 6,
        "aria": False,
        "view": {"stroke": None},
        "title": {
            "anchor": "start", "color": INK, "fontSize": 15, "fontWeight": 600, "offset": 10,
            "subtitleColor": SOFT, "subtitleFontSize": 12, "subtitlePadding": 4, "frame": "group",
        },
        "axis": {
            "labelColor": SOFT, "titleColor": SOFT, "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "gridColor": GRID, "domainColor": GRID, "tickColor": GRID,
            "titlePadding": 8, "labelPadding": 4, "labelOverlap": "greedy", "labelSeparation": 6,
        },
        "axisX": {"grid": False, "domainColor": IDEAL, "tickColor": IDEAL},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            "orient": "top", "direction": "horizontal", "title": None, "labelColor": SOFT,
            "labelFontSize": 12, "symbolStrokeWidth": 2, "offset": 4, "padding": 0, "columnPadding": 14,
        },
    }  # fmt: skip


# ---- The parts that plots are put together from: axes, points, labels, a key, a title with its marks.


Chart = Any
"""An Altair chart: the package is optional and imported only when a plot is drawn."""
TEXT = 12
"""Size of letters inside a plot, px."""
PROCESSES = "processes (emulated accelerators)"
SHORT_COUNT = "datum.value < 10000 ? format(datum.value, ',') : format(datum.value, '.3~s')"
"""Vega expression: 9,999 in full, 100k short."""
_ROW = 19
_CHARACTER = 6.3
"""Height of a row of the key and a generous width of a letter, px."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a plot's key."""

    name: str
    colour: str
    kind: Literal["line", "dash", "dot", "diamond", "box"]


def data(rows: Rows) -> Any:
    """`rows` as Altair takes them."""
    return extra("altair").Data(values=rows)


def unchecked() -> AbstractContextManager[None]:
    """Within it Altair does not check every part against its schema, which takes most of the time.

    The tests draw every plot with the checks on.
    """
    extra("altair")
    off: AbstractContextManager[None] = extra("altair.utils.schemapi").debug_mode(False)
    return off


def _at(mark: str, x: float, y: float, **how: Any) -> Chart:
    """One mark at a place in px from the plot's upper left corner."""
    alt = extra("altair")
    chart = alt.Chart(data([{}]), encoding=alt.FacetedEncoding())  # Vega-Lite wants one, empty though it is
    return getattr(chart, f"mark_{mark}")(x=x, y=y, **how)


def _symbol(key: Key, x: float, y: float) -> Chart:
    shapes = {"dot": "circle", "diamond": "diamond", "box": "square", "line": "stroke", "dash": "stroke"}
    sizes = {"dot": 60, "diamond": 60, "box": 110, "line": 18**2, "dash": 18**2}  # areas, square px
    dash = {"strokeDash": [5, 3]} if key.kind == "dash" else {}
    return _at(
        "point", x + 9, y, color=key.colour, shape=shapes[key.kind], size=sizes[key.kind],
        filled=key.kind in ("dot", "box"), strokeWidth=2.2, opacity=1, **dash,
    )  # fmt: skip


def key_rows(keys: list[Key], width: float) -> list[list[tuple[Key, float]]]:
    """The entries with their x, broken into rows that fit in `width` px."""
    rows: list[list[tuple[Key, float]]] = [[]]
    x = 0.0
    for key in keys:
        needed = 24 + len(key.name) * _CHARACTER
        if rows[-1] and x + needed > width:
            rows.append([])
            x = 0.0
        rows[-1].append((key, x))
        x += needed + 14
    return rows


def _key(rows: list[list[tuple[Key, float]]]) -> list[Chart]:
    """The key as layers above the plot."""
    layers = []
    for number, row in enumerate(rows):
        y = -12.0 - (len(rows) - 1 - number) * _ROW
        for key, x in row:
            layers.append(_symbol(key, x, y))
            layers.append(
                _at(
                    "text",
                    x + 24,
                    y,
                    text=key.name,
                    align="left",
                    baseline="middle",
                    color=SOFT,
                    fontSize=TEXT,
                )
            )
    return layers


def finished(layers: list[Chart], keys: list[Key], text: str, qualified: str, size: Size) -> Chart:
    """The layers with their key and title, and under the title what qualifies the result (`marks_line`).

    A plot may travel alone, so its marks travel with it.
    """
    rows = key_rows(keys, size.width)
    lines = textwrap.wrap(qualified, size.characters)
    title: dict[str, Any] = {"text": text, "offset": 10}
    if lines:
        title |= {"subtitle": lines, "subtitleColor": KNEE}
    chart = extra("altair").layer(*layers, *_key(rows))
    return chart.properties(width=size.width, height=size.height, title=title)


def grid(charts: list[Chart], heading: str, qualified: str = "") -> Chart:
    """The charts in two columns under a heading; a line that says so when there is none."""
    alt = extra("altair")
    if not charts:
        empty = alt.Chart(data([{}])).mark_text(text="Nothing was measured.", color=SOFT, fontSize=16)
        charts = [finished([empty], [], "No points", qualified, WIDE)]
    title = {"text": heading, "fontSize": 18, "anchor": "start", "offset": 16}
    return alt.concat(*charts, columns=2, spacing={"row": 34, "column": 40}).properties(title=title)


def decades(low: float, high: float) -> list[float]:
    """Tick values between `low` and `high` on a logarithmic axis: decades, or 1-2-5 when there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if math.log10(high / low) > 2 else (1.0, 2.0, 5.0)
    values = [step * 10.0**power for power in powers for step in steps]
    return [float(f"{value:.6g}") for value in values if low <= value <= high]


def processes(least: int, most: int) -> Any:
    """The x axis: linear from 0, or logarithmic when the process counts span much."""
    alt = extra("altair")
    if frames.logarithmic(least, most):
        low, high = least * 0.85, most * 1.25
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(title=PROCESSES, values=decades(low, high), labelExpr=SHORT_COUNT)
    else:
        scale = alt.Scale(domain=[0, most * 1.06], nice=False)
        axis = alt.Axis(title=PROCESSES, tickMinStep=1, tickCount=8, labelExpr=SHORT_COUNT)
    return alt.X("ranks:Q", scale=scale, axis=axis)


def upright(column: str, name: str, top: float, form: Literal["plain", "percent"] = "plain") -> Any:
    """A y axis from 0 to `top`."""
    alt = extra("altair")
    labels = {"labelExpr": "datum.label + ' %'"} if form == "percent" else {}
    axis = alt.Axis(title=name or None, tickCount=5, **labels)
    return alt.Y(f"{column}:Q", scale=alt.Scale(domain=[0, top], nice=False), axis=axis)


def upright_rate(column: str, top: float, show: Callable[[float], str]) -> Any:
    """A y axis from 0 to `top` bytes/s whose labels carry their unit."""
    alt = extra("altair")
    step = 10 ** math.floor(math.log10(top))
    step = next(step * part for part in (2.0, 1.0, 0.5, 0.25, 0.2, 0.1) if top / (step * part) >= 3)
    values = [number * step for number in range(math.floor(top / step) + 1)]
    return alt.Y(
        f"{column}:Q",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(title=None, values=values, labelExpr=_labels(values, show)),
    )


def _labels(values: list[float], show: Callable[[float], str]) -> str:
    """A Vega expression that turns each of `values` into what `show` makes of it."""
    names = {}
    for value in values:
        mantissa, exponent = f"{value:.6e}".split("e")  # written as Vega's format '.6~e' does
        names[f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent):+d}"] = show(value) if value else "0"
    return f"{json.dumps(names)}[format(datum.value, '.6~e')]"


def upright_log(column: str, low: float, high: float, show: Callable[[float], str]) -> Any:
    """A logarithmic y axis whose labels are what `show` makes of the values, with their unit."""
    alt = extra("altair")
    values = decades(low, high)
    labels = _labels(values, show)
    axis = alt.Axis(title=None, values=values, labelExpr=labels)
    return alt.Y(f"{column}:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)


def line(rows: Rows, x: Any, y: Any, colour: str, dash: bool = False) -> Chart:
    """A line through `rows`."""
    how = {"strokeDash": [5, 3]} if dash else {}
    mark = extra("altair").Chart(data(rows)).mark_line(color=colour, strokeWidth=2.2, **how)
    return mark.encode(x=x, y=y)


def band(rows: Rows, x: Any, y: Any, column: str, colour: str) -> list[Chart]:
    """A fitted curve through `column`, in a band between its `_low` and `_high` columns."""
    alt = extra("altair")
    base = alt.Chart(data(rows)).encode(x=x)
    low = y.copy()
    low.shorthand = f"{column}_low:Q"
    return [
        base.mark_area(color=colour, opacity=0.16).encode(y=low, y2=f"{column}_high:Q"),
        base.mark_line(color=colour, strokeWidth=2.0).encode(y=y),
    ]


def dots(rows: Rows, x: Any, y: Any, colour: str, small: bool = False, flagged: str = FLAGGED) -> list[Chart]:
    """The measured points; flagged ones hollow, in another shape and in the colour `flagged`."""
    base = extra("altair").Chart
    plain = [row for row in rows if not row["flagged"]]
    raised = [row for row in rows if row["flagged"]]
    return [
        base(data(plain))
        .mark_point(filled=True, size=18 if small else 46, color=colour, opacity=1)
        .encode(x=x, y=y),
        base(data(raised))
        .mark_point(filled=False, size=64, color=flagged, strokeWidth=2, shape="diamond", opacity=1)
        .encode(x=x, y=y),
    ]


def flagged_key(rows: Rows, colour: str = FLAGGED) -> list[Key]:
    """An entry for flagged points, when there are any."""
    return [Key("flagged", colour, "diamond")] if any(row["flagged"] for row in rows) else []
