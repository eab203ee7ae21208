"""Text for a terminal: lines and tables, laid out by rich for its width; plain text elsewhere."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.record.result import RunResult
from emulator.report.table import Table, shortened
from emulator.report.view import kind_of, limits, marks, notes, title
from emulator.run.comm import started_by_mpi
from emulator.text import PrintableStream, masked, printable

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


def result_blocks(result: RunResult) -> list[Text | Table]:
    """A result: what qualifies it, its tables, what limits it, its notes, the answer."""
    kind = kind_of(result)
    blocks: list[Text | Table] = [Text(title(result), "bold"), Text(kind.setting(result), "dim")]
    blocks += [Text(f"!! {m.sentence}" if m.serious else m.sentence, "bold red") for m in marks(result)]
    blocks += [table for table in kind.tables(result) if not table.detail]
    for limit in limits(result)[-1:]:
        blocks.append(Text(f"\n{limit.name} limits {limit.where}: {'; '.join(limit.evidence)}"))
    for place, note in enumerate(notes(result)):
        line = f"{note.letter}  {note.name} ({note.where}): {note.sentence}"
        blocks.append(Text(line if place else f"\n{line}", "yellow"))
    style = "bold green" if result.status == "complete" else "bold"
    return [*blocks, Text(f"\n{kind.answer(result)}", style)]


def print_result(result: RunResult) -> None:
    """Write a result to standard output: coloured on a terminal, plain text elsewhere."""
    print_blocks(result_blocks(result))


def print_blocks(blocks: Sequence[Text | Table]) -> None:
    """Write paragraphs and tables to standard output: coloured on a terminal, plain text elsewhere."""
    # Open MPI gives ranks a terminal of its own, wherever their output goes: believe isatty only alone,
    # or when feedrate started mpirun and has looked itself.
    terminal = sys.stdout.isatty() and (not started_by_mpi() or "FORCE_COLOR" in os.environ)
    width = shutil.get_terminal_size((80, 24)).columns if terminal else PLAIN_WIDTH
    stream = sys.stdout.stream if isinstance(sys.stdout, PrintableStream) else sys.stdout
    stream.write(render(blocks, width, terminal))


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
            console.print(_laid_out(block, width))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def shown(text: str) -> str:
    """Text of a file as a terminal may show it."""
    return masked(printable(text))


def _laid_out(table: Table, width: int) -> Any:
    """A rich table without a frame. A name that repeats the one above it is left out."""
    from rich import box
    from rich.table import Table as RichTable

    laid = RichTable(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    texts = table.texts
    places = [place for place, column in enumerate(table.columns) if width >= column.room]
    for place in places:
        column = table.columns[place]
        # a figure stays whole; a long name above it and two figures in one cell may take several lines
        long = max(map(len, column.head.split("\n"))) > 20
        wraps = long or any(" " in row[place] and len(row[place]) > 10 for row in texts)
        folds = column.align == "fold" or (column.align == "right" and wraps)
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
        cells = [shown(texts[number][place]) for place in places]
        repeats = table.columns[places[0]].align != "right" and cells[0] == before
        before = cells[0]
        first = "" if repeats else cells[0]
        laid.add_row(first, *cells[1:], style="yellow" if number in table.flagged else None)
    return laid
