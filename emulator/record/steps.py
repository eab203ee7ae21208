"""The step log: one row per step per rank.

OUT/spool/part-00001.steps  raw rows of the ranks of the second host while they run: a killed run keeps them
OUT/steps.parquet           the rows of the first host, once the run is complete; then its spool is gone
OUT/steps-00001.parquet     those of the second one, and so on; a sweep that is resumed adds further parts

No process ever holds all rows: each host writes its own, and readers take a point or a block at a time.

The ranks of a host share a spool without locks: behind its head, its blocks are dealt to them in turn, and
each writes into its own alone. A rank that is killed while it writes loses a row of its own and none of
others, where a torn row among appended ones would make all behind it unreadable. What was never written reads
as zeros. The head says that the file is feedrate's to remove.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.errors import storage_errors
from emulator.files import NEW_FILE, Closing, is_plain
from emulator.record.rows import row_blocks, write_rows
from emulator.units import BLOCK_BYTES

STEPS = "steps.parquet"
SPOOL = "spool"
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
        ("wait", "<f8"),  # seconds until the batch had arrived
        ("compute", "<f8"),  # nominal seconds of compute
        ("overshoot", "<f8"),  # seconds that its own process held the accelerator up
        ("barrier", "<f8"),  # seconds that it waited for other ranks
        ("late", "<f8"),  # seconds after the end of the step at which its process was there; in none of these
        # Moments, seconds since the start of the point; NaN: not measured.
        ("requested", "<f8"),  # when reading for the batch began
        ("arrived", "<f8"),  # when all of it had been read
    ]
)
"""Layout of a row. `begin` of a step plus its wait, compute, overshoot and barrier is `begin` of the next."""

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

    def add(self, **columns: float) -> None:
        """Append one step: all columns of STEP after `rank`, by name. Raises KeyError."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        named = (columns[name] for name in (STEP.names or ())[2:])
        self._rows[self._count] = (self._point, self._rank, *named)
        self._count += 1

    def rows(self, since: int = 0) -> Steps:
        """Return the rows from number `since` on."""
        return self._rows[since : self._count]


SPOOL_ROWS = 1024
"""Rows of a block: 27 pages."""
SPOOL_HEAD = b"feedrate: rows of a step log\n".ljust(BLOCK_BYTES, b"\0")
_SPOOL_NAME = re.compile(r"part-[0-9]{5,}\.steps")
_BLOCK = SPOOL_ROWS * STEP.itemsize


def make_spool(out: Path, number: int) -> Path:
    """Make a spool for the ranks of a host, whose rows become part `number`, or a later one where it is taken
    by rows that a killed run left. Raises StorageError."""
    with storage_errors("cannot write the step log", out):
        (out / SPOOL).mkdir(parents=True, exist_ok=True)
        for free in count(number):
            file = out / SPOOL / f"part-{free:05d}.steps"
            with suppress(FileExistsError), os.fdopen(os.open(file, NEW_FILE, 0o666), "wb") as opened:
                opened.write(SPOOL_HEAD)
                opened.flush()
                os.fsync(opened.fileno())  # a file of zeros, which a power cut may leave, is nobody's
                return file
    raise AssertionError("there is no last number")


class Spool(Closing):
    """The rows of one rank in the spool of its host, so that a killed run keeps them."""

    def __init__(self, file: Path, place: int = 0, places: int = 1) -> None:
        """Open the share of rank `place` of the `places` ranks of the spool. Raises StorageError."""
        self._doing = f"cannot write the step log {file}"
        self._place, self._places, self._rows = place, places, 0
        with storage_errors(self._doing):
            self._descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def append(self, rows: Steps) -> None:
        """Hand the rows to the system: they outlive this process, not a power cut. Raises StorageError."""
        with storage_errors(self._doing):
            while len(rows):
                turn, at = divmod(self._rows, SPOOL_ROWS)
                fitting, rows = rows[: SPOOL_ROWS - at], rows[SPOOL_ROWS - at :]
                left = memoryview(fitting.tobytes())
                offset = _offset(turn * self._places + self._place) + at * STEP.itemsize
                while left:  # twice only when the disk is full: then the second write says so
                    done = os.pwrite(self._descriptor, left, offset)
                    left, offset = left[done:], offset + done
                self._rows += len(fitting)

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises StorageError: some fail only here."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with storage_errors(self._doing):
                os.close(descriptor)


def _offset(block: int) -> int:
    """Return where a block of a spool begins, in bytes."""
    return len(SPOOL_HEAD) + block * _BLOCK


def spools_of(out: Path) -> list[Path]:
    """The spools in OUT, one a host, and nothing of others. Raises StorageError."""
    with storage_errors("cannot read the step log", out):
        return [file for file in sorted((out / SPOOL).glob("part-*.steps")) if is_spool(out, file)]


def is_spool(out: Path, file: Path) -> bool:
    """Return True for a file with our head, or with its begin if it was killed just then. Raises OSError."""
    if not (_SPOOL_NAME.fullmatch(file.name) and is_plain(out, file)):
        return False
    with file.open("rb") as opened:
        return SPOOL_HEAD.startswith(opened.read(len(SPOOL_HEAD)))


def _spooled(file: Path) -> Iterator[tuple[int, Steps]]:
    """The whole rows of a spool, a block at a time, and the number of the first. Raises OSError."""
    with file.open("rb") as opened:
        opened.seek(_offset(0))
        for first in count(0, SPOOL_ROWS):
            data = opened.read(_BLOCK)
            if not data:
                return
            yield first, _whole(data)


def _whole(data: bytes) -> Steps:
    """Rows that were written to their end: the last number of others is 0, or 0 but for its lowest bytes."""
    rows = np.frombuffer(data, STEP, count=len(data) // STEP.itemsize)
    whole: Steps = rows[~(np.abs(rows[_LAST]) < 1e-300)]
    return whole


_LAST = (STEP.names or ())[-1]


def remove_spools(out: Path, spools: Collection[Path] | None = None) -> None:
    """Remove these spools, None: all, and their folder once it is empty.

    Files of others stay, and then the folder does too. Raises StorageError.
    """
    with storage_errors("cannot remove the spools", out):
        for file in spools_of(out) if spools is None else spools:
            file.unlink(missing_ok=True)
        if spools is None and (out / SPOOL).is_dir() and not any((out / SPOOL).iterdir()):
            (out / SPOOL).rmdir()


def is_part(name: str) -> bool:
    """True for the name of a file of a step log."""
    return bool(_PART.fullmatch(name))


def parts_of(out: Path) -> list[Path]:
    """The Parquet files of the step log in OUT, in order. Raises StorageError."""
    with storage_errors("cannot read the step log", out):
        found = [file for file in out.glob("steps*.parquet") if is_part(file.name)]
    return sorted(found, key=lambda file: (len(file.name), file.name))


def next_part(out: Path) -> int:
    """Number of the first part that is not there yet. Raises StorageError."""
    last = parts_of(out)[-1:]
    return int(last[0].stem.removeprefix("steps").removeprefix("-") or 0) + 1 if last else 0


def write_steps(out: Path, rows: Steps) -> None:
    """Write OUT/steps.parquet atomically, rows as they are. Raises StorageError."""
    write_rows(out / STEPS, STEP, [rows])


def write_part(out: Path, number: int, spools: Collection[Path], points: int | None = None) -> None:
    """Write the rows in these spools as part `number`: a point after the other, of each rank after rank.

    `points`: of a run that was cut off, only rows of this many points, and only rows that no part has.
    Without rows there is none. Raises StorageError, SpecError when a part is no step log.
    """
    stretches = _stretches(out, spools, points)

    def blocks() -> Iterator[Steps]:
        with ExitStack() as stack:
            opened = {file: stack.enter_context(file.open("rb")) for file in spools}
            for _, file, first, size in stretches:
                opened[file].seek(_offset(0) + first * STEP.itemsize)
                yield np.frombuffer(opened[file].read(size * STEP.itemsize), STEP)

    if stretches:
        name = f"steps-{number:05d}.parquet" if number else STEPS
        write_rows(out / name, STEP, blocks())


def _stretches(out: Path, spools: Collection[Path], points: int | None) -> list[tuple[int, Path, int, int]]:
    """Return the rows to write of these spools, in order: (point and rank, file, first row, rows).

    Within a block, the rows of a point lie together.
    """
    known = set() if points is None else set(_known(out).tolist())
    stretches = []
    with storage_errors("cannot read the step log", out):
        for file in spools:
            for begin, rows in _spooled(file):
                runs, first, length = np.unique(_runs(rows), return_index=True, return_counts=True)
                stretches += [
                    (int(run), file, begin + at, size)
                    for run, at, size in zip(runs, first.tolist(), length.tolist(), strict=True)
                    if run not in known and (points is None or run >> 32 < points)
                ]
    return sorted(stretches)


def step_blocks(out: Path, point: int | None = None) -> Iterator[Steps]:
    """All rows in OUT, or those of a point, in blocks.

    Raises StorageError when they cannot be read, SpecError when a part is no step log.
    """
    for file in parts_of(out):
        yield from row_blocks(file, STEP, None if point is None else ("point", point))
    yield from _only_spooled(out, point)


def _only_spooled(out: Path, point: int | None) -> Iterator[Steps]:
    """The rows of the spools, or those of a point, that no part has: a run may be cut off while it writes
    parts."""
    if not (spools := spools_of(out)):
        return
    known = _known(out)
    for file in spools:
        with storage_errors("cannot read the step log", out):
            for _, rows in _spooled(file):
                rows = rows if point is None else rows[rows["point"] == point]
                yield rows[~np.isin(_runs(rows), known)]


def _known(out: Path) -> NDArray[np.int64]:
    """The pairs of point and rank that the parts have."""
    parts = [np.unique(_runs(rows)) for file in parts_of(out) for rows in row_blocks(file, STEP)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _runs(rows: Steps) -> NDArray[np.int64]:
    """Return a number for each row that identifies its point and rank."""
    runs: NDArray[np.int64] = rows["point"].astype(np.int64) << 32 | rows["rank"]
    return runs


def read_steps(out: Path, point: int | None = None) -> Steps:
    """The rows of the step log in OUT, or those of a point; may be empty.

    Raises StorageError when they cannot be read, SpecError when a part is no step log.
    """
    return np.concatenate([np.zeros(0, dtype=STEP), *step_blocks(out, point)])
