"""Results beside each other and beside published ones: the same figures, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.analysis.flags import usable
from emulator.record.result import Point, RunResult
from emulator.report.reference import Figure, Submission
from emulator.report.view import computes, marks_line, notes, number
from emulator.units import show_bytes, show_seconds


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
