"""Figures as data, and their drawings by Altair and vl-convert, without a browser or the network.

A `Figure` is series of dots against an axis, with levels and places to compare them with.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from emulator.errors import MissingError
from emulator.record.out import write_output
from emulator.text import shown

INK, SOFT, PAPER, GRID = "#1f2933", "#5b6673", "#ffffff", "#e4e7eb"
MEASURED, IDEAL, KNEE = "#1d5fd1", "#8a94a0", "#c2410c"
PALETTE = (
    "#1d5fd1", "#e07b39", "#0f8a6d", "#a23b72", "#003366", "#bb8800", "#ee6688", "#774400", "#006677",
    "#bb77ee", "#5533bb", "#007700", "#4f83cc",
)  # fmt: skip
"""Colours of series, in their order: 0.10 or more apart in OKLab."""
PROCESSES = "processes (emulated accelerators)"
Chart = Any
"""An Altair chart: the package is optional, and imported only when a figure is drawn."""


def colour(place: int) -> str:
    """The colour of the series with that number, from 0."""
    return PALETTE[place % len(PALETTE)]


@dataclass(frozen=True, slots=True)
class Dot:
    """A measured value."""

    x: float
    y: float
    text: str = ""
    """Text for a pointer on the dot."""
    flagged: bool = False
    used: bool = True
    """False: lines do not go through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one kind, in one colour."""

    name: str
    dots: Sequence[Dot] = ()
    colour: str
    drawn: bool = True
    """True if the dots are drawn, not only the line through them."""
    line: bool = True
    """True if a line goes through the mean of the used dots at each x."""
    dashed: bool = False
    band: Sequence[tuple[float, float, float, float]] = ()
    """x, low, middle, high of a curve that is drawn instead of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale and its labels."""

    title: str = ""
    unit: str = ""
    """Written after each number, with a decimal prefix: `B/s`, `s`; `%` has none."""
    log: bool = False
    whole: bool = False
    """True if only whole numbers are labelled."""
    names: bool = False
    """True if every x has a place of its own, whatever lies between."""
    high: float | None = None
    """None: as far as the values reach."""


@dataclass(frozen=True, slots=True)
class Level:
    """A dashed line over the whole width, named in the legend."""

    y: float
    name: str
    colour: str = INK


@dataclass(frozen=True, slots=True)
class Place:
    """A line over the whole height, with its interval as a band, named in the legend."""

    x: float
    interval: tuple[float, float] | None
    name: str
    colour: str = KNEE


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Everything that a picture shows."""

    name: str
    """Short name, for ids: `step-time`."""
    title: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    places: Sequence[Place] = ()
    stacked: bool = False
    """True for bars of the series on each other, instead of lines."""
    qualified: str = ""
    """Marks that qualify every number in it (`view.marks_line`): a picture may travel alone, with them."""


def spread(values: Sequence[float]) -> bool:
    """True where values differ so much that an axis of them is logarithmic: a hundredfold."""
    known = [value for value in values if value > 0]
    return bool(known) and max(known) >= 100 * min(known)


class Size(NamedTuple):
    """Pixels of the drawing area."""

    width: int
    height: int


HERO, WIDE, NARROW = Size(780, 270), Size(520, 270), Size(268, 230)


def extra(name: str) -> ModuleType:
    """An optional package of the report, by name. Raises MissingError with the pip line."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the package {name.replace('_', '-')} is not installed", "pip install 'feedrate[report]'"
        ) from None


def chart(figure: Figure, size: Size = WIDE) -> Chart:
    """The figure as an Altair chart. Raises MissingError."""
    alt = extra("altair")
    layers = list(_bars(figure, size) if figure.stacked else _lines(figure, size))
    title: dict[str, Any] = {"text": figure.title}
    if figure.qualified:
        # Vega breaks no lines: a letter of 12 px is about 7 px wide.
        title["subtitle"] = textwrap.wrap(figure.qualified, size.width // 7)
    return alt.layer(*layers).properties(width=size.width, height=size.height, title=title)


def _data(rows: Sequence[Mapping[str, Any]]) -> Chart:
    alt = extra("altair")
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))


def _channel(channel: Any, axis: Axis) -> Any:
    """An axis as an encoding of the column `x` or `y`."""
    alt = extra("altair")
    name, title = "x" if channel is alt.X else "y", axis.title or None
    if axis.names:
        return channel(f"{name}:O", axis=alt.Axis(title=title, labelAngle=0, ticks=False))
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": True}
    if axis.high is not None and not axis.log:
        scale |= {"domain": [0, axis.high]}
    labels = alt.Axis(**{"title": title, "tickCount": 5, **_labels(axis)})
    # Not nice: rounded ends would leave room where nothing was measured.
    return channel(f"{name}:Q", axis=labels, scale=alt.Scale(nice=False, **scale))


def _labels(axis: Axis) -> dict[str, Any]:
    """How Vega writes the numbers of an axis."""
    if axis.whole:
        return {"format": ",~s", "tickMinStep": 1, "tickCount": 8}
    if axis.unit == "%":
        return {"labelExpr": "datum.label + ' %'"}
    if axis.unit:
        # 5G becomes 5 GB/s.
        number = "replace(format(datum.value, '~s'), regexp('([a-zA-Zµ]?)$'), ' $1')"
        return {"labelExpr": f"datum.label === '' ? '' : {number} + '{axis.unit}'"}
    return {}


def _colours(figure: Figure, size: Size) -> Any:
    """The colour of everything that has a name, with one legend for all layers."""
    alt = extra("altair")
    parts: list[Series | Level | Place] = [*figure.series, *figure.levels, *figure.places]
    names = {part.name: part.colour for part in parts}
    longest = min(max(map(len, names), default=1), 36)
    # Browsers may draw letters wider than vl-convert measured them.
    legend = alt.Legend(
        title=None,
        orient="top",
        columns=max(1, size.width // (7 * longest + 34)),
        labelLimit=size.width - 20,
        columnPadding=10 + 1.3 * longest,
        symbolOpacity=1,
        symbolType="circle",
    )
    scale = alt.Scale(domain=list(names), range=list(names.values()))
    return alt.Color("series:N", scale=scale, legend=legend if len(names) > 1 else None)


def _lines(figure: Figure, size: Size) -> Iterator[Chart]:
    """The layers of a figure, from the back to the front."""
    alt = extra("altair")
    x, y, colours = _channel(alt.X, figure.x), _channel(alt.Y, figure.y), _colours(figure, size)
    for place in figure.places:
        if place.interval is not None:
            low, high = place.interval
            band = _data([{"x": low, "end": high, "series": place.name}]).mark_rect(opacity=0.18)
            yield band.encode(x=x, x2="end:Q", color=colours)
        rule = _data([{"x": place.x, "series": place.name}]).mark_rule(strokeWidth=1.6)
        yield rule.encode(x=x, color=colours)  # the same colour scale everywhere: one legend
    for level in figure.levels:
        rule = _data([{"y": level.y, "series": level.name}]).mark_rule(strokeDash=[5, 3], strokeWidth=1.6)
        yield rule.encode(y=y, color=colours)
    for series in figure.series:
        rows = [{"x": at, "y": low, "high": high, "series": series.name} for at, low, _, high in series.band]
        if rows:
            yield _data(rows).mark_area(opacity=0.16).encode(x=x, y=y, y2="high:Q", color=colours)
        rows = [{"x": at, "y": value, "series": series.name} for at, value in _curve(series)]
        if rows:
            dash = {"strokeDash": [5, 3]} if series.dashed else {}
            yield _data(rows).mark_line(strokeWidth=2.2, **dash).encode(x=x, y=y, color=colours)
    yield from _dots(figure, x, y, colours)


def _dots(figure: Figure, x: Any, y: Any, colours: Any) -> Iterator[Chart]:
    """Filled circles, and hollow diamonds for flagged dots."""
    drawn = [(series.name, dot) for series in figure.series if series.drawn for dot in series.dots]
    shapes: dict[bool, dict[str, Any]] = {
        False: {"filled": True, "size": 50},
        True: {"filled": False, "size": 64, "strokeWidth": 2, "shape": "diamond"},
    }
    # Two layers: Altair has no encoding for filled and hollow.
    for flagged, shape in shapes.items():
        rows = [
            {"x": dot.x, "y": dot.y, "series": name, "text": shown(dot.text) or f"{dot.y:.4g}"}
            for name, dot in drawn
            if dot.flagged is flagged
        ]
        if rows:
            dots = _data(rows).mark_point(opacity=1, aria=True, **shape)
            yield dots.encode(x=x, y=y, color=colours, description="text:N")


def _curve(series: Series) -> list[tuple[float, float]]:
    """The points of a series' line."""
    if series.band:
        return [(at, middle) for at, _, middle, _ in series.band]
    values: dict[float, list[float]] = {}
    for dot in series.dots if series.line else ():
        if dot.used:
            values.setdefault(dot.x, []).append(dot.y)
    return [(at, sum(repeats) / len(repeats)) for at, repeats in sorted(values.items())]


def _bars(figure: Figure, size: Size) -> Iterator[Chart]:
    alt = extra("altair")
    rows = [
        {"x": dot.x, "y": dot.y, "series": series.name, "order": order}
        for order, series in enumerate(figure.series)
        for dot in series.dots
    ]
    x, y = _channel(alt.X, figure.x), _channel(alt.Y, figure.y)
    # Many counts get thinner bars, so that there is room between them.
    bars = _data(rows).mark_bar(size=min(46.0, 300 / max(1, len(rows) / len(figure.series))))
    yield bars.encode(x=x, y=y.stack("zero"), order="order:Q", color=_colours(figure, size))


def _spec(drawn: Chart, ground: str) -> dict[str, Any]:
    """The Vega-Lite of a chart, in the clothes that all figures wear."""
    soft = {"labelColor": SOFT, "titleColor": SOFT, "labelFontSize": 12, "titleFontSize": 12}
    config = {
        "background": ground,
        "font": "Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif",
        "padding": 6,
        "view": {"stroke": None},
        "aria": False,
        "legend": {"labelColor": SOFT, "labelFontSize": 12},
        "title": {
            "anchor": "start",
            "color": INK,
            "fontSize": 15,
            "offset": 10,
            "subtitleColor": KNEE,
            "subtitleFontSize": 12,
            "subtitlePadding": 4,
            "frame": "group",
        },
        "axis": {
            **soft,
            "titleFontWeight": "normal",
            "gridColor": GRID,
            "domainColor": GRID,
            "tickColor": GRID,
            "labelOverlap": "greedy",
            "labelSeparation": 6,
        },
        "axisX": {"grid": False, "domainColor": IDEAL, "tickColor": IDEAL},
        "axisY": {"domain": False, "ticks": False},
    }
    spec: dict[str, Any] = _printable(drawn.configure(**config).to_dict(validate=False))
    return spec


def _printable(value: Any) -> Any:
    """A tree of plain values without control characters, at which vl-convert aborts the process."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return shown(value) if isinstance(value, str) else value


def altair_chart(figure: Figure) -> Chart:
    """The figure on white as Altair has it, which notebooks show. Raises MissingError."""
    return extra("altair").LayerChart.from_dict(_spec(chart(figure), PAPER))


def svg(figure: Figure, size: Size = WIDE) -> str:
    """The figure as SVG text on a transparent ground. Raises MissingError."""
    with _unchecked():
        spec = _spec(chart(figure, size), "transparent")  # a page may be dark
    return pointable(extra("vl_convert").vegalite_to_svg(spec))


def pointable(svg: str) -> str:
    """The SVG with a title on each dot, which browsers show, and without Vega's own words for it."""
    titled = re.sub(
        r'<path aria-label="([^"]*)"([^>]*?)(?:/>|></path>)',
        r'<path class="dot"\2><title>\1</title></path>',
        svg,
    )
    return re.sub(r' (?:role="graphics-[a-z]+"|aria-[a-z]+="[^"]*")', "", titled)


def write_picture(figures: Sequence[Figure], path: Path, kind: str, heading: str = "") -> None:
    """Write the figures as one picture on white, in two columns, `svg` or else `png`.

    Raises MissingError, StorageError.
    """
    with _unchecked():
        alt = extra("altair")
        charts = [chart(figure) for figure in figures]
        if not charts:
            empty = _data([{}]).mark_text(text="Nothing was measured.", color=SOFT, fontSize=16)
            charts = [empty.properties(width=WIDE.width, height=60)]
        grid = alt.concat(*charts, columns=2, spacing={"row": 34, "column": 40})
        grid = grid.resolve_scale(color="independent")  # or all figures would share one legend
        if heading:
            grid = grid.properties(title={"text": heading, "fontSize": 18, "offset": 16})
        spec = _spec(grid, PAPER)
    convert = extra("vl_convert")
    if kind == "svg":
        write_output(path, pointable(convert.vegalite_to_svg(spec)))
    else:
        write_output(path, convert.vegalite_to_png(spec, scale=2))


def _unchecked() -> AbstractContextManager[None]:
    """Keep Altair from checking every part against its schema, which takes most of the time.

    The tests draw every figure with the checks on.
    """
    extra("altair")
    off: AbstractContextManager[None] = extra("altair.utils.schemapi").debug_mode(False)
    return off
