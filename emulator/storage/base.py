"""What a storage can do. Backends and wrappers have the same verbs and pass the same tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from emulator.storage.stats import ReadStats

HEAD = 4096
"""Bytes that `skim` keeps: what a format needs to know a file."""


@runtime_checkable
class Blob(Protocol):
    """One sample, open for reading. A context manager that closes it."""

    name: str
    """Name of the sample within its storage, for errors."""
    size: int
    """Bytes of the sample."""
    alignment: int
    """Offsets, lengths and addresses of reads must be multiples of this (1, or 4096 for O_DIRECT)."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `offset` on; returns the bytes read, fewer only at the end.

        Raises StorageError.
        """
        ...

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """As `read_into` a buffer of `length` bytes, for somebody who wants none of them.

        The first HEAD bytes stay at the start of `buffer`; all others are read over each other in the rest
        of it, which must be 3 x HEAD long at least. Raises StorageError.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """A place with named samples. Safe to use from many threads; can be pickled for a worker process."""

    stats: ReadStats
    """What the reads cost so far; a wrapper has those of the storage that it wraps."""

    def open(self, name: str, size: int | None = None) -> Blob:
        """The sample `name`, open. Raises DatasetError when it is not there, StorageError otherwise.

        `size` is the bytes that it should have: objects are then not asked for theirs, and a difference
        is a DatasetError of the first read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a store."""

    name: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How samples are written. Objects take no notice: they are whole and safe, or not there."""

    direct: bool = True
    """Past the page cache (O_DIRECT) where the file system can."""
    sync: bool = True
    """fsync each file before it gets its name."""


class Draft(Protocol):
    """A sample that is written, and gets its name when it is whole.

    A context manager: what was not published leaves nothing behind.
    """

    def put(self, memory: memoryview, at: int) -> None:
        """Write page-aligned memory of whole pages at a multiple of 4096. Raises OSError."""
        ...

    def end(self, size: int) -> None:
        """Cut to `size` bytes; on the disk, when that was asked for. Raises OSError."""
        ...

    def publish(self) -> None:
        """Give it its name. Raises OSError, StorageError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Appender(Protocol):
    """Records that are kept one by one. A context manager; safe to use from many threads."""

    def append(self, record: bytes) -> None:
        """Keep one record. Raises OSError, StorageError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Store(Storage, Protocol):
    """A storage that can also be listed and written: where a dataset is made.

    Names are relative, their parts separated by slashes. Those over files raise OSError, those over
    objects StorageError, where no other class is said. `str()` of it is its place.
    """

    request: int
    """Bytes of a request that reading a whole file in order should use."""

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Everything whose name begins with `prefix`."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of `name`; None: it is not there."""
        ...

    def get(self, name: str) -> bytes | None:
        """The whole of something small; None: it is not there."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Something small, whole or not at all, and safe when this returns."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove these; what is not there is no error."""
        ...

    def target(self, name: str, options: WriteOptions) -> Draft:
        """The sample `name`, to be written."""
        ...

    def appender(self, name: str, unit: int) -> Appender:
        """Records of `unit` bytes, to be kept in `name`, or in names that begin with it."""
        ...

    def exclusive(self, name: str) -> AbstractContextManager[None]:
        """No other process makes this dataset meanwhile, where that can be known. Raises DatasetError."""
        ...

    def arrange(self, folders: Iterable[str]) -> None:
        """Make room for names in these folders, and remove what killed writers left."""
        ...

    def settle(self, folders: Iterable[str]) -> None:
        """All names in these folders are safe, and nothing half-written is left."""
        ...

    def clear(self, folders: Iterable[str]) -> None:
        """Remove these folders where they are empty."""
        ...

    def free(self) -> int | None:
        """Bytes that can still be written; None: nobody knows."""
        ...
