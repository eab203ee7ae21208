"""Making a dataset at a place: who may write there, what is done, what is left, and at the end the manifest.

DIR/.feedrate/plan.json       what is being made, until it is finished
DIR/.feedrate/journal-*       what is done, one per worker, until it is finished
DIR/.feedrate/seeds/          preprocessed seed volumes
DIR/manifest.json, samples-*.npy, sample_* or 0000/sample_*

One process or many make it, each a share of the files (`emulator.dataset.fill`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataset.manifest import (
    HIDDEN,
    MANIFEST,
    ROW,
    VALIDATION,
    Manifest,
    open_dataset,
    read_head,
    write_manifest,
)
from emulator.dataset.owned import JOURNALS, PLAN, remove_dataset, require_own
from emulator.dataset.plan import DatasetPlan, outlook
from emulator.dataset.progress import RECORD, Records, read_journals
from emulator.dataset.seeds import prepare_seeds
from emulator.dataset.sizes import Index
from emulator.dataset.verify import evenly_spread, looks_right, sums_right
from emulator.errors import DatasetError, SpecError, StorageError, storage_error, storage_errors
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore
from emulator.units import BLOCK_BYTES, show_bytes

_READERS = 8


@contextlib.contextmanager
def exclusive(store: Store, force: bool) -> Iterator[None]:
    """The place, for this process's use alone where that can be had; a folder is made.

    `force` removes the dataset that is in it. Raises DatasetError, StorageError.
    """
    if isinstance(store, FolderStore):
        with storage_errors(f"cannot prepare {store}"):
            if store.root.exists() and not store.root.is_dir():
                raise DatasetError(f"{store} is a file", "give the folder of the dataset to be")
            store.root.mkdir(parents=True, exist_ok=True)
    require_own(store)
    with store.exclusive(f"{HIDDEN}/lock"):
        if force:
            remove_dataset(store)
        yield


def seeds_folder(store: Store) -> Path:
    """Where preprocessed seed volumes lie: files to be mapped, on this host where samples are objects."""
    if isinstance(store, FolderStore):
        return store.root / HIDDEN / "seeds"
    return Path.home() / ".cache/feedrate/seeds"


def with_seeds(plan: DatasetPlan, store: Store, seeds: Path | None) -> DatasetPlan:
    """`plan` with the identity of its seeds, which are prepared when its payload is grown from any.

    Raises SpecError, DatasetError, StorageError.
    """
    if plan.recipe.payload == "ct-realistic":
        return replace(plan, seeds=prepare_seeds(seeds_folder(store), seeds, plan.recipe.size))
    if seeds is not None:
        raise SpecError(
            f"--seeds is for the payload ct-realistic, not {plan.recipe.payload}", "leave one out"
        )
    return plan


@dataclass(frozen=True, slots=True)
class DatasetWriter:
    """A place for a dataset and the plan for it."""

    store: Store
    plan: DatasetPlan

    @property
    def _folders(self) -> list[str]:
        """The folders that samples lie in, the outer ones first; and the empty one beside DLIO's."""
        inside = self.plan.folder
        dealt = [f"{number:04d}" for number in range(min(self.plan.subfolders, self.plan.files))]
        return [inside, VALIDATION, *(f"{inside}/{name}" for name in dealt)] if inside else dealt

    def prepare(self) -> None:
        """Make the place ready for the plan, or refuse. Raises DatasetError, StorageError."""
        plan, recipe = self.plan, self.plan.recipe
        with contextlib.suppress(ValueError):
            begun = json.loads(self.store.get(PLAN) or b"null")
            if isinstance(begun, dict):
                self._require_same(begun)
        if self.store.size(MANIFEST) is not None:
            self._require_same(read_head(self.store))
        state = {
            "identity": plan.identity,
            "files": plan.files,
            "recipe": recipe.name,
            "format": recipe.format,
            "payload": recipe.payload,
            "seed": plan.seed,
            "subfolders": plan.subfolders,
        }
        self.store.put(PLAN, json.dumps(state).encode())
        self.store.arrange(self._folders)

    def _require_same(self, found: dict[str, Any]) -> None:
        """Raises DatasetError when a manifest or plan.json is of another or a larger dataset."""
        if found.get("identity") != self.plan.identity:
            keys = ("recipe", "format", "payload", "seed", "subfolders")
            known = ", ".join(f"{key} {found.get(key)}" for key in keys)
            raise DatasetError(
                f"{self.store} holds another dataset ({known})",
                "choose another folder, repeat the first command's options, or --force to replace it",
            )
        if int(found.get("files", 0)) > self.plan.files:
            raise DatasetError(
                f"{self.store} holds {found.get('files')} files of this dataset, "
                f"{self.plan.files} were asked for",
                "use --files of at least that, or --force to replace it",
            )

    def _recorded(self) -> Records:
        """Files that are said to be done: by the manifest and by the journals. Raises StorageError."""
        rows = np.empty(0, ROW)
        with contextlib.suppress(DatasetError):  # there is none yet, or a corrupt one is made again
            rows = open_dataset(self.store).rows()
        journalled = read_journals(self.store)
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
        records = self._recorded()
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

    def require_space(self, needed: int) -> None:
        """Raises StorageError when it is known that there are fewer than `needed` bytes free."""
        free = self.store.free()
        if free is not None and free < needed:
            raise StorageError(
                f"{self.store} has {show_bytes(free)} free, {show_bytes(needed)} are needed "
                f"({show_bytes(needed - free)} missing)",
                "free some space, take fewer files, or --no-space-check if the figure is wrong",
            )

    def failure(self, error: OSError) -> StorageError:
        """A failed write as one line: what is missing and how to go on."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            found = storage_error(error, "cannot write a sample")
            return StorageError(found.what, f"{found.hint or 'see the system log'}; the same command resumes")
        records = self._recorded()
        missing = max(outlook(self.plan).total - int(records["bytes"].sum()), 0)
        return StorageError(
            f"no space left in {self.store}: {len(records)} of {self.plan.files} files are done, "
            f"{show_bytes(missing)} are missing",
            "free that much and run the same command again, it resumes",
        )

    def finished(self) -> Manifest | None:
        """The manifest when the dataset is complete and has one. Raises StorageError."""
        try:
            manifest = open_dataset(self.store).manifest
        except DatasetError:
            return None
        same = manifest.identity == self.plan.identity and len(manifest.names) == self.plan.files
        return manifest if same else None

    def finish(self) -> Manifest:
        """Measure the files and write the manifest, once every worker is done; the journals go.

        Raises DatasetError when files are missing, StorageError.
        """
        plan, recipe, store = self.plan, self.plan.recipe, self.store
        records = self._recorded()
        if len(records) != plan.files:
            missing = plan.files - len(records)
            raise DatasetError(f"{missing} files of {store} are not done", "run the same command again")
        rows = np.zeros(len(records), ROW)
        rows["bytes"], rows["crc"] = records["bytes"], records["crc"]
        for start in range(0, len(rows), 1 << 16):
            stop = min(start + (1 << 16), len(rows))
            rows["shape"][start:stop] = plan.shapes(np.arange(start, stop))
        chosen = evenly_spread(len(rows), _MEASURED_FILES)
        manifest = Manifest(
            format=recipe.format,
            recipe=recipe.name,
            seed=plan.seed,
            names=plan.names,
            sizes=np.ascontiguousarray(rows["bytes"]),
            subfolders=plan.subfolders,
            samples_per_file=recipe.samples_per_file,
            payload=recipe.payload,
            identity=plan.identity,
            seeds=tuple(plan.seeds),
            measured=measure_payload(
                store, [part for index in chosen for part in plan.form.parts(plan.names[index])]
            ),
        )
        store.settle(self._folders)
        write_manifest(store, manifest, rows)
        store.delete([*(entry.name for entry in store.entries(JOURNALS)), PLAN])
        return manifest


# ---- Would storage that compresses or deduplicates be flattered by this dataset? Measured on its files.

_MEASURED_FILES = 16
_WINDOWS = 5  # the last one shows labels: a fifth of a sample is
_WINDOW = 1 << 20


def measure_payload(store: Store, names: Sequence[str]) -> dict[str, float]:
    """What zstd level 3 makes of the files `names`, and the share of 4 KiB blocks that are in them once.

    zstd_ratio: bytes / compressed bytes. unique_blocks: distinct / all blocks, over all files together
    (0 to 1). bytes: what was looked at, of large files windows. Raises DatasetError, StorageError.
    """
    import zstandard

    compressor = zstandard.ZstdCompressor(level=3)
    digests: set[bytes] = set()
    total = packed = blocks = 0
    buffer = memoryview(bytearray(_WINDOW))
    for name in names:
        with store.open(name) as blob:
            windows: Sequence[int] = range(0, blob.size, _WINDOW)
            if len(windows) > _WINDOWS:
                spread = np.linspace(0, blob.size - _WINDOW, _WINDOWS).astype(int)
                windows = (spread // BLOCK_BYTES * BLOCK_BYTES).tolist()
            for offset in windows:
                data = buffer[: blob.read_into(offset, buffer[: min(_WINDOW, blob.size - offset)])]
                total += len(data)
                packed += len(compressor.compress(data))
                for at in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
                    digests.add(hashlib.blake2b(data[at : at + BLOCK_BYTES], digest_size=16).digest())
                    blocks += 1
    return {
        "files": len(names),
        "bytes": total,
        "zstd_ratio": round(total / packed, 4) if packed else 1.0,
        "unique_blocks": round(len(digests) / blocks, 6) if blocks else 1.0,
    }
