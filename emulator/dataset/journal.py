"""Journals of a dataset that is being made: 24 bytes a file, kept before the file gets its name.

Each worker has one, in one file or in several objects. A record that was cut off by a kill has a wrong check
and counts for nothing; a file without a record is made again, which gives the same bytes. In a folder a
journal begins with a record of its writer, so that the temporary files which a killed one leaves can be told
from other people's.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.names import HIDDEN
from emulator.dataset.table import TABLE_BYTES
from emulator.files import Closing
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore

RECORD = np.dtype([("index", "<i8"), ("bytes", "<i8"), ("crc", "<u4"), ("check", "<u4")])
Records = NDArray[np.void]
"""Files that are done, as rows of dtype RECORD."""


JOURNALS = f"{HIDDEN}/journal-"

_WRITER = -1
"""The index of a record that names a writer: process in `bytes`, CRC-32 of the host's name in `crc`."""


class Journal(Closing):
    """Keeps the records of one worker, whose threads may share it. A context manager."""

    def __init__(self, store: Store, worker: int) -> None:
        """Raises OSError, StorageError."""
        self._appender = store.appender(f"{JOURNALS}{worker:06d}", RECORD.itemsize)
        if isinstance(store, FolderStore):  # objects appear whole: no temporary ones are left
            self.add(_WRITER, os.getpid(), zlib.crc32(socket.gethostname()[:32].encode()))
            self._appender.sync()

    def add(self, index: int, size: int, crc: int) -> None:
        """File `index` has `size` bytes and the CRC-32 `crc`. Raises OSError, StorageError."""
        head = index.to_bytes(8, "little", signed=True) + size.to_bytes(8, "little")
        head += crc.to_bytes(4, "little")
        self._appender.append(head + zlib.crc32(head).to_bytes(4, "little"))

    def close(self) -> None:
        self._appender.close()


def journalled(store: Store) -> Iterator[Records]:
    """The valid records of all journals, in blocks.

    Of an index that comes again, the last one holds. Raises StorageError.
    """
    for records in _records(store):
        yield records[records["index"] >= 0]


def read_writers(store: Store) -> set[tuple[int, int]]:
    """Return (process, CRC-32 of its host's name) of each writer of a journal in a folder.

    Raises StorageError.
    """
    writers = (records[records["index"] == _WRITER] for records in _records(store))
    return {(int(row["bytes"]), int(row["crc"])) for rows in writers for row in rows}


def _records(store: Store) -> Iterator[Records]:
    """The valid records of journals, those of writers too, in blocks. Raises StorageError."""
    unit = RECORD.itemsize
    block_bytes = 2**16 * unit
    for name in sorted(store.names(JOURNALS)):
        data = store.get(name, TABLE_BYTES) or b""
        whole = data[: len(data) // unit * unit]  # without a record that a kill has cut off
        for begin in range(0, len(whole), block_bytes):
            block = whole[begin : begin + block_bytes]
            records = np.frombuffer(block, RECORD)
            checks = [zlib.crc32(block[at : at + unit - 4]) for at in range(0, len(block), unit)]
            yield records[records["check"] == np.array(checks, dtype=np.uint32)]
