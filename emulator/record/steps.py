"""The step log: one row per step per rank, for emulated and simulated runs alike.

OUT/spool/rank-00007.steps  raw rows of rank 7, appended while it runs, so that a killed run keeps them
OUT/steps.parquet           all rows, once the run is complete; then the spools are gone
"""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from emulator.errors import storage_errors
from emulator.files import RecordFile
from emulator.record.rows import read_rows, write_rows

STEPS = "steps.parquet"
SPOOL = "spool"
SPOOL_FILES = "rank-*.steps"

STEP = np.dtype(
    [
        ("point", "<i4"),  # index into the result's list of points
        ("rank", "<i4"),  # rank among the active ones of the point
        ("epoch", "<i4"),
        ("step", "<i4"),  # within the epoch
        ("samples", "<i4"),  # samples in the batch
        ("bytes", "<i8"),  # bytes that were read for the batch
        ("begin", "<f8"),  # seconds since the start of the point, which all ranks share
        ("wait", "<f8"),  # seconds that the accelerator waited for the batch
        ("compute", "<f8"),  # nominal seconds of compute
        ("overshoot", "<f8"),  # seconds that it was occupied for longer than that
        ("barrier", "<f8"),  # seconds that it waited for other ranks
        ("late", "<f8"),  # seconds after the end of the step at which its process was there; in none of these
        # Moments, seconds since the start of the point; NaN: not measured.
        ("requested", "<f8"),  # when reading for the batch began
        ("arrived", "<f8"),  # when all of it had been read
        ("got", "<f8"),  # when the process had it
        ("woke", "<f8"),  # when the process was back from computing on it, before any barrier
    ]
)
"""Layout of a row. `begin` of a step plus its wait, compute, overshoot and barrier is `begin` of the next.

These are the accelerator's time. What its process did when is in the columns after them (`analysis.here`).
"""

MOMENTS = ("requested", "arrived", "got", "woke")
"""Columns that step logs of earlier versions do not have; read from such a log, they are NaN."""

Steps = NDArray[np.void]
"""Rows of dtype STEP, shape (steps,)."""


class StepLog:
    """Rows of one rank, kept in memory; grows by doubling."""

    def __init__(self, point: int, rank: int) -> None:
        self._point = point
        self._rank = rank
        self._rows = np.zeros(256, dtype=STEP)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        *,
        epoch: int,
        step: int,
        samples: int,
        size: int,
        begin: float,
        wait: float,
        compute: float,
        overshoot: float,
        barrier: float,
        late: float,
        requested: float = math.nan,
        arrived: float = math.nan,
        got: float = math.nan,
        woke: float = math.nan,
    ) -> None:
        """Append one step; seconds and bytes as in STEP."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        seconds = (begin, wait, compute, overshoot, barrier, late, requested, arrived, got, woke)
        self._rows[self._count] = (self._point, self._rank, epoch, step, samples, size, *seconds)
        self._count += 1

    def rows(self, since: int = 0) -> Steps:
        """The rows from number `since` on."""
        return self._rows[since : self._count]


class Spool:
    """Appends the rows of one rank to OUT/spool/rank-00007.steps, so that a killed run keeps them."""

    def __init__(self, out: Path, rank: int) -> None:
        """Open the spool of `rank` (of the whole world). Raises StorageError."""
        file = out / SPOOL / f"rank-{rank:05d}.steps"
        self._doing = f"cannot write the step log {file}"
        with storage_errors(self._doing):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = RecordFile(file, STEP.itemsize)

    def append(self, rows: Steps) -> None:
        """Hand the rows to the system: they outlive this process, not a power cut. Raises StorageError."""
        with storage_errors(self._doing):
            self._file.append(rows.tobytes())

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises StorageError."""
        with storage_errors(self._doing):
            self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_spools(out: Path) -> Steps:
    """The rows of all spools, rank after rank, each in the order written; a torn last row is left out.

    Raises StorageError.
    """
    parts = [np.zeros(0, dtype=STEP)]
    with storage_errors("cannot read the step log"):
        parts += [_spooled(file) for file in sorted((out / SPOOL).glob(SPOOL_FILES))]
    return np.concatenate(parts)


def is_spool(file: Path) -> bool:
    """Whether all whole rows of a file are of the rank that it is named after. Raises OSError."""
    return bool((_spooled(file)["rank"] == int(file.stem.removeprefix("rank-"))).all())


def _spooled(file: Path) -> Steps:
    raw = file.read_bytes()
    return np.frombuffer(raw[: len(raw) // STEP.itemsize * STEP.itemsize], dtype=STEP)


def is_step_log(file: Path) -> bool:
    """Whether a file is Parquet with the columns of a step log. Raises OSError."""
    import pyarrow
    import pyarrow.parquet

    with file.open("rb") as opened:
        try:
            names = list(pyarrow.parquet.read_schema(opened).names)
            return names in (list(STEP.names or ()), [n for n in STEP.names or () if n not in MOMENTS])
        except (pyarrow.ArrowException, OSError):
            return False


def remove_spools(out: Path) -> None:
    """Remove the spools; files of others in their folder stay, and then it does too. Raises StorageError."""
    with storage_errors("cannot remove the spools"):
        for file in (out / SPOOL).glob(SPOOL_FILES):
            if is_spool(file):
                file.unlink(missing_ok=True)
        if (out / SPOOL).is_dir() and not any((out / SPOOL).iterdir()):
            (out / SPOOL).rmdir()


def write_steps(out: Path, rows: Steps) -> None:
    """Write OUT/steps.parquet whole or not at all, rows as they are. Raises StorageError."""
    write_rows(out / STEPS, rows)


def read_steps(out: Path) -> Steps:
    """The rows of OUT/steps.parquet, and those of later points that are still in the spools; may be empty.

    Raises StorageError when it cannot be read, SpecError when it is no step log.
    """
    written: Steps = (
        read_rows(out / STEPS, STEP, MOMENTS) if (out / STEPS).is_file() else np.zeros(0, dtype=STEP)
    )
    spooled = read_spools(out)
    if not len(written):
        return spooled
    return np.concatenate([written, spooled[spooled["point"] > written["point"].max()]])
