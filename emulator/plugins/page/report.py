"""A result and others beside it as one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.analysis.answer import at_threshold
from emulator.errors import SpecError
from emulator.record.out import RESULT, read_result
from emulator.record.result import RunResult
from emulator.registry import RULES
from emulator.report import training
from emulator.report.document import Document, document_of
from emulator.report.metrics import as_openmetrics
from emulator.report.table import Column, Table
from emulator.report.training_figures import StorageLimit, throughput
from emulator.report.view import answer_of, kind_of
from emulator.run.preflight import Rules
from emulator.sweep.summary import recovered
from emulator.units import show_bytes

LEADING = ("sweep", "run", "imported", "checkpoint", "plan")
"""Kinds of results that may lead a page, in order of priority; others are shown beside it."""


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """A result, with other results beside it."""

    folder: Path
    """OUT of the result."""
    result: RunResult


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a report is to show beside its result."""

    baselines: Sequence[Path] = ()
    rules: str = ""
    """Rules of a benchmark to check sets of runs with: an entry point of `feedrate.rules`."""
    threshold: float | None = None
    """Share of its demand from which an accelerator counts as fed; None: the workload's."""
    required: int | None = None
    """Accelerators that --require asks for."""


def report(out: Path, wanted: Wanted | None = None) -> Report:
    """Return the report of `out`, which is a result or a folder of results.

    In a folder, the kind that is first in `LEADING` leads (of several results the latest), and the other
    results are shown beside it. Raises SpecError, StorageError.
    """
    wanted = wanted or Wanted()
    others = []
    for path in wanted.baselines:
        other = read_result(path)
        if other.kind != "baseline":
            raise SpecError(f"{path} is a {other.kind}, not a baseline", "feedrate baseline makes one")
        others.append((path.name, other))
    if not out.is_dir() or (out / RESULT).is_file():
        folder = out.parent if out.name == RESULT else out
        return _reported(folder, others, wanted, listed=False)
    results = {path.parent: read_result(path) for path in sorted(out.glob(f"*/{RESULT}"))}
    if not results:
        read_result(out)  # raises the error
    kinds = sorted({result.kind for result in results.values()}, key=_turn)
    leading = [path for path, result in results.items() if result.kind == kinds[0]]
    folder = max(leading, key=lambda path: results[path].created)
    for kind in reversed(kinds):
        others += [
            (path.name, made) for path, made in results.items() if made.kind == kind and path != folder
        ]
    return _reported(folder, others, wanted, listed=True)


def _turn(kind: str) -> tuple[int, str]:
    """Return a sort key of kinds of results, of which the first leads."""
    return (LEADING.index(kind) if kind in LEADING else len(LEADING), kind)


def _reported(
    folder: Path, others: Sequence[tuple[str, RunResult]], wanted: Wanted, *, listed: bool
) -> Report:
    result = at_threshold(recovered(folder), wanted.threshold)
    kind, rules = kind_of(result), Rules(wanted.rules).version
    named = [(folder.name, result), *others]
    own = kind.tables(result)
    tables = [*own]
    tables += [_all_of(folder, named)] if listed and others else []
    tables += [_sets(named, rules)] if rules else []
    figures = list(kind.figures(result))
    if len({point.ranks for point in result.points}) > 1 and (limit := _limit_beside(result, others)):
        figures[0] = throughput(result, [limit]) or figures[0]
    for name, other in others:
        its_tables, its_figures = kind_of(other).beside(result, other)
        tables += [replace(table, caption=f"{table.caption} ({name})") for table in its_tables]
        figures += [replace(figure, title=f"{figure.title} ({name})") for figure in its_figures]
    document = document_of(
        result,
        wanted.required,
        tables=tuple(table for table in tables if table.rows),
        figures=tuple(figures),
        points=None if own and not result.points else training.csv_table(result),
        openmetrics=as_openmetrics(result, wanted.required),
    )
    return Report(folder=folder, result=result, **vars(document))


def _limit_beside(result: RunResult, others: Sequence[tuple[str, RunResult]]) -> StorageLimit | None:
    """Return the largest undisturbed read rate of a baseline; None where it would hide the curve."""
    most = max(point.bytes_per_second for point in result.points)
    limits = []
    for _, other in others:
        corner = other.read_limit
        if corner and corner.read and corner.read.bytes_per_second <= 3 * most:
            words = f"{other.loader}, {corner.pattern} reads of {show_bytes(corner.block_bytes)}"
            limits.append(StorageLimit(corner.read.bytes_per_second, words))
    return max(limits, key=lambda limit: limit.bytes_per_second, default=None)


def _all_of(folder: Path, named: Sequence[tuple[str, RunResult]]) -> Table:
    """Return a table with a row for every result of a folder, the leading one first."""
    columns = (
        Column("result", align="fold"),
        Column("kind", align="left"),
        Column("made", align="left", room=90),
        Column("what it says", align="fold"),
    )
    rows = tuple(
        (made.label or name, made.kind, made.created, answer_of(made).sentence) for name, made in named
    )
    return Table(caption=f"All results in {folder.resolve().parent.name}", columns=columns, rows=rows)


def _sets(named: Sequence[tuple[str, RunResult]], rules: str) -> Table:
    """Return a table with a row for each rule that a set of runs breaks.

    An imported result is a set; so are feedrate's runs of one workload on one dataset.
    """
    sets: dict[tuple[str, str, str], list[tuple[str, RunResult]]] = {}
    for name, made in sorted(named, key=lambda pair: pair[1].created):
        if made.points or made.checkpoints:
            kind = "checkpoint" if made.checkpoints else "training"
            source = name if made.environment.get("imported") else str(made.dataset.get("path"))
            sets.setdefault((str(made.workload.get("name")), kind, source), []).append((name, made))
    rows = []
    for (workload, *_), runs in sets.items():
        lines = RULES.load(rules)([made for _, made in runs], rules, True)
        names = ", ".join(name for name, _ in runs)
        rows += [(workload, names, line) for line in lines or ["no rule is broken"]]
    columns = (
        Column("workload", align="left"),
        Column("results", align="fold"),
        Column("rule", align="fold"),
    )
    return Table(caption=f"Sets of runs by the rules of {rules}", columns=columns, rows=tuple(rows))
