"""A document as one self-contained HTML page: inline SVG and CSS, no script, nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.report.charts import DARK, HERO, NARROW, WIDE, Figure, extra, svgs
from emulator.report.document import Document
from emulator.report.table import Cell, Table, heading, shortened
from emulator.text import shown

MOST_ROWS = 24
"""Most rows shown of a table that may be shortened (`Table.items`)."""


def page(document: Document) -> str:
    """Return the page as text, with all values escaped. Raises MissingError."""
    jinja2, folder = extra("jinja2"), Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    dark = "".join(
        f'  .plot [{what}="{light}"] {{ {what}: {twin}; }}\n'
        for light, twin in DARK.items()
        for what in ("fill", "stroke")
    )
    css = (folder / "page.css").read_text(encoding="utf-8")
    css += f"@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
    plots = plotted(document.figures)
    text: str = environment.get_template("page.html").render(
        doc=document,
        css=extra("markupsafe").Markup(css),
        tables=[laid_out(table) for table in document.tables],
        hero=plots[0] if plots else None,
        plots=plots[1:],
        version=__version__,
    )
    return shown(text)


def laid_out(table: Table) -> dict[str, Any]:
    """Return a table for the template: heads and cells with classes, and bars in percent."""
    classes = []
    for column in table.columns:
        words, more = column.align != "right", column.room >= 60
        classes.append(" ".join(["words"] * words + ["more"] * more + ["barred"] * column.bar))
    bars = [
        _bars([row[place] for row in table.rows] if c.bar else ()) for place, c in enumerate(table.columns)
    ]
    head, tail, between = shortened(range(len(table.rows)), MOST_ROWS if table.items else len(table.rows))
    texts = table.texts

    def row(number: int) -> dict[str, Any]:
        lengths = (column[number] if column else "" for column in bars)
        return {
            "flagged": number in table.flagged,
            "cells": list(zip(texts[number], classes, lengths, strict=True)),
        }

    return {
        "caption": table.caption or "Measurements",
        "heads": [(heading(c.head, "/\u200b"), name) for c, name in zip(table.columns, classes, strict=True)],
        "head": [row(number) for number in head],
        "between": f"{between:,} {table.items} between" if between else "",
        "tail": [row(number) for number in tail],
    }


def _bars(cells: Sequence[Cell]) -> list[str]:
    """Return the length of the bar behind each figure, in percent of the longest."""
    values = [0.0 if cell is None or isinstance(cell, str) else float(cell) for cell in cells]
    longest = max(values, default=0.0) or 1.0
    return [f"{value / longest * 100:.1f}" for value in values]


def plotted(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Draw every figure for a wide and for a narrow page, of which CSS shows one; the first one large."""
    sizes = [(f, size) for place, f in enumerate(figures) for size in (WIDE if place else HERO, NARROW)]
    drawn, plots, names = iter(svgs(sizes)), [], list[str]()
    for figure in figures:
        name = f"{figure.name}-{names.count(figure.name) + 1}" if figure.name in names else figure.name
        names.append(figure.name)
        wide, narrow = (inline(next(drawn), f"{name}-{width}", figure) for width in ("wide", "narrow"))
        plots.append({"name": name, "caption": figure.caption, "wide": wide, "narrow": narrow})
    return plots


def inline(svg: str, prefix: str, figure: Figure) -> Any:
    """Return an SVG for a page with several: with unique ids, title, description, and fluid width."""
    unique = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    head, tail = unique.split(">", 1)
    wide = re.search(r'viewBox="0 0 ([0-9.]+)', head)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    limit = f' style="max-width:{wide[1]}px"' if wide else ""
    markup = extra("markupsafe")
    named = f' role="img" aria-labelledby="{prefix}-title {prefix}-desc"'
    words = (
        f'<title id="{prefix}-title">{markup.escape(figure.title)}</title>'
        f'<desc id="{prefix}-desc">{markup.escape(figure.caption)}</desc>'
    )
    return markup.Markup(f"{head}{named}{limit}>{words}{tail}")
