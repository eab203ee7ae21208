"""A table as data, and as rows of text, Markdown and CSV. `terminal` and the pages lay the same table out.

A cell is a figure in the unit that its column names, or text. How a figure is shown belongs to the column, so
CSV has all digits where a terminal has four.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Literal

from emulator.text import csv_text, markdown_text

NONE = "–"
"""Shown where there is no number."""
Cell = str | float | None
"""Text, a figure (a whole number if it is an int), or None where it is not known."""


def number(value: float | None, digits: int = 4) -> str:
    """`value` to `digits` significant digits, with thousands separated; never in powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 9)}f}"


def percent(share: float | None) -> str:
    """A share (0 to 1) as a percentage with one decimal, without the sign."""
    return NONE if share is None or not math.isfinite(share) else f"{share * 100:.1f}"


def scaled(value: float | None, factor: float) -> float | None:
    """A figure in another unit; None if it is not known."""
    return None if value is None else value * factor


two_digits, three_digits = partial(number, digits=2), partial(number, digits=3)
one_place, three_places = "{:.1f}".format, "{:.3f}".format
"""Show decimal places of percentages, and of ratios near 1."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what its cells are and how they are shown."""

    head: str
    """Name, with the unit of the figures; a terminal breaks it at its line breaks."""
    show: Callable[[float], str] = number
    """A finite figure of this column as text; whole numbers are always shown in full."""
    unit: str = ""
    """Unit of the figures where `show` adds one that fits, for example `s`."""
    align: Literal["right", "left", "fold"] = "right"
    """`left` is text on one line, `fold` is text that may take several lines."""
    room: int = 0
    """Order of leaving out columns without room: the largest goes first; 0: never. From 60 on
    a column is also left out of a page on a small screen."""

    def text(self, cell: Cell) -> str:
        if isinstance(cell, str):
            return cell
        if cell is None or not math.isfinite(cell):
            return NONE
        return f"{cell:,}" if isinstance(cell, Integral) else self.show(cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A caption over columns and rows; a table without rows is not shown."""

    caption: str
    """Empty for the table that a result is mainly about."""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    flagged: frozenset[int] = frozenset()
    """Numbers of the rows that carry a validity flag."""
    items: str = ""
    """Plural of the rows where a long table may lose its end, for example `hosts`."""
    detail: bool = False
    """Shown on a page and not in a terminal."""

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as people read them."""
        return tuple(
            tuple(column.text(cell) for column, cell in zip(self.columns, row, strict=True))
            for row in self.rows
        )

    def without_empty_columns(self) -> Table:
        """The table without the columns in which no row has a text or a figure."""
        cells = zip(*self.rows, strict=True)
        filled = [
            place for place, column in enumerate(cells) if any(cell not in ("", None) for cell in column)
        ]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in filled),
            rows=tuple(tuple(row[place] for place in filled) for row in self.rows),
        )

    def shortened(self, most: int) -> Table:
        """The table with at most `most` of its rows, and one that says how many more there are."""
        if not self.items or len(self.rows) <= most:
            return self
        more = (f"and {len(self.rows) - most:,} more {self.items}", *[""] * (len(self.columns) - 1))
        return replace(self, rows=(*self.rows[:most], more))


def heading(head: str, slash: str = "/") -> str:
    """A column's head on one line; `slash` is written where it may be broken after a slash."""
    return head.replace("/\n", slash).replace("\n", " ")


def markdown(table: Table) -> str:
    """The table as GitHub's Markdown."""
    heads = [heading(column.head) for column in table.columns]
    rule = "|" + "|".join("--:" if column.align == "right" else "---" for column in table.columns) + "|"
    lines = ["| " + " | ".join(map(markdown_text, row)) + " |" for row in (heads, *table.texts)]
    caption = [f"{markdown_text(table.caption)}\n"] if table.caption else []
    return "\n".join([*caption, lines[0], rule, *lines[1:]]) + "\n"


def to_csv(table: Table) -> str:
    """The table as CSV, with figures in full and without its caption; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading(c.head) + (f" [{c.unit}]" if c.unit else "") for c in table.columns)
    for row in table.rows:
        writer.writerow(csv_text(cell) if isinstance(cell, str) else cell for cell in row)
    return text.getvalue()
