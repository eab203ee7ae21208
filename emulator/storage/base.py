"""Interfaces of storage: samples are read from a Storage; a Store can also be listed and written.

Folders, S3, RADOS and shaped storage keep one contract (tests/contracts/storage_contract.py). Each opens a
sample as a Blob, and a Blob reads bytes. Both are counted and timed here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from emulator import notes
from emulator.config.storage import Cache
from emulator.errors import DatasetError, StorageError
from emulator.files import DOCUMENT_BYTES, Closing, Owner
from emulator.storage.counts import ReadStats
from emulator.units import BLOCK_BYTES

HEAD = BLOCK_BYTES
"""Bytes at the start of a file from which its format is recognised."""
SKIM = 2**13
"""Size of the buffer that discarded bytes are read into, over each other. It fits a core's L1 cache: the
kernel's copy into 256 KiB, which fit only L2, took up to twice as long."""


class Blob(Closing, ABC):
    """One sample, open for reading from any number of threads."""

    __slots__ = ("_doing", "_stats", "alignment", "name", "size")

    def __init__(self, name: str, size: int, stats: ReadStats, path: str = "", alignment: int = 1) -> None:
        self.name = name
        """Name of the sample with that of its storage, for errors."""
        self.size = size
        self.alignment = alignment
        """Offsets, lengths and addresses of reads must be multiples of this: 1, or BLOCK_BYTES."""
        self._stats = stats
        self._doing = notes.phrase("read", path)

    def read_into(self, offset: int, buffer: memoryview, length: int | None = None) -> int:
        """Read `length` bytes, or as many as `buffer` holds, from byte `offset` on, in one timed request.

        If `buffer` is shorter than `length`, it keeps the first HEAD bytes of the request; later bytes
        overwrite each other behind them. Returns the bytes read, fewer only at the end of the sample. Raises
        StorageError; DatasetError if the sample is not the expected one.
        """
        asked = len(buffer) if length is None else length
        return self._stats.mine().timed(self.fill, offset, buffer, asked, doing=self._doing)

    def read_mapped(self, offset: int, buffer: memoryview, length: int) -> int:
        """Read through a map of the file; otherwise as read_into."""
        return self.read_into(offset, buffer, length)

    def advise(self, offset: int, length: int) -> None:
        """Tell the kernel that these bytes will be read."""

    @abstractmethod
    def fill(self, offset: int, buffer: memoryview, length: int) -> int:
        """Do what `read_into` says."""


CheckHead = Callable[[memoryview, int, str], None]
"""A check of a file's first HEAD bytes, size and name. Raises DatasetError if it cannot be a sample."""

Cancelled = Callable[[], bool]
"""Called before each file and each slow request: True if the bytes are no longer wanted."""


class Storage(ABC):
    """A place with named samples. Safe to use from many threads; can be pickled for a worker process."""

    stats: ReadStats
    """Counts and times of the reads so far."""
    turns = False
    """True if the requests of a rank take turns, so that one of its readers can hold up all others."""

    def open(self, name: str, size: int | None = None) -> Blob:
        """Open the sample `name`. Raises DatasetError if it is missing, StorageError otherwise.

        With the expected `size`, an object store does not request the size, and the first read raises
        DatasetError if the size differs.
        """
        with self.stats.mine().opens(self.path(name)):
            return self.blob(name, size)

    @abstractmethod
    def blob(self, name: str, size: int | None) -> Blob:
        """Do what `open` says."""

    def path(self, name: str) -> str:
        """Return the path of the sample `name`; empty if it is no file. Only calls for files may hang."""
        return ""

    def reopen(self, name: str, size: int | None = None) -> Blob:
        """Open a sample as `open` does, with its pages left in the page cache now and when it is closed."""
        return self.open(name, size)


def closed() -> StorageError:
    """Return the error that ends a read whose bytes are no longer wanted."""
    return StorageError("the loader is closed")


def missing(name: str) -> DatasetError:
    """Return the error of a sample that does not exist."""
    return DatasetError(f"the sample {name} is not there", "regenerate the dataset or check its path")


def cut_short(name: str, end: int, size: int) -> DatasetError:
    """Return the error of a file of `size` bytes that now ends at byte `end`."""
    return DatasetError(
        f"the sample {name} ends at byte {end} of {size}",
        "it was truncated while it was read; run feedrate verify on the dataset",
    )


def wrong_size(name: str, found: int, size: int) -> DatasetError:
    """Return the error of a sample that has `found` bytes instead of `size`."""
    return DatasetError(
        f"the sample {name} has {found} bytes, but the manifest says {size}",
        "run feedrate verify on the dataset",
    )


class ForeignName(DatasetError):
    """An object has a name that no file could have, and its store cannot list what is behind it."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(f"{store} has an object that no file could be: {name!r}", "remove it")
        self.name = name


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a store."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for writing samples. Object stores ignore them: their writes are atomic and durable."""

    direct: bool = True
    """Bypass the page cache (O_DIRECT) where the file system supports it."""
    sync: bool = True
    """fsync each file before it gets its name."""


class Draft(Closing, ABC):
    """A sample that is being written. It gets its name from `publish`; closed before, it leaves nothing.

    Methods raise StorageError for objects and OSError for files, so that callers can check the errno.
    """

    @abstractmethod
    def put(self, memory: memoryview, at: int) -> None:
        """Write page-aligned memory of whole blocks at a multiple of BLOCK_BYTES."""

    @abstractmethod
    def end(self, size: int) -> None:
        """Truncate to `size` bytes."""

    @abstractmethod
    def publish(self) -> None:
        """Give the sample its name, after an fsync if the options say so."""


class Appender(Closing, ABC):
    """Appends records, one by one. Safe to use from many threads. Raises as a Draft does."""

    @abstractmethod
    def append(self, record: bytes) -> None:
        """Append one record."""

    def sync(self) -> None:
        """Sync the records so far to the disk."""


class Store(Storage):
    """A storage that can also be listed and written. `str()` of it is its place.

    Names are relative, their parts separated by slashes. Methods raise StorageError; `draft` and `appender`
    raise as a Draft does. The defaults suit object stores, which have no folders and no partial objects.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Options of its URLs in addition to timeout and retries."""
    request: int
    """Best size of a request, in bytes, for reading a whole file in order."""

    @abstractmethod
    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """List all names that begin with `prefix`."""

    def names(self, prefix: str = "") -> Iterator[str]:
        """List the names of `entries`, without a stat of each file."""
        return (entry.name for entry in self.entries(prefix))

    def describe(self) -> dict[str, str]:
        """Return mount, source and type, without credentials; empty if the mount table has them."""
        return {}

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the bytes of `name`; None if it does not exist."""

    def oddity(self, name: str, inside: bool) -> str:
        """Return why `name` is no regular file; if it must lie `inside`, also where a link leads."""
        return ""

    @abstractmethod
    def get(self, name: str, most: int = DOCUMENT_BYTES) -> bytes | None:
        """Return the contents of a file or object; None if it does not exist.

        Raises SpecError if it has more than `most` bytes, StorageError.
        """

    @abstractmethod
    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write a small file or object atomically; it is durable when this returns."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove `names`; one that does not exist is no error."""

    @abstractmethod
    def draft(self, name: str, options: WriteOptions) -> Draft:
        """Begin to write the sample `name`."""

    @abstractmethod
    def appender(self, name: str, unit: int) -> Appender:
        """Append records of `unit` bytes to `name`, or to names that begin with it."""

    @abstractmethod
    def for_ranks(self, *, direct: bool, cache: Cache) -> Storage:
        """Return the same samples as training jobs read them, with new `stats`; connections are shared."""

    def takes_direct(self) -> bool:
        """Return True if files can be read past the page cache (O_DIRECT)."""
        return False

    @abstractmethod
    def exclusive(self, name: str) -> AbstractContextManager[Owner | None]:
        """Lock the dataset against other writers; the lock `name` records its owner.

        Yields the owner of a stale lock, a process that was killed, if there was one. Raises DatasetError.
        """

    def arrange(self, folders: Iterable[str]) -> None:
        """Make `folders`."""

    def settle(self, folders: Iterable[str]) -> None:
        """Sync all names in `folders` to the disk."""

    def clear(self, folders: Iterable[str]) -> None:
        """Remove the empty ones of `folders`."""

    def free(self) -> int | None:
        """Return the bytes that can still be written; None if unknown."""
        return None

    def free_files(self) -> int | None:
        """Return the number of files that can still be made; None if unknown."""
        return None
