"""Figures as SVG and PNG, without browser and network. The only owner of Altair and vl-convert."""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from emulator.errors import FeedrateError, MissingError
from emulator.launch.child import ChildProcess
from emulator.record.out import write_output
from emulator.record.result import RunResult
from emulator.report import figure as fig
from emulator.report.view import kind_of, marks_line, title
from emulator.text import shown

LIMITS_ON_BLACK = (
    *("#debd65", "#ff8fa8", "#c98d4b", "#4fc3d6", "#d3a5ff", "#8f7bf0"),
    *("#e567c9", "#b0588f", "#c3d4ff", "#7d8f3c", "#3ddc97", "#4cae4c"),
)
DARK = {
    fig.INK: "#e8ecf1",
    fig.SOFT: "#a9b4c0",
    fig.GRID: "#2c353f",
    fig.MEASURED: "#74a7ff",
    fig.IDEAL: "#7d8894",
    fig.KNEE: "#ff9561",
    fig.FLAGGED: "#ff4422",
    fig.SECOND: "#4fd1ae",
    "#4f83cc": "#6d9fe6",
    "#e07b39": "#ee9355",
    "#9aa5b1": "#77828e",
    "#a23b72": "#d873ab",
    **dict(zip(fig.LIMIT_COLOURS[1:], LIMITS_ON_BLACK, strict=True)),
}
"""Colour on white -> its twin on black, for the page."""
FONT = "Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
TEXT = 12
"""Size of letters inside a plot, px."""
DASH = [5, 3]
LETTER = 6.8
"""px of a letter of a label, in the wide font that a Linux without others has."""
SHORT_COUNT = "datum.value < 10000 ? format(datum.value, ',') : format(datum.value, '.3~s')"
"""Vega expression: 9,999 in full, 100k short."""
Chart = Any
"""An Altair chart: the package is optional and imported only when a figure is drawn."""


@dataclass(frozen=True, slots=True)
class Size:
    """A plot's drawing area in px, and the characters of a subtitle that fit in a line."""

    width: int
    height: int
    characters: int


HERO = Size(780, 270, 115)
WIDE = Size(520, 270, 80)
NARROW = Size(282, 230, 46)


def extra(name: str) -> ModuleType:
    """An optional package of the report, by name. Raises MissingError with the pip line."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the package {name.replace('_', '-')} is not installed", "pip install 'feedrate[report]'"
        ) from None


def svg(figure: fig.Figure, size: Size = WIDE) -> str:
    """Draw one figure, as `svgs` does."""
    return svgs([(figure, size)])[0]


def svgs(figures: Sequence[tuple[fig.Figure, Size]]) -> list[str]:
    """The figures as SVG text on a transparent ground. Raises MissingError, FeedrateError."""
    with _unchecked():
        specs = [_spec(chart(figure, size), "transparent") for figure, size in figures]
    return [pointable(picture.decode()) for picture in _rendered("svg", specs)]


_AIM = re.compile(
    r'<path aria-label="([^"]*)"[^>]*?( transform="[^"]*")[^>]*? opacity="0"/>|'
    r'<path aria-label="([^"]*)"[^>]*? opacity="0"></path>'
)
_SPOKEN = re.compile(r' (?:role="graphics-[a-z]+"|aria-[a-z]+="[^"]*")')


def pointable(svg: str) -> str:
    """The SVG with a title on whatever is there to be pointed at, and without Vega's own words for it."""
    aimed = _AIM.sub(
        lambda found: (
            f'<circle class="aim" r="10"{found[2] or ""} fill="transparent">'
            f"<title>{found[1] or found[3]}</title></circle>"
        ),
        svg,
    )
    return _SPOKEN.sub("", aimed)


def write_picture(
    figures: Sequence[fig.Figure], path: Path, kind: str, heading: str, qualified: str = ""
) -> None:
    """Write the figures as one picture on white, `svg` or else `png`.

    Raises MissingError, StorageError, FeedrateError.
    """
    with _unchecked():
        spec = _spec(_picture(figures, heading, qualified), fig.PAPER)
    drawn = _rendered(kind, [spec])[0]
    write_output(path, pointable(drawn.decode()) if kind == "svg" else drawn)


def draw_result(result: RunResult, path: Path, kind: str) -> None:
    """Write the first four figures as one picture, `svg` or else `png`. Raises MissingError, StorageError."""
    write_picture(kind_of(result).figures(result)[:4], path, kind, title(result), marks_line(result))


RENDER_SECONDS = 300.0
"""Time limit for drawing the figures of a page."""


def _rendered(kind: str, specs: Sequence[dict[str, Any]]) -> list[bytes]:
    """Charts in Vega-Lite as pictures. Raises MissingError, FeedrateError.

    By a process of its own: what vl-convert cannot draw aborts the interpreter.
    """
    if not specs:
        return []
    extra("vl_convert")
    renderer = ChildProcess("the renderer", [sys.executable, "-m", __name__, kind])
    out, err = renderer.finish(json.dumps(specs), RENDER_SECONDS, "give --html, --svg or --png less")
    if renderer.returncode:
        # An abort prints addresses of libc, which say nothing.
        told = [line for line in err.splitlines() if line.strip() and not re.search(r"\[0x[0-9a-f]+\]", line)]
        reason = told[-1].strip()[:200] if told else f"status {renderer.returncode}"
        if renderer.returncode < 0:
            reason = f"{signal.Signals(-renderer.returncode).name}; is memory short (ulimit -v)?"
        raise FeedrateError("the figures cannot be drawn", f"vl-convert failed ({reason})")
    return [base64.b64decode(line) for line in out.splitlines()]


def _render(kind: str) -> None:
    """Run the renderer: specs from stdin, a picture a line to stdout."""
    convert = extra("vl_convert")
    for spec in json.load(sys.stdin):
        picture = (
            convert.vegalite_to_svg(spec).encode()
            if kind == "svg"
            else convert.vegalite_to_png(spec, scale=2)
        )
        print(base64.b64encode(picture).decode())


def _unchecked() -> AbstractContextManager[None]:
    """Keep Altair from checking every part against its schema, which takes most of the time.

    The tests draw every figure with the checks on.
    """
    extra("altair")
    off: AbstractContextManager[None] = extra("altair.utils.schemapi").debug_mode(False)
    return off


def _spec(chart: Chart, ground: str) -> dict[str, Any]:
    """The Vega-Lite of a chart, in the clothes that all figures wear."""
    config = {
        "background": ground,
        "font": FONT,
        "padding": 6,
        "view": {"stroke": None},
        "title": {
            "anchor": "start",
            "color": fig.INK,
            "fontSize": 15,
            "fontWeight": 600,
            "offset": 10,
            "subtitleColor": fig.SOFT,
            "subtitleFontSize": 12,
            "subtitlePadding": 4,
            "frame": "group",
        },
        "axis": {
            "labelColor": fig.SOFT,
            "titleColor": fig.SOFT,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": fig.GRID,
            "domainColor": fig.GRID,
            "tickColor": fig.GRID,
            "titlePadding": 8,
            "labelPadding": 4,
            "labelOverlap": "greedy",
            "labelSeparation": 6,
        },
        "axisX": {"grid": False, "domainColor": fig.IDEAL, "tickColor": fig.IDEAL},
        "axisY": {"domain": False, "ticks": False},
    }
    spec: dict[str, Any] = _shown(chart.configure(**config).to_dict(validate=False))
    return spec


def _shown(value: Any) -> Any:
    """A tree of plain values without control characters, which vl-convert cannot draw."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return shown(value) if isinstance(value, str) else value


def _picture(figures: Sequence[fig.Figure], heading: str, qualified: str) -> Chart:
    """The figures in two columns under a heading, if any; a line that says so when there is no figure."""
    charts = [chart(figure, WIDE) for figure in figures]
    if not charts:
        text = _rows({}).mark_text(text="Nothing was measured.", color=fig.SOFT, fontSize=16)
        charts = [_titled([text], [], "No points", qualified, WIDE)]
    title = {"text": heading, "fontSize": 18, "anchor": "start", "offset": 16}
    grid = extra("altair").concat(*charts, columns=2, spacing={"row": 34, "column": 40})
    return grid.properties(title=title) if heading else grid


def chart(figure: fig.Figure, size: Size) -> Chart:
    """The figure as an Altair chart. Raises MissingError."""
    x, y = _scale("x", figure.x), _scale("y", figure.y)
    layers = [layer for mark in figure.marks for layer in _layers(mark, x, y, figure.x, figure.y, size)]
    return _titled(layers, figure.legend, figure.title, figure.qualified, size)


def _titled(layers: list[Chart], keys: Sequence[fig.Key], text: str, qualified: str, size: Size) -> Chart:
    title: dict[str, Any] = {"text": text, "offset": 10}
    if qualified:
        title |= {"subtitle": textwrap.wrap(qualified, size.characters), "subtitleColor": fig.KNEE}
    chart = extra("altair").layer(*layers, *_legend(keys, size.width))
    return chart.properties(width=size.width, height=size.height, title=title)


def _scale(channel: Literal["x", "y"], axis: fig.Axis) -> Any:
    """An axis as Altair's encoding of the columns `x` or `y`."""
    alt = extra("altair")
    how: dict[str, Any] = {"title": axis.title or None}
    how |= {"values": list(axis.ticks)} if axis.ticks else {"tickCount": 8 if axis.whole else 5}
    if axis.labels:
        how["labelExpr"] = _label_expression(axis)
    elif axis.whole:
        how |= {"labelExpr": SHORT_COUNT, "tickMinStep": 1}
    elif axis.suffix:
        how["labelExpr"] = f"datum.label + {json.dumps(axis.suffix)}"
    make = alt.X if channel == "x" else alt.Y
    if axis.kind == "names":
        return make(f"{channel}:O", axis=alt.Axis(**how, labelAngle=0, ticks=False))
    if axis.high is None:
        return make(f"{channel}:Q", axis=alt.Axis(**how))
    log = {"type": "log"} if axis.kind == "log" else {}
    scale = alt.Scale(domain=[axis.low, axis.high], nice=False, **log)
    return make(f"{channel}:Q", scale=scale, axis=alt.Axis(**how))


def _label_expression(axis: fig.Axis) -> str:
    """A Vega expression that turns each tick into its label."""
    names = {}
    for value, label in zip(axis.ticks, axis.labels, strict=True):
        mantissa, exponent = f"{value:.6e}".split("e")  # written as Vega's format '.6~e' does
        names[f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent):+d}"] = label
    return f"{json.dumps(names)}[format(datum.value, '.6~e')]"


def _said(dot: fig.Dot, axis: fig.Axis) -> dict[str, Any]:
    """A dot as a row, with what it says of itself."""
    text = dot.text or f"{dot.x:,g} {axis.title.partition(' (')[0]}: {dot.y:.4g}"
    return {"x": dot.x, "y": dot.y, "text": _shown(text)}


def _at(value: float, axis: fig.Axis) -> float:
    """Return the position of a value along an axis, 0 to 1."""
    high = axis.high or 1.0
    if axis.kind == "log":
        return math.log(max(value, axis.low) / axis.low) / math.log(high / axis.low)
    return (value - axis.low) / (high - axis.low)


def _placed(
    places: Sequence[tuple[float, float, str]], x: fig.Axis, y: fig.Axis, size: Size
) -> Iterator[tuple[float, float, str, str, int, int]]:
    """Place the labels that fit within the plot and on no other: x, y, text, side and offset in px."""
    taken: list[tuple[float, float, float]] = [
        (_at(at, x) * size.width - 5, _at(at, x) * size.width + 5, (1 - _at(value, y)) * size.height)
        for at, value, _ in places
    ]
    for number, (at, value, text) in enumerate(places):
        if not text:
            continue
        left, top, width = _at(at, x) * size.width, (1 - _at(value, y)) * size.height, LETTER * len(text)
        for align, begin, dx, dy in (
            ("left", left + 8, 8, 0),
            ("right", left - 8 - width, -8, 0),
            ("left", left + 4, 4, -12),
            ("left", left + 4, 4, 12),
        ):
            box = (begin, begin + width, top + dy)
            others = [other for place, other in enumerate(taken) if place != number]
            if begin < 0 or begin + width > size.width or not 8 < top + dy < size.height - 8:
                continue
            if all(box[1] < o[0] or o[1] < box[0] or abs(box[2] - o[2]) > 12 for o in others):
                taken.append(box)
                yield at, value, text, align, dx, dy
                break


def _rows(*found: dict[str, Any], **how: Any) -> Chart:
    alt = extra("altair")
    return alt.Chart(alt.Data(values=list(found)), **how)


def _layers(
    mark: fig.Mark, x: Any, y: Any, axis: fig.Axis, vertical: fig.Axis, size: Size
) -> Iterator[Chart]:
    """The charts of a mark; `x` and `y` encode the columns of these names along `axis` and `vertical`."""
    alt = extra("altair")
    match mark:
        case fig.Line():
            line = _rows(*({"x": at, "y": value} for at, value in mark.points))
            dash = {"strokeDash": DASH} if mark.dashed else {}
            yield line.mark_line(color=mark.colour, strokeWidth=2.2, **dash).encode(x=x, y=y)
        case fig.Band():
            area = _rows(*({"x": at, "y": low, "high": high} for at, low, high in mark.points))
            yield area.mark_area(color=mark.colour, opacity=0.16).encode(x=x, y=y, y2="high:Q")
        case fig.HorizontalLine():
            line = _rows({"y": mark.y})
            yield line.mark_rule(color=mark.colour, strokeWidth=1.6, strokeDash=DASH).encode(y=y)
            place = {"align": "left", "x": 6, "dy": -8}
            if mark.label:
                yield line.mark_text(
                    text=mark.label, color=mark.colour, fontSize=TEXT, fontWeight=600, **place
                ).encode(y=y)
        case fig.Dots():
            yield from _dots(mark, x, y, axis)
        case fig.Labels():
            for at, value, text, align, dx, dy in _placed(mark.places, axis, vertical, size):
                how = {"align": align, "dx": dx, "dy": dy, "baseline": "middle"}
                words = _rows({"x": at, "y": value}).mark_text(
                    text=text, color=mark.colour, fontSize=TEXT - 1, **how
                )
                yield words.encode(x=x, y=y)
        case fig.VerticalLine():
            yield from _vertical_line(mark, x, axis, size)
        case fig.Bars():
            bars = _rows(
                *(
                    {"x": at, "y": height, "order": order, "colour": colour}
                    for at, heights in mark.stacks
                    for order, (height, colour) in enumerate(zip(heights, mark.colours, strict=True))
                )
            )
            width = min(46.0, size.width / len(mark.stacks) * 0.7)
            yield bars.mark_bar(size=width).encode(
                x=x, y=y.copy().stack("zero"), order=alt.Order("order:Q"), color=_own_colour()
            )


def _own_colour() -> Any:
    """The colour in the column `colour`, as it stands there."""
    return extra("altair").Color("colour:N", scale=None, legend=None)


def _dots(mark: fig.Dots, x: Any, y: Any, axis: fig.Axis) -> Iterator[Chart]:
    shape = {"shape": "square", "opacity": 0.75} if mark.squares else {"opacity": 1}
    plain = {"filled": True, "size": mark.area, **shape}
    hollow = {"filled": False, "size": 64, "strokeWidth": 2, "shape": "diamond", "opacity": 1}
    for flagged, colour, how in ((False, mark.colour, plain), (True, mark.flagged_colour, hollow)):
        found = [
            {**_said(dot, axis), "colour": dot.colour or colour}
            for dot in mark.dots
            if dot.flagged is flagged
        ]
        if found:
            yield _rows(*found).mark_point(**how).encode(x=x, y=y, color=_own_colour())
    # The invisible target of a pointer is larger than the dot, and says what it is.
    aim = _rows(*(_said(dot, axis) for dot in mark.dots))
    aim = aim.mark_point(filled=True, size=420, opacity=0, aria=True, color="transparent")
    yield aim.encode(x=x, y=y, description="text:N")


def _vertical_line(mark: fig.VerticalLine, x: Any, axis: fig.Axis, size: Size) -> Iterator[Chart]:
    if mark.interval is not None:
        low, high = (min(max(end, axis.low), axis.high or end) for end in mark.interval)
        band = _rows({"x": low, "end": high}).mark_rect(color=mark.colour, opacity=0.18)
        yield band.encode(x=x, x2="end:Q")
    line = _rows({"x": mark.x})
    yield line.mark_rule(color=mark.colour, strokeWidth=1.6).encode(x=x)
    place = _at(mark.x, axis)
    left = place > 0.5  # the label stands on the side with more room
    letters = int(size.width * max(place, 1 - place) / (1.25 * LETTER))  # bold
    label = line.mark_text(
        text=[fig.short(each, letters) for each in mark.label],
        align="right" if left else "left",
        dx=-7 if left else 7,
        baseline="line-bottom",
        color=mark.colour,
        fontSize=TEXT,
        fontWeight=600,
        lineHeight=15,
        y=size.height - 8 - 15 * (len(mark.label) - 1 + mark.level),
    )
    yield label.encode(x=x)


def legend_rows(keys: Sequence[fig.Key], width: float) -> list[list[tuple[fig.Key, float]]]:
    """The entries with their x, broken into rows that fit in `width` px, a generous 6.3 px a letter."""
    rows: list[list[tuple[fig.Key, float]]] = [[]]
    x = 0.0
    for key in keys:
        needed = 24 + len(key.name) * 6.3
        if rows[-1] and x + needed > width:
            rows.append([])
            x = 0.0
        rows[-1].append((key, x))
        x += needed + 14
    return rows


def _legend(keys: Sequence[fig.Key], width: float) -> Iterator[Chart]:
    """The legend as layers above the plot: Vega's own cannot mix the symbols of several marks."""
    alt = extra("altair")
    shapes = {"dot": "circle", "diamond": "diamond", "box": "square", "line": "stroke", "dash": "stroke"}
    areas = {"dot": 60, "diamond": 60, "box": 110, "line": 18**2, "dash": 18**2}
    rows = legend_rows(keys, width)
    for number, row in enumerate(rows):
        y = -12.0 - (len(rows) - 1 - number) * 19
        for key, x in row:
            empty = _rows({}, encoding=alt.FacetedEncoding())  # Vega-Lite wants an encoding
            dash = {"strokeDash": DASH} if key.kind == "dash" else {}
            yield empty.mark_point(
                x=x + 9,
                y=y,
                color=key.colour,
                shape=shapes[key.kind],
                size=areas[key.kind],
                filled=key.kind in ("dot", "box"),
                strokeWidth=2.2,
                opacity=1,
                **dash,
            )
            yield empty.mark_text(
                x=x + 24, y=y, text=key.name, align="left", baseline="middle", color=fig.SOFT, fontSize=TEXT
            )


if __name__ == "__main__":
    _render(sys.argv[1])
