"""Compare results with each other and with published ones, with cautions about differences in kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator.analysis.evidence import usable
from emulator.analysis.gate import Verdict, knee_range, no_worse, threshold_of
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.page.differences import differences, same, setting
from emulator.plugins.page.page import Document, laid_out, plotted, render
from emulator.plugins.page.reference import Entry, PublishedFigure, load_references
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.report import figure as fig
from emulator.report.drawing import write_picture
from emulator.report.table import Cell, Column, Table, as_plain, number, one_place, three_digits, three_places
from emulator.report.terminal import Text
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
    def answer(self) -> str:
        return answer_of(self.result).sentence

    @property
    def workload(self) -> str:
        return str(self.result.workload.get("name", ""))

    @property
    def knee_range(self) -> tuple[float, float]:
        return knee_range(self.result)

    @property
    def knee_place(self) -> str:
        """The knee as text, such as `5.5`, or the counts that bound it."""
        if self.result.knee is not None and self.result.knee.n_au is not None:
            return number(self.result.knee.n_au, 3)
        low, high = self.knee_range
        if math.isinf(high):
            return f"at least {low:g}" if low else "unknown"
        return f"between {low:g} and {high:.0f}" if low else f"below {high:.0f}"


@dataclass(frozen=True, kw_only=True)
class Comparison(Document):
    """Results beside each other and beside published ones."""

    results: tuple[Compared, ...]
    published: tuple[Entry, ...] = ()
    documents: tuple[PublishedFigure, ...] = ()
    """Single figures of documents."""
    cautions: tuple[str, ...] = ()
    """Sentences on figures that are not comparable."""
    moves: tuple[str, ...] = ()
    """Sentences on the move of the knee from the first result to each other one."""

    @property
    def measured(self) -> list[Entry]:
        return [entry for compared in self.results for entry in compared.entries]

    @property
    def differences(self) -> Table:
        return differences([(compared.name, compared.result) for compared in self.results])

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables of measured figures, published figures, and counts that all results have."""
        tables = (
            _entries("", self.measured),
            _entries("Published", self.published),
            shared(self.results),
            *self._of_their_kind,
            _numbers(self.documents),
        )
        return tuple(table for table in tables if table.rows)

    @property
    def _of_their_kind(self) -> tuple[Table, ...]:
        """The table that a kind makes of several results, if all are of it and it makes one."""
        kinds = {compared.result.kind for compared in self.results}
        compared = getattr(kind_of(self.results[0].result), "compared", None) if len(kinds) == 1 else None
        return (compared([(result.name, result.result) for result in self.results]),) if compared else ()

    @property
    def blocks(self) -> list[Text | Table]:
        differ = self.differences
        blocks: list[Text | Table] = [differ, Text("")] if differ.rows else []
        for compared in self.results:
            blocks += [Text(compared.name, "bold"), Text(f"  {compared.answer}")]
        blocks += self.tables
        if any(entry.flagged for entry in self.measured):
            blocks.append(Text("* flagged: see feedrate report", "yellow"))
        if self.moves:
            blocks.append(Text("\n" + "\n".join(self.moves), "bold"))
        if self.cautions:
            blocks.append(Text("\nCompare with caution", "bold yellow"))
        return [*blocks, *(Text(f"- {caution}") for caution in self.cautions)]

    @property
    def line(self) -> str:
        return "; ".join(f"{compared.name}: {compared.answer}" for compared in self.results)

    def as_plain(self) -> dict[str, Any]:
        """Return each result's answer and knee, the tables, moves and cautions, for programs."""
        return {
            "results": [
                {
                    "name": compared.name,
                    "label": compared.result.label,
                    "answer": compared.answer,
                    "knee": to_plain(compared.result.knee),
                }
                for compared in self.results
            ],
            "differences": as_plain(self.differences)["rows"],
            "tables": [as_plain(table) for table in self.tables],
            "moves": list(self.moves),
            "cautions": list(self.cautions),
        }

    def html(self) -> str:
        drawn, differ = figures(self), self.differences
        plots = plotted(drawn, drawn[0] if drawn else None)
        return render(
            "compare.html",
            title="Comparison",
            results=[
                {
                    "name": compared.name,
                    "answer": compared.answer,
                    "title": title(compared.result),
                    "setting": kind_of(compared.result).setting(compared.result),
                    "marks": marks(compared.result),
                }
                for compared in self.results
            ],
            differences=laid_out(differ) if differ.rows else None,
            cautions=self.cautions,
            moves=self.moves,
            hero=plots[0] if plots else None,
            figures=plots[1:],
            tables=[laid_out(table) for table in self.tables],
        )

    def csv(self) -> Table:
        return _entries("", self.measured)

    def draw(self, path: Path, form: str) -> None:
        write_picture(figures(self), path, form, "Comparison")


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


def compare_folders(outs: Sequence[Path], references: Sequence[str] = (), match: str = "") -> Comparison:
    """Compare results in folders with published tables, by name or file. Raises SpecError, StorageError."""
    results = [read_result(out) for out in outs]
    names = names_of(outs, [result.label for result in results])
    return compare(list(zip(names, results, strict=True)), *load_references(references), match)


def compare(
    results: Sequence[tuple[str, RunResult]],
    submissions: Sequence[Entry] = (),
    documents: Sequence[PublishedFigure] = (),
    match: str = "",
) -> Comparison:
    """Compare (name, result) pairs with each other, and with published rows of the same workload.

    `match` selects published rows with all of its words in the name of submitter or system. Only letters and
    digits count, because such names are written in many ways.
    """
    compared = tuple(Compared(name=name, result=result) for name, result in results)
    workloads = {item.workload.replace("-", "_") for item in compared}
    words = [_letters(word) for word in match.split()]
    published = [row for row in submissions if row.workload in workloads and _has(words, row.name)]
    shown = tuple(document for document in documents if _has(words, document.system))
    cautions = [caution for item in compared for caution in _own_cautions(item)]
    if match and (submissions or documents) and not (published or shown):
        cautions.append(f"No published system matches {match!r}.")
    elif submissions and not published:
        cautions.append(f"No published row ran {' or '.join(sorted(workloads))}.")
    if published:
        cautions.append(
            "Published throughput includes the first step of each epoch up to v1.0 and excludes it since, as "
            "feedrate does; it assumes the nominal mean size of samples. Published rows are means of several "
            "runs."
        )
        if any(setting(item.result, "workload.training.sync") != "step" for item in compared):
            cautions.append("Published runs wait for each other after every step; a result here does not.")
    if shown:
        cautions.append(
            "Figures of documents are from other tools (fio, rados bench) or older workloads: they show the "
            "limits of a storage, not the throughput of a training. They are listed, not drawn."
        )
    return Comparison(
        results=compared,
        published=tuple(sorted(published, key=lambda entry: (entry.accelerators, entry.name))),
        documents=shown,
        cautions=tuple(cautions),
        moves=tuple(_moves(compared)),
    )


def gate(share: float, comparison: Comparison) -> list[Verdict]:
    """Decide for each result after the first whether it is worse than the first by more than `share`.

    Raises SpecError if the workload or the accelerator differs.
    """
    first, *others = comparison.results
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
    """Describe the move of the knee from the first result to each other one of the same workload.

    The knee moved if the 95 % intervals do not overlap; otherwise the runs do not show a move.
    """
    lines = []
    first, *others = compared
    for other in others:
        a, b = first.result.knee, other.result.knee
        if a is None or b is None or first.workload != other.workload:
            continue
        noise = other.result.storage.get("noise")
        beside = f" beside {noise}" if noise and not first.result.storage.get("noise") else ""
        (low, high), (least, most) = first.knee_range, other.knee_range
        if low <= most and least <= high:
            places = f"{first.knee_place} and {other.knee_place} accelerators"
            lines.append(f"{other.name}: knees of {places}{beside}: no difference that these runs can show.")
            continue
        share = f" ({(b.n_au / a.n_au - 1) * 100:+.0f} %)" if a.n_au and b.n_au else ""
        places = f"from {first.knee_place} to {other.knee_place} accelerators"
        lines.append(f"{other.name}: the knee moves {places}{share}{beside}.")
    return lines


def _own_cautions(compared: Compared) -> list[str]:
    result, qualified = compared.result, marks_line(compared.result)
    cautions = [f"{compared.name}: {qualified}."] if qualified else []
    raised = [note.name for note in notes(result)]
    if raised:
        cautions.append(f"{compared.name}: flagged ({', '.join(raised)}).")
    if not (result.points or result.checkpoints or result.baseline):
        cautions.append(f"{compared.name}: nothing was measured.")
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


def shared(results: Sequence[Compared]) -> Table:
    """Return a table with a row for each count that all results have: GB/s, and the ratio to the first."""
    rates: list[dict[int, float]] = []  # for each result: mean GB/s of repeats, by process count
    for compared in results:
        repeats: dict[int, list[float]] = {}
        for entry in compared.entries:
            repeats.setdefault(entry.accelerators, []).append(entry.bytes_per_second / 1e9)
        rates.append({count: sum(values) / len(values) for count, values in repeats.items()})
    rows: list[tuple[Cell, ...]] = []
    for count in sorted(set.intersection(*map(set, rates))) if len(rates) > 1 else ():
        first, *others = (rate[count] for rate in rates)
        shares = (number(rate, 3) + (f" ({rate / first:.3f})" if first else "") for rate in others)
        rows.append((count, first, *shares))
    columns = (Column("accel."), *(Column(compared.name, three_digits) for compared in results))
    caption = "The same counts, GB/s, and as a share of the first"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _numbers(documents: Sequence[PublishedFigure]) -> Table:
    columns = Column("figure", align="fold"), Column("value"), Column("source", align="left")
    rows = tuple(
        (
            f"{each.system}: {each.quantity}" + (f" ({each.condition})" if each.condition else ""),
            f"{each.value:,g} {each.unit}",
            f"{each.kind}, {each.source}",
        )
        for each in documents
    )
    return Table(caption="Figures of documents", columns=columns, rows=rows)


def figures(comparison: Comparison) -> tuple[fig.Figure, ...]:
    """Return figures with a line for every result and squares for published rows, on the same axes."""
    every = [*comparison.measured, *comparison.published]
    rates = [entry.bytes_per_second for entry in every if entry.bytes_per_second > 0]
    log = bool(rates) and max(rates) >= fig.LOG_FROM * min(rates)
    levels = sorted({100 * threshold_of(compared.result) for compared in comparison.results})
    made = (
        _figure(
            comparison,
            ("throughput", "Throughput, all accelerators", "All accelerators together."),
            lambda entry: entry.bytes_per_second,
            (lambda low, high: fig.log_axis(low * 0.6, high * 1.8, show_rate)) if log else _from_zero,
            named=True,
        ),
        _figure(
            comparison,
            ("per-accelerator", "Throughput of one accelerator", "Mean rate of one accelerator."),
            lambda entry: entry.per_accelerator,
            _from_zero,
        ),
        _figure(
            comparison,
            ("per-host", "Throughput of one host", "Mean read rate of one client host."),
            lambda entry: entry.per_host,
            _from_zero,
        ),
        _figure(
            comparison,
            ("x-ideal", "X/X_ideal", "Samples/s relative to accelerators that never wait."),
            lambda entry: entry.x_ideal and entry.x_ideal * 100,
            lambda low, high: fig.Axis(high=max(106.0, high * 1.04), suffix=" %"),
            levels=levels,
        ),
    )
    return tuple(figure for figure in made if figure is not None)


def _from_zero(low: float, high: float) -> fig.Axis:
    return fig.rate_axis(high * 1.15, show_rate)


def _figure(
    comparison: Comparison,
    words: tuple[str, str, str],
    value: Callable[[Entry], float | None],
    axis: Callable[[float, float], fig.Axis],
    *,
    levels: Sequence[float] = (),
    named: bool = False,
) -> fig.Figure | None:
    """Return a figure of `value` against accelerators, with lines at `levels`; None without a value above 0.

    `axis` gets the smallest and the largest value. With `named`, published rows are labelled.
    """

    def dots(entries: Sequence[Entry]) -> tuple[fig.Dot, ...]:
        values = ((entry, value(entry) or 0.0) for entry in entries)
        return tuple(fig.Dot(e.accelerators, y, e.flagged, e.used, e.tooltip) for e, y in values if y > 0)

    published = dots(comparison.published)
    squares = fig.Series(name="published", dots=published, colour=fig.IDEAL, area=34, squares=True)
    series, behind = [squares] if published else [], []
    for place, compared in enumerate(comparison.results):
        measured = dots(compared.entries)
        if not measured:
            continue
        colour, knee = fig.series_colour(place), compared.result.knee
        name = fig.short(compared.name)
        series.append(fig.Series(name=name, dots=measured, colour=colour, flagged_colour=colour))
        if knee is not None and knee.n_au is not None:
            label = (f"{fig.short(compared.name, 16)} {number(knee.n_au, 3)}",)
            line = fig.VerticalLine(x=knee.n_au, interval=knee.interval, label=label, colour=colour)
            behind.append(replace(line, level=place))
    every = [dot for one in series for dot in one.dots]
    if not every:
        return None
    heights = [dot.y for dot in every]
    labels = [_labels(published, every)] if published and named else []
    return fig.against_processes(
        words,
        series,
        axis(min(heights), max(heights)),
        behind=[*labels, *behind, *(fig.HorizontalLine(y=at, colour=fig.KNEE) for at in levels)],
        legend=[fig.Key("threshold", fig.KNEE, "dash")] if levels else [],
        qualified=_qualified(comparison),
    )


def _labels(published: Sequence[fig.Dot], every: Sequence[fig.Dot]) -> fig.Labels:
    """Return the names of published systems, each at its largest row, in descending order of rows."""
    largest: dict[str, fig.Dot] = {}
    for dot in sorted(published, key=lambda dot: dot.x, reverse=True):
        largest.setdefault(dot.text.partition(":")[0], dot)
    places = [(dot.x, dot.y, fig.short(name, 24)) for name, dot in largest.items()]
    return fig.Labels(places=(*places, *((dot.x, dot.y, "") for dot in every)), colour=fig.SOFT)


def _qualified(comparison: Comparison) -> str:
    """Return the marks of all results, with the result's name if they do not apply to all."""
    marked = [[mark.label for mark in marks(compared.result)] for compared in comparison.results]
    if marked and all(labels == marked[0] for labels in marked):
        return " · ".join(marked[0])
    return " · ".join(
        f"{fig.short(compared.name)}: {label}"
        for compared, labels in zip(comparison.results, marked, strict=True)
        for label in labels
    )
