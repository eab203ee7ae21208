"""The step log: one row per step per rank, for emulated and simulated runs alike.

OUT/spool/rank-00007.steps  raw rows of rank 7 of the world, appended while it runs: a killed run keeps them
OUT/steps.parquet           the rows of the first host, once the run is complete; then its spools are gone
OUT/steps-00001.parquet     those of the second one, and so on; a sweep that is resumed adds further parts

No process ever holds all rows: each host writes its own, and readers take them a point or some at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from emulator.errors import storage_errors
from emulator.files import RecordFile
from emulator.record.rows import row_blocks, write_rows

STEPS = "steps.parquet"
SPOOL = "spool"
SPOOL_FILES = "rank-*.steps"
_PART = re.compile(r"steps(-[0-9]{5})?\.parquet")

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


def spools_of(out: Path, ranks: Collection[int] | None = None) -> list[Path]:
    """The spools of these ranks of the world, None: of all, rank after rank. Raises StorageError."""
    with storage_errors("cannot read the step log"):
        found = sorted((out / SPOOL).glob(SPOOL_FILES))
    return [file for file in found if ranks is None or _rank_of(file) in ranks]


def _rank_of(file: Path) -> int:
    """The rank that a spool is named after; -1: it is none."""
    digits = file.stem.removeprefix("rank-")
    return int(digits) if digits.isdecimal() else -1


def is_spool(file: Path) -> bool:
    """Whether what is in a file can be rows of steps. Raises OSError."""
    rows = _spooled(file)
    whole = ("point", "rank", "epoch", "step", "samples", "bytes")
    seconds = rows["begin"] + rows["wait"] + rows["compute"]
    return all(bool((rows[name] >= 0).all()) for name in whole) and bool((np.abs(seconds) < _LONGEST).all())


_LONGEST = 1e9
"""Seconds: a step that is longer, or no number, is none."""


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


def remove_spools(out: Path, ranks: Collection[int] | None = None) -> None:
    """Remove the spools of these ranks, None: of all, and their folder once it is empty.

    Files of others stay, and then the folder does too. Raises StorageError.
    """
    with storage_errors("cannot remove the spools"):
        for file in spools_of(out, ranks):
            if is_spool(file):
                file.unlink(missing_ok=True)
        if ranks is None and (out / SPOOL).is_dir() and not any((out / SPOOL).iterdir()):
            (out / SPOOL).rmdir()


def is_part(name: str) -> bool:
    """Whether a file of a step log has such a name."""
    return bool(_PART.fullmatch(name))


def parts_of(out: Path) -> list[Path]:
    """The Parquet files of the step log in OUT, in order. Raises StorageError."""
    with storage_errors("cannot read the step log"):
        found = [file for file in out.glob("steps*.parquet") if is_part(file.name)]
    return sorted(found, key=lambda file: (len(file.name), file.name))


def part(out: Path, number: int) -> Path:
    """The file of part `number`."""
    return out / (f"steps-{number:05d}.parquet" if number else STEPS)


def next_part(out: Path) -> int:
    """Number of the first part that is not there yet. Raises StorageError."""
    last = parts_of(out)[-1:]
    return int(last[0].stem.removeprefix("steps").removeprefix("-") or 0) + 1 if last else 0


def write_steps(out: Path, rows: Steps) -> None:
    """Write OUT/steps.parquet whole or not at all, rows as they are. Raises StorageError."""
    write_rows(out / STEPS, STEP, [rows])


def write_part(out: Path, number: int, ranks: Collection[int]) -> None:
    """Write the rows in the spools of these ranks as part `number`, a point after the other.

    Without rows there is none. Raises StorageError.
    """
    stretches = []  # (point, file, first row, rows): of each rank those of a point lie together
    for file in spools_of(out, ranks):
        with storage_errors("cannot read the step log"):
            at, first, count = np.unique(_spooled(file)["point"], return_index=True, return_counts=True)
        stretches += [(p, file, f, c) for p, f, c in zip(at, first, count, strict=True)]

    def blocks() -> Iterator[Steps]:
        for _, file, first, count in sorted(stretches):
            yield np.fromfile(file, STEP, count, offset=first * STEP.itemsize)

    if stretches:
        write_rows(part(out, number), STEP, blocks())


def keep_spools(out: Path, points: int) -> None:
    """Write what the spools of a run that was cut off have of its first `points` points as a further part.

    Raises StorageError, SpecError when a part is no step log.
    """
    kept = [rows[rows["point"] < points] for rows in _only_spooled(out, None)]
    if any(map(len, kept)):
        write_rows(part(out, next_part(out)), STEP, kept)


def step_blocks(out: Path, point: int | None = None) -> Iterator[Steps]:
    """All rows in OUT, or those of a point, some at a time.

    Raises StorageError when they cannot be read, SpecError when a part is no step log.
    """
    for file in parts_of(out):
        yield from row_blocks(file, STEP, MOMENTS, None if point is None else ("point", point))
    yield from _only_spooled(out, point)


def _only_spooled(out: Path, point: int | None) -> Iterator[Steps]:
    """The rows of the spools, or those of a point, that no part has: a run may be cut off while it writes
    parts."""
    spools, known = spools_of(out), np.zeros(0, np.int64)
    if spools:
        parts = [np.unique(_runs(rows)) for file in parts_of(out) for rows in row_blocks(file, STEP, MOMENTS)]
        known = np.concatenate([known, *parts])
    for file in spools:
        with storage_errors("cannot read the step log"):
            rows = _spooled(file)
        rows = rows if point is None else rows[rows["point"] == point]
        yield rows[~np.isin(_runs(rows), known)]


def _runs(rows: Steps) -> NDArray[np.int64]:
    """A number for each pair of point and rank."""
    runs: NDArray[np.int64] = rows["point"].astype(np.int64) << 32 | rows["rank"]
    return runs


def read_steps(out: Path, point: int | None = None) -> Steps:
    """The rows of the step log in OUT, or those of a point; may be empty.

    Raises StorageError when they cannot be read, SpecError when a part is no step log.
    """
    return np.concatenate([np.zeros(0, dtype=STEP), *step_blocks(out, point)])
