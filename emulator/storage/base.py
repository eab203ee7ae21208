"""Storages, stores, and the cost of reads.

A Storage gives samples to read, a Store can also be listed and written: that is where a dataset is made.
Files, S3 and RADOS are adapters of these verbs; `TimedStorage` and `shaped.ShapedStorage` wrap any of them.
All pass the same tests (tests/contracts/storage_contract.py).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.config.storage import Cache
from emulator.errors import DatasetError, StorageError
from emulator.files import Owner
from emulator.units import BLOCK_BYTES

Key = TypeVar("Key")
P = ParamSpec("P")

HEAD = BLOCK_BYTES
"""Bytes at the start of a file that a format needs to know it; `Blob.skim` keeps as many."""
SKIM = 2**13
"""Bytes of a buffer that unwanted bytes are read into, over each other. They stay in a core's first-level
cache: into 256 KiB, which only the second level holds, the kernel's copy took up to twice as long."""

RetryKind = Literal["timeout", "busy", "cut", "connection"]
"""Reason of a repeat: no answer in time, 429 or 5xx, a body cut off, no (more) connection."""

EDGES = tuple(sorted({round(10 ** (step / 231)) for step in range(9 * 231 + 1)}))
"""Upper edges of the latency histogram in microseconds, 1 us to 1000 s, 1 % apart from 100 us on; the last
takes what is above."""
_UPPER = np.array(EDGES[:-1])


class ReadCounts(NamedTuple):
    """The cost of reads up to one moment."""

    bytes: int = 0
    """Bytes delivered."""
    latencies: Mapping[int, int] = {}
    """Upper edge in microseconds -> read requests, ascending; empty buckets are left out."""
    seconds: float = 0.0
    """Seconds within read requests, summed over threads; less those on a core, where they are known."""
    opening: float = 0.0
    """Seconds within the opening of files, summed over threads."""
    pages_sampled: int = 0
    """Pages whose residency was asked for after eviction and before reading."""
    pages_resident: int = 0
    """Pages among those that were in the page cache all the same."""
    retries: Mapping[str, int] = {}
    """RetryKind -> requests to an object store that were repeated for it."""
    slowest: float = 0.0
    """Seconds of the longest read request of all time: no bucket's edge."""

    @property
    def reads(self) -> int:
        """Read requests."""
        return sum(self.latencies.values())

    def plus(self, other: ReadCounts) -> ReadCounts:
        """The sum of both."""
        return self._with(other, 1)

    def less(self, earlier: ReadCounts) -> ReadCounts:
        """The counts since `earlier`."""
        return self._with(earlier, -1)

    def _with(self, other: ReadCounts, sign: int) -> ReadCounts:
        return ReadCounts(
            self.bytes + sign * other.bytes,
            dict(sorted(_added(self.latencies, other.latencies, sign).items())),
            self.seconds + sign * other.seconds,
            self.opening + sign * other.opening,
            self.pages_sampled + sign * other.pages_sampled,
            self.pages_resident + sign * other.pages_resident,
            _added(self.retries, other.retries, sign),
            max(self.slowest, other.slowest),
        )


def _added(counts: Mapping[Key, int], others: Mapping[Key, int], sign: int) -> dict[Key, int]:
    both = {key: counts.get(key, 0) + sign * others.get(key, 0) for key in {**counts, **others}}
    return {key: count for key, count in both.items() if count}


_TOGETHER = 256
"""Requests that are put into a histogram together: one by one, that costs a tenth of a small request."""


class Tally:
    """Counts of the reads of one thread, which writes them without a lock; any thread may read them."""

    __slots__ = ("_filed", "begin", "bytes", "on_core", "opening", "requests", "seconds", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.bytes = 0
        self.requests = 0
        """Read requests that have ended."""
        self.seconds = 0.0
        """Seconds within these."""
        self.opening = 0.0
        """Seconds within openings, which are no read requests, but may wait for the storage as well."""
        self.on_core = 0.0
        """Seconds of CPU within requests, where they are known: nobody waits for the storage meanwhile."""
        self.begin = 0.0
        """Start of the present request, opening or scan, in seconds of time.monotonic; 0.0: none is
        under way."""
        self._filed = (np.zeros(len(EDGES), np.int64), 0.0, array("d"))
        """The histogram, the longest request in it, and seconds of the requests that are not in it yet."""

    def within(self, now: float) -> float:
        """Seconds within requests and openings up to `now` (time.monotonic), less those on a core."""
        begin = self.begin
        return self.seconds - self.on_core + self.opening + (now - begin if 0 < begin < now else 0.0)

    def add(self, size: int, seconds: float) -> None:
        """One request, which delivered `size` bytes."""
        self.add_all(size, array("d", (seconds,)))

    def add_all(self, size: int, seconds: array[float]) -> None:
        """Some requests, which took so long each and delivered `size` bytes together."""
        self.bytes += size
        self.requests += len(seconds)
        self.seconds += sum(seconds)
        new = self._filed[2]
        new.extend(seconds)
        if len(new) >= _TOGETHER:
            self._filed = (*self.latencies(), array("d"))

    def latencies(self) -> tuple[NDArray[np.int64], float]:
        """Requests in each bucket of the histogram, and seconds of the longest."""
        buckets, slowest, new = self._filed
        taken = np.frombuffer(new[:])  # of a copy: an array that is looked at cannot grow
        found = np.searchsorted(_UPPER, taken * 1e6)
        return buckets + np.bincount(found, minlength=len(EDGES)), float(taken.max(initial=slowest))


class ReadStats:
    """Counts of one rank: each thread keeps a tally of its own, and they are summed when somebody asks.

    Requests that are read in one go count when the last of them has ended. A copy that travels to a worker
    process starts at zero. The worker returns `drain()` of its copy now and then, and the rank takes it in
    with `absorb`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all but the tallies' contents
        self._local = threading.local()
        self._tallies: list[Tally] = []
        self._absorbed = self._drained = ReadCounts()
        self._pages_sampled = self._pages_resident = 0
        self._retries: Counter[str] = Counter()

    def __reduce__(self) -> tuple[type[ReadStats], tuple[()]]:
        return (ReadStats, ())

    def mine(self) -> Tally:
        """The tally of the calling thread."""
        try:
            found: Tally = self._local.tally
        except AttributeError:
            found = self._local.tally = Tally(threading.get_native_id())
            with self._lock:
                self._tallies.append(found)
        return found

    def add_pages(self, sampled: int, resident: int) -> None:
        """Pages that were looked at before reading, and those of them in the page cache."""
        with self._lock:
            self._pages_sampled += sampled
            self._pages_resident += resident

    def add_retry(self, kind: RetryKind) -> None:
        """A request that is about to be repeated."""
        with self._lock:
            self._retries[kind] += 1

    def tallies(self) -> tuple[Tally, ...]:
        """The tallies of the threads of this process."""
        with self._lock:
            return tuple(self._tallies)

    def snapshot(self) -> ReadCounts:
        """The counts so far."""
        return self._total().less(self._drained)

    def drain(self) -> ReadCounts:
        """The counts so far; they start at zero again."""
        total = self._total()
        before, self._drained = self._drained, total
        return total.less(before)

    def absorb(self, counts: ReadCounts) -> None:
        """Add the counts of another process."""
        with self._lock:
            self._absorbed = self._absorbed.plus(counts)

    def _total(self) -> ReadCounts:
        """Add up the counts since the start, also those that were drained."""
        with self._lock:
            tallies = tuple(self._tallies)
            pages, retries = (self._pages_sampled, self._pages_resident), dict(self._retries)
            absorbed = self._absorbed
        for tally in tallies:
            buckets, slowest = tally.latencies()
            latencies = {EDGES[at]: int(buckets[at]) for at in np.flatnonzero(buckets)}
            absorbed = absorbed.plus(
                ReadCounts(
                    tally.bytes, latencies, tally.seconds - tally.on_core, tally.opening, slowest=slowest
                )
            )
        return absorbed.plus(ReadCounts(pages_sampled=pages[0], pages_resident=pages[1], retries=retries))


class Closing:
    """A context manager that closes itself when its body ends."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what is held; nothing happens when that has been done before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Blob(Closing, ABC):
    """One sample, open for reading, from any number of threads.

    It has no constructor: a chain of them would cost a tenth of the time that a small cached sample takes to
    read.
    """

    __slots__ = ("alignment", "name", "size")

    name: str
    """Name of the sample with that of its storage, for errors."""
    size: int
    """Bytes of the sample."""
    alignment: int
    """Offsets, lengths and addresses of reads must be multiples of this: 1, or BLOCK_BYTES."""

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `offset` on; returns the bytes read, fewer only at the end.

        Raises StorageError; DatasetError when the sample is not the one it should be.
        """

    @abstractmethod
    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """Read `length` bytes in one request, as `read_into` does, for somebody who wants none of them.

        The first HEAD bytes stay at the start of `buffer`. All others are read over each other in the rest
        of it, so that it needs only HEAD + SKIM bytes.
        """


CheckHead = Callable[[memoryview, int, str], None]
"""(first HEAD bytes of a file, its size, its name): raises DatasetError where it cannot be a sample."""

Cancelled = Callable[[], bool]
"""Asked before each file and each request that may take long: True when nobody waits for the bytes."""


class Wanted(NamedTuple):
    """A request for bytes of one file."""

    name: str
    size: int
    """Bytes that the file should have."""
    requests: Sequence[tuple[int, int]]
    """Offset and bytes of each."""
    whole: bool
    """All of the file, from its start: then its head is looked at. Else it is kept open for more."""

    @property
    def bytes(self) -> int:
        """Bytes of all requests."""
        return sum(length for _, length in self.requests)


class Scanner(Closing, ABC):
    """Reads many requests in one go. Used by one thread."""

    waits = False
    """True if every request may have to wait for the storage: then others should read at the same time."""

    @abstractmethod
    def scan(
        self,
        wanted: Sequence[Wanted],
        check_head: CheckHead,
        cancelled: Cancelled,
        into: memoryview | None = None,
    ) -> int:
        """Read all that is wanted, in order, every request counted and timed; the bytes that were wanted.

        They are put into `into`, one request behind the other (not with O_DIRECT), or kept nowhere. Raises
        DatasetError where a file is not there or has another size, StorageError where it cannot be read,
        and when `cancelled` says so.
        """


class Storage(ABC):
    """A place with named samples. Safe to use from many threads; can be pickled for a worker process."""

    stats: ReadStats
    """Cost of the reads so far; a wrapper has that of the storage that it wraps."""
    alignment = 1
    """Multiple of bytes at which direct reads begin and end, as in Blob."""
    evicts_on_close = False
    """True if closing a file pushes it out of the page cache, so that it must not stay open over epochs."""
    turns = False
    """True if the requests of a rank take turns, so that one of its readers can hold up all others."""

    @abstractmethod
    def open(self, name: str, size: int | None = None) -> Blob:
        """The sample `name`, open. Raises DatasetError when it is not there, StorageError otherwise.

        `size` is the bytes that it should have: objects are then not asked for theirs, and a difference
        is a DatasetError of the first read.
        """

    def library_path(self, name: str) -> tuple[str, int] | None:
        """Path and bytes of the sample `name`, evicted where reads are cold, for a library that opens it.

        None: it has no path. Raises as `open` does.
        """
        return None

    def scanner(self, buffer: memoryview, files: int, give_way: Callable[[], None]) -> Scanner | None:
        """One that reads through `buffer`, which has room for a request and HEAD + SKIM bytes, keeps `files`
        files open at most, and calls `give_way` before it has to wait for the storage: other threads shall
        read meanwhile. None: here every request goes through a Blob.
        """
        return None


def closed() -> StorageError:
    """Return the error that ends a read for which nobody waits any more."""
    return StorageError("the loader is closed")


def cut_short(name: str, end: int, size: int) -> DatasetError:
    """The error of a file of `size` bytes that now ends at byte `end`."""
    return DatasetError(
        f"the sample {name} ends at byte {end} of {size}",
        "it was cut while it was read; run feedrate verify on the dataset",
    )


def wrong_size(name: str, found: int, size: int) -> DatasetError:
    """The error of a sample that has `found` bytes."""
    return DatasetError(
        f"the sample {name} has {found} bytes, but the manifest says {size}",
        "run feedrate verify on the dataset",
    )


class WrappedBlob(Blob):
    """A blob in front of another one."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Blob) -> None:
        self.name = inner.name
        self.size = inner.size
        self.alignment = inner.alignment
        self._inner = inner

    def close(self) -> None:
        self._inner.close()


class TimedStorage(Storage):
    """`inner`, with every read request counted and timed into its `stats`."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.stats = inner.stats
        self.alignment = inner.alignment
        self.turns = inner.turns
        self.evicts_on_close = inner.evicts_on_close

    def open(self, name: str, size: int | None = None) -> TimedBlob:
        tally = self.stats.mine()
        tally.begin = begin = time.monotonic()
        try:
            return TimedBlob(self.inner.open(name, size), self.stats)
        finally:
            tally.opening += time.monotonic() - begin
            tally.begin = 0.0

    def library_path(self, name: str) -> tuple[str, int] | None:
        tally = self.stats.mine()
        tally.begin = begin = time.monotonic()
        try:
            return self.inner.library_path(name)
        finally:
            tally.opening += time.monotonic() - begin
            tally.begin = 0.0

    def scanner(self, buffer: memoryview, files: int, give_way: Callable[[], None]) -> Scanner | None:
        return self.inner.scanner(buffer, files, give_way)  # which keeps its times itself


class TimedBlob(WrappedBlob):
    """One open sample, timed."""

    __slots__ = ("_stats",)

    def __init__(self, inner: Blob, stats: ReadStats) -> None:
        self.name = inner.name
        self.size = inner.size
        self.alignment = inner.alignment
        self._inner = inner
        self._stats = stats

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return self._timed(self._inner.read_into, offset, buffer)

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        return self._timed(self._inner.skim, offset, length, buffer)

    def _timed(self, request: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
        tally = self._stats.mine()
        tally.begin = begin = time.monotonic()
        try:
            done = request(*args, **kwargs)
            tally.add(done, time.monotonic() - begin)
        finally:
            tally.begin = 0.0
        return done


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a store."""

    name: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of writing samples. Object stores ignore them: an object is whole and safe, or not there."""

    direct: bool = True
    """Past the page cache (O_DIRECT) where the file system can."""
    sync: bool = True
    """fsync each file before it gets its name."""


class Draft(Closing, ABC):
    """A sample that is being written. It gets its name when it is whole; unpublished, it leaves nothing.

    Over objects its methods raise StorageError, over files OSError, so that callers see a full disk by errno.
    """

    @abstractmethod
    def put(self, memory: memoryview, at: int) -> None:
        """Write page-aligned memory of whole blocks at a multiple of BLOCK_BYTES."""

    @abstractmethod
    def end(self, size: int) -> None:
        """Cut to `size` bytes, and put it on the disk when that was asked for."""

    @abstractmethod
    def publish(self) -> None:
        """Give it its name."""


class Appender(Closing, ABC):
    """Records that are kept one by one. Safe to use from many threads. Raises as a Draft does."""

    @abstractmethod
    def append(self, record: bytes) -> None:
        """Keep one record."""

    def sync(self) -> None:
        """Put what was appended on the disk, where it is not there yet."""


class Store(Storage):
    """A storage that can also be listed and written. `str()` of it is its place.

    Names are relative, their parts separated by slashes. All verbs raise StorageError; `target` and
    `appender` raise as a Draft does. Verbs that have a body here do what is right for objects: there are no
    folders, nothing is half-written, and what was put is safe.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Options of its URLs beside timeout and retries."""
    request: int
    """Bytes of a request that reading a whole file in order should use."""

    @abstractmethod
    def entries(self, prefix: str = "", without: Container[str] = ()) -> Iterator[Entry]:
        """Everything whose name begins with `prefix`; what lies in the folders `without` may be left out."""

    def names(self, prefix: str = "", without: Container[str] = ()) -> Iterator[str]:
        """The names of the same."""
        return (entry.name for entry in self.entries(prefix, without))

    def describe(self) -> dict[str, str]:
        """Mount, source and type for the result, without keys; empty where the mount table tells."""
        return {}

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of `name`; None: it is not there."""

    def names_of(self, name: str) -> int:
        """Count the hard links of the file `name`. Raises StorageError."""
        return 1

    def oddity(self, name: str, strict: bool = False) -> str:
        """Say why `name` is no plain file that can be read; `strict`: also links out of the folder."""
        return ""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """The whole of something small; None: it is not there."""

    @abstractmethod
    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write something small, whole or not at all; it is safe when this returns."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove these; what is not there is no error."""

    @abstractmethod
    def draft(self, name: str, options: WriteOptions) -> Draft:
        """The sample `name`, to be written."""

    @abstractmethod
    def appender(self, name: str, unit: int) -> Appender:
        """Records of `unit` bytes, to be kept in `name`, or in names that begin with it."""

    @abstractmethod
    def for_ranks(self, *, direct: bool, cache: Cache) -> Storage:
        """The same samples as training jobs read them, with `stats` of their own; connections are shared."""

    def takes_direct(self) -> bool:
        """True when files can be read past the page cache (O_DIRECT)."""
        return False

    @abstractmethod
    def exclusive(self, name: str) -> AbstractContextManager[Owner | None]:
        """No other process makes this dataset meanwhile; `name` says who does. Raises DatasetError.

        Gives who left the lock behind, when somebody was killed.
        """

    def arrange(self, folders: Iterable[str]) -> None:
        """Make these folders."""

    def settle(self, folders: Iterable[str]) -> None:
        """Put all names in these folders on the disk."""

    def clear(self, folders: Iterable[str]) -> None:
        """Remove these folders where they are empty."""

    def free(self) -> int | None:
        """Bytes that can still be written; None: nobody knows."""
        return None

    def free_files(self) -> int | None:
        """Files that can still be made; None: nobody knows."""
        return None
