"""Fill a folder with samples: a pool of threads over a slice of the indices.

AES, checksums and writes run outside of Python's lock, so a few threads keep a disk busy. Each has
the memory of one sample.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from emulator.dataset.checksum import crc32_join
from emulator.dataset.formats.base import PAGE, Room
from emulator.dataset.grow import fill_for
from emulator.dataset.journal import Journal
from emulator.dataset.plan import Plan
from emulator.dataset.seeds import SeedVolume
from emulator.dataset.sizes import Index
from emulator.dataset.writing import WriteOptions, write_encoded

Done = Callable[[int, int], None]
"""Called with (files, bytes) that were just finished; from many threads."""


_SMALL = 8 << 20


def default_threads(cores: int, sample_bytes: float) -> int:
    """Writers of one process: more than cores, as most wait for the disk; still more for small samples,
    as most wait for fsync."""
    return min(16, 4 * cores if sample_bytes < _SMALL else cores + 2)


def nothing(files: int, size: int) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every worker of a dataset knows."""

    plan: Plan
    folder: Path
    volumes: Sequence[SeedVolume] = ()
    options: WriteOptions = field(default_factory=WriteOptions)


def make_file(job: Job, index: int, room: Room, journal: Journal) -> int:
    """File number `index` on storage, all its parts; returns its bytes. Raises OSError, SpecError."""
    recipe = job.plan.recipe
    depth, height, width = (int(edge) for edge in job.plan.shapes(np.array([index]))[0])
    shape = (recipe.samples_per_file, depth, height, width)
    fill = fill_for(recipe.payload, job.plan.seed, index, shape, job.volumes)
    parts = job.plan.form.encode(shape, fill, room)
    size = sum(part.size for part in parts)
    journal.add(index, size, crc32_join((part.crc, part.size) for part in parts))
    for name, part in zip(job.plan.form.parts(job.plan.names[index]), parts, strict=True):
        write_encoded(job.folder / name, part, job.options)
    return size


class _Shared:
    """What the threads of a pool share: the next index, the first error, the wish to stop."""

    def __init__(self, indices: Index) -> None:
        self._indices: Iterator[int] = iter(indices.tolist())
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self.stop = False

    def next(self) -> int | None:
        with self._lock:
            return None if self.stop else next(self._indices, None)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self.stop = True


def fill_slice(job: Job, indices: Index, journal: Path, threads: int, done: Done = nothing) -> None:
    """Make the files `indices`. On an error the files in work are finished, then it is raised.

    Raises OSError, FeedrateError.
    """
    shared = _Shared(indices)
    reserve = int(job.plan.planned_bytes(indices).max()) + PAGE if len(indices) else 0
    with Journal(journal) as log:

        def work() -> None:
            room = Room(reserve)
            try:
                while (index := shared.next()) is not None:
                    done(1, make_file(job, index, room, log))
            except Exception as error:  # noqa: BLE001  raised again in the caller's thread
                shared.fail(error)

        pool = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(threads, len(indices))))]
        try:
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
        finally:
            shared.stop = True
            for thread in pool:
                if thread.ident is not None:
                    thread.join()
    if shared.error is not None:
        raise shared.error
