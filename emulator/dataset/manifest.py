"""A complete dataset: its manifest, and the table of its files.

`manifest.json` is small and for people; the table with one row per file (bytes, checksum, shape) is an .npy
file beside it whose name carries its checksum, so that the two can never be from different datasets.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from emulator.config.storage import Place
from emulator.errors import DatasetError
from emulator.storage import open_store
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

MANIFEST = "manifest.json"
TABLE = re.compile(r"samples-[0-9a-f]{8}\.npy")
"""Name of the table, in full."""
HIDDEN = ".feedrate"
"""Where the state of an unfinished dataset lies, below its place."""
TRAINING = "train"
"""Folder that DLIO wants the files in."""
VALIDATION = "valid"
"""Folder that DLIO wants to find beside it; it may be empty."""
ADOPTED = "adopted"
"""The recipe of files that feedrate did not make."""
SCHEMA = 1

ROW = np.dtype([("bytes", "<i8"), ("crc", "<u4"), ("shape", "<u4", (3,))])
"""One file: bytes of all its parts, CRC-32 over them, voxels per axis (depth, height, width)."""

Table = NDArray[np.void]
"""Rows of dtype ROW, in index order."""


@dataclass(frozen=True, slots=True)
class Names(Sequence[str]):
    """File names by index, computed: a million of them take no memory."""

    files: int
    suffix: str
    subfolders: int = 0
    """Sub-folders that the files are dealt to in turn; 0: none."""
    folder: str = ""
    """Folder that all of them lie in, below the dataset's; empty: none."""

    def __len__(self) -> int:
        return self.files

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.files))]
        number = index + self.files if index < 0 else index
        if not 0 <= number < self.files:
            raise IndexError(index)
        name = f"sample_{number:07d}{self.suffix}"
        dealt = f"{number % self.subfolders:04d}/{name}" if self.subfolders else name
        return f"{self.folder}/{dealt}" if self.folder else dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What manifest.json says of a dataset, and the sizes of its files."""

    format: str
    """File format: a name in `emulator.registry.FORMATS`."""
    recipe: str
    """Name of the recipe."""
    seed: int
    names: Sequence[str]
    """Relative to the dataset folder, in index order; of a sample in several files, the first."""
    sizes: NDArray[np.int64]
    """Bytes of each file; of a sample in several files, all of them together."""
    subfolders: int = 0
    samples_per_file: int = 1
    """More than 1: a file holds so many samples."""
    payload: str = ""
    """Payload profile; empty when feedrate did not make the files."""
    identity: str = ""
    """SHA-256 over everything that determines the bytes."""
    seeds: Sequence[Mapping[str, str]] = ()
    """name, sha256 of each seed volume."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What was measured on the files: zstd_ratio, unique_blocks, bytes."""

    @property
    def samples(self) -> int:
        """Samples of the dataset, in all its files."""
        return len(self.names) * self.samples_per_file

    @property
    def total(self) -> int:
        """Bytes of the dataset."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class Dataset:
    """A complete dataset where it lies."""

    store: Store
    manifest: Manifest
    table: tuple[str, int]
    """Name and CRC-32 of the table."""

    def rows(self) -> Table:
        """The table, read anew: it takes 24 bytes a file. Raises DatasetError, StorageError."""
        return _read_table(self.store, self.table)


def open_dataset(place: Place | Store) -> Dataset:
    """The dataset at `place`. Raises DatasetError, StorageError."""
    store = open_store(place)
    head = read_head(store)
    table, crc = head.get("table"), head.get("table_crc32")
    if not isinstance(table, str) or "/" in table or not isinstance(crc, int):
        raise _corrupt(store, "it names no table")
    try:
        sizes = np.ascontiguousarray(_read_table(store, (table, crc))["bytes"])
        manifest = Manifest(
            format=str(head["format"]),
            recipe=str(head["recipe"]),
            seed=int(head["seed"]),
            names=_names(store, head, len(sizes)),
            sizes=sizes,
            subfolders=int(head.get("subfolders", 0)),
            samples_per_file=int(head.get("samples_per_file", 1)),
            payload=str(head.get("payload", "")),
            identity=str(head.get("identity", "")),
            seeds=tuple(head.get("seeds", ())),
            measured=dict(head.get("measured", {})),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(store, f"{type(error).__name__} {error}") from None
    if not len(sizes):
        raise DatasetError(f"the dataset in {store} is empty", "run feedrate generate")
    if int(sizes.min()) <= 0:
        raise _corrupt(store, "a file without bytes")
    return Dataset(store, manifest, (table, crc))


def read_manifest(place: Place | Store) -> Manifest:
    """The manifest of the dataset at `place`. Raises DatasetError, StorageError."""
    return open_dataset(place).manifest


def read_head(store: Store) -> dict[str, Any]:
    """manifest.json as it is. Raises DatasetError, StorageError."""
    text = store.get(MANIFEST)
    if text is None:
        raise _absent(store)
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(store, str(error)) from None
    if not isinstance(head, dict) or head.get("feedrate") != "dataset":
        raise _corrupt(store, "it is not a manifest of feedrate")
    if head.get("schema") != SCHEMA:
        raise DatasetError(
            f"{store}/{MANIFEST} has schema {head.get('schema')!r}, this feedrate reads {SCHEMA}",
            "use the feedrate that made it, or generate again",
        )
    return head


def _absent(store: Store) -> DatasetError:
    """Why there is no manifest."""
    if isinstance(store, FolderStore):
        if not store.root.is_dir():
            return DatasetError(
                f"there is no dataset folder {store}", "run feedrate generate, or check the path"
            )
        begun = (store.root / HIDDEN).is_dir()
    else:
        begun = next(iter(store.entries(f"{HIDDEN}/")), None) is not None
    if begun:
        return DatasetError(
            f"the dataset in {store} is not finished", "run the same feedrate generate again, it resumes"
        )
    return DatasetError(f"{store} has no {MANIFEST}", "run feedrate generate")


def _corrupt(store: Store, why: str) -> DatasetError:
    return DatasetError(f"{store}/{MANIFEST} is corrupt: {why[:120]}", "run the same feedrate generate again")


def _read_table(store: Store, table: tuple[str, int]) -> Table:
    """The rows of the table, checked against its checksum. Raises DatasetError, StorageError."""
    name, crc = table
    data = store.get(name)
    if data is None:
        raise _corrupt(store, f"its table {name} is missing")
    if zlib.crc32(data) != crc:
        raise _corrupt(store, f"the checksum of its table {name} is wrong")
    try:
        rows: Table = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _corrupt(store, str(error)) from None
    if rows.dtype != ROW or rows.ndim != 1:
        raise _corrupt(store, f"its table {name} has the wrong layout")
    return rows


def _names(store: Store, head: Mapping[str, Any], files: int) -> Sequence[str]:
    """Computed names, or those listed in the manifest. Raises DatasetError."""
    listed = head.get("names")
    if listed is None:
        inside = head.get("folder", "")
        if inside not in ("", TRAINING):
            raise _corrupt(store, "its files lie in a folder of an unknown name")
        return Names(files, str(head["suffix"]), int(head.get("subfolders", 0)), inside)
    names = tuple(listed)
    if len(names) != files:
        raise _corrupt(store, f"{len(names)} names for {files} files")
    for name in names:
        path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("..")
        if path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise _corrupt(store, f"the name {name!r} leaves the folder")
    return names


def write_manifest(store: Store, manifest: Manifest, rows: Table) -> None:
    """Write the table, then manifest.json, each whole or not at all; older tables go.

    Raises StorageError.
    """
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    crc = zlib.crc32(buffer.getvalue())
    name = f"samples-{crc:08x}.npy"
    names = manifest.names
    head = {
        "feedrate": "dataset",
        "schema": SCHEMA,
        "format": manifest.format,
        "recipe": manifest.recipe,
        "seed": manifest.seed,
        "files": len(names),
        "bytes": manifest.total,
        "payload": manifest.payload,
        "measured": dict(manifest.measured),
        "seeds": [dict(seed) for seed in manifest.seeds],
        "identity": manifest.identity,
        "samples_per_file": manifest.samples_per_file,
        "subfolders": manifest.subfolders,
        **({"folder": names.folder} if isinstance(names, Names) and names.folder else {}),
        "suffix": names.suffix if isinstance(names, Names) else "",
        "names": None if isinstance(names, Names) else list(names),
        "table": name,
        "table_crc32": crc,
    }
    store.put(name, buffer.getvalue())
    store.put(MANIFEST, (json.dumps(head, indent=1) + "\n").encode())
    tables = (entry.name for entry in store.entries("samples-") if TABLE.fullmatch(entry.name))
    store.delete([table for table in tables if table != name])
