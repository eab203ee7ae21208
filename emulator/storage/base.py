"""What a storage can do. Backends and wrappers have the same verbs and pass the same tests."""

from __future__ import annotations

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

    def open(self, name: str) -> Blob:
        """The sample `name`, open. Raises DatasetError when it is not there, StorageError otherwise."""
        ...
