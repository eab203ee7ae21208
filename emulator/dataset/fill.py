"""Fill a place with samples: a pool of threads over a slice of the indices.

AES, checksums and writes run outside of Python's lock, so a few threads keep a disk busy. Random payloads
are streamed through 16 MiB a thread; grown ones take the memory of one sample.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from emulator.dataset.checksum import crc32_join
from emulator.dataset.formats.base import Encoded, Room
from emulator.dataset.formats.layout import Key, Layout
from emulator.dataset.grow import RandomSource, fill_for, random_sources
from emulator.dataset.journal import Journal
from emulator.dataset.plan import Plan
from emulator.dataset.seeds import SeedVolume
from emulator.dataset.sizes import Index
from emulator.dataset.writing import pour, stream, write_encoded
from emulator.storage.base import Draft, Store, WriteOptions
from emulator.storage.files import REQUEST

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
    store: Store
    volumes: Sequence[SeedVolume] = ()
    options: WriteOptions = field(default_factory=WriteOptions)


def make_file(job: Job, index: int, room: Room, journal: Journal) -> int:
    """File number `index` on storage, all its parts; returns its bytes. Raises OSError, SpecError.

    The parts get their names only when all are written and the journal knows them.
    """
    form, recipe = job.plan.form, job.plan.recipe
    depth, height, width = (int(edge) for edge in job.plan.shapes(np.array([index]))[0])
    shape = (recipe.samples_per_file, depth, height, width)
    streams = form.streams or form.serial
    sources = random_sources(recipe.payload, job.plan.seed, index) if streams else None
    with ExitStack() as stack:
        names = form.parts(job.plan.names[index])
        targets = [stack.enter_context(job.store.target(name, job.options)) for name in names]
        if sources is not None and form.serial:
            written = [pour(targets[0], form.blocks(shape, sources), room(0, REQUEST)[:REQUEST])]
        elif sources is not None:
            written = _stream(form.layouts(shape), targets, sources, room)
        else:
            fill = fill_for(recipe.payload, job.plan.seed, index, shape, job.volumes)
            written = _composed(form.encode(shape, fill, room), targets)
        size = sum(length for _, length in written)
        journal.add(index, size, crc32_join(written))
        for target in targets:
            target.publish()
    return size


def _stream(
    layouts: Sequence[Layout], targets: Sequence[Draft], sources: Mapping[Key, RandomSource], room: Room
) -> list[tuple[int, int]]:
    """(CRC-32, bytes) of each part, written through one buffer."""
    buffer = room(0, REQUEST)[:REQUEST]
    for layout, target in zip(layouts, targets, strict=True):
        stream(target, layout, sources, buffer)
    sums = {key: source.crc for key, source in sources.items()}
    return [(layout.crc(sums), layout.size) for layout in layouts]


def _composed(parts: Sequence[Encoded], targets: Sequence[Draft]) -> list[tuple[int, int]]:
    """(CRC-32, bytes) of each part, written from memory."""
    for part, target in zip(parts, targets, strict=True):
        write_encoded(target, part)
    return [(part.crc, part.size) for part in parts]


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


def fill_slice(job: Job, indices: Index, worker: int, threads: int, done: Done = nothing) -> None:
    """Make the files `indices`, and keep the journal of `worker`.

    On an error the files in work are finished, then it is raised. Raises OSError, FeedrateError.
    """
    shared = _Shared(indices)
    with Journal(job.store, worker) as log:

        def work() -> None:
            room = Room()
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
