"""Figures as data, and their drawings by Altair and vl-convert, without a browser or the network.

A `Figure` is series of dots against an axis, with levels and places to compare them with. Altair lacks three
things: hollow diamonds for flagged dots, a label beside a line, and a title that a pointer shows in an SVG.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from emulator.errors import FeedrateError, MissingError
from emulator.launch.child import ChildProcess
from emulator.record.out import write_output
from emulator.text import shown

INK, SOFT, PAPER, GRID = "#1f2933", "#5b6673", "#ffffff", "#e4e7eb"
MEASURED, IDEAL, KNEE, FLAGGED = "#1d5fd1", "#8a94a0", "#c2410c", "#cc3311"
PALETTE = {
    "#1d5fd1": "#74a7ff",
    "#e07b39": "#ee9355",
    "#0f8a6d": "#4fd1ae",
    "#a23b72": "#d873ab",
    "#003366": "#c3d4ff",
    "#bb8800": "#debd65",
    "#ee6688": "#ff8fa8",
    "#774400": "#c98d4b",
    "#006677": "#4fc3d6",
    "#bb77ee": "#d3a5ff",
    "#5533bb": "#8f7bf0",
    "#007700": "#4cae4c",
    "#4f83cc": "#6d9fe6",
}
"""Colours of series, in their order, and their twins on a dark page: 0.10 or more apart in OKLab on both."""
DARK = {
    INK: "#e8ecf1",
    SOFT: "#a9b4c0",
    GRID: "#2c353f",
    IDEAL: "#7d8894",
    KNEE: "#ff9561",
    FLAGGED: "#ff4422",
    **PALETTE,
}
"""Colour on white -> its twin on black."""
PROCESSES = "processes (emulated accelerators)"
Chart = Any
"""An Altair chart: the package is optional, and imported only when a figure is drawn."""


def colour(place: int) -> str:
    """The colour of the series with that number, from 0."""
    return list(PALETTE)[place % len(PALETTE)]


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
    """A dashed line over the whole width, with words at its left end."""

    y: float
    name: str
    colour: str = KNEE


@dataclass(frozen=True, slots=True)
class Place:
    """A line over the whole height, with its interval as a band, and words."""

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


@dataclass(frozen=True, slots=True)
class Size:
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
        title["subtitle"] = textwrap.wrap(figure.qualified, size.width // 6)
    return alt.layer(*layers).properties(width=size.width, height=size.height, title=title)


def _data(rows: Sequence[Mapping[str, Any]]) -> Chart:
    alt = extra("altair")
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))


def _channel(channel: Any, axis: Axis) -> Any:
    """An axis as an encoding of the column `x` or `y`."""
    alt = extra("altair")
    name = "x" if channel is alt.X else "y"
    how: dict[str, Any] = {"title": axis.title or None, "tickCount": 5}
    if axis.names:
        return channel(f"{name}:O", axis=alt.Axis(title=axis.title or None, labelAngle=0, ticks=False))
    if axis.whole:
        how |= {"format": ",~s", "tickMinStep": 1, "tickCount": 8}
    elif axis.unit == "%":
        how["labelExpr"] = "datum.label + ' %'"
    elif axis.unit:
        # 5G becomes 5 GB/s.
        number = "replace(format(datum.value, '~s'), regexp('([a-zA-Zµ]?)$'), ' $1')"
        how["labelExpr"] = f"datum.label === '' ? '' : {number} + '{axis.unit}'"
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": True}
    if axis.high is not None and not axis.log:
        scale |= {"domain": [0, axis.high]}
    return channel(f"{name}:Q", axis=alt.Axis(**how), scale=alt.Scale(nice=False, **scale))


def _colours(figure: Figure, size: Size) -> Any:
    """The colour of a series, with one legend for all layers."""
    alt = extra("altair")
    names = {one.name: one.colour for one in figure.series}
    longest = max((len(name) for name in names), default=1)
    columns = max(1, int(size.width // (7 * min(longest, 36) + 34)))
    # Browsers may draw letters wider than vl-convert measured them.
    how = {
        "labelLimit": size.width - 20,
        "columnPadding": 10 + 1.3 * min(longest, 36),
        "symbolOpacity": 1,
        "symbolType": "circle",
    }
    legend = alt.Legend(title=None, orient="top", columns=columns, **how)
    scale = alt.Scale(domain=list(names), range=list(names.values()))
    return alt.Color("series:N", scale=scale, legend=legend if len(names) > 1 else None)


def _lines(figure: Figure, size: Size) -> Iterator[Chart]:
    """The layers of a figure, from the back to the front."""
    alt = extra("altair")
    x, y, colours = _channel(alt.X, figure.x), _channel(alt.Y, figure.y), _colours(figure, size)
    for place in figure.places:
        yield from _place(place, figure, x, size)
    for level in figure.levels:
        rule = _data([{"y": level.y}])
        yield rule.mark_rule(color=level.colour, strokeDash=[5, 3], strokeWidth=1.6).encode(y=y)
        text = {"align": "left", "dy": -7, "fontSize": 12, "text": textwrap.shorten(level.name, 60)}
        yield rule.mark_text(color=level.colour, **text).encode(y=y, x=alt.value(6))
    for series in figure.series:
        if series.band:
            rows = [
                {"x": at, "y": low, "high": high, "series": series.name} for at, low, _, high in series.band
            ]
            yield _data(rows).mark_area(opacity=0.16).encode(x=x, y=y, y2="high:Q", color=colours)
        if points := _curve(series):
            dash = {"strokeDash": [5, 3]} if series.dashed else {}
            rows = [{"x": at, "y": value, "series": series.name} for at, value in points]
            yield _data(rows).mark_line(strokeWidth=2.2, **dash).encode(x=x, y=y, color=colours)
    for flagged in (False, True):
        rows = [
            {"x": dot.x, "y": dot.y, "series": series.name, "text": shown(dot.text) or f"{dot.y:.4g}"}
            for series in figure.series
            if series.drawn
            for dot in series.dots
            if dot.flagged is flagged
        ]
        how: dict[str, Any] = {"filled": True, "size": 50}
        if flagged:
            how = {"filled": False, "size": 64, "strokeWidth": 2, "shape": "diamond"}
        if rows:
            dots = _data(rows).mark_point(opacity=1, aria=True, **how)
            yield dots.encode(x=x, y=y, color=colours, description="text:N")


def _curve(series: Series) -> list[tuple[float, float]]:
    """The points of a series' line."""
    if series.band:
        return [(at, middle) for at, _, middle, _ in series.band]
    values: dict[float, list[float]] = {}
    for dot in series.dots if series.line else ():
        if dot.used:
            values.setdefault(dot.x, []).append(dot.y)
    return [(at, sum(found) / len(found)) for at, found in sorted(values.items())]


def _place(place: Place, figure: Figure, x: Any, size: Size) -> Iterator[Chart]:
    alt = extra("altair")
    if place.interval is not None:
        low, high = place.interval
        band = _data([{"x": low, "end": high}]).mark_rect(color=place.colour, opacity=0.18)
        yield band.encode(x=x, x2="end:Q")
    rule = _data([{"x": place.x}])
    yield rule.mark_rule(color=place.colour, strokeWidth=1.6).encode(x=x)
    # The words stand on the side with more room.
    counts = [dot.x for series in figure.series for dot in series.dots if dot.x > 0] or [place.x]
    share = place.x / max(counts)
    if figure.x.log:
        share = math.log(place.x / min(counts)) / math.log(max(counts) / min(counts))
    left = share > 0.5
    level = list(figure.places).index(place)
    letters = max(12, int(size.width * max(share, 1 - share) / 8))
    yield rule.mark_text(
        text=place.name if len(place.name) <= letters else place.name.partition(" (")[0][-letters:],
        align="right" if left else "left",
        dx=-7 if left else 7,
        color=place.colour,
        fontSize=12,
        fontWeight=600,
    ).encode(x=x, y=alt.value(size.height - 10 - 15 * level))


def _bars(figure: Figure, size: Size) -> Iterator[Chart]:
    alt = extra("altair")
    rows = [
        {"x": dot.x, "y": dot.y, "series": series.name, "order": order}
        for order, series in enumerate(figure.series)
        for dot in series.dots
    ]
    x, y = _channel(alt.X, figure.x), _channel(alt.Y, figure.y)
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
    """A tree of plain values without control characters, which vl-convert cannot draw."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return shown(value) if isinstance(value, str) else value


def svgs(figures: Sequence[tuple[Figure, Size]]) -> list[str]:
    """The figures as SVG text on a transparent ground. Raises MissingError, FeedrateError."""
    with _unchecked():
        specs = [_spec(chart(figure, size), "transparent") for figure, size in figures]
    return [pointable(picture.decode()) for picture in _rendered("svg", specs)]


def svg(figure: Figure, size: Size = WIDE) -> str:
    """Draw one figure, as `svgs` does."""
    return svgs([(figure, size)])[0]


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

    Raises MissingError, StorageError, FeedrateError.
    """
    with _unchecked():
        alt = extra("altair")
        charts = [chart(figure) for figure in figures]
        if not charts:
            empty = _data([{}]).mark_text(text="Nothing was measured.", color=SOFT, fontSize=16)
            charts = [empty.properties(width=WIDE.width, height=60)]
        grid = alt.concat(*charts, columns=2, spacing={"row": 34, "column": 40})
        grid = grid.resolve_scale(color="independent")
        if heading:
            grid = grid.properties(title={"text": heading, "fontSize": 18, "offset": 16})
        spec = _spec(grid, PAPER)
    drawn = _rendered(kind, [spec])[0]
    write_output(path, pointable(drawn.decode()) if kind == "svg" else drawn)


def _rendered(kind: str, specs: Sequence[dict[str, Any]]) -> list[bytes]:
    """Charts in Vega-Lite as pictures. Raises MissingError, FeedrateError.

    By a process of its own: what vl-convert cannot draw aborts the interpreter.
    """
    if not specs:
        return []
    extra("vl_convert")
    renderer = ChildProcess("the renderer", [sys.executable, "-m", __name__, kind])
    out, err = renderer.finish(json.dumps(specs), 300.0, "give --html, --svg or --png less")
    if renderer.returncode:
        # An abort prints addresses of libc, which say nothing.
        lines = [
            line for line in err.splitlines() if line.strip() and not re.search(r"\[0x[0-9a-f]+\]", line)
        ]
        reason = lines[-1].strip()[:200] if lines else f"status {renderer.returncode}"
        if renderer.returncode < 0:
            reason = f"{signal.Signals(-renderer.returncode).name}; is memory short (ulimit -v)?"
        raise FeedrateError("the figures cannot be drawn", f"vl-convert failed ({reason})")
    return [base64.b64decode(line) for line in out.splitlines()]


def _render(kind: str) -> None:
    """Run the renderer: specs from stdin, a picture a line to stdout."""
    convert = extra("vl_convert")
    for spec in json.load(sys.stdin):
        if kind == "svg":
            picture = convert.vegalite_to_svg(spec).encode()
        else:
            picture = convert.vegalite_to_png(spec, scale=2)
        print(base64.b64encode(picture).decode())


def _unchecked() -> AbstractContextManager[None]:
    """Keep Altair from checking every part against its schema, which takes most of the time.

    The tests draw every figure with the checks on.
    """
    extra("altair")
    off: AbstractContextManager[None] = extra("altair.utils.schemapi").debug_mode(False)
    return off


if __name__ == "__main__":
    _render(sys.argv[1])
