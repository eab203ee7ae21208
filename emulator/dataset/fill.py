"""Make files of a dataset: a pool of threads over a share of the indices.

AES, checksums and writes run outside of Python's lock, so a few threads keep a disk busy. Every thread writes
through one buffer of 16 MiB; samples that are grown from seed volumes take their own memory besides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from emulator.dataset.checksum import crc32_join
from emulator.dataset.formats.base import write_file
from emulator.dataset.grow import sources_of
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.progress import Done, Journal
from emulator.dataset.seeds import SeedVolume, load_seeds
from emulator.dataset.sizes import Index
from emulator.dataset.writer import DatasetWriter, seeds_folder
from emulator.storage.base import Store, WriteOptions
from emulator.storage.folder import REQUEST
from emulator.storage.posix import aligned_buffer

_SMALL = 8 << 20


def default_threads(cores: int, sample_bytes: float) -> int:
    """Writers of one process: more than cores, as most wait for the disk; still more for small samples,
    as most wait for fsync."""
    return min(16, 4 * cores if sample_bytes < _SMALL else cores + 2)


@dataclass(frozen=True, kw_only=True)
class FillTask:
    """What a worker has to know to make any file of a dataset."""

    plan: DatasetPlan
    store: Store
    volumes: Sequence[SeedVolume]
    options: WriteOptions

    @classmethod
    def of(cls, writer: DatasetWriter, options: WriteOptions) -> FillTask:
        """The task of `writer`. Raises DatasetError."""
        volumes = load_seeds(seeds_folder(writer.store), writer.plan.seeds)
        return cls(plan=writer.plan, store=writer.store, volumes=volumes, options=options)

    def make_file(self, index: int, buffer: memoryview, journal: Journal) -> int:
        """File number `index` on storage, all its parts; returns its bytes. Raises OSError, SpecError.

        The parts get their names only when all are written and the journal knows them.
        """
        form, recipe = self.plan.form, self.plan.recipe
        depth, height, width = (int(edge) for edge in self.plan.shapes(np.array([index]))[0])
        shape = (recipe.samples_per_file, depth, height, width)
        sources = sources_of(recipe.payload, self.plan.seed, index, shape, self.volumes)
        with ExitStack() as stack:
            names = form.parts(self.plan.names[index])
            drafts = [stack.enter_context(self.store.draft(name, self.options)) for name in names]
            written = [
                write_file(draft, pieces, sources, buffer)
                for draft, pieces in zip(drafts, form.files(shape, sources), strict=True)
            ]
            size = sum(length for _, length in written)
            journal.add(index, size, crc32_join(written))
            for draft in drafts:
                draft.publish()
        return size

    def fill(self, indices: Index, worker: int, threads: int, done: Done = lambda files, size: None) -> None:
        """Make the files `indices`, and keep the journal of `worker`.

        On an error the files in work are finished, then it is raised. Raises OSError, FeedrateError.
        """
        waiting: Iterator[int] = iter(indices.tolist())
        lock = threading.Lock()
        errors: list[BaseException] = []
        stop = threading.Event()
        with Journal(self.store, worker) as journal:

            def work() -> None:
                buffer = aligned_buffer(REQUEST)
                try:
                    while not stop.is_set():
                        with lock:
                            index = next(waiting, None)
                        if index is None:
                            return
                        done(1, self.make_file(index, buffer, journal))
                except Exception as error:  # noqa: BLE001  raised again in the caller's thread
                    errors.append(error)
                    stop.set()

            count = max(1, min(threads, len(indices)))
            pool = [threading.Thread(target=work, daemon=True) for _ in range(count)]
            try:
                for thread in pool:
                    thread.start()
                for thread in pool:
                    thread.join()
            finally:
                stop.set()
                for thread in pool:
                    if thread.ident is not None:
                        thread.join()
        if errors:
            raise errors[0]


def fill(
    writer: DatasetWriter, indices: Index, worker: int, threads: int, options: WriteOptions, done: Done
) -> None:
    """Make the files `indices` with threads of this process. Raises StorageError, DatasetError."""
    try:
        FillTask.of(writer, options).fill(indices, worker, threads, done)
    except OSError as error:
        raise writer.failure(error) from None
