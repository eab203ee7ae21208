"""Which files of an unfinished dataset are done: 24 bytes a file, kept before it gets its name.

One journal per worker, in one file or in several objects. A record that was cut off by a kill has a wrong
check and counts for nothing; a file without a record is made again, which gives the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.manifest import HIDDEN
from emulator.errors import DatasetError, StorageError
from emulator.storage.base import Store

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
