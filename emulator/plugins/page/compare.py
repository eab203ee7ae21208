"""Compare results with each other and with published ones, with cautions about differences in kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.analysis.answer import Answer
from emulator.analysis.evidence import usable
from emulator.analysis.gate import Verdict, knee_range, no_worse, threshold_of
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.page.differences import differences, same, setting
from emulator.plugins.page.reference import Entry, entries_table, load_references
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.report import charts
from emulator.report.charts import Axis, Dot, Figure, Level, Place, Series, spread
from emulator.report.document import Document
from emulator.report.table import Cell, Column, Table, heading, number, three_digits
from emulator.report.training_figures import by_ranks, computes
from emulator.report.view import answer_of, kind_of, marks_line, notes, title
from emulator.units import counted, show_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One result and its displayed name."""

    name: str
    result: RunResult

    @property
    def entries(self) -> list[Entry]:
        """Return the points by process count."""
        points = by_ranks(self.result)
        used = usable(points)
        return [
            Entry(
                name=self.name,
                accelerators=point.ranks,
                hosts=len(point.hosts) or None,
                bytes_per_second=point.bytes_per_second,
                au=point.au if computes(point) else None,
                x_ideal=point.x_ideal if computes(point) else None,
                flagged=bool(point.flags),
                used=point in used,
            )
            for point in points
        ]

    @property
    def workload(self) -> str:
        return str(self.result.workload.get("name", ""))

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
                {"row": row, "figure": figure, "values": values}
                for (row, figure), (values, _) in same_figures(self.results).items()
            ],
            "moves": list(self.moves),
            "cautions": list(self.cautions),
        }


def names_of(paths: Sequence[Path], labels: Sequence[str]) -> list[str]:
    """Return a name for each result: its label, if all results have different ones.

    Otherwise the fewest last parts of each path that differ, or numbered paths if even whole ones are equal.
    """
    if all(labels) and len(set(labels)) == len(paths):
        return list(labels)
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {path}" for number, path in enumerate(paths, 1)]


def compare_folders(
    outs: Sequence[Path], references: Sequence[str] = (), fail_if_worse: float | None = None
) -> Comparison:
    """Compare results in folders with published tables, by name or file. Raises SpecError, StorageError."""
    results = [read_result(out) for out in outs]
    names = names_of(outs, [result.label for result in results])
    named = list(zip(names, results, strict=True))
    return compare(named, load_references(references), fail_if_worse)


def compare(
    results: Sequence[tuple[str, RunResult]],
    submissions: Sequence[Entry] = (),
    fail_if_worse: float | None = None,
) -> Comparison:
    """Compare (name, result) pairs with each other, and with published rows of the same workload.

    `fail_if_worse` is a share (0 to 1).
    """
    compared = tuple(Compared(name=name, result=result) for name, result in results)
    workloads = {item.workload.replace("-", "_") for item in compared}
    published = [row for row in submissions if row.workload in workloads]
    published.sort(key=lambda row: (row.accelerators, row.name))
    verdicts = tuple(gate(fail_if_worse, compared)) if fail_if_worse is not None else ()
    moves = tuple(_moves(compared))
    measured = [entry for item in compared for entry in item.entries]
    tables = (
        side_by_side(compared),
        differences(results),
        entries_table("Every run", measured),
        entries_table("Published", published),
    )
    settings = (f"{title(result)}, {kind_of(result).setting(result)}" for _, result in results)
    return Comparison(
        title="Comparison",
        setting=tuple(f"{name}: {text}" for (name, _), text in zip(results, settings, strict=True)),
        answer=_verdict(compared, moves, verdicts),
        of_each=tuple((name, answer_of(result)) for name, result in results),
        complete=all(result.status == "complete" for _, result in results),
        tables=tuple(table for table in tables if table.rows),
        figures=figures(compared, published),
        cautions=tuple(_cautions(compared, submissions, published)),
        points=entries_table("", measured),
        results=compared,
        moves=moves,
        verdicts=verdicts,
    )


def _verdict(compared: Sequence[Compared], moves: Sequence[str], verdicts: Sequence[Verdict]) -> Answer:
    """The answer of a comparison: what moved, with the worst verdict as its gate."""
    sentence = " ".join(moves) or "These results have nothing in common that could be compared."
    if len(compared) == 1:
        sentence = answer_of(compared[0].result).sentence
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
        if first.workload != other.workload or first.result.kind not in ("run", "sweep", other.result.kind):
            continue
        if first.result.knee is not None and other.result.knee is not None:
            yield _knee_move(first, other)
            continue
        old, new = answer_of(first.result), answer_of(other.result)
        if old.number and new.number and old.unit == new.unit:
            show = show_rate if old.unit == "B/s" else three_digits
            change = f"{(new.number / old.number - 1) * 100:+.0f} %"
            yield f"{other.name}: {show(new.number)}, {first.name}: {show(old.number)} ({change})."


def _knee_move(first: Compared, other: Compared) -> str:
    """The knee moved if the 95 % intervals do not overlap; otherwise the runs do not show a move."""
    (low, high), (least, most) = knee_range(first.result), knee_range(other.result)
    if low <= most and least <= high:
        places = f"{first.knee_place} and {other.knee_place} accelerators"
        return f"{other.name}: knees of {places}: no difference that these runs can show."
    old, new = first.result.knee, other.result.knee
    change = ""
    if old and new and old.n_au and new.n_au:
        change = f" ({(new.n_au / old.n_au - 1) * 100:+.0f} %)"
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
Figures = dict[tuple[str, str], tuple[float, Show]]
"""Row and figure -> value, and how it is shown."""


def same_figures(results: Sequence[Compared]) -> dict[tuple[str, str], tuple[list[float], Show]]:
    """Return the figures that all results have: row and figure -> values."""
    figures = [_figures_of(compared) for compared in results]
    common = [key for key in figures[0] if len(results) > 1 and all(key in other for other in figures)]
    return {key: ([other[key][0] for other in figures], figures[0][key][1]) for key in common}


def _figures_of(compared: Compared) -> Figures:
    """The mean rate of each count of a training; of other results the figures of the first table."""
    rates: dict[int, list[float]] = {}
    for entry in compared.entries:
        rates.setdefault(entry.accelerators, []).append(entry.bytes_per_second / 1e9)
    if rates:
        return {
            (counted(count, "rank"), "GB/s"): (sum(values) / len(values), three_digits)
            for count, values in rates.items()
        }
    figures: Figures = {}
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
    for key, ((first, *others), show) in same_figures(results).items():
        shares = [f" ({value / first:.3f})" if first else "" for value in others]
        rows.append(
            (*key, show(first), *(show(value) + share for value, share in zip(others, shares, strict=True)))
        )
    names = (Column(compared.name) for compared in results)
    columns = (Column("", align="fold"), Column("figure", align="left"), *names)
    caption = "The same figures, and as a share of the first"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def figures(compared: Sequence[Compared], published: Sequence[Entry]) -> tuple[Figure, ...]:
    """Return throughput and X/X_ideal with a line for every result, and dots for published systems."""
    thresholds = sorted({100 * threshold_of(item.result) for item in compared})
    drawn = (
        ("throughput", "Throughput", "All accelerators together.", "B/s", lambda at: at.bytes_per_second),
        ("x-ideal", "X/X_ideal", "Samples/s relative to accelerators that never wait.", "%",
         lambda at: 100 * (at.x_ideal or 0.0)),
    )  # fmt: skip
    made = []
    for name, heading_, caption, unit, value in drawn:
        series = [*_measured_series(compared, value), *_published_series(published, value, len(compared))]
        dots = [dot for line in series for dot in line.dots]
        if dots:
            figure = Figure(
                name=name,
                title=heading_,
                caption=caption,
                x=Axis(title=charts.PROCESSES, whole=True, log=spread([dot.x for dot in dots])),
                y=Axis(unit=unit, log=unit == "B/s" and spread([dot.y for dot in dots])),
                series=series,
                levels=[Level(at, f"threshold {at:g} %") for at in thresholds] if unit == "%" else (),
                places=list(_knees(compared)),
                qualified=_qualified(compared),
            )
            made.append(figure)
    return tuple(made)


def _dots(entries: Sequence[Entry], value: Callable[[Entry], float]) -> list[Dot]:
    dots = [Dot(e.accelerators, value(e), e.tooltip, e.flagged, e.used) for e in entries]
    return [dot for dot in dots if dot.y > 0]


def _measured_series(compared: Sequence[Compared], value: Callable[[Entry], float]) -> Iterator[Series]:
    for place, item in enumerate(compared):
        if dots := _dots(item.entries, value):
            yield Series(name=_short(item.name), dots=dots, colour=charts.colour(place))


def _published_series(
    published: Sequence[Entry], value: Callable[[Entry], float], first: int
) -> Iterator[Series]:
    """A series for each submitter, in the colours from the number `first` on."""
    for place, submitter in enumerate(dict.fromkeys(entry.submitter for entry in published), first):
        if dots := _dots([entry for entry in published if entry.submitter == submitter], value):
            yield Series(name=f"{submitter}, published", dots=dots, colour=charts.colour(place), line=False)


def _knees(compared: Sequence[Compared]) -> Iterator[Place]:
    for place, item in enumerate(compared):
        knee = item.result.knee
        if item.entries and knee is not None and knee.n_au is not None:
            name = f"{_short(item.name)}: knee {number(knee.n_au, 3)}"
            yield Place(knee.n_au, knee.interval, name, charts.colour(place))


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:10]}…{name[-9:]}"


def _qualified(compared: Sequence[Compared]) -> str:
    """Return the marks of all results, with the result's name if they do not apply to all."""
    marked = {item.name: marks_line(item.result) for item in compared}
    if len(set(marked.values())) == 1:
        return marks_line(compared[0].result)
    return " · ".join(f"{name[:28]}: {marks}" for name, marks in marked.items() if marks)
