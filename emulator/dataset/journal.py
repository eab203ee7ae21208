"""Which files of an unfinished dataset are done: 24 bytes a file, appended before it gets its name.

One journal per worker. A record that was cut off by a kill has a wrong check and counts for nothing;
a file without a record is made again, which gives the same bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype([("index", "<i8"), ("bytes", "<i8"), ("crc", "<u4"), ("check", "<u4")])
Records = NDArray[np.void]


def _pack(index: int, size: int, crc: int) -> bytes:
    head = index.to_bytes(8, "little") + size.to_bytes(8, "little") + crc.to_bytes(4, "little")
    return head + zlib.crc32(head).to_bytes(4, "little")


def _whole(size: int) -> int:
    """Bytes of the whole records in `size` bytes."""
    return size // RECORD.itemsize * RECORD.itemsize


class Journal:
    """Appends records. Each is one write, so that threads may share it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        torn = os.fstat(self._descriptor).st_size % RECORD.itemsize
        if torn:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - torn)

    def add(self, index: int, size: int, crc: int) -> None:
        """File `index` has `size` bytes and the CRC-32 `crc`. Raises OSError."""
        record = _pack(index, size, crc)
        written = os.write(self._descriptor, record)
        if written != len(record):  # the disk is full: the torn record counts for nothing
            os.write(self._descriptor, record[written:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class JournalWatch:
    """Counts what other workers append to their journals from now on."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._read = {path: _whole(path.stat().st_size) if path.exists() else 0 for path in paths}
        self._files = 0
        self._bytes = 0

    def now(self) -> tuple[int, int]:
        """(files, bytes) since the beginning of the watch; what cannot be read counts later."""
        for path, at in self._read.items():
            try:
                with path.open("rb") as file:
                    file.seek(at)
                    data = file.read()
            except OSError:
                continue
            whole = _whole(len(data))
            self._read[path] = at + whole
            self._files += whole // RECORD.itemsize
            self._bytes += int(np.frombuffer(data[:whole], RECORD)["bytes"].sum())
        return self._files, self._bytes


def read_journals(paths: Iterable[Path]) -> Records:
    """The valid records of all journals, the last one of each index, by index. Raises OSError."""
    found = [np.empty(0, RECORD)]
    for path in sorted(paths):
        data = path.read_bytes()
        records = np.frombuffer(data[: _whole(len(data))], RECORD)
        bodies = data[: len(records) * RECORD.itemsize]
        checks = [zlib.crc32(bodies[at : at + 20]) for at in range(0, len(bodies), RECORD.itemsize)]
        found.append(records[records["check"] == np.array(checks, dtype=np.uint32)])
    records = np.concatenate(found)[::-1]
    return records[np.unique(records["index"], return_index=True)[1]]
