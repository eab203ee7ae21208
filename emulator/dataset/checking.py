"""Compare a dataset with its manifest, in one process or over many ranks, and repair it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.config.storage import Place
from emulator.dataset.manifest import Dataset
from emulator.dataset.progress import READERS, DoneCount, showing
from emulator.dataset.shared import open_together, repeats_of
from emulator.dataset.sizes import Index
from emulator.dataset.verify import Fault, check_files, evenly_spread, extra_files
from emulator.dataset.writer import repair, repair_was_cut_off
from emulator.launch.comm import Comm, agreed


@dataclass(frozen=True, slots=True, kw_only=True)
class Checking:
    """Options of `verify`."""

    sample: int | None = None
    """Number of files to read, evenly spread; None: all."""
    threads: int | None = None
    """Number of reader threads of a process; None: 16."""
    repair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of `verify`."""

    files: int
    """Number of files of the dataset."""
    checked: int
    """Number of files that were read."""
    found: Sequence[Fault]
    """The faults before the repair."""
    left: Sequence[Fault]
    """Remaining faults: those found, less those repaired."""
    repeated: Mapping[str, int]
    """Number of retried requests to an object store, by reason."""


def verify(place: Place, comm: Comm, how: Checking | None = None) -> Checked | None:
    """Compare the files of the dataset at `place` with its manifest; return None on ranks after the first.

    Collective over `comm`; each rank reads a share. Raises DatasetError if there is no dataset, StorageError;
    Quiet if a rank has reported the error.
    """
    how = how or Checking()
    threads = how.threads or READERS
    dataset = open_together(comm, place)
    files = len(dataset.manifest.names)
    indices = evenly_spread(files, how.sample)
    faults = _faults(dataset, indices, comm, threads)
    repeated = repeats_of(comm, dataset.store)
    left = _left_by_repair(dataset, faults, comm, threads) if how.repair else faults
    if comm.rank != 0:
        return None
    return Checked(files=files, checked=len(indices), found=faults, left=left, repeated=repeated)


def _faults(dataset: Dataset, indices: Index, comm: Comm, threads: int) -> list[Fault]:
    """Check the files `indices`, of which each rank reads a share; return all faults. Collective."""
    share = indices[comm.rank :: comm.size]
    tally = DoneCount()
    size = agreed(comm, lambda: dataset.manifest.bytes_of(indices))
    with showing("verify", tally, len(indices), size, comm.size):
        faults = agreed(comm, lambda: check_files(dataset, share, threads, tally.add))
        faults += agreed(comm, lambda: extra_files(dataset) if comm.rank == 0 else [])
    all_faults: list[Fault] = comm.bcast([fault for part in comm.gather(faults) for fault in part])
    return all_faults


def _left_by_repair(dataset: Dataset, faults: Sequence[Fault], comm: Comm, threads: int) -> Sequence[Fault]:
    """Let the first rank make wrong files again; return the faults that stay. Collective."""
    first = comm.rank == 0
    needed = agreed(comm, lambda: first and bool(faults or repair_was_cut_off(dataset)))
    if not comm.bcast(needed):
        return faults
    unread = [fault for fault in faults if fault.unread]
    wrong = [fault for fault in faults if not fault.unread]
    remaining: list[Fault] = agreed(comm, lambda: _repaired(dataset, wrong, threads) if first else [])
    return [*unread, *comm.bcast(remaining)]


def _repaired(dataset: Dataset, faults: Sequence[Fault], threads: int) -> list[Fault]:
    """Make the files of `faults` again; return the remaining faults. Raises DatasetError, StorageError."""
    names = [fault.name for fault in faults]
    repair(dataset, names, threads)
    wanted = set(names)
    known = {name: index for index, name in enumerate(dataset.manifest.names) if name in wanted}
    indices = np.array([known[name] for name in names if name in known], np.int64)
    return check_files(dataset, indices, threads, lambda files, size: None) + extra_files(dataset)
