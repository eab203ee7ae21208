"""Make a dataset at a place: lock it, refuse what is in the way, fill or resume it, write the manifest.

DIR/.feedrate/plan.json       what is being made, until it is finished
DIR/.feedrate/journal-*       what is done, one per worker, until it is finished
DIR/.feedrate/seeds/          preprocessed seed volumes
DIR/manifest.json, samples-*.npy, sample_* or 0000/sample_*

One process or many make it, each a share of the files. A file has the same bytes whichever process makes it.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataset.checksum import crc32_join
from emulator.dataset.formats.base import write_file
from emulator.dataset.grow import seed_payload, sources_of
from emulator.dataset.journal import Journal, journalled
from emulator.dataset.manifest import ADOPTED, Dataset, Manifest, open_dataset, write_manifest
from emulator.dataset.names import HIDDEN
from emulator.dataset.owned import (
    LOCK,
    PLAN,
    Begun,
    Holding,
    Removable,
    look,
    recorded,
    removable,
    remove,
    require_free,
    tidy,
)
from emulator.dataset.payload import measure_payload
from emulator.dataset.plan import DatasetPlan, outlook
from emulator.dataset.progress import READERS, Done, by_threads
from emulator.dataset.sizes import Index
from emulator.dataset.verify import evenly_spread, looks_right
from emulator.errors import DatasetError, SpecError, StorageError, storage_error, storage_errors
from emulator.files import Owner
from emulator.registry import PAYLOADS
from emulator.storage.base import Store, WriteOptions
from emulator.storage.folder import REQUEST, FolderStore
from emulator.storage.posix import aligned_buffer
from emulator.units import show_bytes

_TOGETHER = 64
"""Most files that a thread makes at a time."""
_QUEUED = 4096
"""Most files that wait for a thread; each takes a kilobyte or two."""


@contextlib.contextmanager
def exclusive(store: Store) -> Iterator[tuple[Holding, Owner | None]]:
    """Hold the lock of the place; yields feedrate's files there, and the owner of a stale lock.

    The folder is made; when the body fails, it is removed if nothing is in it. Raises DatasetError when the
    place is not feedrate's, or in use; StorageError.
    """
    look(store)
    new_folders: list[Path] = []
    if isinstance(store, FolderStore):
        new_folders = [folder for folder in (store.root, *store.root.parents) if not folder.exists()]
        with storage_errors(f"cannot prepare {store}"):
            store.root.mkdir(parents=True, exist_ok=True)
    try:
        with store.exclusive(LOCK) as before:
            tidy(Holding(store), before)  # it may have been killed before it wrote a plan
            yield look(store), before
    except BaseException:
        for folder in new_folders:
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()
        raise


def seeds_folder(store: Store) -> Path:
    """Return the folder of preprocessed seed volumes; for a dataset of objects it is on this host."""
    if isinstance(store, FolderStore):
        return store.root / HIDDEN / "seeds"
    return Path.home() / ".cache/feedrate/seeds"


def with_seeds(plan: DatasetPlan, store: Store, seeds: Path | None) -> DatasetPlan:
    """Return `plan` with its seed volumes, which are prepared if its payload is grown from them.

    Raises SpecError, DatasetError, StorageError.
    """
    grown = seed_payload(plan.recipe.payload)
    if grown is not None:
        return replace(plan, seeds=tuple(grown.prepare(seeds_folder(store), seeds, plan.recipe.size)))
    if seeds is not None:
        raise SpecError(f"--seeds is for the payload {PAYLOADS}, not {plan.recipe.payload}", "leave one out")
    return plan


@dataclass(frozen=True, slots=True)
class DatasetWriter:
    """A place for a dataset and the plan for it."""

    store: Store
    plan: DatasetPlan
    force: bool = False
    """Replace the dataset that is there."""

    def check(self, holding: Holding) -> Removable:
        """Return what `begin` will remove; changes nothing. Raises DatasetError to refuse, StorageError."""
        if self.force:
            old = removable(holding)
            require_free(holding, self.plan)
            return old
        if holding.dataset is not None:
            manifest = holding.dataset.manifest
            self._require_same(manifest, len(manifest.names), "")
        if holding.begun is not None:
            last = max(
                (int(records["index"].max()) for records in journalled(self.store) if len(records)),
                default=-1,
            )
            self._require_same(holding.begun, last + 1, " an unfinished part of")
        require_free(holding, self.plan)
        return Removable([], 0)

    def _require_same(self, there: Manifest | Begun, files: int, part: str) -> None:
        """Raises DatasetError when what is there is of another or a larger dataset."""
        if there.identity != self.plan.identity:
            known = ADOPTED
            if plan := there.plan:
                ours, theirs = self.plan.facts, plan.facts
                different = ", ".join(key for key in theirs if theirs[key] != ours[key])
                known = (
                    f"recipe {plan.recipe.name}, format {plan.recipe.format}, payload {plan.recipe.payload}, "
                    f"seed {plan.seed}; different: {different or 'the version of feedrate'}"
                )
            raise DatasetError(
                f"{self.store} holds{part} another dataset ({known})",
                "choose another folder, repeat the first command's options, or --force to replace it",
            )
        if files > self.plan.files:
            raise DatasetError(
                f"{self.store} holds {files} files of this dataset, {self.plan.files} were asked for",
                "use --files of at least that, or --force to replace it",
            )

    def begin(self, holding: Holding, found: Removable, before: Owner | None) -> None:
        """Prepare the place after `check`: remove what it found, write the plan. Raises StorageError."""
        if self.force:
            remove(holding, found)
        else:
            tidy(holding, before)
        self.store.put(PLAN, Begun(plan=self.plan, identity=self.plan.identity).text())
        self.store.arrange(self.plan.folders)

    def unfinished(self, indices: Index) -> Index:
        """Return those `indices` whose files are missing, were not recorded, or have another size or head.

        Raises StorageError.
        """
        if self.force:
            return indices
        form, names = self.plan.form, self.plan.names
        sizes = recorded(look(self.store), self.plan.files)["bytes"]

        def intact(index: int) -> bool:
            return not looks_right(self.store, form, form.parts(names[index]), int(sizes[index]))

        is_recorded = sizes[indices] > 0
        known = indices[is_recorded]
        are_intact = np.fromiter(by_threads(intact, known, READERS), np.bool_, len(known))
        missing = ~is_recorded
        missing[is_recorded] = ~are_intact
        unfinished: Index = indices[missing]
        return unfinished

    def require_space(self, files: int, needed: int, freed: int) -> None:
        """Raises StorageError when `files` files of `needed` bytes are known not to fit.

        `freed` bytes are removed before.
        """
        inodes = self.store.free_files()
        needed_inodes = files * len(self.plan.form.parts(self.plan.names[0]))
        if inodes is not None and inodes < needed_inodes:
            raise StorageError(
                f"{self.store} takes {inodes} more files, {needed_inodes} are needed: its inodes are used up",
                "remove some files, take fewer, or --no-space-check if the figure is wrong",
            )
        free = self.store.free()
        if free is not None and free + freed < needed:
            raise StorageError(
                f"{self.store} has {show_bytes(free + freed)} free, {show_bytes(needed)} are needed "
                f"({show_bytes(needed - free - freed)} missing)",
                "free some space, take fewer files, or --no-space-check if the figure is wrong",
            )

    def fill(
        self, indices: Index, worker: int, threads: int, options: WriteOptions, done: Done = lambda *_: None
    ) -> None:
        """Make the files `indices` with `threads` threads, and keep the journal of `worker`.

        AES, checksums and writes release the GIL, so a few threads keep a disk busy. Each thread has a buffer
        of 16 MiB; samples grown from seed volumes take memory of their own. After an error, files that other
        threads have begun are finished. Raises StorageError, DatasetError.
        """
        if not len(indices):
            return
        grown = seed_payload(self.plan.recipe.payload)
        seeds = grown.load(seeds_folder(self.store), self.plan.seeds) if grown else None
        local, over = threading.local(), threading.Event()
        # Small files are made several at a time: one commit of the file system then serves them all.
        file_bytes = self.plan.recipe.size.bytes_mean * self.plan.recipe.samples_per_file
        together = max(1, min(_TOGETHER, REQUEST // file_bytes))

        def make(begin: int) -> None:
            if over.is_set():
                return
            if not hasattr(local, "buffer"):  # the first task of this thread
                local.buffer = aligned_buffer(REQUEST)
            try:
                block = indices[begin : begin + together]
                done(len(block), self._make_files(block, seeds, options, local.buffer, journal))
            except BaseException:
                over.set()
                raise

        try:
            with Journal(self.store, worker) as journal, ThreadPoolExecutor(threads) as pool:
                try:
                    for begin in range(0, len(indices), _QUEUED):
                        list(pool.map(make, range(begin, min(begin + _QUEUED, len(indices)), together)))
                finally:
                    over.set()
        except OSError as error:
            raise self._failure(error) from None

    def _make_files(
        self, indices: Index, seeds: Any, options: WriteOptions, buffer: memoryview, journal: Journal
    ) -> int:
        """Write all parts of these files; returns their bytes. Raises OSError, FeedrateError.

        The parts get their names only when all are written and the journal knows them.
        """
        form, recipe = self.plan.form, self.plan.recipe
        shapes = self.plan.sizes.shapes(indices).tolist()
        with contextlib.ExitStack() as stack:
            drafts, records = [], []
            for index, shape in zip(indices.tolist(), shapes, strict=True):
                whole = (recipe.samples_per_file, *shape)
                sources = sources_of(recipe.payload, self.plan.seed, index, whole, seeds)
                parts = [
                    stack.enter_context(self.store.draft(name, options))
                    for name in form.parts(self.plan.names[index])
                ]
                written = [
                    write_file(draft, pieces, sources, buffer)
                    for draft, pieces in zip(parts, form.files(whole, sources), strict=True)
                ]
                records.append((index, sum(length for _, length in written), crc32_join(written)))
                drafts += parts
            for record in records:
                journal.add(*record)
            for draft in drafts:
                draft.publish()
        return sum(size for _, size, _ in records)

    def _failure(self, error: OSError) -> StorageError:
        """Return the error for a failed write, with what is missing and how to go on."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            failure = storage_error(error, "cannot write a sample")
            hint = failure.hint or "see the system log"
            return StorageError(failure.what, f"{hint}; the same command resumes")
        sizes = recorded(look(self.store), self.plan.files)["bytes"]
        missing = max(outlook(self.plan).total - int(sizes.sum()), 0)
        full = "no space"
        if self.store.free_files() == 0 or (self.store.free() or 0) > missing:
            full = "no inodes or no quota"  # some file systems report neither
        return StorageError(
            f"{full} left in {self.store}: {np.count_nonzero(sizes)} of {self.plan.files} files are done, "
            f"{show_bytes(missing)} are missing",
            "make room and run the same command again, it resumes",
        )

    def finished(self) -> Manifest | None:
        """Return the manifest of the plan's dataset if it is complete, else None. Raises StorageError."""
        try:
            manifest = open_dataset(self.store).manifest
        except DatasetError:
            return None
        same = manifest.identity == self.plan.identity and len(manifest.names) == self.plan.files
        return manifest if same and not self.force and self.store.get(PLAN) is None else None

    def finish(self) -> Manifest:
        """Measure the files and write the manifest, once every worker is done; the journals go.

        Raises DatasetError when files are missing, StorageError.
        """
        plan, recipe, store = self.plan, self.plan.recipe, self.store
        rows = recorded(look(store), len(plan.names))
        if missing := int(np.count_nonzero(rows["bytes"] == 0)):
            raise DatasetError(f"{missing} files of {store} are not done", "run the same command again")
        for start in range(0, len(rows), 1 << 16):
            stop = min(start + (1 << 16), len(rows))
            rows["shape"][start:stop] = plan.sizes.shapes(np.arange(start, stop))
        chosen = evenly_spread(len(rows), 16)  # to measure how they compress
        manifest = Manifest(
            format=recipe.format,
            samples_per_file=recipe.samples_per_file,
            plan=plan,
            identity=plan.identity,
            names=plan.names,
            sizes=np.ascontiguousarray(rows["bytes"]),
            measured=measure_payload(
                store, [part for index in chosen for part in plan.form.parts(plan.names[index])]
            ),
        )
        store.settle(plan.folders)
        holding = look(store)
        tidy(holding, None)
        write_manifest(store, manifest, rows)
        store.delete([*(entry.name for entry in holding.journals()), PLAN])
        return manifest


def repair_was_cut_off(dataset: Dataset) -> bool:
    """Return True if a repair of the dataset was killed. Raises DatasetError, StorageError."""
    begun = look(dataset.store).begun
    manifest = dataset.manifest
    if begun is None:
        return False
    return (begun.identity, begun.plan.files) == (manifest.identity, len(manifest.names))


def repair(dataset: Dataset, names: Sequence[str], threads: int) -> None:
    """Make these files of a dataset again, from the recipe that its manifest holds.

    Raises DatasetError when feedrate did not make them, or files of others are in the way; StorageError.
    """
    manifest, store = dataset.manifest, dataset.store
    if (plan := manifest.plan) is None:
        raise DatasetError(
            f"the manifest of {store} does not say how its files were made",
            "only who made them can make them again",
        )
    if plan.identity != manifest.identity:
        raise DatasetError(
            f"this feedrate would make other bytes than are in {store}", "use the version that made it"
        )
    wanted = set(names)
    indices = np.array([index for index, name in enumerate(plan.names) if name in wanted], np.int64)
    with exclusive(store) as (holding, before):
        writer = DatasetWriter(store, plan)
        writer.begin(holding, writer.check(holding), before)
        writer.fill(indices, 0, threads, WriteOptions())
        writer.finish()
