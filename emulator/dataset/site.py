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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataset.checking import looks_right, sums_right
from emulator.dataset.formats import FORMATS
from emulator.dataset.journal import JOURNALS, RECORD, Records, read_journals
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
from emulator.errors import DatasetError, storage_error
from emulator.storage.base import Store
from emulator.storage.files import TEMPORARY
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
