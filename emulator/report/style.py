"""How the plots look: colours, fonts, sizes. page.css maps the colours to their dark twins by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
