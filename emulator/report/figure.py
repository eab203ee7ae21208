"""A figure as data: title, caption, axes with their units, marks from the back to the front, and a legend.

`drawing` makes SVG and PNG of it and knows nothing of results; who makes figures knows nothing of Altair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

INK, SOFT, PAPER, GRID = "#1f2933", "#5b6673", "#ffffff", "#e4e7eb"
MEASURED, SECOND, IDEAL, KNEE, FLAGGED = "#1d5fd1", "#0f8a6d", "#8a94a0", "#c2410c", "#cc3311"
SERIES = ("#1d5fd1", "#e07b39", "#0f8a6d", "#a23b72", "#003366", "#bb77ee", "#007700", "#5533bb")
"""Colours of what is compared, in its order; a ninth begins again. They are 0.10 or more apart in OKLab, on
black (drawing.DARK), too."""
LIMIT_COLOURS = (
    *("#4f83cc", "#bb8800", "#ee6688", "#774400", "#006677", "#bb77ee", "#5533bb"),
    *("#aa2288", "#660044", "#003366", "#004400", "#11aa66", "#007700"),
)
"""Colours of the limits of a point, in the order of `analysis.bound.LIMIT_NAMES`.

They are 0.16 or more apart in OKLab, and have a contrast of 3 : 1 or more on white.
"""
PROCESSES = "processes (emulated accelerators)"
LOG_FROM = 100
"""Largest over smallest value from which an axis becomes logarithmic."""
XY = tuple[float, float]


def series_colour(place: int) -> str:
    """The colour of the series with that number, from 0."""
    return SERIES[place % len(SERIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale and what is written beside it."""

    title: str = ""
    """Quantity and unit; empty where every label has its unit."""
    kind: Literal["linear", "log", "names"] = "linear"
    """`names`: every x has a place of its own, whatever lies between."""
    low: float = 0.0
    high: float | None = None
    """None: as far as the marks reach."""
    ticks: tuple[float, ...] = ()
    """Empty: round numbers."""
    labels: tuple[str, ...] = ()
    """Text of the ticks; empty: their numbers."""
    whole: bool = False
    """True if only whole numbers are labelled."""
    suffix: str = ""
    """Written after every number, for example ` %`."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A measured point."""

    x: float
    y: float
    flagged: bool = False
    used: bool = True
    """False: a flag invalidates it, and lines do not go through it."""
    text: str = ""
    """Text for a pointer on the dot; empty: its figures."""
    colour: str = ""
    """Empty: that of its Dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points; flagged ones are hollow diamonds."""

    dots: tuple[Dot, ...]
    colour: str
    flagged_colour: str = FLAGGED
    area: int = 46
    """Square px of a dot."""
    squares: bool = False
    """Pale squares, for what others published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points, in their order."""

    points: tuple[XY, ...]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The area between two curves: (x, low, high)."""

    points: tuple[tuple[float, float, float], ...]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalLine:
    """A dashed line over the whole width."""

    y: float
    colour: str
    label: str = ""
    """Written above it, at its left end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Words beside places; those for which there is no room are left out."""

    places: tuple[tuple[float, float, str], ...]
    """x, y and text, the most important first; without text only a place to keep clear of."""
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerticalLine:
    """A line over the whole height, with an interval as a band around it and a label at its foot."""

    x: float
    interval: XY | None
    label: tuple[str, ...]
    """Lines of text."""
    colour: str
    level: int = 0
    """Number of lines that are left free below the label, where there are several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Stacked bars."""

    stacks: tuple[tuple[float, tuple[float, ...]], ...]
    """x and the heights of the parts, from the bottom up."""
    colours: tuple[str, ...]
    """Colours of the parts."""


Mark = Dots | Line | Band | HorizontalLine | VerticalLine | Labels | Bars


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    name: str
    colour: str
    kind: Literal["line", "dash", "dot", "diamond", "box"] = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Everything that a picture shows."""

    name: str
    """Short name, for ids: `step-time`."""
    title: str
    caption: str
    """Caption in words; printed under the picture on a page."""
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    """Marks from the back to the front."""
    legend: tuple[Key, ...]
    qualified: str
    """Marks that qualify every number in it (`view.marks_line`): a picture may travel alone, with them."""


def through(
    dots: Sequence[Dot], colour: str, *, area: int = 46, flagged_colour: str = FLAGGED, dashed: bool = False
) -> tuple[Line, Dots]:
    """The dots, and a line through the mean of those `used` at each x."""
    groups: dict[float, list[float]] = {}
    for dot in dots:
        if dot.used:
            groups.setdefault(dot.x, []).append(dot.y)
    means = tuple((x, sum(values) / len(values)) for x, values in sorted(groups.items()))
    return (
        Line(points=means, colour=colour, dashed=dashed),
        Dots(dots=tuple(dots), colour=colour, area=area, flagged_colour=flagged_colour),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Dots against process counts, and a line: through their means, or the curve that was fitted to them."""

    name: str
    dots: tuple[Dot, ...]
    colour: str
    flagged_colour: str = FLAGGED
    area: int = 46
    """Square px of a dot."""
    dashed: bool = False
    fit: tuple[tuple[float, float, float, float], ...] = ()
    """The fitted curve: x, low, middle, high."""
    squares: bool = False
    """Pale squares without a line, for what others published."""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Its marks from the back to the front."""
        if self.squares:
            return (Dots(dots=self.dots, colour=self.colour, area=self.area, squares=True),)
        line, dots = through(
            self.dots, self.colour, area=self.area, flagged_colour=self.flagged_colour, dashed=self.dashed
        )
        if not self.fit:
            return line, dots
        band = Band(points=tuple((x, low, high) for x, low, _, high in self.fit), colour=self.colour)
        curve = Line(points=tuple((x, middle) for x, _, middle, _ in self.fit), colour=self.colour)
        return band, curve, dots

    @property
    def keys(self) -> tuple[Key, ...]:
        if self.fit:
            return Key(self.name, self.colour, "dot"), Key("fit, 95 % band", self.colour)
        return (Key(self.name, self.colour, "box" if self.squares else "dash" if self.dashed else "line"),)


def against_processes(
    words: tuple[str, str, str],
    series: Sequence[Series],
    y: Axis,
    *,
    behind: Sequence[Mark] = (),
    legend: Sequence[Key] = (),
    qualified: str,
) -> Figure:
    """A figure of `series` against process counts. `words` are its name, its title and its caption."""
    name, title, caption = words
    every = [dot for one in series for dot in one.dots]
    marked = [dot for dot in every if dot.flagged]
    # The shape alone says "flagged" where the colour says something else, such as a point's limit.
    colours = {one.flagged_colour for one in series} | {dot.colour for dot in marked if dot.colour}
    flagged = [Key("flagged", colours.pop() if len(colours) == 1 else SOFT, "diamond")] if marked else []
    return Figure(
        name=name,
        title=title,
        caption=caption,
        x=process_axis([dot.x for dot in every]),
        y=y,
        marks=(*behind, *(mark for one in series for mark in one.marks)),
        legend=(*(key for one in series for key in one.keys), *legend, *flagged),
        qualified=qualified,
    )


def short(name: str, most: int = 28) -> str:
    """A name of at most `most` letters, with its beginning and its end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"


def decades(low: float, high: float) -> tuple[float, ...]:
    """Tick values between `low` and `high` on a logarithmic axis: decades, or 1-2-5 when there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if math.log10(high / low) > 2 else (1.0, 2.0, 5.0)
    values = [step * 10.0**power for power in powers for step in steps]
    return tuple(float(f"{value:.6g}") for value in values if low <= value <= high)


def process_axis(counts: Sequence[float]) -> Axis:
    """The x axis of process counts: linear from 0, or logarithmic when they span much."""
    least, most = min(counts), max(counts)
    if most < LOG_FROM * least:
        return Axis(title=PROCESSES, high=most * 1.06, whole=True)
    low, high = least * 0.85, most * 1.25
    return Axis(title=PROCESSES, kind="log", low=low, high=high, ticks=decades(low, high), whole=True)


def rate_axis(top: float, show: Callable[[float], str]) -> Axis:
    """A y axis from 0 to `top` whose labels are what `show` makes of the values, with their unit."""
    power = 10 ** math.floor(math.log10(top))
    step = next(power * part for part in (2.0, 1.0, 0.5, 0.25, 0.2, 0.1) if top / (power * part) >= 3)
    ticks = tuple(number * step for number in range(math.floor(top / step) + 1))
    return Axis(high=top, ticks=ticks, labels=("0", *map(show, ticks[1:])))


def log_axis(low: float, high: float, show: Callable[[float], str]) -> Axis:
    """A logarithmic y axis whose labels are what `show` makes of the values, with their unit."""
    ticks = decades(low, high)
    return Axis(kind="log", low=low, high=high, ticks=ticks, labels=tuple(map(show, ticks)))
