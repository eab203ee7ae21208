"""Generate a dataset: in one process, over many ranks, or on a Dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.manifest import Manifest
from emulator.dataset.owned import Holding, removable
from emulator.dataset.plan import DatasetPlan, planned_sum
from emulator.dataset.progress import DoneCount, FilesDone, showing
from emulator.dataset.shared import repeats_of
from emulator.dataset.writer import DatasetWriter, exclusive, with_seeds
from emulator.errors import FeedrateError, SpecError
from emulator.launch.comm import Comm, agreed
from emulator.record.machine import cores
from emulator.record.out import require_new_place
from emulator.registry import FILLERS
from emulator.storage.base import Store, WriteOptions
from emulator.storage.folder import FolderStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Options of `generate`. None changes a byte of the dataset."""

    seeds: Path | None = None
    """Folder of KiTS19 as published, to grow ct-realistic samples from."""
    threads: int | None = None
    """Number of writers of a process; None: a few more than cores."""
    dask: str = ""
    """Address of a Dask scheduler; empty to use this process, or the ranks of `comm`."""
    write: WriteOptions = field(default_factory=WriteOptions)
    space_check: bool = True
    """Refuse a plan that is larger than the free space."""
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The result of `generate`."""

    store: Store
    manifest: Manifest
    made: FilesDone
    """Files, bytes and time of this call."""
    begun: bool
    """True if it wrote at least the manifest; False if nothing was missing."""
    repeated: Mapping[str, int]
    """Number of retried requests to an object store, by reason."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `generate`. Complete files stay, and the same call resumes."""

    def __init__(self, done: int, files: int, size: int) -> None:
        self.done, self.files, self.bytes = done, files, size


def generate(store: Store, plan: DatasetPlan, comm: Comm, how: Filling | None = None) -> Filled | None:
    """Make the missing files of the dataset `plan` in `store`; return None on ranks other than the first.

    Collective over `comm`; each rank makes a share of the files. Their bytes depend only on the plan. Raises
    SpecError, DatasetError, StorageError, Interrupted; Quiet if a rank has reported the error.
    """
    how = how or Filling()
    if how.dask and comm.size > 1:
        raise SpecError("--dask under mpirun would make every file twice", "use only one of them")
    first = comm.rank == 0
    if isinstance(store, FolderStore):
        agreed(comm, lambda: require_new_place(store.root) if first else None)
    with ExitStack() as stack:
        no_lock = nullcontext((Holding(store), None))
        holding, before = agreed(comm, lambda: stack.enter_context(exclusive(store) if first else no_lock))
        if how.force:
            agreed(comm, lambda: removable(holding) if first else None)  # before seeds are made
        writer = DatasetWriter(store, _with_seeds(store, plan, comm, how.seeds), how.force)
        removed = agreed(comm, lambda: writer.check(holding) if first else None)
        share = np.arange(comm.rank, plan.files, comm.size)
        missing = agreed(comm, lambda: writer.unfinished(share))
        sums = comm.sum(np.array([len(missing), planned_sum(writer.plan, missing)], np.float64))
        files, size = map(int, sums)

        def begin() -> bool:
            """Prepare the store if there is something to do; return whether there is."""
            if removed is None or (not files and writer.finished()):
                return False
            if how.space_check:
                writer.require_space(files, size, removed.bytes)
            writer.begin(holding, removed, before)
            return True

        begun = comm.bcast(agreed(comm, begin))
        made = _make(writer, missing, files, size, comm, how)
        manifest = agreed(comm, lambda: (writer.finish() if begun else writer.finished()) if first else None)
    repeated = repeats_of(comm, store)
    if manifest is None:
        return None
    return Filled(store=store, manifest=manifest, made=made, begun=begun, repeated=repeated)


def _with_seeds(store: Store, plan: DatasetPlan, comm: Comm, seeds: Path | None) -> DatasetPlan:
    """Return the plan with its seeds, which are made where they are missing. Collective."""
    # Seeds are local files, so one rank of each host makes them for an object store.
    makes_seeds = comm.rank == 0 if isinstance(store, FolderStore) else comm.node().rank == 0
    seeded = agreed(comm, lambda: with_seeds(plan, store, seeds) if makes_seeds else plan)
    shared: DatasetPlan = comm.bcast(seeded)
    return shared


def _make(
    writer: DatasetWriter, missing: NDArray[np.int64], files: int, size: int, comm: Comm, how: Filling
) -> FilesDone:
    """Make this rank's `missing` files and show the progress. Collective.

    `files` and `size` are files and bytes that all ranks will make; those that were made are returned.
    """
    tally = DoneCount()
    with showing("generate", tally, files, size, comm.size) as progress:
        try:
            _fill(writer, missing, comm, how, tally)
        except KeyboardInterrupt:
            done_files, done_bytes = tally.now()
            raise Interrupted(done_files, files, done_bytes) from None
        made_files, made_bytes = map(int, comm.sum(np.array(tally.now(), np.float64)))
        return replace(progress(), files=made_files, bytes=made_bytes)


def _fill(writer: DatasetWriter, mine: NDArray[np.int64], comm: Comm, how: Filling, tally: DoneCount) -> None:
    if how.dask:
        FILLERS.load("dask")(writer, mine, how.dask, how.write, tally.add)
        return
    try:
        writer.fill(mine, comm.rank, how.threads or _threads(writer), how.write, tally.add)
    except FeedrateError as error:
        if comm.size == 1:
            raise
        print(f"feedrate: error: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        comm.abort(error.exit_code)  # ends all ranks; the next run resumes


def _threads(writer: DatasetWriter) -> int:
    """Return the number of writers of this process."""
    if writer.plan.recipe.size.bytes_mean >= 8 << 20:
        return min(16, cores() + 2)
    # Writers of small samples mostly wait: for fsync, or for the object store.
    return min(16, 4 * cores()) if isinstance(writer.store, FolderStore) else 16
