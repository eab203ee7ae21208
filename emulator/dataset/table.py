"""The table with a row per file of a dataset, read where it lies.

A table of ten million files is 240 MB, and every rank of a host looks into it. So a rank keeps nothing of it:
it reads the few bytes that it needs from the host's page cache, or, where the dataset is in an object store,
from what the first rank of the host keeps in memory.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError, StorageError, storage_error, storage_errors
from emulator.files import open_plain
from emulator.storage.base import Store
from emulator.storage.folder import FolderStore
from emulator.units import show_bytes

ROW = np.dtype([("bytes", "<i8"), ("crc", "<u4"), ("shape", "<u4", (3,))])
"""One file: bytes of all its parts, CRC-32 over them, voxels per axis (depth, height, width)."""

Table = NDArray[np.void]
"""Rows of dtype ROW, in index order."""

TABLE_BYTES = 16 << 30
"""Largest table or journal in bytes: a hundred million files with their names."""
AT_ONCE = 2**20
"""Bytes of a read where all of a table is scanned."""
ROWS_AT_ONCE = AT_ONCE // ROW.itemsize


class StoredFile:
    """A file whose bytes `file[begin:end]` reads. Thread-safe; another process opens it again.

    It is not mapped: pages count as memory of each rank (1.3 MB per access), and a failing storage would end
    the rank by a signal.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        with open_plain(path) as file:
            self._descriptor = os.dup(file.fileno())

    @classmethod
    def holding(cls, data: bytes) -> StoredFile:
        """Return a file in memory (memfd) that holds `data` while this object lives. Raises OSError.

        Other processes open it under /proc. It has no name, so nothing is left behind when a process dies.
        """
        with os.fdopen(os.memfd_create("feedrate-table"), "wb") as file:
            file.write(data)
            file.flush()
            stored = cls(Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"))
        stored._path = Path(f"/proc/{os.getpid()}/fd/{stored._descriptor}")
        return stored

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    def __getitem__(self, part: slice) -> bytes:
        """Raises StorageError, also where the file ends before."""
        data = b""
        try:
            while missing := part.stop - part.start - len(data):  # a call returns 2 GiB at most
                more = os.pread(self._descriptor, missing, part.start + len(data))
                if not more:
                    raise StorageError(f"{self._path} became shorter", "something else writes to the dataset")
                data = data + more if data else more  # mostly one call: no copy
        except OSError as error:
            raise storage_error(error, f"cannot read {self._path}") from None
        return data

    def __reduce__(self) -> tuple[Callable[[Path], StoredFile], tuple[Path]]:
        return _opened, (self._path,)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _opened(path: Path) -> StoredFile:
    """Raises StorageError."""
    with storage_errors("cannot open the dataset's table", path):
        return StoredFile(path)


Stored = StoredFile | bytes
"""Bytes of a table: in its file, or in memory before it is written."""


class Column:
    """One field of equally long records, by index."""

    def __init__(self, stored: Stored, begin: int, count: int, kind: np.dtype[Any], field: str) -> None:
        """The field `field` of `count` records of the dtype `kind`, the first at byte `begin`."""
        self._stored, self._begin, self._count = stored, begin, count
        self._kind, self._field = kind, field
        self._offset, self._width = kind.fields[field][1], kind[field].itemsize  # type: ignore[index]
        self._signed = kind[field].kind == "i"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> NDArray[Any]: ...
    def __getitem__(self, index: int | slice) -> int | NDArray[Any]:
        """Raises StorageError."""
        row_bytes = self._kind.itemsize
        if isinstance(index, slice):
            first, last, step = index.indices(self._count)
            begin, end = self._begin + first * row_bytes, self._begin + max(first, last) * row_bytes
            rows = np.frombuffer(self._stored[begin:end], self._kind)
            return np.ascontiguousarray(rows[self._field][::step])
        at = self._begin + range(self._count)[index] * row_bytes + self._offset
        # Without numpy, whose array of one number would take longer: ranks look up single files.
        return int.from_bytes(self._stored[at : at + self._width], "little", signed=self._signed)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A table by the names of its columns: rows["bytes"][index], rows["crc"][begin:end]."""

    stored: StoredFile
    begin: int
    """Offset of the first row."""
    count: int

    @property
    def end(self) -> int:
        """Offset of what is behind the rows."""
        return self.begin + self.count * ROW.itemsize

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, field: str) -> Column:
        return Column(self.stored, self.begin, self.count, ROW, field)


def range_of(sizes: Column | NDArray[np.int64]) -> tuple[int, int, int]:
    """Return the smallest, the largest and the sum of `sizes`."""
    smallest, largest, total = 2**63, -(2**63), 0
    for begin in range(0, len(sizes), ROWS_AT_ONCE):
        part = sizes[begin : begin + ROWS_AT_ONCE]
        smallest, largest = min(smallest, int(part.min())), max(largest, int(part.max()))
        # In halves: what a damaged table says may be more than 64 bits hold.
        total += (int((part >> 32).sum()) << 32) + int((part & 0xFFFFFFFF).sum())
    return smallest, largest, total


def _npy_header(files: int) -> bytes:
    """Return the header that numpy writes in front of a table of `files` rows."""
    buffer = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (files,)}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def packed_table(rows: Table, behind: bytes) -> bytes:
    """Return the file of a table: an .npy array, and `behind`, which numpy does not read."""
    return b"".join([_npy_header(len(rows)), np.ascontiguousarray(rows).view(np.uint8).data, behind])


def read_table(store: Store, name: str, crc: int) -> StoredRows:
    """Open the table `name` and compare it with its checksum. Raises SpecError, StorageError."""
    stored = _stored(store, name)
    if stored is None:
        raise SpecError(f"its table {name} is missing")
    size = len(stored)
    # A parser could be made to allocate anything; the header is compared with the only one it can be.
    head = stored[0 : min(size, 256)]  # numpy writes fewer bytes in front of a table
    shape = re.search(rb"'shape': \((\d{1,12}),\)", head)
    files = int(shape[1]) if shape else 0
    header = _npy_header(files)
    rows = StoredRows(stored, len(header), files)
    if not head.startswith(header) or rows.end > size:
        raise SpecError(f"its table {name} has the wrong layout")
    if size > TABLE_BYTES:
        raise SpecError(f"its table {name} has more than {show_bytes(TABLE_BYTES)}")
    actual = 0
    for at in range(0, size, AT_ONCE):
        actual = zlib.crc32(stored[at : min(size, at + AT_ONCE)], actual)
    if actual != crc:
        raise SpecError(f"the checksum of its table {name} is wrong")
    return rows


def _stored(store: Store, name: str) -> StoredFile | None:
    """Open the file `name`; None: it is not there. Raises StorageError."""
    if not isinstance(store, FolderStore):
        data = store.get(name, TABLE_BYTES)
        with storage_errors("cannot hold a file in memory"):
            return None if data is None else StoredFile.holding(data)
    with (
        storage_errors("cannot read a file", store.root / name),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        return StoredFile(store.root / name)
    return None
