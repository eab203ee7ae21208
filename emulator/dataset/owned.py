"""Tell feedrate's own files from others: only its own are removed or replaced.

feedrate removes and replaces only files that an intact manifest, table, plan or journal of its own names,
with the size that it says. A plan claims the names of its files when nothing else has them. Adopted files are
never removed; neither is anything that feedrate may not have made: then the command refuses and lists it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from emulator.config.reader import build, to_plain
from emulator.dataset.journal import JOURNALS, journalled, read_writers
from emulator.dataset.manifest import MANIFEST, TABLE, Dataset, checksum_of, open_dataset, tables
from emulator.dataset.names import HIDDEN
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.table import ROW, ROWS_AT_ONCE, Table
from emulator.errors import DatasetError, SpecError
from emulator.files import Owner, written_by
from emulator.storage.base import Entry, Store

PLAN = f"{HIDDEN}/plan.json"
"""The plan of the dataset that is being made, until it is finished."""
LOCK = f"{HIDDEN}/lock"
"""Names the process that is making it."""
_SEEDS = re.compile(rf"{HIDDEN}/seeds/[0-9a-f]{{16}}/(seeds\.json|\d{{4}}_[xy]\.npy)")
_JOURNAL = re.compile(rf"{JOURNALS}\d{{6}}(\.\d{{6}})?")


def is_record(name: str) -> bool:
    """Return True for a manifest, a table, or a file of .feedrate/: they are not samples."""
    return name == MANIFEST or TABLE.fullmatch(name) is not None or name.startswith(f"{HIDDEN}/")


def files_below(root: Path, inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield the name and bytes of every regular file below `root`/`inside` that is no record.

    All files of a folder come before those of the next. Links to folders are not followed. Raises OSError.
    """
    waiting = [inside]
    while waiting:
        inside = waiting.pop()
        with os.scandir(root / inside) as entries:
            for entry in entries:
                name = inside + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in ("lost+found", HIDDEN):  # only root can read lost+found
                        waiting.append(f"{name}/")
                elif entry.is_file() and not is_record(name):
                    yield name, entry.stat().st_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """plan.json: a dataset that is being made. It owns the names of its files."""

    plan: DatasetPlan
    identity: str
    """The plan's, as computed by the feedrate that began."""
    feedrate: Literal["plan"] = "plan"

    @classmethod
    def read(cls, data: bytes) -> Begun:
        """Parse what `text` returned. Raises ValueError, RecursionError, SpecError."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != checksum_of(content):
            raise SpecError("its own checksum is wrong")
        return build(cls, content)

    def text(self) -> bytes:
        """Return the plan as it is written: with a SHA-256 over everything else."""
        content = to_plain(self)
        return json.dumps({**content, "checksum": checksum_of(content)}).encode()


@dataclass(frozen=True, slots=True)
class Holding:
    """The files of feedrate's at a place."""

    store: Store
    dataset: Dataset | None = None
    begun: Begun | None = None

    @property
    def plans(self) -> list[DatasetPlan]:
        """Plans whose files are ours: of the dataset, and of the one that is being made."""
        plans = []
        if self.dataset is not None and self.dataset.manifest.plan is not None:
            plans.append(self.dataset.manifest.plan)
        if self.begun is not None:
            plans.append(self.begun.plan)
        return plans

    def journals(self) -> Iterator[Entry]:
        """List the journals of the plan."""
        if self.begun is not None:
            yield from (entry for entry in self.store.entries(JOURNALS) if _JOURNAL.fullmatch(entry.name))


def look(store: Store) -> Holding:
    """Find feedrate's files at the place.

    Raises DatasetError when it holds files and nothing says that they are ours; StorageError.
    """
    begun = _begun(store)
    try:
        dataset = open_dataset(store)
    except DatasetError as error:
        if store.get(MANIFEST) is not None:
            hint = "nothing was changed: choose a new folder, or move it away"
            raise DatasetError(error.what, hint) from None
        dataset = None
    if dataset is None and begun is None:
        _require_nobodys(store)
    return Holding(store, dataset, begun)


def _begun(store: Store) -> Begun | None:
    """Return plan.json; None: there is none. Raises DatasetError, StorageError."""
    data = store.get(PLAN)
    if data is None:
        return None
    try:
        return Begun.read(data)
    except (ValueError, RecursionError, SpecError):
        raise DatasetError(
            f"{store}/{PLAN} is damaged, or not feedrate's", "choose a new folder, or move it away"
        ) from None


def _require_nobodys(store: Store) -> None:
    """Raises DatasetError for files that feedrate did not leave before it had a plan, StorageError."""
    killed = Owner.read(store.get(LOCK) or b"")
    writers = {_writer(killed)} if killed is not None else set()
    ours = {LOCK, *tables(store)}
    for name in store.names():
        if name not in ours and not _SEEDS.fullmatch(name) and not _left_by(writers, name, ()):
            raise DatasetError(
                f"{store} is not empty and holds no dataset of feedrate (it has {name.split('/')[0]})",
                "choose a new folder",
            )


def listed(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are."""
    first, more = names[:5], names[5:]
    return ", ".join(first) + (f" and {len(more)} more" if more else "")


def require_free(holding: Holding, plan: DatasetPlan) -> None:
    """Raises DatasetError when files of others have names that a plan needs, StorageError."""
    store, folders = holding.store, frozenset(plan.folders)

    def in_the_way(name: str) -> bool:
        if name in folders:  # a file where a folder is to be
            return True
        if holding.begun is None and name.startswith(JOURNALS):
            return True
        if plan.index_of(name) is not None:  # a sample's name: ours only if a plan of ours has it, too
            return all(own.index_of(name) is None for own in holding.plans)
        # A folder may have a sample's name, too. If it is empty, the sample itself finds it in its way.
        return any(plan.index_of(str(folder)) is not None for folder in PurePosixPath(name).parents)

    taken = [name for name in store.names() if in_the_way(name)]
    if taken:
        raise DatasetError(
            f"{store}: {len(taken)} files are in the way that feedrate did not make: {listed(taken)}",
            "move them away, or choose a new folder",
        )


@dataclass(frozen=True, slots=True)
class Removable:
    """Samples that may be removed: all have the size that was recorded."""

    samples: list[str]
    bytes: int


def removable(holding: Holding) -> Removable:
    """Find the samples at the place. Raises DatasetError if one has not the recorded size, StorageError."""
    store = holding.store
    if holding.dataset is not None and holding.dataset.manifest.plan is None:
        raise DatasetError(
            f"the files in {store} were adopted: feedrate did not make them and never removes them",
            "choose a new folder",
        )
    if not holding.plans:
        return Removable([], 0)
    plan = max(holding.plans, key=lambda plan: plan.files)
    sizes = recorded(holding, plan.files)["bytes"]
    there, samples, present = np.zeros(plan.files, np.int64), [], set()
    for entry in store.entries():
        index = plan.index_of(entry.name)
        if index is not None:
            samples.append(entry.name)
            present.add(index)
            there[index] += entry.size
    doubtful = [plan.names[index] for index in sorted(present) if there[index] != sizes[index]]
    if doubtful:
        raise DatasetError(
            f"{store}: {len(doubtful)} files are not as large as feedrate recorded, and may be somebody "
            f"else's: {listed(doubtful)}",
            "run the command that made the dataset again, or move them away",
        )
    return Removable(samples, int(there.sum()))


def recorded(holding: Holding, files: int) -> Table:
    """Return a row for each of `files` samples, from the manifest and the journals, without its shape.

    A sample that neither lists has 0 bytes. Raises StorageError.
    """
    rows = np.zeros(files, ROW)
    if holding.dataset is not None:
        known = holding.dataset.rows
        last = min(files, len(known))
        for begin in range(0, last, ROWS_AT_ONCE):
            stop = min(begin + ROWS_AT_ONCE, last)
            for name in ("bytes", "crc"):
                rows[name][begin:stop] = known[name][begin:stop]
    if holding.begun is not None:
        for records in journalled(holding.store):
            planned = records[records["index"] < files]
            for name in ("bytes", "crc"):
                rows[name][planned["index"]] = planned[name]
    return rows


def remove(holding: Holding, found: Removable) -> None:
    """Remove `found` and what we wrote beside it. The manifest, which says what is ours, goes last.

    Raises StorageError.
    """
    store = holding.store
    tidy(holding, None)
    store.delete(found.samples)
    store.delete([entry.name for entry in holding.journals()])
    if holding.begun is not None:
        store.delete([PLAN])
    if holding.dataset is not None:
        store.delete([MANIFEST])
    store.delete(tables(store))
    store.clear(sorted({folder for plan in holding.plans for folder in plan.folders}, reverse=True))


def tidy(holding: Holding, before: Owner | None) -> None:
    """Remove the temporary files of feedrate processes that were killed: journals and locks name those.

    `before` is who left the lock behind. Raises StorageError.
    """
    store = holding.store
    writers = read_writers(store) if holding.begun is not None else set()
    if before is not None:
        writers.add(_writer(before))
    if writers:
        store.delete([name for name in store.names() if _left_by(writers, name, holding.plans)])


def _writer(owner: Owner) -> tuple[int, int]:
    """Return process and host as journals record them."""
    return owner.pid, zlib.crc32(owner.host[:32].encode())


def _left_by(writers: set[tuple[int, int]], name: str, plans: Sequence[DatasetPlan]) -> bool:
    """Return True for the temporary file of a record or of a planned sample that one of `writers` made."""
    folder, slash, last = name.rpartition("/")
    temporary = written_by(last)
    if temporary is None:
        return False
    file, host, process = temporary
    if (process, zlib.crc32(host.encode())) not in writers:
        return False
    final_name = folder + slash + file
    return is_record(final_name) or any(plan.index_of(final_name) is not None for plan in plans)
