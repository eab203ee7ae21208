"""Text for a terminal: lines and tables, laid out by rich for its width; plain text elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from emulator.analysis.answer import Answer
from emulator.analysis.gate import MET, UNKNOWN
from emulator.errors import NOT_MET
from emulator.launch.launched import started_by_mpi
from emulator.report.table import Table, heading, markdown
from emulator.text import PrintableStream, markdown_text, shown

PLAIN_WIDTH = 100
"""Columns of the text when the output is no terminal."""
MOST_ROWS = 12
"""Rows of a table that may be shortened (`Table.items`)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    style: str = ""
    """In rich's words, for example `bold red`."""


def answer_blocks(answer: Answer, complete: bool = True) -> list[Text | Table]:
    """The answer: the gate's verdict and the sentence, then limit, advice and notes."""
    colour = {MET: "green", UNKNOWN: "yellow", NOT_MET: "red"}
    # The first line has the colour, and the sentence is bold where it follows a verdict, too.
    styles = ["bold green" if complete else "bold"]
    if answer.gate:
        styles = [f"bold {colour[answer.gate.status]}", "bold"]
    return [Text(line, style) for line, style in zip_longest(answer.lines, styles, fillvalue="")]


def print_blocks(blocks: Sequence[Text | Table]) -> None:
    """Write paragraphs and tables to standard output: coloured on a terminal, plain text elsewhere."""
    # Open MPI gives ranks a terminal of its own, wherever their output goes: believe isatty only alone.
    terminal = sys.stdout.isatty() and not started_by_mpi()
    width = shutil.get_terminal_size((80, 24)).columns if terminal else PLAIN_WIDTH
    stream = sys.stdout.stream if isinstance(sys.stdout, PrintableStream) else sys.stdout
    stream.write(render(blocks, width, terminal))


def as_markdown(blocks: Iterable[Text | Table]) -> str:
    parts = []
    for block in blocks:
        if isinstance(block, Text):
            parts += ["\n".join(map(markdown_text, shown(block.text).strip().splitlines())) + "\n"]
        elif block.rows:
            parts.append(shown(markdown(block)))
    return "\n".join(parts)


def render(blocks: Iterable[Text | Table], width: int = PLAIN_WIDTH, colour: bool = False) -> str:
    """The blocks as text of at most `width` columns, without blanks at the ends of lines."""
    from rich.console import Console  # here, so that a run pays for it at its end

    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for block in blocks:
        if isinstance(block, Text):
            console.print(shown(block.text), style=block.style)
        elif block.rows:
            console.print(shown(f"\n{block.caption}") if block.caption else "")
            table = block.shortened(MOST_ROWS)
            places = _fitting(table, width)
            console.print(_laid_out(table, places, width))
            names = [heading(c.head) for place, c in enumerate(table.columns) if place not in places]
            if names:
                console.print(shown(f"no room for: {', '.join(names)}"), style="dim")
    # rich fills the last column with blanks.
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


LEAST_WORD = 12
"""Columns that text which may be folded is given at least."""


def _needed(table: Table) -> list[int]:
    """Columns of the terminal that each column of the table takes, with the gap after it."""
    needed = []
    for column, texts in zip(table.columns, zip(*table.texts, strict=True), strict=True):
        longest = max(map(len, texts), default=0)
        if column.align == "fold":
            longest = min(longest, LEAST_WORD)
        needed.append(2 + max(longest, *map(len, column.head.split("\n"))))
    return needed


def _fitting(table: Table, width: int) -> list[int]:
    """Return the places of the columns that fit with no figure cut; `Column.room` says which go first."""
    needed = _needed(table)
    places = list(range(len(needed)))
    # The last column needs no gap of two after it.
    while sum(needed[place] for place in places) > width + 2:
        room, place = max((table.columns[place].room, place) for place in places)
        if not room:
            break
        places.remove(place)
    return places


def _laid_out(table: Table, places: Sequence[int], width: int) -> Any:
    """Return the columns at `places` as a rich table without a frame."""
    from rich import box
    from rich.table import Table as RichTable

    laid = RichTable(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    needed = _needed(table)
    # Where even the columns that must stay do not fit, all of them take several lines.
    tight = sum(needed[place] for place in places) > width + 2
    for place in places:
        column = table.columns[place]
        laid.add_column(
            shown(column.head),
            justify="right" if column.align == "right" else "left",
            overflow="fold",
            no_wrap=column.align != "fold" and not tight,
        )
    for number, texts in enumerate(table.texts):
        style = "yellow" if number in table.flagged else None
        laid.add_row(*(shown(texts[place]) for place in places), style=style)
    return laid
