"""What the reads of a rank cost: requests, bytes, a latency histogram, and resident pages."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, get_args, runtime_checkable

RetryKind = Literal["timeout", "busy", "cut", "connection"]
"""Why a request was repeated: no answer in time, 429 or 5xx, a body cut off, no (more) connection."""
RETRY_KINDS: tuple[RetryKind, ...] = get_args(RetryKind)

PER_DECADE = 8
EDGES = tuple(sorted({round(10 ** (step / PER_DECADE)) for step in range(9 * PER_DECADE + 1)}))
"""Upper edges of the latency histogram in microseconds, 1 us to 1000 s; the last takes what is above."""


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Counts at one moment. They add and subtract, so that a run is the difference of two."""

    reads: int = 0
    """Read requests."""
    bytes: int = 0
    """Bytes delivered."""
    buckets: tuple[int, ...] = (0,) * len(EDGES)
    """Requests per latency bucket, in the order of EDGES."""
    pages_sampled: int = 0
    """Pages whose residency was asked for after eviction and before reading."""
    pages_resident: int = 0
    """Pages of these that were in the page cache all the same."""
    retries: tuple[int, ...] = (0,) * len(RETRY_KINDS)
    """Requests to an object store that were repeated, in the order of RETRY_KINDS."""

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return self._with(other, 1)

    def __sub__(self, other: ReadCounts) -> ReadCounts:
        return self._with(other, -1)

    def _with(self, other: ReadCounts, sign: int) -> ReadCounts:
        return ReadCounts(
            reads=self.reads + sign * other.reads,
            bytes=self.bytes + sign * other.bytes,
            buckets=tuple(a + sign * b for a, b in zip(self.buckets, other.buckets, strict=True)),
            pages_sampled=self.pages_sampled + sign * other.pages_sampled,
            pages_resident=self.pages_resident + sign * other.pages_resident,
            retries=tuple(a + sign * b for a, b in zip(self.retries, other.retries, strict=True)),
        )

    @property
    def resident_share(self) -> float | None:
        """Share (0 to 1) of the sampled pages that were resident; None when none was sampled."""
        return self.pages_resident / self.pages_sampled if self.pages_sampled else None

    def histogram(self) -> dict[int, int]:
        """Upper edge in microseconds -> requests; empty buckets left out."""
        return {edge: count for edge, count in zip(EDGES, self.buckets, strict=True) if count}

    def repeated(self) -> dict[str, int]:
        """RetryKind -> requests that were repeated for it; what did not happen is left out."""
        return {kind: count for kind, count in zip(RETRY_KINDS, self.retries, strict=True) if count}


class ReadStats:
    """Counts of one rank, exact from any number of threads.

    A copy that travels to a worker process starts at zero; the worker returns `drain()` of its copy
    now and then, and the rank takes it in with `absorb`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._reads = 0
        self._bytes = 0
        self._buckets = [0] * len(EDGES)
        self._pages_sampled = 0
        self._pages_resident = 0
        self._retries = [0] * len(RETRY_KINDS)

    def __reduce__(self) -> tuple[type[ReadStats], tuple[()]]:
        return (ReadStats, ())

    def add_read(self, size: int, nanoseconds: int) -> None:
        """One request that delivered `size` bytes."""
        bucket = min(bisect_left(EDGES, nanoseconds / 1000), len(EDGES) - 1)
        with self._lock:
            self._reads += 1
            self._bytes += size
            self._buckets[bucket] += 1

    def add_pages(self, sampled: int, resident: int) -> None:
        """Pages that were looked at before reading, and those of them in the page cache."""
        with self._lock:
            self._pages_sampled += sampled
            self._pages_resident += resident

    def add_retry(self, kind: RetryKind) -> None:
        """A request that is about to be repeated."""
        with self._lock:
            self._retries[RETRY_KINDS.index(kind)] += 1

    def snapshot(self) -> ReadCounts:
        """The counts so far."""
        with self._lock:
            return self._counts()

    def histogram(self) -> dict[int, int]:
        """As ReadCounts.histogram, of the counts so far."""
        return self.snapshot().histogram()

    def drain(self) -> ReadCounts:
        """The counts so far; they start at zero again."""
        with self._lock:
            counts = self._counts()
            self._clear()
        return counts

    def absorb(self, counts: ReadCounts) -> None:
        """Add the counts of another process."""
        with self._lock:
            self._reads += counts.reads
            self._bytes += counts.bytes
            self._buckets = [a + b for a, b in zip(self._buckets, counts.buckets, strict=True)]
            self._pages_sampled += counts.pages_sampled
            self._pages_resident += counts.pages_resident
            self._retries = [a + b for a, b in zip(self._retries, counts.retries, strict=True)]

    def _counts(self) -> ReadCounts:
        return ReadCounts(
            self._reads, self._bytes, tuple(self._buckets), self._pages_sampled, self._pages_resident,
            tuple(self._retries),
        )  # fmt: skip


# ---- What a storage can do. Backends and wrappers have the same verbs and pass the same tests.


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
