"""The place of a dataset while it is made: who may write there, what is done, what is left.

DIR/.feedrate/plan.json       what is being made, until it is finished
DIR/.feedrate/journal-*       what is done, one per worker, until it is finished
DIR/.feedrate/seeds/          preprocessed seed volumes
DIR/manifest.json, samples-*.npy, sample_* or 0000/sample_*
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats import FORMATS
from emulator.dataset.manifest import (
    HIDDEN,
    MANIFEST,
    ROW,
    TRAINING,
    VALIDATION,
    Manifest,
    Table,
    manifest_files,
    read_head,
    read_rows,
)
from emulator.dataset.plan import Plan, require_same, state
from emulator.dataset.sizes import Index
from emulator.dataset.verify import looks_right, sums_right
from emulator.errors import DatasetError, StorageError, storage_error
from emulator.files import TEMPORARY
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

PLAN = f"{HIDDEN}/plan.json"
_READERS = 8


@dataclass(frozen=True, slots=True)
class Site:
    """A place for a dataset and the plan for it."""

    store: Store
    plan: Plan

    @property
    def seeds(self) -> Path:
        """Where preprocessed seed volumes lie: files to be mapped, on this host where samples are objects."""
        if isinstance(self.store, FolderStore):
            return self.store.root / HIDDEN / "seeds"
        return Path.home() / ".cache/feedrate/seeds"

    @property
    def folders(self) -> list[str]:
        """The folders that samples lie in, the outer ones first; and the empty one beside DLIO's."""
        inside = self.plan.folder
        dealt = [f"{number:04d}" for number in range(min(self.plan.subfolders, self.plan.files))]
        return [inside, VALIDATION, *(f"{inside}/{name}" for name in dealt)] if inside else dealt

    def prepare(self) -> None:
        """Make the place ready for the plan, or refuse. Raises DatasetError, StorageError."""
        try:
            for found in _found(self.store):
                require_same(self.plan, found, str(self.store))
            self.store.put(PLAN, json.dumps(state(self.plan)).encode())
            self.store.arrange(self.folders)
        except OSError as error:
            raise storage_error(error, f"cannot prepare {self.store}") from None

    def recorded(self) -> Records:
        """Files that are said to be done: by the manifest and by the journals. Raises StorageError."""
        rows = np.empty(0, ROW)
        try:
            if self.store.size(MANIFEST) is not None:
                with contextlib.suppress(DatasetError):  # a corrupt manifest is made again
                    rows = read_rows(self.store)
            journalled = read_journals(self.store)
        except OSError as error:
            raise storage_error(error, "cannot read a journal") from None
        records = np.zeros(len(rows), RECORD)
        records["index"] = np.arange(len(rows))
        records["bytes"], records["crc"] = rows["bytes"], rows["crc"]
        records = np.concatenate([journalled, records[~np.isin(records["index"], journalled["index"])]])
        records = records[(records["index"] >= 0) & (records["index"] < self.plan.files)]
        return records[np.argsort(records["index"])]

    def unfinished(self, indices: Index, paranoid: bool) -> Index:
        """Those of `indices` whose files are missing, are not what was recorded, or were not recorded.

        Sizes and headers are compared; checksums when `paranoid`. Raises StorageError.
        """
        records = self.recorded()
        records = records[np.isin(records["index"], indices)]
        form, names = self.plan.form, self.plan.names

        def intact(record: np.void) -> bool:
            parts = form.parts(names[int(record["index"])])
            wrong = looks_right(self.store, form, parts, int(record["bytes"]))
            return not wrong and (not paranoid or sums_right(self.store, parts, int(record["crc"])))

        with ThreadPoolExecutor(_READERS) as pool:  # storage far away answers many at once
            kept = np.fromiter(pool.map(intact, records), np.bool_, len(records))
        left: Index = np.setdiff1d(indices, records["index"][kept], assume_unique=True)
        return left

    def table(self) -> Table:
        """One row per file, once all are done. Raises DatasetError when some are not, StorageError."""
        records = self.recorded()
        if len(records) != self.plan.files:
            missing = self.plan.files - len(records)
            raise DatasetError(f"{missing} files of {self.store} are not done", "run the same command again")
        rows = np.zeros(len(records), ROW)
        rows["bytes"], rows["crc"] = records["bytes"], records["crc"]
        for start in range(0, len(rows), 1 << 16):
            stop = min(start + (1 << 16), len(rows))
            rows["shape"][start:stop] = self.plan.shapes(np.arange(start, stop))
        return rows

    def manifest(self, rows: Table) -> Manifest:
        """The manifest of the finished dataset."""
        recipe = self.plan.recipe
        return Manifest(
            format=recipe.format,
            recipe=recipe.name,
            seed=self.plan.seed,
            names=self.plan.names,
            sizes=np.ascontiguousarray(rows["bytes"]),
            subfolders=self.plan.subfolders,
            samples_per_file=recipe.samples_per_file,
            payload=recipe.payload,
            identity=self.plan.identity,
            seeds=tuple(self.plan.seeds),
        )

    def finish(self, rows: Table, measured: dict[str, float]) -> Manifest:
        """Write the manifest and forget the journals. Raises StorageError."""
        manifest = replace(self.manifest(rows), measured=measured)
        name, table, head = manifest_files(manifest, rows)
        store = self.store
        try:
            store.settle(self.folders)
            store.put(name, table)
            store.put(MANIFEST, head)
            old = [entry.name for entry in store.entries("samples-") if _TABLE.fullmatch(entry.name)]
            journals = [entry.name for entry in store.entries(JOURNALS)]
            store.delete([*(other for other in old if other != name), *journals, PLAN])
        except OSError as error:
            raise storage_error(error, "cannot write the manifest") from None
        return manifest


_TABLE = re.compile(r"samples-.*\.npy")


@contextlib.contextmanager
def opened(store: Store, force: bool) -> Iterator[None]:
    """The place, for this process's exclusive use where that can be had; a folder is made.

    `force` removes the dataset that is in it. Raises DatasetError, StorageError.
    """
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(store, FolderStore):
                _make_folder(store.root)
            if store.size(MANIFEST) is None and next(iter(store.entries(f"{HIDDEN}/")), None) is None:
                _require_empty(store)
            stack.enter_context(store.exclusive(f"{HIDDEN}/lock"))
            if force:
                remove_dataset(store)
        except OSError as error:
            raise storage_error(error, f"cannot prepare {store}") from None
        yield


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"{folder} is a file", "give the folder of the dataset to be")
    folder.mkdir(parents=True, exist_ok=True)


def _found(store: Store) -> Iterator[dict[str, Any]]:
    """What plan.json and manifest.json say it is. Raises DatasetError, StorageError, OSError."""
    with contextlib.suppress(ValueError):
        found = json.loads(store.get(PLAN) or b"null")
        if isinstance(found, dict):
            yield found
    if store.size(MANIFEST) is not None:
        yield read_head(store)


def _require_empty(store: Store) -> None:
    for entry in store.entries():
        raise DatasetError(
            f"{store} is not empty and holds no dataset of feedrate (it has {entry.name.split('/')[0]})",
            "choose a new folder",
        )


def remove_dataset(store: Store) -> None:
    """Remove what feedrate made there, and nothing else. Raises OSError, DatasetError, StorageError."""
    require_own(store)
    store.delete([MANIFEST])
    suffixes = "|".join(re.escape(form.suffix).replace("_x", "_.") for form in FORMATS.values())
    name = rf"sample_\d[^/]*({suffixes})|[^/]*{re.escape(TEMPORARY)}"
    sample = re.compile(rf"({TRAINING}/)?(\d{{4,}}/)?({name})")
    names = [entry.name for entry in store.entries()]
    ours = [name for name in names if sample.fullmatch(name) or _TABLE.fullmatch(name)]
    journals = [name for name in names if name.startswith(JOURNALS)]
    store.delete([*ours, *journals, PLAN])
    inner = {name.rpartition("/")[0] for name in ours if "/" in name}
    dlio = {TRAINING, VALIDATION} if any(name.split("/")[0] == TRAINING for name in inner) else set()
    store.clear(sorted(inner | dlio, reverse=True))


def require_own(store: Store) -> None:
    """Raises DatasetError when the manifest is somebody else's file; a corrupt one is ours."""
    data = store.get(MANIFEST)
    if data is None:
        return
    try:
        head = json.loads(data)
    except ValueError:
        return
    if not isinstance(head, dict) or head.get("feedrate") != "dataset":
        raise DatasetError(f"{store}/{MANIFEST} is not feedrate's", "choose another folder")


# ---- Which files of an unfinished dataset are done: 24 bytes a file, kept before it gets its name.
#
# One journal per worker, in one file or in several objects. A record that was cut off by a kill has a wrong
# check and counts for nothing; a file without a record is made again, which gives the same bytes.


JOURNALS = f"{HIDDEN}/journal-"
"""What the names of all journals begin with."""

RECORD = np.dtype([("index", "<i8"), ("bytes", "<i8"), ("crc", "<u4"), ("check", "<u4")])
Records = NDArray[np.void]


def _pack(index: int, size: int, crc: int) -> bytes:
    head = index.to_bytes(8, "little") + size.to_bytes(8, "little") + crc.to_bytes(4, "little")
    return head + zlib.crc32(head).to_bytes(4, "little")


def _whole(size: int) -> int:
    """Bytes of the whole records in `size` bytes."""
    return size // RECORD.itemsize * RECORD.itemsize


def journal_name(worker: int) -> str:
    """What the names of the journal of worker number `worker` begin with."""
    return f"{JOURNALS}{worker:06d}"


class Journal:
    """Keeps the records of one worker, whose threads may share it."""

    def __init__(self, store: Store, worker: int) -> None:
        """Raises OSError, StorageError."""
        self._appender = store.appender(journal_name(worker), RECORD.itemsize)

    def add(self, index: int, size: int, crc: int) -> None:
        """File `index` has `size` bytes and the CRC-32 `crc`. Raises OSError, StorageError."""
        self._appender.append(_pack(index, size, crc))

    def __enter__(self) -> Self:
        self._appender.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._appender.__exit__(kind, error, trace)


class JournalWatch:
    """Counts what other workers add to their journals from now on."""

    def __init__(self, store: Store, workers: Iterable[int]) -> None:
        self._store = store
        self._names = tuple(journal_name(worker) for worker in workers)
        self._read = {name: _whole(size) for name, size in self._found()}
        self._files = 0
        self._bytes = 0

    def _found(self) -> list[tuple[str, int]]:
        if not self._names:
            return []
        found = [(entry.name, entry.size) for entry in self._store.entries(JOURNALS)]
        return [pair for pair in found if pair[0].startswith(self._names)]

    def now(self) -> tuple[int, int]:
        """(files, bytes) since the beginning of the watch; what cannot be read counts later."""
        try:
            for name, size in self._found():
                at, end = self._read.get(name, 0), _whole(size)
                if end > at:
                    self._count(name, at, end)
        except (OSError, DatasetError, StorageError):
            pass
        return self._files, self._bytes

    def _count(self, name: str, at: int, end: int) -> None:
        data = memoryview(bytearray(end - at))
        with self._store.open(name) as blob:
            whole = _whole(blob.read_into(at, data))
        self._read[name] = at + whole
        self._files += whole // RECORD.itemsize
        self._bytes += int(np.frombuffer(data[:whole], RECORD)["bytes"].sum())


def read_journals(store: Store) -> Records:
    """The valid records of all journals, the last of each index, by index. Raises OSError, StorageError."""
    found = [np.empty(0, RECORD)]
    for name in sorted(entry.name for entry in store.entries(JOURNALS)):
        data = store.get(name) or b""
        records = np.frombuffer(data[: _whole(len(data))], RECORD)
        bodies = data[: len(records) * RECORD.itemsize]
        checks = [zlib.crc32(bodies[at : at + 20]) for at in range(0, len(bodies), RECORD.itemsize)]
        found.append(records[records["check"] == np.array(checks, dtype=np.uint32)])
    records = np.concatenate(found)[::-1]
    return records[np.unique(records["index"], return_index=True)[1]]
