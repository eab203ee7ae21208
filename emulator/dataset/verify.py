"""Is the dataset what was generated? Every byte of every file, or of a sample of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.dataset.checking import file_crc, looks_right
from emulator.dataset.formats import format_named
from emulator.dataset.manifest import MANIFEST, Manifest, Table, read_manifest, read_rows
from emulator.dataset.sizes import Index
from emulator.errors import storage_error

Done = Callable[[int, int], None]
_IGNORED = ("lost+found",)


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what it should be."""

    name: str
    """Relative to the dataset folder."""
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A dataset and what its manifest says of every file."""

    folder: Path
    manifest: Manifest
    rows: Table


def open_dataset(folder: Path) -> Checked:
    """The dataset in `folder`. Raises DatasetError, StorageError."""
    return Checked(folder, read_manifest(folder), read_rows(folder))


def chosen_files(files: int, wanted: int | None) -> Index:
    """All indices, or `wanted` of them, evenly spread."""
    if wanted is None or wanted >= files:
        return np.arange(files)
    return np.unique(np.linspace(0, files - 1, wanted).round().astype(np.int64))


def check_file(dataset: Checked, index: int, room: bytearray) -> Fault | None:
    """What is wrong with file `index`, if anything. Raises StorageError when the storage fails."""
    form = format_named(dataset.manifest.format)
    name = dataset.manifest.names[index]
    parts = [(dataset.folder / part, part) for part in form.parts(name)]
    row = dataset.rows[index]
    wrong = looks_right(form, parts, int(row["bytes"]))
    if wrong:
        return Fault(name, wrong.removeprefix(f"{name}: "))
    value = 0
    try:
        for path, _ in parts:
            value = file_crc(path, value, room)
    except OSError as error:
        raise storage_error(error, "cannot read a sample") from None
    if value != int(row["crc"]):
        return Fault(name, f"its bytes have changed: CRC-32 {value:08x}, {int(row['crc']):08x} was written")
    return None


def check_files(dataset: Checked, indices: Index, threads: int, done: Done) -> list[Fault]:
    """What is wrong with the files `indices`, in index order. Raises StorageError."""
    local = threading.local()

    def check(index: int) -> Fault | None:
        if not hasattr(local, "room"):
            local.room = bytearray(1 << 20)
        fault = check_file(dataset, index, local.room)
        done(1, int(dataset.rows[index]["bytes"]))
        return fault

    with ThreadPoolExecutor(threads) as pool:
        return [fault for fault in pool.map(check, indices.tolist()) if fault is not None]


def _files(folder: Path, inside: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = inside + entry.name
            if entry.is_dir(follow_symlinks=False):
                if not inside and entry.name in (*_IGNORED, ".feedrate"):
                    continue
                yield from _files(Path(entry.path), name + "/")
            else:
                yield name


def extra_files(dataset: Checked) -> list[Fault]:
    """Files in the folder that the manifest does not know. Raises StorageError."""
    form = format_named(dataset.manifest.format)
    known = {part for name in dataset.manifest.names for part in form.parts(name)}
    known.add(MANIFEST)
    try:
        found = sorted(name for name in _files(dataset.folder) if name not in known)
    except OSError as error:
        raise storage_error(error, "cannot list the dataset") from None
    return [Fault(name, "extra: not in the manifest") for name in found if not _is_table(name)]


def _is_table(name: str) -> bool:
    return name.startswith("samples-") and name.endswith(".npy") and len(name) == len("samples-00000000.npy")
