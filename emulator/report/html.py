"""A document as one self-contained HTML page: inline SVG and CSS, no script, nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.report.charts import HERO, NARROW, WIDE, Figure, extra, svg
from emulator.report.document import Document
from emulator.report.table import heading
from emulator.text import shown

MOST_ROWS = 24
"""Most rows shown of a table that may be shortened (`Table.items`)."""


def page(document: Document) -> str:
    """Return the page as text, with all values escaped. Raises MissingError."""
    jinja2, folder = extra("jinja2"), Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a misspelled name is an error
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = (folder / "page.css").read_text(encoding="utf-8")
    plots = plotted(document.figures)
    text: str = environment.get_template("page.html").render(
        doc=document,
        css=extra("markupsafe").Markup(css),
        tables=[table.shortened(MOST_ROWS) for table in document.tables if table.rows],
        heading=heading,
        hero=plots[0] if plots else None,
        plots=plots[1:],
        version=__version__,
    )
    return shown(text)


def plotted(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Draw every figure for a wide and for a narrow page, of which CSS shows one; the first one large."""
    plots: dict[str, dict[str, Any]] = {}
    for place, figure in enumerate(figures):
        name = figure.name
        if name in plots:  # results beside each other may have figures of one name
            name = f"{name}-{place}"
        wide, narrow = svg(figure, WIDE if place else HERO), svg(figure, NARROW)
        plots[name] = {
            "name": name,
            "title": figure.title,
            "caption": figure.caption,
            "wide": inline(wide, f"{name}-wide"),
            "narrow": inline(narrow, f"{name}-narrow"),
        }
    return list(plots.values())


def inline(drawing: str, prefix: str) -> Any:
    """Return an SVG for a page with several: with unique ids, and as wide as there is room."""
    # Vega names the clip paths of every drawing clip0, clip1 ...
    unique = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", drawing)
    head, tail = unique.split(">", 1)
    width = re.search(r'\swidth="([0-9.]+)', head)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    # Smaller with the page, but not larger than it was drawn.
    limit = f' style="max-width:{width[1]}px"' if width else ""
    return extra("markupsafe").Markup(f"{head}{limit}>{tail}")
