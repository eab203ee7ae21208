"""Text for a terminal: lines and tables, laid out by rich for its width; plain text elsewhere."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.analysis.answer import Answer
from emulator.analysis.gate import MET, NOT_MET, UNKNOWN
from emulator.launch.launched import started_by_mpi
from emulator.report.table import Table, heading, markdown, shortened
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
    verdict = {MET: "bold green", UNKNOWN: "bold yellow", NOT_MET: "bold red"}
    blocks: list[Text | Table] = []
    if answer.gate:
        blocks.append(Text(answer.gate.line, verdict[answer.gate.status]))
    blocks.append(Text(answer.sentence, "bold green" if complete and not answer.gate else "bold"))
    rest = answer.lines[2 if answer.gate else 1 :]
    return [*blocks, *(Text(line) for line in rest)]


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
            console.print(_whole(block.text), style=block.style)
        elif block.rows:
            console.print(_whole(f"\n{block.caption}") if block.caption else "")
            places = _fitting(block, width)
            console.print(_laid_out(block, places, width))
            names = [heading(c.head) for place, c in enumerate(block.columns) if place not in places]
            if names:
                console.print(shown(f"no room for: {', '.join(names)}"), style="dim")
    return "\n".join(line.rstrip() for line in text.getvalue().replace(_JOINED, " ").splitlines()) + "\n"


_JOINED = "\ue000"
"""Stands for a blank at which no line is broken: rich takes a no-break space for any other."""
_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=(%|[kMGTPE]?i?B(/s)?|[mun]?s|min|h)(?![\w/]))")


def _whole(text: str) -> str:
    """The same for rich, which breaks lines: a figure stays with its unit."""
    return _BEFORE_UNIT.sub(_JOINED, shown(text))


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
    while sum(needed[place] for place in places) > width + 2:
        room, place = max((table.columns[place].room, place) for place in places)
        if not room:
            break
        places.remove(place)
    return places


def _laid_out(table: Table, places: Sequence[int], width: int) -> Any:
    """Return the columns at `places` as a rich table without a frame.

    A name that repeats the one above it is left out.
    """
    from rich import box
    from rich.table import Table as RichTable

    laid = RichTable(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    texts = table.texts
    tight = sum(_needed(table)[place] for place in places) > width + 2
    for place in places:
        column = table.columns[place]
        # a figure stays whole; a long name above it and two figures in one cell may take several lines
        long = max(map(len, column.head.split("\n"))) > 20
        wraps = long or any(" " in row[place] and len(row[place]) > 10 for row in texts)
        folds = column.align == "fold" or (column.align == "right" and wraps)
        folds = folds or (tight and (column.align == "left" or width < 60))  # nothing is ever cut
        laid.add_column(
            shown(column.head),
            justify="right" if column.align == "right" else "left",
            overflow="fold" if folds else "ellipsis",
            no_wrap=not folds,
        )
    head, tail, between = shortened(range(len(texts)), MOST_ROWS if table.items else len(texts))
    before = ""
    for number in [*head, *tail]:
        if between and number == tail[0]:
            laid.add_row(f"... {between:,} {table.items} between")
        cells = [_whole(texts[number][place]) for place in places]
        repeats = table.columns[places[0]].align != "right" and cells[0] == before
        before = cells[0]
        first = "" if repeats else cells[0]
        laid.add_row(first, *cells[1:], style="yellow" if number in table.flagged else None)
    return laid
