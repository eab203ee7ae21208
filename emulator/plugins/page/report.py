"""A result and others beside it as one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.analysis.answer import at_threshold
from emulator.record.out import RESULT, read_result
from emulator.record.result import RunResult
from emulator.registry import RULES
from emulator.report import training
from emulator.report.charts import Figure, Level
from emulator.report.document import Document, document_of
from emulator.report.metrics import as_openmetrics
from emulator.report.table import Column, Table
from emulator.report.view import answer_of, kind_of
from emulator.run.preflight import Rules
from emulator.sweep.summary import recovered
from emulator.units import show_bytes, show_rate


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """A result, with other results beside it."""

    folder: Path
    """OUT of the result."""
    result: RunResult


def report(
    out: Path,
    beside: Sequence[Path] = (),
    *,
    rules: str = "",
    threshold: float | None = None,
    required: int | None = None,
) -> Report:
    """Return the report of the result `out`, with the results `beside` it.

    `rules`, an entry point of `feedrate.rules`, are checked over sets of all these runs. `threshold` is the
    share of its demand (0 to 1) from which an accelerator counts as fed; None: the workload's. `required` are
    the accelerators of --require. Raises SpecError, StorageError.
    """
    folder = out.parent if out.name == RESULT else out
    result = at_threshold(recovered(folder), threshold)
    others = [(path.name, read_result(path)) for path in beside]
    tables, figures = list(kind_of(result).tables(result)), list(kind_of(result).figures(result))
    # The CSV of a baseline or a checkpoint, which have no points, is its first table.
    points = training.csv_table(result) if result.points or not tables else None
    if version := Rules(rules).version:
        tables.append(_sets([(folder.name, result), *others], version))
    if result.points and figures:
        figures[0] = _with_limit(figures[0], [other for _, other in others])
    for name, other in others:
        its_tables, its_figures = _beside(result, name, other)
        tables += its_tables
        figures += its_figures
    document = document_of(
        result,
        required,
        of_each=tuple((other.label or name, answer_of(other)) for name, other in others),
        tables=tuple(tables),
        figures=tuple(figures),
        points=points,
        openmetrics=as_openmetrics(result, required),
    )
    return Report(folder=folder, result=result, **vars(document))


def _beside(result: RunResult, name: str, other: RunResult) -> tuple[list[Table], list[Figure]]:
    """Return what the other result adds, under its name: a second training nothing, which `compare` shows."""
    tables, figures = kind_of(other).beside(result, other)
    return (
        [replace(table, caption=f"{table.caption} ({name})") for table in tables],
        [replace(figure, title=f"{figure.title} ({name})") for figure in figures],
    )


def _with_limit(throughput: Figure, others: Sequence[RunResult]) -> Figure:
    """Return the figure of throughput with the largest read rate of the other results as a line."""
    top = throughput.y.high or 0.0
    lines = []
    for other in others:
        corner = other.read_limit
        # A line far above the runs would press their curve to the axis.
        if corner and corner.read and corner.read.bytes_per_second <= 2.6 * top:
            rate, block = corner.read.bytes_per_second, show_bytes(corner.block_bytes)
            name = f"{other.loader}, {corner.pattern} reads of {block}: {show_rate(rate)}"
            lines.append(Level(rate, name))
    if not lines:
        return throughput
    largest = max(lines, key=lambda line: line.y)
    room = replace(throughput.y, high=max(top, 1.15 * largest.y))
    return replace(throughput, levels=[largest], y=room)


def _sets(named: Sequence[tuple[str, RunResult]], rules: str) -> Table:
    """Return a table with a row for each rule that a set of runs breaks."""
    rows = []
    for (workload, *_), runs in _grouped(named).items():
        broken = RULES.load(rules)([made for _, made in runs], rules, True)
        names = ", ".join(name for name, _ in runs)
        rows += [(workload, names, line) for line in broken or ["no rule is broken"]]
    columns = (
        Column("workload", align="left"),
        Column("results", align="fold"),
        Column("rule", align="fold"),
    )
    return Table(caption=f"Sets of runs by the rules of {rules}", columns=columns, rows=tuple(rows))


def _grouped(
    named: Sequence[tuple[str, RunResult]],
) -> dict[tuple[str, str, str], list[tuple[str, RunResult]]]:
    """Return the sets that rules are about, the oldest run of each first.

    An imported result is a set of its own; feedrate's runs of one workload on one dataset are one.
    """
    sets: dict[tuple[str, str, str], list[tuple[str, RunResult]]] = {}
    for name, made in sorted(named, key=lambda pair: pair[1].created):
        if made.points or made.checkpoints:
            kind = "checkpoint" if made.checkpoints else "training"
            source = name if made.environment.get("imported") else str(made.dataset.get("path"))
            sets.setdefault((str(made.workload.get("name")), kind, source), []).append((name, made))
    return sets
