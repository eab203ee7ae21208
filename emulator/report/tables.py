"""Per-host balance of a point: which host waits more, reads less or is busier than the others."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.record.result import HostShare, Point, RunResult
from emulator.report.kinds import answer, grids, setting
from emulator.report.view import NONE, Grid, Row, limits, marks, notes, number, percent, rows, title
from emulator.run.comm import started_by_mpi
from emulator.units import show_rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Rates of one host during a point."""

    host: str
    ranks: int
    bytes_per_second: float
    """Bytes/s that its ranks read."""
    wait_share: float
    """Share (0 to 1) of its ranks' loop time blocked on the loader."""
    busy_share: float | None
    """Share (0 to 1) of the host's CPU time that was not idle."""
    cpu_seconds_per_gb: float | None
    """CPU seconds of its ranks for each 10^9 bytes read."""
    runqueue: float | None
    nic_bytes_per_second: float | None


def _row(name: str, share: HostShare, seconds: float) -> HostRow:
    rank_seconds = share.ranks * seconds
    return HostRow(
        host=name,
        ranks=share.ranks,
        bytes_per_second=share.bytes / seconds if seconds else 0.0,
        wait_share=min(1.0, share.wait_seconds / rank_seconds) if rank_seconds else 0.0,
        busy_share=share.busy_share,
        cpu_seconds_per_gb=share.cpu_seconds / share.bytes * 1e9 if share.bytes else None,
        runqueue=share.runqueue,
        nic_bytes_per_second=None if share.nic_bytes is None or not seconds else share.nic_bytes / seconds,
    )


def host_rows(point: Point) -> list[HostRow]:
    """The hosts of a point, the one that waits the most first."""
    names = short_names([share.host for share in point.hosts])
    found = [_row(name, share, point.seconds) for name, share in zip(names, point.hosts, strict=True)]
    return sorted(found, key=lambda row: (-row.wait_share, row.host))


def short_names(names: list[str]) -> list[str]:
    """The names without the domain that all of them share."""
    domains = {name.partition(".")[2] for name in names}
    short = [name.partition(".")[0] for name in names]
    return short if len(domains) == 1 and len(set(short)) == len(set(names)) else names


def fullest(result: RunResult) -> Point | None:
    """The point whose balance is shown: the most hosts, then the most ranks; None without points."""
    return max(result.points, key=lambda point: (len(point.hosts), point.ranks), default=None)


def shortened(found: list[HostRow], most: int) -> tuple[list[HostRow], list[HostRow], int]:
    """Head and tail of at most `most` rows together, and how many lie between them."""
    if len(found) <= most:
        return found, [], 0
    head = most * 2 // 3
    return found[:head], found[head - most :], len(found) - most


# ---- A result in a terminal: what qualifies it, the table, the hosts, the notes, the knee.


PLAIN_WIDTH = 100
"""Columns of the text when the output is no terminal."""
NARROW = 56
"""Below this many columns the samples/s are left out: the GB/s say the same."""
MOST_HOSTS = 12


def print_table(result: RunResult) -> None:
    """Write the table to standard output: coloured on a terminal, plain text elsewhere."""
    to_stdout(lambda width, colour: render(result, width, colour))


def print_grids(found: Sequence[Grid]) -> None:
    """Write tables of text to standard output, each under its caption."""

    if not found:
        return

    def fill(console: Console) -> None:
        for grid in found:
            console.print(f"\n{grid.caption}")
            console.print(_grid(grid))

    to_stdout(lambda width, colour: as_text(fill, width, colour))


def to_stdout(render: Callable[[int, bool], str]) -> None:
    """Write what `render(width, colour)` makes for where standard output goes."""
    # Open MPI gives ranks a terminal of its own, wherever their output goes: believe isatty only alone,
    # or when feedrate started mpirun and has looked itself.
    terminal = sys.stdout.isatty() and (not started_by_mpi() or "FORCE_COLOR" in os.environ)
    width = shutil.get_terminal_size((80, 24)).columns if terminal else PLAIN_WIDTH
    sys.stdout.write(render(width, terminal))


def render(result: RunResult, width: int = PLAIN_WIDTH, colour: bool = False) -> str:
    """The table as text of at most `width` columns."""
    return as_text(lambda console: _fill(console, result, width), width, colour)


def as_text(fill: Callable[[Console], None], width: int, colour: bool) -> str:
    """What `fill` prints, as text of at most `width` columns without blanks at the ends of lines."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=colour, color_system="standard" if colour else None,
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    fill(console)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _fill(console: Console, result: RunResult, width: int) -> None:
    console.print(title(result), style="bold")
    console.print(setting(result), style="dim")
    for mark in marks(result):
        console.print(f"!! {mark.sentence}" if mark.serious else mark.sentence, style="bold red")
    if result.points:
        console.print()
        console.print(_points(rows(result), width))
    for grid in grids(result):
        console.print(f"\n{grid.caption}")
        console.print(_grid(grid))
    for renderable in _hosts(result, width):
        console.print(renderable)
    for limit in limits(result)[-1:]:
        console.print(f"\n{limit.name} limits {limit.where}: {'; '.join(limit.evidence)}")
    if notes(result):
        console.print()
    for note in notes(result):
        console.print(f"{note.letter}  {note.name} ({note.where}): {note.sentence}", style="yellow")
    console.print()
    console.print(answer(result), style="bold green" if result.status == "complete" else "bold")


def plain_table() -> Table:
    """A table without a frame, as narrow as its cells."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def _grid(grid: Grid) -> Table:
    table = plain_table()
    for place, head in enumerate(grid.heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=not place)
    for row in grid.rows:
        table.add_row(*row)
    return table


def _points(found: tuple[Row, ...], width: int) -> Table:
    table = plain_table()
    narrow = width < NARROW
    heads = ["ranks", "samples/s", "GB/s", "MB/s\nper rank", "AU %", "X/\nX_ideal", "bound by", "notes"]
    cells = [[r.ranks, r.samples, r.gigabytes, r.per_rank, r.au, r.x_ideal, r.bound, r.notes] for r in found]
    left_out = {1, 6} if narrow else set()
    left_out |= {n for n in (6, 7) if not any(row[n] for row in cells)}
    shown = [n for n in range(len(heads)) if n not in left_out]
    for n in shown:
        table.add_column(heads[n], justify="left" if n >= 6 else "right", no_wrap=n != 7)
    for row in cells:
        table.add_row(*(row[n] for n in shown), style="yellow" if row[7] else None)
    return table


def _hosts(result: RunResult, width: int) -> list[RenderableType]:
    point = fullest(result)
    if point is None or len(point.hosts) < 2:
        return []
    head, tail, between = shortened(host_rows(point), MOST_HOSTS)
    heads = ["ranks", "GB/s", "wait %", "CPU %", "CPU-s\nper GB"]
    shown = heads[:3] if width < NARROW else heads
    table = plain_table()
    table.add_column("host", overflow="fold", max_width=max(16, width - 10 * len(shown)))
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for row in head:
        table.add_row(*_cells(row)[: len(shown) + 1])
    if between:
        table.add_row(f"... {between:,} hosts between")
    for row in tail:
        table.add_row(*_cells(row)[: len(shown) + 1])
    caption = f"\n{len(point.hosts):,} hosts at {point.ranks:,} ranks, the most waiting first"
    return [f"{caption} ({show_rate(point.bytes_per_second)} in all)", table]


def _cells(row: HostRow) -> tuple[str, ...]:
    return (
        row.host,
        f"{row.ranks:,}",
        number(row.bytes_per_second / 1e9, 3),
        percent(row.wait_share),
        percent(row.busy_share) if row.busy_share is not None else NONE,
        number(row.cpu_seconds_per_gb, 2),
    )
