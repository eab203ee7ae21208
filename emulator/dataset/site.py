"""The folder of a dataset while it is made: who may write there, what is done, what is left.

DIR/.feedrate/plan.json       what is being made, until it is finished
DIR/.feedrate/journal-*       what is done, one per worker, until it is finished
DIR/.feedrate/seeds/          preprocessed seed volumes
DIR/manifest.json, samples-*.npy, sample_* or 0000/sample_*
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataset.checking import looks_right, sums_right
from emulator.dataset.formats import FORMATS
from emulator.dataset.journal import RECORD, Records, read_journals
from emulator.dataset.manifest import MANIFEST, ROW, Manifest, Table, manifest_files, read_head, read_rows
from emulator.dataset.plan import Plan, require_same, state
from emulator.dataset.sizes import Index
from emulator.dataset.writing import TEMPORARY, sync_folder, write_small
from emulator.errors import DatasetError, storage_error

_IGNORED = ("lost+found",)
_READERS = 8


@dataclass(frozen=True, slots=True)
class Site:
    """A dataset folder and the plan for it."""

    folder: Path
    plan: Plan

    @property
    def hidden(self) -> Path:
        """Where the state of an unfinished dataset lies."""
        return self.folder / ".feedrate"

    def journal(self, worker: int) -> Path:
        """The journal of worker number `worker`."""
        return self.hidden / f"journal-{worker:06d}"

    @property
    def seeds(self) -> Path:
        """Where preprocessed seed volumes lie."""
        return self.hidden / "seeds"

    def prepare(self) -> None:
        """Make the open folder ready for the plan, or refuse. Raises DatasetError, StorageError."""
        try:
            for found in _found(self.folder):
                require_same(self.plan, found, self.folder)
            write_small(self.hidden / "plan.json", json.dumps(state(self.plan)).encode())
            for number in range(min(self.plan.subfolders, self.plan.files)):
                (self.folder / f"{number:04d}").mkdir(exist_ok=True)
            remove_temporary(self.folder)
        except OSError as error:
            raise storage_error(error, f"cannot prepare {self.folder}") from None

    def recorded(self) -> Records:
        """Files that are said to be done: by the manifest and by the journals. Raises StorageError."""
        rows = np.empty(0, ROW)
        if (self.folder / MANIFEST).exists():
            with contextlib.suppress(DatasetError):  # a corrupt manifest is made again
                rows = read_rows(self.folder)
        records = np.zeros(len(rows), RECORD)
        records["index"] = np.arange(len(rows))
        records["bytes"], records["crc"] = rows["bytes"], rows["crc"]
        try:
            journalled = read_journals(self.hidden.glob("journal-*"))
        except OSError as error:
            raise storage_error(error, "cannot read a journal") from None
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
            paths = [(self.folder / part, part) for part in form.parts(names[int(record["index"])])]
            wrong = looks_right(form, paths, int(record["bytes"]))
            return not wrong and (not paranoid or sums_right(paths, int(record["crc"])))

        with ThreadPoolExecutor(_READERS) as pool:  # storage far away answers many at once
            kept = np.fromiter(pool.map(intact, records), np.bool_, len(records))
        left: Index = np.setdiff1d(indices, records["index"][kept], assume_unique=True)
        return left

    def table(self) -> Table:
        """One row per file, once all are done. Raises DatasetError when some are not, StorageError."""
        records = self.recorded()
        if len(records) != self.plan.files:
            missing = self.plan.files - len(records)
            raise DatasetError(f"{missing} files of {self.folder} are not done", "run the same command again")
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
        try:
            for number in range(min(self.plan.subfolders, self.plan.files)):
                sync_folder(self.folder / f"{number:04d}")
            write_small(self.folder / name, table)
            write_small(self.folder / MANIFEST, head)
            for old in [*self.folder.glob("samples-*.npy"), *self.hidden.glob("journal-*")]:
                if old.name != name:
                    old.unlink()
            (self.hidden / "plan.json").unlink(missing_ok=True)
            remove_temporary(self.folder)
        except OSError as error:
            raise storage_error(error, "cannot write the manifest") from None
        return manifest


@contextlib.contextmanager
def opened(folder: Path, force: bool) -> Iterator[None]:
    """The folder, made when it is missing, for this process's exclusive use.

    `force` removes the dataset that is in it. Raises DatasetError, StorageError.
    """
    hidden = folder / ".feedrate"
    lock = -1
    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"{folder} is a file", "give the folder of the dataset to be")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists() and not hidden.exists():
            _require_empty(folder)
        hidden.mkdir(exist_ok=True)
        lock = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _lock(lock, folder)
        if force:
            remove_dataset(folder)
    except OSError as error:
        raise storage_error(error, f"cannot prepare {folder}") from None
    try:
        yield
    finally:
        os.close(lock)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatasetError(f"another feedrate generate is at work in {folder}", "wait for it") from None
    except OSError:
        return  # a file system without locks


def _found(folder: Path) -> Iterator[dict[str, Any]]:
    """What plan.json and manifest.json of `folder` say it is. Raises DatasetError, StorageError, OSError."""
    plan = folder / ".feedrate" / "plan.json"
    if plan.exists():
        with contextlib.suppress(ValueError):
            found = json.loads(plan.read_bytes())
            if isinstance(found, dict):
                yield found
    if (folder / MANIFEST).exists():
        yield read_head(folder)


def _require_empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in _IGNORED:
            raise DatasetError(
                f"{folder} is not empty and holds no dataset of feedrate (it has {path.name})",
                "choose a new folder",
            )


def remove_dataset(folder: Path) -> None:
    """Remove what feedrate made in `folder`, and nothing else. Raises OSError, DatasetError."""
    if (folder / MANIFEST).exists():
        require_own(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    patterns = [f"sample_[0-9]*{form.suffix.replace('_x.', '_?.')}" for form in FORMATS.values()]
    places = _places(folder)
    for place in places:
        for pattern in (*patterns, f"*{TEMPORARY}"):
            for path in place.glob(pattern):
                path.unlink()
    for place in places[1:]:
        with contextlib.suppress(OSError):  # somebody else's files are in it
            place.rmdir()
    for path in [*folder.glob("samples-*.npy"), *(folder / ".feedrate").glob("journal-*")]:
        path.unlink()
    (folder / ".feedrate" / "plan.json").unlink(missing_ok=True)


def require_own(folder: Path) -> None:
    """Raises DatasetError when the manifest of `folder` is somebody else's file; a corrupt one is ours."""
    try:
        head = json.loads((folder / MANIFEST).read_bytes())
    except ValueError:
        return
    if not isinstance(head, dict) or head.get("feedrate") != "dataset":
        raise DatasetError(f"{folder / MANIFEST} is not feedrate's", "choose another folder")


def _places(folder: Path) -> list[Path]:
    """The folder and the sub-folders that samples are dealt to."""
    with os.scandir(folder) as entries:
        inner = [
            entry.name for entry in entries if entry.name.isdigit() and entry.is_dir(follow_symlinks=False)
        ]
    return [folder, *(folder / name for name in sorted(inner) if len(name) >= 4)]


def remove_temporary(folder: Path) -> None:
    """Remove what a killed worker left half-written. Raises OSError."""
    for place in _places(folder):
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(TEMPORARY)]
        for name in names:
            (place / name).unlink(missing_ok=True)
