"""Compare results with each other and with published ones, with cautions about differences in kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator.analysis.answer import Answer
from emulator.analysis.evidence import usable
from emulator.analysis.gate import Verdict, knee_range, no_worse, threshold_of
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.page.differences import differences, same, setting
from emulator.plugins.page.reference import Entry, PublishedFigure, load_references
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.report import charts
from emulator.report.charts import Axis, Dot, Figure, Level, Place, Series, spread
from emulator.report.document import Document
from emulator.report.table import Cell, Column, Table, heading, number, one_place, three_digits, three_places
from emulator.report.training_figures import computes
from emulator.report.view import answer_of, kind_of, marks, marks_line, notes, title
from emulator.units import show_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One result and its displayed name."""

    name: str
    result: RunResult

    @property
    def entries(self) -> list[Entry]:
        """Return the points by process count."""
        points = sorted(self.result.points, key=lambda point: point.ranks)
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
            if point.ranks
        ]

    @property
    def answer(self) -> Answer:
        return answer_of(self.result)

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
        """Return the verdict, each result's answer and knee, the tables, moves and cautions, for programs."""
        return {
            "answer": self.answer.as_plain(),
            "gates": [verdict.as_plain() for verdict in self.verdicts],
            "results": [
                {
                    "name": compared.name,
                    "label": compared.result.label,
                    "answer": compared.answer.as_plain(),
                    "knee": to_plain(compared.result.knee),
                }
                for compared in self.results
            ],
            "same_counts": [
                {"accelerators": count, "bytes_per_second": rates}
                for count, rates in same_counts(self.results).items()
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
    outs: Sequence[Path], references: Sequence[str] = (), match: str = "", fail_if_worse: float | None = None
) -> Comparison:
    """Compare results in folders with published tables, by name or file. Raises SpecError, StorageError."""
    results = [read_result(out) for out in outs]
    names = names_of(outs, [result.label for result in results])
    return compare(list(zip(names, results, strict=True)), *load_references(references), match, fail_if_worse)


def compare(
    results: Sequence[tuple[str, RunResult]],
    submissions: Sequence[Entry] = (),
    documents: Sequence[PublishedFigure] = (),
    match: str = "",
    fail_if_worse: float | None = None,
) -> Comparison:
    """Compare (name, result) pairs with each other, and with published rows of the same workload.

    `match` selects published rows with all of its words in the name of submitter or system. Only letters and
    digits count, because such names are written in many ways. `fail_if_worse` is a share (0 to 1).
    """
    compared = tuple(Compared(name=name, result=result) for name, result in results)
    workloads = {item.workload.replace("-", "_") for item in compared}
    words = [_letters(word) for word in match.split()]
    published = [row for row in submissions if row.workload in workloads and _has(words, row.name)]
    published.sort(key=lambda entry: (entry.accelerators, entry.name))
    chosen = [document for document in documents if _has(words, document.system)]
    cautions = [caution for item in compared for caution in _own_cautions(item)]
    if match and (submissions or documents) and not (published or chosen):
        cautions.append(f"No published system matches {match!r}.")
    elif submissions and not published:
        cautions.append(f"No published row ran {' or '.join(sorted(workloads))}.")
    cautions += _published_cautions(compared, bool(published), bool(chosen))
    verdicts = tuple(gate(fail_if_worse, compared)) if fail_if_worse is not None else ()
    moves = tuple(_moves(compared))
    measured = [entry for item in compared for entry in item.entries]
    differ = differences([(item.name, item.result) for item in compared])
    tables = (
        shared(compared),
        side_by_side(compared),
        differ,
        _entries("Every run", measured),
        _entries("Published", published),
        _numbers(chosen),
    )
    return Comparison(
        title="Comparison",
        setting=tuple(
            f"{item.name}: {title(item.result)}, {kind_of(item.result).setting(item.result)}"
            for item in compared
        ),
        answer=_verdict(compared, moves, verdicts),
        of_each=tuple((item.name, item.answer) for item in compared),
        complete=all(item.result.status == "complete" for item in compared),
        tables=tuple(table for table in tables if table.rows),
        figures=figures(compared, published),
        cautions=tuple(cautions),
        points=_entries("", measured),
        results=compared,
        moves=moves,
        verdicts=verdicts,
    )


def _verdict(compared: Sequence[Compared], moves: Sequence[str], verdicts: Sequence[Verdict]) -> Answer:
    """The answer of a comparison: what moved, with the worst verdict as its gate."""
    sentence = " ".join(moves) or "These results have nothing in common that could be compared."
    if len(compared) == 1:
        sentence = compared[0].answer.sentence
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


def _has(words: Sequence[str], name: str) -> bool:
    return all(word in _letters(name) for word in words)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _moves(compared: Sequence[Compared]) -> list[str]:
    """Describe the move from the first result to each other one of the same workload."""
    first, *others = compared
    lines = []
    for other in others:
        if first.workload != other.workload or first.result.kind not in ("run", "sweep", other.result.kind):
            continue
        if first.result.knee is not None and other.result.knee is not None:
            lines.append(_knee_move(first, other))
            continue
        old, new = first.answer, other.answer
        if old.number and new.number and old.unit == new.unit:
            show = show_rate if old.unit == "B/s" else three_digits
            share = f"{(new.number / old.number - 1) * 100:+.0f} %"
            lines.append(f"{other.name}: {show(new.number)}, {first.name}: {show(old.number)} ({share}).")
    return lines


def _knee_move(first: Compared, other: Compared) -> str:
    """The knee moved if the 95 % intervals do not overlap; otherwise the runs do not show a move."""
    noise = other.result.storage.get("noise")
    beside = f" beside {noise}" if noise and not first.result.storage.get("noise") else ""
    (low, high), (least, most) = knee_range(first.result), knee_range(other.result)
    if low <= most and least <= high:
        places = f"{first.knee_place} and {other.knee_place} accelerators"
        return f"{other.name}: knees of {places}{beside}: no difference that these runs can show."
    a, b = first.result.knee, other.result.knee
    share = f" ({(b.n_au / a.n_au - 1) * 100:+.0f} %)" if a and b and a.n_au and b.n_au else ""
    places = f"from {first.knee_place} to {other.knee_place} accelerators"
    return f"{other.name}: the knee moves {places}{share}{beside}."


def _own_cautions(compared: Compared) -> list[str]:
    result, qualified = compared.result, marks_line(compared.result)
    cautions = [f"{compared.name}: {qualified}."] if qualified else []
    raised = [note.name for note in notes(result)]
    if raised:
        cautions.append(f"{compared.name}: flagged ({', '.join(raised)}).")
    if not any(table.rows for table in kind_of(result).tables(result)):
        cautions.append(f"{compared.name}: nothing was measured.")
    return cautions


def _published_cautions(compared: Sequence[Compared], rows: bool, documents: bool) -> list[str]:
    cautions = []
    if rows:
        cautions.append(
            "Published throughput includes the first step of each epoch up to v1.0 and excludes it since, as "
            "feedrate does; it assumes the nominal mean size of samples. Published rows are means of several "
            "runs."
        )
        if any(setting(item.result, "workload.training.sync") != "step" for item in compared):
            cautions.append("Published runs wait for each other after every step; a result here does not.")
    if documents:
        cautions.append(
            "Figures of documents are from other tools (fio, rados bench) or older workloads: they show the "
            "limits of a storage, not the throughput of a training. They are listed, not drawn."
        )
    return cautions


def _entries(caption: str, entries: Sequence[Entry]) -> Table:
    columns = (
        Column("result", align="fold"),
        Column("accel."),
        Column("hosts", room=72),
        Column("GB/s", three_digits),
        Column("MB/s\nper accel."),
        Column("GB/s\nper host", three_digits, room=72),
        Column("AU %", one_place),
        Column("X/\nX_ideal", three_places),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            entry.name,
            f"{entry.accelerators:,}*" if entry.flagged else entry.accelerators,
            entry.hosts,
            entry.bytes_per_second / 1e9,
            entry.per_accelerator / 1e6,
            None if entry.per_host is None else entry.per_host / 1e9,
            None if entry.au is None else entry.au * 100,
            entry.x_ideal,
        )
        for entry in entries
    ]
    flagged = frozenset(place for place, entry in enumerate(entries) if entry.flagged)
    return Table(caption=caption, columns=columns, rows=tuple(rows), flagged=flagged)


def same_counts(results: Sequence[Compared]) -> dict[int, list[float]]:
    """Return the mean bytes/s of each result at each count that all of them have; none for one result."""
    rates: list[dict[int, float]] = []
    for compared in results:
        repeats: dict[int, list[float]] = {}
        for entry in compared.entries:
            repeats.setdefault(entry.accelerators, []).append(entry.bytes_per_second)
        rates.append({count: sum(values) / len(values) for count, values in repeats.items()})
    counts = sorted(set.intersection(*map(set, rates))) if len(rates) > 1 else []
    return {count: [rate[count] for rate in rates] for count in counts}


def shared(results: Sequence[Compared]) -> Table:
    """Return a table with a row for each count that all results have: GB/s, and the ratio to the first."""
    rows: list[tuple[Cell, ...]] = []
    for count, rates in same_counts(results).items():
        first, *others = (rate / 1e9 for rate in rates)
        rows.append((count, first, *(_share(number(rate, 3), rate, first) for rate in others)))
    columns = (Column("accel."), *(Column(compared.name, three_digits) for compared in results))
    caption = "The same counts, GB/s, and as a share of the first"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _share(text: str, value: float, first: float) -> str:
    return text + (f" ({value / first:.3f})" if first else "")


Show = Callable[[float], str]


def same_figures(results: Sequence[Compared]) -> dict[tuple[str, str], tuple[list[float], Show]]:
    """Return the figures that all results without runs have, such as baselines: row and figure -> values."""
    found = [_figures_of(compared.result) for compared in results if not compared.entries]
    if len(found) < len(results):
        return {}
    common = [key for key in found[0] if all(key in other for other in found)]
    return {key: ([other[key][0] for other in found], found[0][key][1]) for key in common}


def side_by_side(results: Sequence[Compared]) -> Table:
    """Return a table with a row for each of the `same_figures`, and the ratio to the first."""
    rows: list[tuple[Cell, ...]] = []
    for key, ((first, *others), show) in same_figures(results).items():
        rows.append((*key, show(first), *(_share(show(value), value, first) for value in others)))
    columns = (
        Column("", align="fold"),
        Column("figure", align="left"),
        *(Column(compared.name) for compared in results),
    )
    caption = "The same figures, and as a share of the first"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _figures_of(result: RunResult) -> dict[tuple[str, str], tuple[float, Show]]:
    """The figures of a result's first table: text of the row and head of the column -> value, how to show."""
    found: dict[tuple[str, str], tuple[float, Show]] = {}
    for table in kind_of(result).tables(result)[:1]:
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                # Depths, clients and other counts are settings, not figures.
                if isinstance(cell, float) and math.isfinite(cell):
                    found[str(row[0]), heading(column.head)] = (cell, column.show)
    return found


def _numbers(documents: Sequence[PublishedFigure]) -> Table:
    columns = Column("figure", align="fold"), Column("value"), Column("source", align="left")
    rows = tuple(
        (
            f"{figure.system}: {figure.quantity}" + (f" ({figure.condition})" if figure.condition else ""),
            f"{figure.value:,g} {figure.unit}",
            f"{figure.kind}, {figure.source}",
        )
        for figure in documents
    )
    return Table(caption="Figures of documents", columns=columns, rows=rows)


def figures(compared: Sequence[Compared], published: Sequence[Entry]) -> tuple[Figure, ...]:
    """Return figures with a line for every result and dots for published systems, on the same axes."""
    levels = sorted({100 * threshold_of(item.result) for item in compared})
    kinds: tuple[tuple[str, str, str, Callable[[Entry], float | None], str], ...] = (
        ("throughput", "Throughput, all accelerators", "All accelerators together.",
         lambda entry: entry.bytes_per_second, "B/s"),
        ("per-accelerator", "Throughput of one accelerator", "Mean rate of one accelerator.",
         lambda entry: entry.per_accelerator, "B/s"),
        ("per-host", "Throughput of one host", "Mean read rate of one client host.",
         lambda entry: entry.per_host, "B/s"),
        ("x-ideal", "X/X_ideal", "Samples/s relative to accelerators that never wait.",
         lambda entry: entry.x_ideal and entry.x_ideal * 100, "%"),
    )  # fmt: skip
    made = (_figure(compared, published, *kind) for kind in kinds)
    return tuple(
        replace(figure, levels=[Level(at, f"threshold {at:g} %") for at in levels])
        if figure.name == "x-ideal"
        else figure
        for figure in made
        if figure is not None
    )


def _figure(
    compared: Sequence[Compared],
    published: Sequence[Entry],
    name: str,
    heading_: str,
    caption: str,
    value: Callable[[Entry], float | None],
    unit: str,
) -> Figure | None:
    """Return a figure of `value` against accelerators; None without a value above 0."""

    def dots(entries: Sequence[Entry]) -> list[Dot]:
        values = ((entry, value(entry) or 0.0) for entry in entries)
        return [Dot(e.accelerators, y, e.tooltip, e.flagged, e.used) for e, y in values if y > 0]

    series, places = [], []
    for place, item in enumerate(compared):
        measured = dots(item.entries)
        if not measured:
            continue
        short = item.name if len(item.name) <= 28 else f"{item.name[:14]}…{item.name[-13:]}"
        series.append(Series(name=short, dots=measured, colour=charts.colour(place)))
        knee = item.result.knee
        if knee is not None and knee.n_au is not None:
            label = f"{item.name[:16]} {number(knee.n_au, 3)}"
            places.append(Place(knee.n_au, knee.interval, label, charts.colour(place)))
    for place, submitter in enumerate(dict.fromkeys(entry.submitter for entry in published), len(compared)):
        found = dots([entry for entry in published if entry.submitter == submitter])
        if found:
            label = f"{submitter}, published"
            series.append(Series(name=label, dots=found, colour=charts.colour(place), line=False))
    every = [dot for one in series for dot in one.dots]
    if not every:
        return None
    return Figure(
        name=name,
        title=heading_,
        caption=caption,
        x=Axis(title=charts.PROCESSES, whole=True, log=spread([dot.x for dot in every])),
        y=Axis(unit=unit, log=unit != "%" and spread([dot.y for dot in every])),
        series=series,
        places=places,
        qualified=_qualified(compared),
    )


def _qualified(compared: Sequence[Compared]) -> str:
    """Return the marks of all results, with the result's name if they do not apply to all."""
    marked = [[mark.label for mark in marks(item.result)] for item in compared]
    if marked and all(labels == marked[0] for labels in marked):
        return " · ".join(marked[0])
    pairs = zip(compared, marked, strict=True)
    return " · ".join(f"{item.name[:28]}: {label}" for item, labels in pairs for label in labels)
