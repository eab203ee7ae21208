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
from emulator.report.training_figures import throughput
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
    named = [(folder.name, result), *others]
    tables = list(kind_of(result).tables(result))
    # The CSV of a baseline or a checkpoint, which have no points, is its first table.
    points = training.csv_table(result) if result.points or not tables else None
    if others:
        tables.append(_all_of(named))
    if version := Rules(rules).version:
        tables.append(_sets(named, version))
    figures = _with_limit(result, others)
    for name, other in others:
        its_tables, its_figures = kind_of(other).beside(result, other)
        tables += [replace(table, caption=f"{table.caption} ({name})") for table in its_tables]
        figures += [replace(figure, title=f"{figure.title} ({name})") for figure in its_figures]
    document = document_of(
        result,
        required,
        tables=tuple(tables),
        figures=tuple(figures),
        points=points,
        openmetrics=as_openmetrics(result, required),
    )
    return Report(folder=folder, result=result, **vars(document))


def _with_limit(result: RunResult, others: Sequence[tuple[str, RunResult]]) -> list[Figure]:
    """Return the figures of a result, its throughput with the largest read rate of the other results."""
    figures = list(kind_of(result).figures(result))
    if len({point.ranks for point in result.points}) < 2:
        return figures
    most = max(point.bytes_per_second for point in result.points)
    limits = []
    for _, other in others:
        corner = other.read_limit
        # A line far above the runs would press their curve to the axis.
        if corner and corner.read and corner.read.bytes_per_second <= 3 * most:
            rate, block = corner.read.bytes_per_second, show_bytes(corner.block_bytes)
            name = f"{other.loader}, {corner.pattern} reads of {block}: {show_rate(rate)}"
            limits.append(Level(rate, name))
    if limits:
        largest = max(limits, key=lambda limit: limit.y)
        figures[0] = throughput(result, [largest]) or figures[0]
    return figures


def _all_of(named: Sequence[tuple[str, RunResult]]) -> Table:
    """Return a table with a row for every result, the one that the report is about first."""
    columns = (
        Column("result", align="fold"),
        Column("kind", align="left"),
        Column("made", align="left", room=90),
        Column("what it says", align="fold"),
    )
    rows = tuple(
        (made.label or name, made.kind, made.created, answer_of(made).sentence) for name, made in named
    )
    return Table(caption="All results", columns=columns, rows=rows)


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
