"""What a dataset folder holds: names and sizes for ranks, shapes and checksums for `verify`.

`manifest.json` is small and for people; the table with one row per file is an .npy file beside it
whose name carries its checksum, so that the two can never be from different datasets.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from emulator.errors import DatasetError, storage_error

MANIFEST = "manifest.json"
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
        return f"{number % self.subfolders:04d}/{name}" if self.subfolders else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete dataset."""

    format: str
    """File format: a key of `emulator.dataset.formats`."""
    recipe: str
    """Name of the recipe."""
    seed: int
    names: Sequence[str]
    """Relative to the dataset folder, in index order; of a sample in several files, the first."""
    sizes: NDArray[np.int64]
    """Bytes of each sample, all its files together."""
    subfolders: int = 0
    samples_per_file: int = 1
    payload: str = ""
    """Payload profile; empty when feedrate did not make the files."""
    identity: str = ""
    """SHA-256 over everything that determines the bytes."""
    seeds: Sequence[Mapping[str, str]] = ()
    """name, sha256 of each seed volume."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What was measured on the files: zstd_ratio, unique_blocks, bytes."""

    @property
    def total(self) -> int:
        """Bytes of the dataset."""
        return int(self.sizes.sum())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the dataset in `folder`. Raises DatasetError, StorageError."""
    head = read_head(folder)
    try:
        sizes = np.ascontiguousarray(_read_rows(folder, head)["bytes"])
        manifest = Manifest(
            format=str(head["format"]),
            recipe=str(head["recipe"]),
            seed=int(head["seed"]),
            names=_names(folder, head, len(sizes)),
            sizes=sizes,
            subfolders=int(head.get("subfolders", 0)),
            samples_per_file=int(head.get("samples_per_file", 1)),
            payload=str(head.get("payload", "")),
            identity=str(head.get("identity", "")),
            seeds=tuple(head.get("seeds", ())),
            measured=dict(head.get("measured", {})),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(folder, f"{type(error).__name__} {error}") from None
    if not len(sizes):
        raise DatasetError(f"the dataset in {folder} is empty", "run feedrate generate")
    if int(sizes.min()) <= 0:
        raise _corrupt(folder, "a file without bytes")
    return manifest


def read_rows(folder: Path) -> Table:
    """The table of the dataset in `folder`: sizes, checksums, shapes. Raises DatasetError, StorageError."""
    return _read_rows(folder, read_head(folder))


def read_head(folder: Path) -> dict[str, Any]:
    """manifest.json as it is. Raises DatasetError, StorageError."""
    if not folder.is_dir():
        raise DatasetError(f"there is no dataset folder {folder}", "run feedrate generate, or check the path")
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        unfinished = (folder / ".feedrate").is_dir()
        what = f"the dataset in {folder} is not finished" if unfinished else f"{folder} has no {MANIFEST}"
        hint = "run the same feedrate generate again, it resumes" if unfinished else "run feedrate generate"
        raise DatasetError(what, hint) from None
    except OSError as error:
        raise storage_error(error, "cannot read the manifest") from None
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(folder, str(error)) from None
    if not isinstance(head, dict) or head.get("feedrate") != "dataset":
        raise _corrupt(folder, "it is not a manifest of feedrate")
    if head.get("schema") != SCHEMA:
        raise DatasetError(
            f"{folder / MANIFEST} has schema {head.get('schema')!r}, this feedrate reads {SCHEMA}",
            "use the feedrate that made it, or generate again",
        )
    return head


def _corrupt(folder: Path, why: str) -> DatasetError:
    return DatasetError(
        f"{folder / MANIFEST} is corrupt: {why[:120]}", "run the same feedrate generate again"
    )


def _read_rows(folder: Path, head: Mapping[str, Any]) -> Table:
    """The rows that `head` names, checked against its checksum. Raises DatasetError, StorageError."""
    name, crc = head.get("table"), head.get("table_crc32")
    if not isinstance(name, str) or "/" in name or not isinstance(crc, int):
        raise _corrupt(folder, "it names no table")
    try:
        data = (folder / name).read_bytes()
    except FileNotFoundError:
        raise _corrupt(folder, f"its table {name} is missing") from None
    except OSError as error:
        raise storage_error(error, "cannot read the manifest's table") from None
    if zlib.crc32(data) != crc:
        raise _corrupt(folder, f"the checksum of its table {name} is wrong")
    try:
        rows: Table = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _corrupt(folder, str(error)) from None
    if rows.dtype != ROW or rows.ndim != 1:
        raise _corrupt(folder, f"its table {name} has the wrong layout")
    return rows


def _names(folder: Path, head: Mapping[str, Any], files: int) -> Sequence[str]:
    """Computed names, or those listed in the manifest. Raises DatasetError."""
    listed = head.get("names")
    if listed is None:
        return Names(files, str(head["suffix"]), int(head.get("subfolders", 0)))
    names = tuple(listed)
    if len(names) != files:
        raise _corrupt(folder, f"{len(names)} names for {files} files")
    for name in names:
        path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("..")
        if path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise _corrupt(folder, f"the name {name!r} leaves the folder")
    return names


def manifest_files(manifest: Manifest, rows: Table) -> tuple[str, bytes, bytes]:
    """Name and bytes of the table, and bytes of manifest.json: write them in this order."""
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    table = buffer.getvalue()
    crc = zlib.crc32(table)
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
        "suffix": names.suffix if isinstance(names, Names) else "",
        "names": None if isinstance(names, Names) else list(names),
        "table": f"samples-{crc:08x}.npy",
        "table_crc32": crc,
    }
    return f"samples-{crc:08x}.npy", table, (json.dumps(head, indent=1) + "\n").encode()
