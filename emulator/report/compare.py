"""Results beside each other and beside published ones: the same figures, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emulator.analysis.flags import usable
from emulator.files import write_whole
from emulator.record.result import Point, RunResult
from emulator.report import drawing
from emulator.report import rows as frames
from emulator.report.drawing import Chart, Key, Size, extra
from emulator.report.figures import to_png, to_svg
from emulator.report.kinds import answer, setting
from emulator.report.page import figures, render
from emulator.report.reference import Figure, Submission
from emulator.report.rows import Rows
from emulator.report.tables import PLAIN_WIDTH, as_text, plain_table, to_stdout
from emulator.report.view import NONE, computes, marks, marks_line, notes, number, percent, title
from emulator.units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One process count of one result, or one published row, in the same figures."""

    name: str
    """Which result, or who published it."""
    accelerators: int
    hosts: int | None
    """None where it is not known."""
    bytes_per_second: float
    au: float | None
    """0 to 1; None where the workload does not compute."""
    x_ideal: float | None
    published: bool = False
    flagged: bool = False
    used: bool = True
    """False: a flag invalidates it, and lines do not go through it."""

    @property
    def per_accelerator(self) -> float:
        """Bytes/s."""
        return self.bytes_per_second / self.accelerators

    @property
    def per_host(self) -> float | None:
        """Bytes/s; None where the number of hosts is not known."""
        return self.bytes_per_second / self.hosts if self.hosts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One result with the name it is shown under."""

    name: str
    result: RunResult

    @property
    def entries(self) -> list[Entry]:
        """Its points, by process count."""
        points = sorted(self.result.points, key=lambda point: point.ranks)
        used = usable(points)
        return [_entry(self.name, point, point in used) for point in points if point.ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that the table and the page of a comparison show."""

    results: tuple[Compared, ...]
    published: tuple[Entry, ...] = ()
    figures: tuple[Figure, ...] = ()
    cautions: tuple[str, ...] = ()
    """What is not comparable, in words."""
    moves: tuple[str, ...] = ()
    """How far the knee moves from the first result to each other one, a sentence each."""


def _entry(name: str, point: Point, used: bool) -> Entry:
    known = computes(point)
    return Entry(
        name=name, accelerators=point.ranks, hosts=len(point.hosts) or None,
        bytes_per_second=point.bytes_per_second, au=point.au if known else None,
        x_ideal=point.x_ideal if known else None, flagged=bool(point.flags), used=used,
    )  # fmt: skip


def _published(row: Submission) -> Entry:
    return Entry(
        name=f"{row.submitter} {row.system}", accelerators=row.accelerators, hosts=row.hosts,
        bytes_per_second=row.bytes_per_second, au=row.au, published=True,
        x_ideal=row.samples_per_second / row.ideal_samples_per_second,
    )  # fmt: skip


def names_of(paths: Sequence[Path]) -> list[str]:
    """As few last parts of each path as tell them apart; numbered where even whole paths are the same."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {path}" for number, path in enumerate(paths, 1)]


def compare(
    results: Sequence[tuple[str, RunResult]],
    submissions: Sequence[Submission] = (),
    figures: Sequence[Figure] = (),
    match: str = "",
) -> Comparison:
    """The comparison of (name, result) pairs with those published rows that ran the same workload.

    `match` keeps only published rows whose submitter or system contains it, whatever the case.
    """
    compared = tuple(Compared(name=name, result=result) for name, result in results)
    wanted = {_workload_name(one.result).replace("-", "_") for one in compared}
    text = match.casefold()
    rows = [
        row
        for row in submissions
        if row.workload in wanted and text in f"{row.submitter} {row.system}".casefold()
    ]
    shown = tuple(figure for figure in figures if text in figure.system.casefold())
    return Comparison(
        results=compared,
        published=tuple(sorted(map(_published, rows), key=lambda row: (row.accelerators, row.name))),
        figures=shown,
        cautions=tuple(_cautions(compared, wanted, bool(submissions), rows, shown)),
        moves=tuple(_moves(compared)),
    )


def _moves(compared: Sequence[Compared]) -> list[str]:
    """From the first knee to those of the others that ran the same workload."""
    found = []
    for other in compared[1:]:
        first, a, b = compared[0], compared[0].result.knee, other.result.knee
        if a is None or b is None or _workload_name(first.result) != _workload_name(other.result):
            continue
        noise = other.result.storage.get("noise")
        beside = f" beside {noise}" if noise and not first.result.storage.get("noise") else ""
        share = f" ({(b.n_au / a.n_au - 1) * 100:+.0f} %)" if a.n_au and b.n_au else ""
        where = f"from {_place(first)} to {_place(other)} accelerators"
        found.append(f"{other.name}: the knee moves {where}{share}{beside}.")
    return found


def _place(one: Compared) -> str:
    """`5.5`, or on which side of the counts the knee is."""
    knee, points = one.result.knee, sorted(one.result.points, key=lambda point: point.ranks)
    if knee is not None and knee.n_au is not None:
        return number(knee.n_au, 3)
    threshold = float(one.result.workload.get("training", {}).get("au_threshold", 0.9))
    below = points[0].x_ideal < threshold
    return f"below {points[0].ranks}" if below else f"beyond {points[-1].ranks}"


def _workload_name(result: RunResult) -> str:
    return str(result.workload.get("name", ""))


def _cautions(
    compared: Sequence[Compared], wanted: set[str], asked: bool, rows: Sequence[Submission],
    figures: Sequence[Figure],
) -> list[str]:  # fmt: skip
    found = [caution for one in compared for caution in _own(one)]
    for one in compared[1:]:
        found += _against(compared[0], one)
    if asked and not rows:
        found.append(f"No published row ran {' or '.join(sorted(wanted))}.")
    if rows:
        found.append(
            "Published throughput counts the first step of each epoch and takes samples at their nominal "
            "mean size; feedrate leaves the first step out. Published rows are means over their runs."
        )
    if rows and any(_setting(one.result, "training.sync") != "step" for one in compared):
        found.append("Published runs wait for each other after every step; a result here does not.")
    if figures:
        found.append(
            "Figures of documents are of other tools (fio, rados bench) or older workloads: they say what a "
            "storage can do, not what training gets from it. They are listed, not drawn."
        )
    return found


def _own(one: Compared) -> list[str]:
    """What qualifies a result by itself."""
    found = [f"{one.name}: {marks_line(one.result)}."] if marks_line(one.result) else []
    raised = [note.name for note in notes(one.result)]
    if raised:
        found.append(f"{one.name}: flagged ({', '.join(raised)}).")
    if not (one.result.points or one.result.checkpoints):
        found.append(f"{one.name}: nothing was measured.")
    return found


SETTINGS = {
    "workload.sample.bytes_mean": "mean sample",
    "workload.sample.format": "format",
    "workload.loader.batch_size": "batch size",
    "workload.accelerator.step_seconds": "step time",
    "workload.accelerator.name": "accelerator",
    "workload.training.sync": "ranks wait for each other at",
    "workload.training.au_threshold": "AU threshold",
    "storage.cache": "page cache",
    "loader": "loader",
    "kind": "kind of result",
    "dataset.bytes": "dataset",
}
"""What has to be the same for two results to differ by their storage alone -> its name for people."""


def _setting(result: RunResult, key: str) -> Any:
    """The value under a dotted key of a result; `training.sync` means `workload.training.sync`."""
    head, _, rest = key.partition(".")
    value: Any = getattr(result, head, None) if hasattr(result, head) else result.workload.get(head)
    for part in rest.split(".") if rest else ():
        value = value.get(part) if hasattr(value, "get") else None
    return value


def _against(first: Compared, other: Compared) -> list[str]:
    """How the settings of two results differ, one sentence each."""
    found = []
    for key, words in SETTINGS.items():
        a, b = _setting(first.result, key), _setting(other.result, key)
        if not _same(a, b):
            found.append(f"{words}: {_show(key, a)} in {first.name}, {_show(key, b)} in {other.name}.")
    return found


def _same(a: Any, b: Any) -> bool:
    """Equal, or numbers within 1 %, or a run beside a sweep: both are measured the same way."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) <= 0.01 * max(abs(a), abs(b))
    return bool(a == b) or (a, b) in (("run", "sweep"), ("sweep", "run"))


def _show(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if key.endswith(("bytes", "bytes_mean")):
        return show_bytes(value)
    return show_seconds(value) if key.endswith("seconds") else str(value)


def common_counts(comparison: Comparison) -> list[int]:
    """Process counts that every result has."""
    counts = [{entry.accelerators for entry in one.entries} for one in comparison.results]
    return sorted(set.intersection(*counts)) if counts else []


def mean_rate(one: Compared, count: int) -> float:
    """Bytes/s at that process count, mean of its repeats."""
    rates = [entry.bytes_per_second for entry in one.entries if entry.accelerators == count]
    return sum(rates) / len(rates)


# ---- A comparison in a terminal: the figures side by side, the counts they share, what is not comparable.


HEADS = ("", "accel.", "hosts", "GB/s", "MB/s\nper accel.", "GB/s\nper host", "AU %", "X/\nX_ideal")


def print_comparison(comparison: Comparison) -> None:
    """Write the comparison to standard output: coloured on a terminal, plain text elsewhere."""
    to_stdout(lambda width, colour: comparison_text(comparison, width, colour))


def comparison_text(comparison: Comparison, width: int = PLAIN_WIDTH, colour: bool = False) -> str:
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


# ---- The plots of a comparison: every result a line, published rows as squares, on the same axes.


Measure = Callable[[Entry], float | None]
LONGEST_NAME = 28
"""Letters of a result's name in a plot's key."""


def _everything(comparison: Comparison) -> list[Entry]:
    return [entry for one in comparison.results for entry in one.entries] + list(comparison.published)


def _qualified(comparison: Comparison) -> str:
    """The marks of all results, with the name of the result where they are not those of all."""
    marked = [[mark.label for mark in marks(one.result)] for one in comparison.results]
    if marked and all(labels == marked[0] for labels in marked):
        return " · ".join(marked[0])
    return " · ".join(
        f"{_short(one.name)}: {label}"
        for one, labels in zip(comparison.results, marked, strict=True)
        for label in labels
    )


def _short(name: str) -> str:
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 + 1 :]}"
    )


def _rows(entries: list[Entry], measure: Measure) -> Rows:
    rows: Rows = []
    for entry in entries:
        value = measure(entry)
        if value is not None and value > 0:
            row = {"ranks": entry.accelerators, "value": value, "flagged": entry.flagged}
            rows.append({**row, "used": entry.used})
    return rows


def _plot(comparison: Comparison, measure: Measure, text: str, y: Callable[[Rows], Any], size: Size) -> Chart:
    rows = _rows(_everything(comparison), measure)
    if not rows:
        return None
    counts = [int(row["ranks"]) for row in rows]
    x, upright = drawing.processes(min(counts), max(counts)), y(rows)
    layers: list[Chart] = []
    keys: list[Key] = []
    published = _rows(list(comparison.published), measure)
    if published:
        squares = extra("altair").Chart(drawing.data(published))
        layers.append(
            squares.mark_point(
                shape="square", filled=True, size=34, color=drawing.IDEAL, opacity=0.75
            ).encode(x=x, y=upright)
        )
    for place, one in enumerate(comparison.results):
        colour = drawing.SERIES[place % len(drawing.SERIES)]
        layers += _series(_rows(one.entries, measure), x, upright, colour)
        keys.append(Key(_short(one.name), colour, "line"))
    if published:
        keys.append(Key("published", drawing.IDEAL, "box"))
    return drawing.finished(
        layers, keys + drawing.flagged_key(rows, drawing.SOFT), text, _qualified(comparison), size
    )


def _series(rows: Rows, x: Any, y: Any, colour: str) -> list[Chart]:
    if not rows:
        return []
    return [
        drawing.line(frames.line_rows(rows, "value"), x, y, colour),
        *drawing.dots(rows, x, y, colour, flagged=colour),
    ]


def throughput(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of all accelerators together against their number."""

    def y(rows: Rows) -> Any:
        values = [float(row["value"]) for row in rows]
        low, high = min(values), max(values)
        if high >= frames.LOG_FROM * low:
            return drawing.upright_log("value", low * 0.6, high * 1.8, show_rate)
        return drawing.upright_rate("value", high * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.bytes_per_second, "Throughput, all accelerators", y, size)


def per_accelerator(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of one accelerator against their number."""

    def y(rows: Rows) -> Any:
        return drawing.upright_rate("value", max(float(row["value"]) for row in rows) * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.per_accelerator, "Throughput of one accelerator", y, size)


def per_host(comparison: Comparison, size: Size) -> Chart:
    """Bytes/s of one host against the number of accelerators."""

    def y(rows: Rows) -> Any:
        return drawing.upright_rate("value", max(float(row["value"]) for row in rows) * 1.15, show_rate)

    return _plot(comparison, lambda entry: entry.per_host, "Throughput of one host", y, size)


def efficiency(comparison: Comparison, size: Size) -> Chart:
    """X/X_ideal in percent against the number of accelerators."""

    def y(rows: Rows) -> Any:
        return drawing.upright(
            "value", "", max(106.0, *(float(row["value"]) * 1.04 for row in rows)), "percent"
        )

    def measure(entry: Entry) -> float | None:
        return None if entry.x_ideal is None else entry.x_ideal * 100

    return _plot(comparison, measure, "X/X_ideal", y, size)


PLOTS: dict[str, Callable[[Comparison, Size], Chart]] = {
    "throughput": throughput,
    "per-accelerator": per_accelerator,
    "per-host": per_host,
    "x-ideal": efficiency,
}
"""Name -> plot, in the order of the page."""


def draw(name: str, comparison: Comparison, size: Size) -> str | None:
    """The plot of that name as SVG text; None when there is nothing to draw. Raises MissingError."""
    with drawing.unchecked():
        chart = PLOTS[name](comparison, size)
        return None if chart is None else to_svg(chart, None)


def write_picture(comparison: Comparison, path: Path, kind: Literal["png", "svg"]) -> None:
    """Write the plots as one picture, whole or not at all. Raises MissingError, StorageError."""
    with drawing.unchecked():
        drawn = [plot(comparison, drawing.WIDE) for plot in PLOTS.values()]
        chart = drawing.grid([chart for chart in drawn if chart is not None], "Comparison")
        content = to_svg(chart, drawing.PAPER).encode() if kind == "svg" else to_png(chart)
    write_whole(path, content)


# ---- One self-contained HTML page of a comparison, in the clothes of the report.


CAPTIONS = {
    "throughput": "All accelerators together.",
    "per-accelerator": "What one accelerator gets.",
    "per-host": "What one client host reads.",
    "x-ideal": "Samples per second over what accelerators that never wait would consume.",
}
"""What each plot shows, in words."""


def write_html(comparison: Comparison, path: Path) -> None:
    """Write the page whole or not at all. Raises MissingError, StorageError."""
    content = page(comparison).encode()
    write_whole(path, content)


def page(comparison: Comparison) -> str:
    """The page as text. Raises MissingError."""
    return render(
        "compare.html",
        title="Comparison",
        results=[
            {
                "name": one.name,
                "answer": answer(one.result),
                "title": title(one.result),
                "setting": setting(one.result),
                "marks": marks(one.result),
            }
            for one in comparison.results
        ],
        cautions=comparison.cautions,
        moves=comparison.moves,
        figures=figures(CAPTIONS, lambda name, size: draw(name, comparison, size)),
        shared=shared_rows(comparison) if len(comparison.results) > 1 else [],
        measured=_entries_compare_page(entry for one in comparison.results for entry in one.entries),
        published=_entries_compare_page(comparison.published),
        documents=comparison.figures,
    )


def _entries_compare_page(found: Iterable[Entry]) -> list[dict[str, Any]]:
    return [{"name": entry.name, "flagged": entry.flagged, "cells": cells(entry)} for entry in found]
