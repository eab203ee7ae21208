"""The rows and names of a dataset's files, read where they lie when they are asked for.

A table of ten million files is 240 MB, and every rank of a host looks into it. So a rank keeps nothing of it:
it asks for the few bytes that it needs, which come from the host's page cache, or, where the dataset is in an
object store, from what the first rank of the host keeps in memory. A mapped file would count as memory of
each rank, 1.3 MB a look, and end it by a signal where the storage fails.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from emulator.errors import StorageError, storage_error, storage_errors
from emulator.files import open_plain

ROW = np.dtype([("bytes", "<i8"), ("crc", "<u4"), ("shape", "<u4", (3,))])
"""One file: bytes of all its parts, CRC-32 over them, voxels per axis (depth, height, width)."""

Table = NDArray[np.void]
"""Rows of dtype ROW, in index order."""

AT_ONCE = 2**20
"""Bytes that are read together where all of them are looked at."""
ROWS_AT_ONCE = AT_ONCE // ROW.itemsize


class StoredFile:
    """A file of which `file[begin:end]` reads these bytes. In another process of the host it is opened again.

    Used by many threads.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        with open_plain(path) as file:
            self._descriptor = os.dup(file.fileno())

    @classmethod
    def holding(cls, data: bytes) -> StoredFile:
        """A file in memory that holds `data` while this object lives, also for others. Raises OSError.

        It has no name, so that nothing of it is left behind, whatever dies.
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
        found = b""
        try:
            while missing := part.stop - part.start - len(found):  # at most 2 GiB come at once
                more = os.pread(self._descriptor, missing, part.start + len(found))
                if not more:
                    raise StorageError(f"{self._path} became shorter", "something else writes to the dataset")
                found = found + more if found else more
        except OSError as error:
            raise storage_error(error, f"cannot read {self._path}") from None
        return found

    def __reduce__(self) -> tuple[Callable[[Path], StoredFile], tuple[Path]]:
        return _opened, (self._path,)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _opened(path: Path) -> StoredFile:
    """Raises StorageError."""
    with storage_errors("cannot open the dataset's table"):
        return StoredFile(path)


Stored = StoredFile | bytes
"""Bytes of a table; of one that is about to be written, in memory."""


class Column:
    """Numbers that lie at the same distance from each other, by index."""

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
        each = self._kind.itemsize
        if isinstance(index, slice):
            first, last, step = index.indices(self._count)
            part = self._stored[self._begin + first * each : self._begin + max(first, last) * each]
            return np.ascontiguousarray(np.frombuffer(part, self._kind)[self._field][::step])
        at = self._begin + range(self._count)[index] * each + self._offset
        return int.from_bytes(self._stored[at : at + self._width], "little", signed=self._signed)


class StoredRows:
    """A table by the names of its columns: rows["bytes"][index], rows["crc"][begin:end]."""

    def __init__(self, stored: Stored, begin: int, count: int) -> None:
        """`count` rows, the first at byte `begin`."""
        self._given = (stored, begin, count)

    def __len__(self) -> int:
        return self._given[2]

    def __getitem__(self, field: str) -> Column:
        return Column(*self._given, ROW, field)


_ENDS = np.dtype([("end", "<i8")])


class NamesByIndex(Sequence[str]):
    """File names of which one at a time is made: a slice has those, a negative index counts from the end."""

    __slots__ = ()

    @abstractmethod
    def name(self, number: int) -> str:
        """The name at `number`, which is within the length. Raises StorageError."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        wanted = range(len(self))[index]
        return self.name(wanted) if isinstance(wanted, int) else [self.name(number) for number in wanted]


class Listed(NamesByIndex):
    """File names as they were found: where each ends, and their bytes one after the other."""

    def __init__(self, stored: Stored, begin: int, count: int) -> None:
        """`count` names, whose ends, a 0 before the first, begin at byte `begin`; as `packed` gives them."""
        self._given = (stored, begin, count)
        self._stored, self._text = stored, begin + (count + 1) * _ENDS.itemsize
        self._ends = Column(stored, begin, count + 1, _ENDS, "end")

    @classmethod
    def of(cls, names: Iterable[str]) -> Listed:
        """These names. Raises UnicodeEncodeError for what cannot be the name of a file."""
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        return cls(ends.tobytes() + text, 0, len(ends) - 1)

    def packed(self) -> bytes:
        """Ends and bytes, as they are written."""
        stored, begin, count = self._given
        return stored[begin : self._text + self._ends[count]]

    def __len__(self) -> int:
        return self._given[2]

    def name(self, number: int) -> str:
        begin, end = self._ends[number : number + 2].tolist()
        return os.fsdecode(self._stored[self._text + begin : self._text + end])

    def __iter__(self) -> Iterator[str]:
        """All of them, some read at a time."""
        for first in range(0, len(self), ROWS_AT_ONCE):
            ends = self._ends[first : first + ROWS_AT_ONCE + 1]
            text = self._stored[self._text + int(ends[0]) : self._text + int(ends[-1])]
            for begin, end in pairwise((ends - ends[0]).tolist()):
                yield os.fsdecode(text[begin:end])

    def in_order(self, size: int) -> bool:
        """True when the ends are those of names in `size` bytes, none of them empty."""
        last = 0
        for first in range(0, len(self), ROWS_AT_ONCE):
            ends = self._ends[first : first + ROWS_AT_ONCE + 1]
            inside = 0 <= ends.min() <= ends.max() <= size  # else differences may be more than 64 bits hold
            if not inside or ends[0] != last or (np.diff(ends) < 1).any():
                return False
            last = int(ends[-1])
        return last == size
