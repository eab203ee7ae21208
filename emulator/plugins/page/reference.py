"""Published figures in results/reference/*.csv: MLPerf Storage submissions, and vendors' tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.config.catalog import content_folder, names
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError, storage_errors
from emulator.files import read_document
from emulator.report.table import Column, Table, one_place, three_digits, three_places
from emulator.units import show_rate

SUBMISSIONS = (
    "division",
    "submitter",
    "system",
    "workload",
    "accelerators",
    "hosts",
    "au_percent_mean",
    "samples_per_second_mean",
)
"""Columns that mark a file of submissions."""
FIGURES = ("system", "quantity", "value", "unit", "condition", "kind", "source")
"""Columns of a file of single figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One process count of a result, or one published row, with the same figures."""

    name: str
    """Name of the result or publisher."""
    accelerators: int
    hosts: int | None
    """Number of hosts; None if unknown."""
    bytes_per_second: float
    au: float | None
    """Accelerator utilization (0 to 1); None if the workload does not compute."""
    x_ideal: float | None
    flagged: bool = False
    used: bool = True
    """False if a flag invalidates the entry, so that lines skip it."""
    workload: str = ""
    """Workload of a published row."""
    submitter: str = ""
    """Who published a row."""
    table: str = ""
    """Name of the published row's table, in results/reference."""

    @property
    def tooltip(self) -> str:
        """Return the figures as text, for the pointer on the entry."""
        parts = [f"{self.name[:44]}: {self.accelerators:,} accelerators", show_rate(self.bytes_per_second)]
        parts += [f"AU {self.au * 100:.1f} %"] if self.au is not None else []
        parts += [f"X/X_ideal {self.x_ideal:.3f}"] if self.x_ideal is not None else []
        return "; ".join(parts)

    @property
    def per_accelerator(self) -> float:
        """Return the throughput per accelerator in bytes/s."""
        return self.bytes_per_second / self.accelerators

    @property
    def per_host(self) -> float | None:
        """Return the throughput per host in bytes/s; None if the number of hosts is unknown."""
        return self.bytes_per_second / self.hosts if self.hosts else None


def _submission(row: dict[str, str], ran: Workload) -> Entry:
    """Return a row of a table of submissions, the mean of the runs of one system. Raises ValueError."""
    accelerators, samples_per_second = int(row["accelerators"]), float(row["samples_per_second_mean"])
    return Entry(
        name=f"{row['submitter']} {row['system']}",
        submitter=row["submitter"],
        workload=row["workload"],
        accelerators=accelerators,
        hosts=int(row["hosts"]),
        au=float(row["au_percent_mean"]) / 100,
        bytes_per_second=samples_per_second * ran.sample.bytes_mean,
        x_ideal=samples_per_second / (accelerators * ran.ideal_samples_per_second),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One number of a document."""

    system: str
    quantity: str
    value: float
    unit: str
    condition: str
    kind: str
    """published: printed in the document; recomputed: from its inputs."""
    source: str
    """Short name of the document; results/README.md has its title."""


def reference_files() -> dict[str, Path]:
    """Return the file of every table of published figures, by name."""
    return {path.stem: path for path in sorted((content_folder("results") / "reference").glob("*.csv"))}


def load_references(tables: Sequence[str]) -> tuple[list[Entry], list[PublishedFigure]]:
    """Return the rows of several tables together; `all` stands for every table. Raises SpecError."""
    wanted = list(reference_files()) if "all" in tables else tables
    loaded = [load_reference(name) for name in dict.fromkeys(wanted)]
    return [row for rows, _ in loaded for row in rows], [row for _, rows in loaded for row in rows]


def load_reference(name: str) -> tuple[list[Entry], list[PublishedFigure]]:
    """Return the submissions or the figures of the named table, or of a CSV file. Raises SpecError."""
    known = reference_files()
    path = known.get(name) or Path(name)
    if not path.is_file():
        raise SpecError(f"there is no table of published figures {name!r}", "known: " + ", ".join(known))
    try:
        with storage_errors("cannot read the published figures", path):
            text = read_document(path).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} is no table of published figures ({error})") from None
    columns = set(rows[0]) if rows else set()
    if not (set(SUBMISSIONS) <= columns or set(FIGURES) <= columns):
        wanted = f"{', '.join(SUBMISSIONS)}, or {', '.join(FIGURES)}"
        raise SpecError(f"{path} is no table of published figures", f"it needs the columns {wanted}")
    try:
        if set(SUBMISSIONS) <= columns:
            ours = {row["workload"]: row["workload"].replace("_", "-") for row in rows}
            ran = {theirs: load_workload(name) for theirs, name in ours.items() if name in names("workloads")}
            return [_submission(row, ran[row["workload"]]) for row in rows if row["workload"] in ran], []
        words = [name for name in FIGURES if name != "value"]
        return [], [
            PublishedFigure(**{name: row[name] for name in words}, value=float(row["value"])) for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise SpecError(f"{path} has a value that is not a number ({error})") from None


def published_entries(workload: str) -> list[Entry]:
    """Return the published results of a workload, the most accelerators first. Raises SpecError."""
    every = [replace(entry, table=table) for table in reference_files() for entry in load_reference(table)[0]]
    mine = [entry for entry in every if entry.workload.replace("_", "-") == workload]
    found = {replace(entry, table=""): entry for entry in mine}.values()  # tables have rows in common
    if not found:
        known = ", ".join(sorted({entry.workload.replace("_", "-") for entry in every}))
        raise SpecError(f"no result of {workload!r} was published", f"known: {known}")
    return sorted(found, key=lambda entry: (-entry.accelerators, entry.name))


def published_table(workload: str) -> Table:
    """Return a table of the published results of a workload. Raises SpecError."""
    rows = tuple(
        (
            entry.name,
            entry.accelerators,
            entry.hosts,
            entry.bytes_per_second / 1e9,
            None if entry.per_host is None else entry.per_host / 1e9,
            None if entry.au is None else 100 * entry.au,
            entry.x_ideal,
            entry.table,
        )
        for entry in published_entries(workload)
    )
    columns = (
        Column("system", align="fold"),
        Column("accelerators"),
        Column("hosts"),
        Column("GB/s", three_digits, bar=True),
        Column("GB/s\na host", three_digits, room=40),
        Column("AU %", one_place),
        Column("X/X_ideal", three_places, room=50),
        Column("table", align="left", room=60),
    )
    caption = f"Published results of {workload} (results/README.md has the sources)"
    return Table(caption=caption, columns=columns, rows=rows, items="results")
