"""Published figures in results/reference/*.csv: MLPerf Storage submissions, and vendors' tables."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.config.catalog import content_folder
from emulator.errors import SpecError, storage_error

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


@dataclass(frozen=True, slots=True)
class Published:
    """The part of a workload that MLPerf Storage fixes (its YAML files)."""

    batch_size: int
    step_seconds: float
    bytes_per_sample: float
    """Mean bytes of a stored sample."""


WORKLOADS = {
    "unet3d_a100": Published(7, 0.636, 146_600_628),
    "unet3d_h100": Published(7, 0.323, 146_600_628),
    "resnet50_a100": Published(400, 0.435, 114_660.07),
    "resnet50_h100": Published(400, 0.224, 114_660.07),
    "cosmoflow_a100": Published(1, 0.00551, 2_828_486),
    "cosmoflow_h100": Published(1, 0.00350, 2_828_486),
    "unet3d_b200": Published(7, 0.162, 146_600_628),
    "retinanet_b200": Published(24, 0.04755, 322_957),
}
"""Workloads of MLPerf Storage v1.0 and v3.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Mean of the runs of one system at one accelerator count."""

    division: str
    submitter: str
    system: str
    workload: str
    accelerators: int
    hosts: int
    au: float
    """Accelerator utilisation, 0 to 1."""
    samples_per_second: float
    version: str = "v1.0"
    """Version of MLPerf Storage."""

    @property
    def ideal_samples_per_second(self) -> float:
        """Return the samples/s of that many accelerators that never wait."""
        fixed = WORKLOADS[self.workload]
        return self.accelerators * fixed.batch_size / fixed.step_seconds

    @property
    def bytes_per_second(self) -> float:
        """Return the throughput in bytes/s, from the nominal mean size of a sample."""
        return self.samples_per_second * WORKLOADS[self.workload].bytes_per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One number of a document."""

    system: str
    quantity: str
    value: float
    unit: str
    condition: str
    kind: str
    """published: printed there; recomputed: from the document's own inputs."""
    source: str
    """Short name of the document; results/README.md has its title."""


def reference_files() -> dict[str, Path]:
    """Return the file of every table of published figures, by name."""
    return {path.stem: path for path in sorted((content_folder("results") / "reference").glob("*.csv"))}


def load_references(names: Sequence[str]) -> tuple[list[Submission], list[PublishedFigure]]:
    """Return the rows of several tables together; `all` stands for every table. Raises SpecError."""
    wanted = list(reference_files()) if "all" in names else names
    loaded = [load_reference(name) for name in dict.fromkeys(wanted)]
    return [row for rows, _ in loaded for row in rows], [row for _, rows in loaded for row in rows]


def load_reference(name: str) -> tuple[list[Submission], list[PublishedFigure]]:
    """Return the submissions or the figures of the named table, or of a CSV file. Raises SpecError."""
    known = reference_files()
    path = known.get(name) or Path(name)
    if not path.is_file():
        raise SpecError(f"there is no table of published figures {name!r}", "known: " + ", ".join(known))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise storage_error(error, "cannot read the published figures") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} is no table of published figures ({error})") from None
    columns = set(rows[0]) if rows else set()
    if not (set(SUBMISSIONS) <= columns or set(FIGURES) <= columns):
        wanted = f"{', '.join(SUBMISSIONS)}, or {', '.join(FIGURES)}"
        raise SpecError(f"{path} is no table of published figures", f"it needs the columns {wanted}")
    try:
        if set(SUBMISSIONS) <= columns:
            return [
                Submission(
                    division=row["division"],
                    submitter=row["submitter"],
                    system=row["system"],
                    workload=row["workload"],
                    accelerators=int(row["accelerators"]),
                    hosts=int(row["hosts"]),
                    au=float(row["au_percent_mean"]) / 100,
                    samples_per_second=float(row["samples_per_second_mean"]),
                    version=row.get("version") or "v1.0",
                )
                for row in rows
                if row["workload"] in WORKLOADS
            ], []
        words = [name for name in FIGURES if name != "value"]
        return [], [
            PublishedFigure(**{name: row[name] for name in words}, value=float(row["value"])) for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise SpecError(f"{path} holds something that is no number ({error})") from None
