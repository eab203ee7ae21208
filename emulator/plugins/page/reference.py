"""Published submissions to MLPerf Storage, in results/reference/mlperf_storage_*.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
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
"""Columns that a table of submissions has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published row: the mean of the runs of one system."""

    name: str
    """Submitter and system."""
    submitter: str
    workload: str
    """As it was published: unet3d_a100."""
    table: str
    """Name of the row's table, in results/reference."""
    accelerators: int
    hosts: int
    bytes_per_second: float
    au: float
    """Accelerator utilization (0 to 1)."""
    x_ideal: float

    @property
    def tooltip(self) -> str:
        """Return the figures as text, for the pointer on the row's dot."""
        counted = f"{self.name[:44]}: {self.accelerators:,} accelerators"
        utilized = f"AU {self.au * 100:.1f} %; X/X_ideal {self.x_ideal:.3f}"
        return f"{counted}; {show_rate(self.bytes_per_second)}; {utilized}"


@cache
def _workload(theirs: str) -> Workload | None:
    """Return the workload of a published row, such as unet3d_a100; None if feedrate does not have it."""
    name = theirs.replace("_", "-")
    return load_workload(name) if name in names("workloads") else None


def _submission(row: Mapping[str, str], ran: Workload, table: str) -> Entry:
    """Return a row of a table of submissions. Raises ValueError."""
    # Samples per second are published; bytes are those of the nominal mean sample.
    accelerators, samples_per_second = int(row["accelerators"]), float(row["samples_per_second_mean"])
    return Entry(
        name=f"{row['submitter']} {row['system']}",
        submitter=row["submitter"],
        workload=row["workload"],
        table=table,
        accelerators=accelerators,
        hosts=int(row["hosts"]),
        au=float(row["au_percent_mean"]) / 100,
        bytes_per_second=samples_per_second * ran.sample.bytes_mean,
        x_ideal=samples_per_second / (accelerators * ran.ideal_samples_per_second),
    )


def reference_files() -> dict[str, Path]:
    """Return the file of every table of submissions, by name."""
    folder = content_folder("results") / "reference"
    return {path.stem: path for path in sorted(folder.glob("mlperf_storage_*.csv"))}


def load_references(tables: Sequence[str]) -> list[Entry]:
    """Return the rows of several tables together; `all` stands for every table. Raises SpecError."""
    wanted = list(reference_files()) if "all" in tables else tables
    return [row for name in dict.fromkeys(wanted) for row in load_reference(name)]


def load_reference(name: str) -> list[Entry]:
    """Return the submissions of the named table, or of a CSV file. Raises SpecError."""
    known = reference_files()
    path = known.get(name) or Path(name)
    if not path.is_file():
        raise SpecError(f"there is no table of published figures {name!r}", "known: " + ", ".join(known))
    rows, entries = _rows(path), []
    try:
        for row in rows:
            if workload := _workload(row["workload"]):
                entries.append(_submission(row, workload, path.stem))
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecError(f"{path} has a value that is not a number ({error})") from None
    return entries


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with the columns SUBMISSIONS. Raises SpecError."""
    try:
        with storage_errors("cannot read the published figures", path):
            text = read_document(path).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))  # cells may hold line ends
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} is no table of published figures ({error})") from None
    if not rows or not set(SUBMISSIONS) <= set(rows[0]):
        wanted = f"it needs the columns {', '.join(SUBMISSIONS)}"
        raise SpecError(f"{path} is no table of published figures", wanted)
    return rows


def published_entries(workload: str) -> list[Entry]:
    """Return the published results of a workload, the most accelerators first. Raises SpecError."""
    of_workloads: dict[str, dict[Entry, Entry]] = {}
    for entry in load_references(["all"]):
        entries = of_workloads.setdefault(entry.workload.replace("_", "-"), {})
        entries[replace(entry, table="")] = entry  # tables have rows in common
    if workload not in of_workloads:
        known = ", ".join(sorted(of_workloads))
        raise SpecError(f"no result of {workload!r} was published", f"known: {known}")
    return sorted(of_workloads[workload].values(), key=lambda entry: (-entry.accelerators, entry.name))


def entries_table(caption: str, entries: Sequence[Entry]) -> Table:
    """Return a table of published rows."""
    columns = (
        Column("system", align="fold"),
        Column("accel."),
        Column("hosts", room=72),
        Column("GB/s", three_digits),
        Column("MB/s\nper accel.", room=40),
        Column("GB/s\nper host", three_digits, room=72),
        Column("AU %", one_place),
        Column("X/\nX_ideal", three_places),
        Column("table", align="left", room=80),
    )
    rows = tuple(
        (
            entry.name,
            entry.accelerators,
            entry.hosts,
            entry.bytes_per_second / 1e9,
            entry.bytes_per_second / entry.accelerators / 1e6,
            entry.bytes_per_second / entry.hosts / 1e9,
            entry.au * 100,
            entry.x_ideal,
            entry.table,
        )
        for entry in entries
    )
    return Table(caption=caption, columns=columns, rows=rows)


def published_table(workload: str) -> Table:
    """Return a table of the published results of a workload. Raises SpecError."""
    caption = f"Published results of {workload} (results/README.md has the sources)"
    return replace(entries_table(caption, published_entries(workload)), items="systems")
