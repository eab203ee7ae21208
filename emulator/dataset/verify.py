"""Compare files with what was generated: by sizes and heads, or by every byte."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from emulator.dataset.checksum import crc32
from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import Format
from emulator.dataset.manifest import Dataset
from emulator.dataset.owned import is_record
from emulator.dataset.progress import Done, by_threads
from emulator.dataset.sizes import Index
from emulator.errors import DatasetError, StorageError
from emulator.storage.base import HEAD, ForeignName, Store, wrong_size
from emulator.storage.batches import BatchReader, Pieces
from emulator.storage.folder import FolderStore
from emulator.storage.posix import PosixStorage

EXTRA = "extra: not in the manifest"


def looks_right(store: Store, form: Format, parts: Sequence[str], size: int) -> str:
    """Return why the files cannot be the sample, judged by size and head; empty if they can.

    `size` is the bytes of all of them. Raises StorageError when the storage fails.
    """
    total = 0
    head = memoryview(bytearray(HEAD))
    for name in parts:
        oddity = store.oddity(name, inside=False)
        if oddity:
            return f"{name}: {oddity}"
        length = store.size(name)
        if length is None:
            return f"{name}: missing"
        try:
            with store.open(name, length) as blob:
                form.check_head(head[: blob.read_into(0, head)], length, name)
        except DatasetError as error:
            return error.what
        total += length
    if total != size:
        return f"{', '.join(parts)}: {total} bytes where {size} were written"
    return ""


def sums(store: Store, parts: Sequence[str], buffer: memoryview, size: int = 0) -> int:
    """Return the CRC-32 over the files of a sample; `size` may say how many bytes they have together.

    Raises DatasetError when a file is missing, or before reading when they have another size; StorageError.
    """
    value = 0
    with ExitStack() as stack:
        expected = size if size and len(parts) == 1 else None
        blobs = [stack.enter_context(store.open(part, expected)) for part in parts]
        actual = sum(blob.size for blob in blobs)
        if size and actual != size:
            raise wrong_size(", ".join(parts), actual, size)
        for blob in blobs:
            for offset in range(0, blob.size, len(buffer)):
                got = blob.read_into(offset, buffer[: min(len(buffer), blob.size - offset)])
                value = crc32(buffer[:got], value)
    return value


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what it should be."""

    name: str
    """Relative to the dataset folder."""
    what: str
    unread: bool = False
    """It could not be read: its bytes may be right."""


def evenly_spread(files: int, wanted: int | None) -> Index:
    """All indices of `files` files, or `wanted` of them, evenly spread."""
    if wanted is None or wanted >= files:
        return np.arange(files)
    return np.unique(np.linspace(0, files - 1, wanted).round().astype(np.int64))


def check_file(dataset: Dataset, index: int, buffer: bytearray) -> Fault | None:
    """Return what is wrong with file `index`, if anything. Raises StorageError when an object store fails.

    A mounted file that cannot be read does not end the check of the others.
    """
    try:
        return _fault(dataset, index, buffer)
    except StorageError as error:
        if not isinstance(dataset.store, FolderStore):
            raise
        return Fault(dataset.manifest.names[index], error.what, unread=True)


def _fault(dataset: Dataset, index: int, buffer: bytearray) -> Fault | None:
    """Return the fault of file `index`, if it has one. Raises StorageError."""
    form, store = format_named(dataset.manifest.format), dataset.store
    name = dataset.manifest.names[index]
    parts = form.parts(name)
    size, crc = dataset.rows["bytes"][index], dataset.rows["crc"][index]
    generated = dataset.manifest.plan is not None  # links of adopted files may lead out
    for part in parts:
        oddity = store.oddity(part, inside=generated)
        if oddity:  # to open a FIFO would wait for its writer
            return Fault(name, oddity)
    try:
        value = sums(store, parts, memoryview(buffer), size)
        why = f"its bytes have changed: CRC-32 {value:08x}, {crc:08x} was written"
    except DatasetError as error:
        value, why = -1, error.what
    if value == crc:
        return None
    # Size and head are looked at only now: an object's take two more requests.
    why = looks_right(store, form, parts, size) or why
    return Fault(name, why.removeprefix(f"{name}: "))


_TOGETHER = 64
"""Files that are read at once, if they are small."""
_SMALL = 2**16
"""Most bytes of a small file."""


class _SmallFiles:
    """Compares blocks of small files in a folder with their checksums. For one thread."""

    def __init__(self, dataset: Dataset) -> None:
        """Raises StorageError."""
        self._dataset, self._reader = dataset, None
        if isinstance(dataset.store, FolderStore) and dataset.store.takes_direct():
            storage = PosixStorage(dataset.store.root, direct=True, cache="cold")
            engine = storage.engine(_TOGETHER // 4, _TOGETHER, _SMALL)
            if engine != "python":
                self._reader = BatchReader(storage, engine, _TOGETHER // 4, _SMALL, head_bytes=_SMALL)

    def intact(self, indices: Index) -> bool:
        """Return True if all these files are small, plain and as they were written; False if in doubt."""
        if self._reader is None:
            return False
        manifest, rows = self._dataset.manifest, self._dataset.rows
        numbers = indices.tolist()
        names = [manifest.names[index] for index in numbers]
        sizes = np.array([rows["bytes"][index] for index in numbers])
        several_parts = len(format_named(manifest.format).parts(names[0])) > 1
        if several_parts or sizes.max() > _SMALL:
            return False
        if any(self._dataset.store.oddity(name, inside=True) for name in names):
            return False
        checksums: list[int] = []
        table = np.stack([np.full(len(sizes), -1), np.zeros_like(sizes), sizes, sizes], axis=1)
        try:
            self._reader.read(
                Pieces(names, table), lambda head, *_: checksums.append(crc32(head)), bytearray(1)
            )
        except (DatasetError, StorageError):
            return False  # they are checked again, one by one
        return checksums == [rows["crc"][index] for index in numbers]


def check_files(dataset: Dataset, indices: Index, threads: int, done: Done) -> list[Fault]:
    """Return the faults of the files `indices`, in index order. Raises StorageError."""
    local = threading.local()
    small = len(indices) > 0 and np.mean(dataset.rows["bytes"][:_TOGETHER]) <= _SMALL
    together = _TOGETHER if small else 1

    def check(begin: int) -> list[Fault]:
        if not hasattr(local, "buffer"):
            local.buffer, local.small = bytearray(dataset.store.request), _SmallFiles(dataset)
        block = indices[begin : begin + together]
        if local.small.intact(block):
            done(len(block), dataset.manifest.bytes_of(block))
            return []
        faults = []
        for index in block.tolist():
            faults.append(check_file(dataset, index, local.buffer))
            done(1, dataset.rows["bytes"][index])
        return [fault for fault in faults if fault is not None]

    blocks = by_threads(check, np.arange(0, len(indices), together), threads)
    return [fault for faults in blocks for fault in faults]


def extra_files(dataset: Dataset) -> list[Fault]:
    """Return the files at the place that the manifest does not list. Raises StorageError.

    Beside adopted files nothing is extra: none of it is feedrate's.
    """
    plan = dataset.manifest.plan
    if plan is None:
        return []
    extra = []
    try:
        for name in dataset.store.names():
            if plan.index_of(name) is None and not is_record(name):
                extra.append(name)
    except ForeignName as error:
        extra.append(error.name)
    return [Fault(name, EXTRA) for name in sorted(extra)]
