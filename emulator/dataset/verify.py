"""Is a sample on storage what it was when it was written? By its size and head, or by every byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from emulator.config.storage import Place
from emulator.dataset.checksum import crc32
from emulator.dataset.formats import Format, format_named
from emulator.dataset.manifest import ADOPTED, HIDDEN, MANIFEST, Manifest, Table, read_manifest, read_rows
from emulator.dataset.sizes import Index
from emulator.errors import DatasetError, storage_error
from emulator.storage import open_store
from emulator.storage.base import Blob, Store

_HEAD = 4096


def looks_right(store: Store, form: Format, parts: Sequence[str], size: int) -> str:
    """Why the files of a sample cannot be it: by size and head. Empty: they can.

    `size` is the bytes of all of them. Raises StorageError when the storage fails.
    """
    total = 0
    head = memoryview(bytearray(_HEAD))
    for name in parts:
        try:
            length = store.size(name)
        except OSError as error:
            raise storage_error(error, "cannot read a sample") from None
        if length is None:
            return f"{name}: missing"
        try:
            with store.open(name, length) as blob:
                form.check_head(head[: blob.read_into(0, head)] if length else head[:0], length, name)
        except DatasetError as error:
            return error.what
        total += length
    if total != size:
        names = ", ".join(parts)
        return f"{names}: {total} bytes where {size} were written"
    return ""


def blob_crc(blob: Blob, room: memoryview, value: int = 0) -> int:
    """CRC-32 of the whole sample behind bytes of CRC-32 `value`, read through `room`. Raises StorageError."""
    for offset in range(0, blob.size, len(room)):
        got = blob.read_into(offset, room[: min(len(room), blob.size - offset)])
        value = crc32(room[:got], value)
    return value


def sums(store: Store, parts: Sequence[str], room: memoryview) -> int:
    """CRC-32 over the files of a sample. Raises DatasetError when one is missing, StorageError."""
    value = 0
    for part in parts:
        with store.open(part) as blob:
            value = blob_crc(blob, room, value)
    return value


def sums_right(store: Store, parts: Sequence[str], crc: int) -> bool:
    """True when the CRC-32 over the files of a sample is `crc`. Raises StorageError."""
    try:
        return sums(store, parts, memoryview(bytearray(store.request))) == crc
    except DatasetError:
        return False


# ---- Is the dataset what was generated? Every byte of every file, or of a sample of them.


Done = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what it should be."""

    name: str
    """Relative to the dataset folder."""
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A dataset and what its manifest says of every file."""

    store: Store
    manifest: Manifest
    rows: Table


def open_dataset(place: Place) -> Checked:
    """The dataset at `place`. Raises DatasetError, StorageError."""
    store = open_store(place)
    return Checked(store, read_manifest(store), read_rows(store))


def chosen_files(files: int, wanted: int | None) -> Index:
    """All indices, or `wanted` of them, evenly spread."""
    if wanted is None or wanted >= files:
        return np.arange(files)
    return np.unique(np.linspace(0, files - 1, wanted).round().astype(np.int64))


def check_file(dataset: Checked, index: int, room: bytearray) -> Fault | None:
    """What is wrong with file `index`, if anything. Raises StorageError when the storage fails."""
    form = format_named(dataset.manifest.format)
    name = dataset.manifest.names[index]
    parts = form.parts(name)
    row = dataset.rows[index]
    wrong = looks_right(dataset.store, form, parts, int(row["bytes"]))
    if wrong:
        return Fault(name, wrong.removeprefix(f"{name}: "))
    try:
        value = sums(dataset.store, parts, memoryview(room))
    except DatasetError as error:
        return Fault(name, error.what)
    if value != int(row["crc"]):
        return Fault(name, f"its bytes have changed: CRC-32 {value:08x}, {int(row['crc']):08x} was written")
    return None


def check_files(dataset: Checked, indices: Index, threads: int, done: Done) -> list[Fault]:
    """What is wrong with the files `indices`, in index order. Raises StorageError."""
    local = threading.local()

    def check(index: int) -> Fault | None:
        if not hasattr(local, "room"):
            local.room = bytearray(dataset.store.request)
        fault = check_file(dataset, index, local.room)
        done(1, int(dataset.rows[index]["bytes"]))
        return fault

    with ThreadPoolExecutor(threads) as pool:
        return [fault for fault in pool.map(check, indices.tolist()) if fault is not None]


def extra_files(dataset: Checked) -> list[Fault]:
    """Files at the place that the manifest does not know. Raises StorageError.

    Beside adopted files only those of their kind count: what else lies in the folder is somebody else's.
    """
    form = format_named(dataset.manifest.format)
    known = {part for name in dataset.manifest.names for part in form.parts(name)}
    known.add(MANIFEST)
    try:
        found = sorted(entry.name for entry in dataset.store.entries() if entry.name not in known)
    except OSError as error:
        raise storage_error(error, "cannot list the dataset") from None
    if dataset.manifest.recipe == ADOPTED:
        kinds = {_kind(name) for name in known}
        found = [name for name in found if _kind(name) in kinds]
    return [Fault(name, "extra: not in the manifest") for name in found if not _is_ours(name)]


def _kind(name: str) -> tuple[str, str]:
    """Folder and suffix."""
    path = PurePosixPath(name)
    return str(path.parent), path.suffix


def _is_ours(name: str) -> bool:
    table = name.startswith("samples-") and name.endswith(".npy") and len(name) == len("samples-00000000.npy")
    return table or name.startswith(f"{HIDDEN}/")
