"""The folder of a dataset while it is made: who may write there, what is done, what is left.

DIR/.feedrate/plan.json       what is being made, until it is finished
DIR/.feedrate/journal-*       what is done, one per worker, until it is finished
DIR/.feedrate/seeds/          preprocessed seed volumes
DIR/manifest.json, samples-*.npy, sample_* or 0000/sample_*
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checking import looks_right, sums_right
from emulator.dataset.formats import FORMATS
from emulator.dataset.journal import RECORD, Records, read_journals
from emulator.dataset.manifest import MANIFEST, ROW, Manifest, Table, manifest_files, read_head, read_rows
from emulator.dataset.plan import Plan, require_same, state
from emulator.dataset.sizes import Index
from emulator.dataset.writing import TEMPORARY, sync_folder, write_small
from emulator.errors import DatasetError, StorageError, storage_error

_IGNORED = ("lost+found",)


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

    def prepare(self, force: bool) -> None:
        """Make the folder ready, or refuse. Raises DatasetError, StorageError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if force:
                remove_dataset(self.folder)
            for found in _found(self.folder):
                require_same(self.plan, found, self.folder)
            if not (self.folder / MANIFEST).exists() and not self.hidden.exists():
                _require_empty(self.folder)
            self.hidden.mkdir(exist_ok=True)
            write_small(self.hidden / "plan.json", json.dumps(state(self.plan)).encode())
            for number in range(min(self.plan.subfolders, self.plan.files)):
                (self.folder / f"{number:04d}").mkdir(exist_ok=True)
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
        places = np.searchsorted(records["index"], indices)
        form, names = self.plan.form, self.plan.names
        left = []
        for index, place in zip(indices.tolist(), places.tolist(), strict=True):
            if place < len(records) and int(records["index"][place]) == index:
                paths = [(self.folder / part, part) for part in form.parts(names[index])]
                size, crc = int(records["bytes"][place]), int(records["crc"][place])
                if not looks_right(form, paths, size) and not (paranoid and not sums_right(paths, crc)):
                    continue
            left.append(index)
        return np.array(left, dtype=np.int64)

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
        except OSError as error:
            raise storage_error(error, "cannot write the manifest") from None
        return manifest


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
    if not (folder / MANIFEST).exists() and not (folder / ".feedrate").exists():
        return
    if (folder / MANIFEST).exists():
        with contextlib.suppress(StorageError):
            try:
                read_head(folder)
            except DatasetError as error:
                if "not a manifest of feedrate" in str(error):
                    raise
    endings = {form.suffix.replace("_x.", "_?.") for form in FORMATS.values()}
    patterns = [f"sample_[0-9]*{ending}{tail}" for ending in endings for tail in ("", TEMPORARY)]
    subfolders = [
        path for path in folder.glob("[0-9][0-9][0-9][0-9]*") if path.is_dir() and path.name.isdigit()
    ]
    (folder / MANIFEST).unlink(missing_ok=True)
    for place in (folder, *subfolders):
        for pattern in patterns:
            for path in place.glob(pattern):
                path.unlink()
    for place in subfolders:
        with contextlib.suppress(OSError):  # somebody else's files are in it
            place.rmdir()
    for path in folder.glob("samples-*.npy*"):
        path.unlink()
    shutil.rmtree(folder / ".feedrate", ignore_errors=True)


def slices(files: int, worker: int, workers: int) -> NDArray[np.int64]:
    """The indices that worker number `worker` of `workers` looks after."""
    return np.arange(worker, files, workers)
