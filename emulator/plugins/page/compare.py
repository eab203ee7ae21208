"""Compare results with each other and with published ones, with cautions about differences in kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.analysis.answer import Answer
from emulator.analysis.gate import Verdict, knee_range, no_worse
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.page.differences import differences, same, setting
from emulator.plugins.page.reference import Entry, entries_table, load_references
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.report import charts
from emulator.report.charts import Axis, Dot, Figure, Place, Series, spread
from emulator.report.document import Document
from emulator.report.table import Cell, Column, Table, heading, number, three_digits
from emulator.report.training import csv_table
from emulator.report.training_figures import by_ranks, dots_of
from emulator.report.view import answer_of, kind_of, marks_line, notes, title
from emulator.units import counted, show_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One result and its displayed name."""

    name: str
    result: RunResult

    @property
    def workload(self) -> str:
        return str(self.result.workload.get("name", ""))

    @property
    def setting(self) -> str:
        """What was measured, and where and how."""
        return f"{title(self.result)}, {kind_of(self.result).setting(self.result)}"

    @property
    def knee_place(self) -> str:
        """The knee as text, such as `5.5`, or the counts that bound it."""
        if self.result.knee is not None and self.result.knee.n_au is not None:
            return number(self.result.knee.n_au, 3)
        low, high = knee_range(self.result)
        if math.isinf(high):
            return f"at least {low:g}" if low else "unknown"
        return f"between {low:g} and {high:.0f}" if low else f"below {high:.0f}"


@dataclass(frozen=True, kw_only=True)
class Comparison(Document):
    """Results beside each other and beside published ones."""

    results: tuple[Compared, ...]
    moves: tuple[str, ...]
    """Sentences on the move from the first result to each other one."""
    verdicts: tuple[Verdict, ...] = ()
    """Those of --fail-if-worse, one for each result after the first."""

    def as_plain(self) -> dict[str, Any]:
        """Return the verdict, each result's answer and knee, figures, moves and cautions, for programs."""
        return {
            "answer": self.answer.as_plain(),
            "gates": [verdict.as_plain() for verdict in self.verdicts],
            "results": [
                {
                    "name": compared.name,
                    "label": compared.result.label,
                    "answer": answer_of(compared.result).as_plain(),
                    "knee": to_plain(compared.result.knee),
                }
                for compared in self.results
            ],
            "same_figures": [
                {"row": figure.row, "figure": figure.name, "values": figure.values}
                for figure in same_figures(self.results)
            ],
            "moves": list(self.moves),
            "cautions": list(self.cautions),
        }


def compare_folders(
    outs: Sequence[Path], references: Sequence[str] = (), fail_if_worse: float | None = None
) -> Comparison:
    """Compare results in folders with published tables, by name or file. Raises SpecError, StorageError.

    A result is called by its label, or its folder; numbered if some are equal.
    """
    results = [read_result(out) for out in outs]
    names = [result.label or str(out) for out, result in zip(outs, results, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    return compare(list(zip(names, results, strict=True)), load_references(references), fail_if_worse)


def compare(
    results: Sequence[tuple[str, RunResult]],
    submissions: Sequence[Entry] = (),
    fail_if_worse: float | None = None,
) -> Comparison:
    """Compare (name, result) pairs with each other, and with published rows of the same workload.

    `fail_if_worse` is a share (0 to 1).
    """
    compared = tuple(Compared(name=name, result=result) for name, result in results)
    published = _of_the_same_workloads(submissions, compared)
    verdicts = [] if fail_if_worse is None else gate(fail_if_worse, compared)
    moves = tuple(_moves(compared))
    return Comparison(
        title="Comparison",
        setting=tuple(f"{item.name}: {item.setting}" for item in compared),
        answer=_verdict(compared, moves, verdicts),
        of_each=tuple((item.name, answer_of(item.result)) for item in compared),
        complete=all(item.result.status == "complete" for item in compared),
        tables=(side_by_side(compared), differences(results), entries_table("Published", published)),
        figures=throughput(compared, published),
        cautions=tuple(_cautions(compared, submissions, published)),
        points=_points(compared),
        results=compared,
        moves=moves,
        verdicts=tuple(verdicts),
    )


def _points(compared: Sequence[Compared]) -> Table | None:
    """Return the points of all results, for CSV; None if they have none."""
    tables = [csv_table(item.result) for item in compared]
    rows = [(item.name, *row) for item, table in zip(compared, tables, strict=True) for row in table.rows]
    columns = (Column("result"), *tables[0].columns)
    return Table(caption="", columns=columns, rows=tuple(rows)) if rows else None


def _of_the_same_workloads(submissions: Sequence[Entry], compared: Sequence[Compared]) -> list[Entry]:
    """Return the published rows of the workloads of these results, the fewest accelerators first."""
    # Submissions write unet3d_a100.
    workloads = {item.workload.replace("-", "_") for item in compared}
    rows = [row for row in submissions if row.workload in workloads]
    return sorted(rows, key=lambda row: (row.accelerators, row.name))


def _verdict(compared: Sequence[Compared], moves: Sequence[str], verdicts: Sequence[Verdict]) -> Answer:
    """Return the answer of a comparison: what moved, with the worst verdict as its gate."""
    sentence = " ".join(moves)
    if len(compared) == 1:
        sentence = answer_of(compared[0].result).sentence
    elif not moves and same_figures(compared):
        sentence = "The table has the figures that they have in common."
    elif not moves:
        sentence = "These results have nothing in common that could be compared."
    # An answer has one gate: the verdicts on further results follow as notes.
    gate = max(verdicts, key=lambda verdict: verdict.status, default=None)
    others = tuple(verdict.line for verdict in verdicts if verdict is not gate)
    return Answer(question="How do they differ?", sentence=sentence, gate=gate, notes=others)


def gate(share: float, compared: Sequence[Compared]) -> list[Verdict]:
    """Decide for each result after the first whether it is worse than the first by more than `share`.

    Raises SpecError if the workload or the accelerator differs.
    """
    first, *others = compared
    if not others:
        raise SpecError("--fail-if-worse needs two results", "feedrate compare OLD NEW --fail-if-worse 5%")
    for other in others:
        for key in ("workload.name", "workload.accelerator.step_seconds", "workload.training.au_threshold"):
            if not same(setting(first.result, key), setting(other.result, key)):
                raise SpecError(
                    f"{first.name} and {other.name} differ in {key}", "compare results of the same workload"
                )
    return [no_worse(share, (first.name, other.name), first.result, other.result) for other in others]


def _moves(compared: Sequence[Compared]) -> Iterator[str]:
    """Describe the move from the first result to each other one of the same workload."""
    first, *others = compared
    for other in others:
        # A run may stand beside a sweep or an import, and other kinds beside their own only.
        trainings = first.result.kind in ("run", "sweep")
        if first.workload != other.workload or not (trainings or first.result.kind == other.result.kind):
            continue
        if first.result.knee is not None and other.result.knee is not None:
            yield _knee_move(first, other)
        else:
            yield from _number_move(first, other)


def _number_move(first: Compared, other: Compared) -> Iterator[str]:
    """Compare the numbers of two answers, if both have one in the same unit."""
    old, new = answer_of(first.result), answer_of(other.result)
    if old.number and new.number and old.unit == new.unit:
        show = show_rate if old.unit == "B/s" else three_digits
        change = _percent(new.number / old.number)
        yield f"{other.name}: {show(new.number)}, {first.name}: {show(old.number)} ({change})."


def _percent(ratio: float) -> str:
    """Return a ratio as a change: `+20 %`."""
    return f"{(ratio - 1) * 100:+.0f} %"


def _knee_move(first: Compared, other: Compared) -> str:
    """The knee moved if the 95 % intervals do not overlap; otherwise the runs do not show a move."""
    # Intervals that overlap may be of one knee.
    (low, high), (least, most) = knee_range(first.result), knee_range(other.result)
    if low <= most and least <= high:
        places = f"{first.knee_place} and {other.knee_place} accelerators"
        return f"{other.name}: knees of {places}: no difference that these runs can show."
    old, new = first.result.knee, other.result.knee
    change = ""  # counts that only bound a knee have no ratio
    if old and new and old.n_au and new.n_au:
        change = f" ({_percent(new.n_au / old.n_au)})"
    places = f"from {first.knee_place} to {other.knee_place} accelerators"
    return f"{other.name}: the knee moves {places}{change}."


def _cautions(
    compared: Sequence[Compared], submissions: Sequence[Entry], published: Sequence[Entry]
) -> Iterator[str]:
    """What a reader has to know before the figures are compared."""
    for item in compared:
        yield from _own_cautions(item)
    if submissions and not published:
        workloads = " or ".join(sorted({item.workload for item in compared}))
        yield f"No published row ran {workloads}."
    if published:
        yield (
            "Published throughput includes the first step of each epoch up to v1.0 and excludes it since, as "
            "feedrate does; it assumes the nominal mean size of samples. Published rows are means of several "
            "runs."
        )
    if published and any(setting(item.result, "workload.training.sync") != "step" for item in compared):
        yield "Published runs wait for each other after every step; a result here does not."


def _own_cautions(item: Compared) -> Iterator[str]:
    if marks := marks_line(item.result):
        yield f"{item.name}: {marks}."
    if flags := [note.name for note in notes(item.result)]:
        yield f"{item.name}: flagged ({', '.join(flags)})."
    if not any(table.rows for table in kind_of(item.result).tables(item.result)):
        yield f"{item.name}: nothing was measured."


Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class SameFigure:
    """A figure that all results have."""

    row: str
    name: str
    values: list[float]
    """In the order of the results."""
    show: Show


def same_figures(results: Sequence[Compared]) -> list[SameFigure]:
    """Return the figures that all results have, in the order of the first one."""
    if len(results) < 2:
        return []
    figures = [_figures_of(compared) for compared in results]
    same = []
    for row, name in figures[0]:
        if all((row, name) in other for other in figures):
            values = [other[row, name][0] for other in figures]
            same.append(SameFigure(row, name, values, figures[0][row, name][1]))
    return same


def _figures_of(compared: Compared) -> dict[tuple[str, str], tuple[float, Show]]:
    """Return row and name -> value and how it is shown.

    Of a training these are the mean rates of its counts, of other results the figures of the first table.
    """
    rates: dict[int, list[float]] = {}
    for point in by_ranks(compared.result):
        rates.setdefault(point.ranks, []).append(point.bytes_per_second / 1e9)
    figures: dict[tuple[str, str], tuple[float, Show]] = {}
    for count, values in rates.items():
        figures[counted(count, "rank"), "GB/s"] = (sum(values) / len(values), three_digits)
    if rates:
        return figures
    # Of other kinds the first table answers the question.
    for table in kind_of(compared.result).tables(compared.result)[:1]:
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                # Depths, clients and other counts are settings, not figures.
                if isinstance(cell, float) and math.isfinite(cell):
                    figures[str(row[0]), heading(column.head)] = (cell, column.show)
    return figures


def side_by_side(results: Sequence[Compared]) -> Table:
    """Return a table with a row for each of the `same_figures`, and the ratio to the first."""
    rows: list[tuple[Cell, ...]] = []
    for figure in same_figures(results):
        first, *others = figure.values
        cells = [figure.show(first)]
        for value in others:
            share = f" ({value / first:.3f})" if first else ""
            cells.append(figure.show(value) + share)
        rows.append((figure.row, figure.name, *cells))
    names = (Column(compared.name) for compared in results)
    columns = (Column("", align="fold"), Column("figure", align="left"), *names)
    caption = "The same figures, and as a share of the first"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def throughput(compared: Sequence[Compared], published: Sequence[Entry]) -> tuple[Figure, ...]:
    """Return the figure of throughput: a line for every result, and dots for published systems."""
    series = [*_measured_series(compared), *_published_series(published, len(compared))]
    dots = [dot for line in series for dot in line.dots]
    if not dots:
        return ()
    figure = Figure(
        name="throughput",
        title="Throughput",
        caption="All accelerators together.",
        x=Axis(title=charts.PROCESSES, whole=True, log=spread([dot.x for dot in dots])),
        y=Axis(unit="B/s", log=spread([dot.y for dot in dots])),
        series=series,
        places=list(_knees(compared)),
        qualified=_qualified(compared),
    )
    return (figure,)


def _measured_series(compared: Sequence[Compared]) -> Iterator[Series]:
    for place, item in enumerate(compared):
        # A rate of 0 has no place on a logarithmic axis.
        points = [point for point in by_ranks(item.result) if point.bytes_per_second > 0]
        dots = dots_of(points, lambda point: point.bytes_per_second)
        if dots:
            yield Series(name=_short(item.name), dots=dots, colour=charts.colour(place))


def _published_series(published: Sequence[Entry], first: int) -> Iterator[Series]:
    """A series for each submitter, in the colours from the number `first` on."""
    submitters = dict.fromkeys(entry.submitter for entry in published)
    for place, submitter in enumerate(submitters, first):
        rows = [entry for entry in published if entry.submitter == submitter]
        dots = [Dot(row.accelerators, row.bytes_per_second, row.tooltip) for row in rows]
        yield Series(name=f"{submitter}, published", dots=dots, colour=charts.colour(place), line=False)


def _knees(compared: Sequence[Compared]) -> Iterator[Place]:
    for place, item in enumerate(compared):
        knee = item.result.knee
        if item.result.points and knee is not None and knee.n_au is not None:
            name = f"{_short(item.name)}: knee {number(knee.n_au, 3)}"
            yield Place(knee.n_au, knee.interval, name, charts.colour(place))


def _short(name: str) -> str:
    """Return a name that a legend has room for: folders differ at their begin or end."""
    return name if len(name) <= 20 else f"{name[:10]}…{name[-9:]}"


def _qualified(compared: Sequence[Compared]) -> str:
    """Return the marks of all results; the cautions say which result has which."""
    return " · ".join(filter(None, dict.fromkeys(marks_line(item.result) for item in compared)))
