"""A comparison in a terminal: the figures side by side, the counts they share, what is not comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.report.compare import Comparison, Entry, common_counts, mean_rate
from emulator.report.kinds import answer
from emulator.report.table import PLAIN_WIDTH, as_text, plain_table, to_stdout
from emulator.report.view import NONE, number, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEADS = ("", "accel.", "hosts", "GB/s", "MB/s\nper accel.", "GB/s\nper host", "AU %", "X/\nX_ideal")


def print_comparison(comparison: Comparison) -> None:
    """Write the comparison to standard output: coloured on a terminal, plain text elsewhere."""
    to_stdout(lambda width, colour: render(comparison, width, colour))


def render(comparison: Comparison, width: int = PLAIN_WIDTH, colour: bool = False) -> str:
    """The comparison as text of at most `width` columns."""
    return as_text(lambda console: _fill(console, comparison, width), width, colour)


def cells(entry: Entry) -> tuple[str, ...]:
    """The figures of an entry as text, in the order of HEADS after the name."""
    return (
        f"{entry.accelerators:,}" + ("*" if entry.flagged else ""),
        NONE if entry.hosts is None else f"{entry.hosts:,}",
        number(entry.bytes_per_second / 1e9, 3),
        number(entry.per_accelerator / 1e6, 4),
        NONE if entry.per_host is None else number(entry.per_host / 1e9, 3),
        percent(entry.au),
        NONE if entry.x_ideal is None else f"{entry.x_ideal:.3f}",
    )


def _fill(console: Console, comparison: Comparison, width: int) -> None:
    for one in comparison.results:
        console.print(one.name, style="bold")
        console.print(f"  {answer(one.result)}")
    entries = [entry for one in comparison.results for entry in one.entries]
    for heading, found in (("", entries), ("Published", list(comparison.published))):
        if found:
            console.print(f"\n{heading}".rstrip())
            console.print(_entries(found, width))
    if any(entry.flagged for entry in entries):
        console.print("* flagged: see feedrate report", style="yellow")
    if len(comparison.results) > 1 and common_counts(comparison):
        console.print("\nThe same counts, GB/s, and as a share of the first")
        console.print(_shared(comparison))
    if comparison.moves:
        console.print()
    for sentence in comparison.moves:
        console.print(sentence, style="bold")
    if comparison.figures:
        console.print("\nFigures of documents")
        for figure in comparison.figures:
            condition = f" ({figure.condition})" if figure.condition else ""
            console.print(
                f"  {figure.system}: {figure.quantity} {figure.value:,g} {figure.unit}{condition}, "
                f"{figure.kind}, {figure.source}"
            )
    if comparison.cautions:
        console.print("\nNot comparable without thinking", style="bold yellow")
        for caution in comparison.cautions:
            console.print(f"- {caution}")


def _entries(found: list[Entry], width: int) -> Table:
    table = plain_table()
    heads = [head for place, head in enumerate(HEADS) if width >= 72 or place not in (2, 5)]
    table.add_column(heads[0], overflow="fold", max_width=max(12, width - 9 * (len(heads) - 1)))
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    before = ""
    for entry in found:
        row = ["" if entry.name == before else entry.name, *cells(entry)]
        table.add_row(*(cell for place, cell in enumerate(row) if width >= 72 or place not in (2, 5)))
        before = entry.name
    return table


def shared_rows(comparison: Comparison) -> list[list[str]]:
    """One row for each count that all results have: GB/s of each, with its share of the first's."""
    rows = []
    for count in common_counts(comparison):
        rates = [mean_rate(one, count) for one in comparison.results]
        shares = [f" ({rate / rates[0]:.3f})" if rates[0] else "" for rate in rates]
        shown = [number(rate / 1e9, 3) + share for rate, share in zip(rates, ["", *shares[1:]], strict=True)]
        rows.append([f"{count:,}", *shown])
    return rows


def _shared(comparison: Comparison) -> Table:
    table = plain_table()
    table.add_column("accel.", justify="right", no_wrap=True)
    for one in comparison.results:
        table.add_column(one.name, justify="right", overflow="fold")
    for row in shared_rows(comparison):
        table.add_row(*row)
    return table
