"""Counts and times of reads: each thread writes a tally of its own."""

from __future__ import annotations

import resource
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator import notes

RetryKind = Literal["timeout", "busy", "cut", "connection"]
"""Reason for a retry: no answer in time, status 429 or 5xx, a truncated body, a failed connection."""

EDGES = tuple(sorted({round(10 ** (step / 231)) for step in range(9 * 231 + 1)}))
"""Upper edges of the latency histogram in microseconds, 1 us to 1000 s, 1 % apart from 100 us on; the last
bucket also counts all longer requests."""
_UPPER = np.array(EDGES[:-1])
_AT = {edge: at for at, edge in enumerate(EDGES)}
Buckets = NDArray[np.int64]
"""Requests in each bucket of EDGES."""


class ReadCounts(NamedTuple):
    """The cost of reads up to one moment."""

    bytes: int = 0
    latencies: Mapping[int, int] = {}
    """Read requests by the upper edge of their bucket in microseconds, ascending, without empty buckets."""
    seconds: float = 0.0
    """Seconds spent in read requests, summed over threads, less their CPU seconds where those are known."""
    opening: float = 0.0
    """Seconds spent opening files, summed over threads."""
    pages_sampled: int = 0
    """Pages whose residency was checked after eviction and before reading."""
    pages_resident: int = 0
    """Pages among those that were still in the page cache."""
    retries: Mapping[str, int] = {}
    """Retried requests to an object store, by RetryKind."""
    stored: int = 0
    """Bytes that the kernel fetched from a disk or from NFS for this process, read-ahead included."""
    slowest: float = 0.0
    """Seconds of the longest read request so far; `less` does not reset it."""

    @property
    def reads(self) -> int:
        """Number of read requests."""
        return sum(self.latencies.values())

    def plus(self, other: ReadCounts) -> ReadCounts:
        """Return the sum of both."""
        return self._with(other, 1)

    def less(self, earlier: ReadCounts) -> ReadCounts:
        """Return the counts since `earlier`."""
        return self._with(earlier, -1)

    def _with(self, other: ReadCounts, sign: int) -> ReadCounts:
        sums = [_added(mine, theirs, sign) for mine, theirs in zip(self, other, strict=True)]
        return ReadCounts(*sums)._replace(slowest=max(self.slowest, other.slowest))


def _added(mine: Any, other: Any, sign: int) -> Any:
    if not isinstance(mine, Mapping):
        return mine + sign * other
    sums = {key: mine.get(key, 0) + sign * other.get(key, 0) for key in sorted({**mine, **other})}
    return {key: count for key, count in sums.items() if count}


_TOGETHER = 256
"""Requests in a batch for the histogram: adding them singly costs a tenth of a small read."""


class Tally:
    """The counts of one thread, which writes them without a lock; any thread may read them."""

    __slots__ = (
        "_filed",
        "bytes",
        "inside",
        "note",
        "on_core",
        "opening",
        "requests",
        "seconds",
        "text",
        "thread",
    )

    def __init__(self, thread: int) -> None:
        self.thread = thread
        """Kernel thread ID."""
        self.bytes = 0
        self.requests = 0
        """Calls that have ended, after each of which the thread takes Python's lock."""
        self.seconds = 0.0
        """Seconds spent in finished read requests, summed where several were under way."""
        self.inside = 0.0
        """Seconds in which at least one request or opening was under way, until the last one ended."""
        self.opening = 0.0
        """Seconds spent opening files, which may wait for the storage as reads do."""
        self.on_core = 0.0
        """CPU seconds within requests, where known: they are no wait for the storage."""
        self.note = notes.mine()
        """What the request, opening or scan under way reads, for the process's watcher."""
        self.text = self.note.memory
        """Where a scan writes the call and the path under way: `read of /mnt/a/f17`, ended by a zero byte."""
        self._filed = (np.zeros(len(EDGES), np.int64), 0.0, array("d"))
        """The histogram, its longest request, and the seconds of requests not yet added to it."""

    @property
    def begin(self) -> float:
        """Start of the request, opening or scan under way, in seconds of time.monotonic; 0.0 if none is."""
        return float(self.note.slot.since)

    def starts(self, doing: bytes) -> float:
        """Note that a request, opening or scan starts, `doing` of `notes.phrase`; return the moment."""
        self.note.slot.text = doing
        self.note.slot.since = now = time.monotonic()
        return now

    def ends(self) -> None:
        """Note that what has started ends."""
        self.note.slot.since = 0.0

    def within(self, now: float) -> float:
        """Return seconds spent in reads and opens until `now` (time.monotonic), less CPU seconds."""
        begin = self.begin
        return self.inside - self.on_core + (now - begin if 0 < begin < now else 0.0)

    @contextmanager
    def opens(self, path: str) -> Iterator[None]:
        """Time the body as the opening of the file `path`."""
        begin = self.starts(notes.phrase("open", path))
        try:
            yield
        finally:
            taken = time.monotonic() - begin
            self.opening += taken
            self.inside += taken
            self.ends()

    def timed(self, read: Callable[..., int], *arguments: Any, doing: bytes) -> int:
        """Return the bytes that `read(*arguments)`, one request, has read. `doing` is for the watcher."""
        begin = self.starts(doing)
        try:
            size = read(*arguments)
            self.add(size, (time.monotonic() - begin,))
        finally:
            self.ends()
        return size

    def add(self, size: int, seconds: Sequence[float]) -> None:
        """Add requests, one after the other, that took `seconds` each and delivered `size` bytes together."""
        self._add(size, array("d", seconds))
        self.requests += len(seconds)
        self.inside += sum(seconds)

    def add_scan(self, size: int, seconds: bytes, opening: float, inside: float) -> None:
        """Add the requests of a scan, whose seconds are float64, and those of its opens and of all of it."""
        self._add(size, array("d", seconds))
        self.requests += 1
        self.opening += opening
        self.inside += inside

    def _add(self, size: int, seconds: array[float]) -> None:
        self.bytes += size
        self.seconds += sum(seconds)
        new = self._filed[2]
        new.extend(seconds)
        if len(new) >= _TOGETHER:
            self._filed = (*self._histogram(), array("d"))

    def counts(self) -> tuple[ReadCounts, Buckets]:
        """Return the counts so far, and their latencies apart."""
        buckets, slowest = self._histogram()
        seconds = self.seconds - self.on_core
        return ReadCounts(self.bytes, {}, seconds, self.opening, slowest=slowest), buckets

    def _histogram(self) -> tuple[Buckets, float]:
        """Return the requests in each bucket, and the seconds of the longest."""
        # Another thread may call this, while this tally's own replaces all three at once.
        buckets, slowest, new = self._filed
        taken = np.frombuffer(new[:])  # a copy, because an array with a view on it cannot grow
        indices = np.searchsorted(_UPPER, taken * 1e6)
        return buckets + np.bincount(indices, minlength=len(EDGES)), float(taken.max(initial=slowest))


class ReadStats:
    """The counts of one rank: the sum over its threads' tallies and its worker processes.

    A copy that is pickled for a worker process starts at zero. The worker regularly returns the `drain()` of
    its copy, which the rank adds with `absorb`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the list of tallies and `_more`
        self._local = threading.local()
        self._tallies: list[Tally] = []
        self._more, self._more_latencies = ReadCounts(), np.zeros(len(EDGES), np.int64)
        self._drained = self._more, self._more_latencies.copy()
        self._before = _fetched()

    def __reduce__(self) -> tuple[type[ReadStats], tuple[()]]:
        return (ReadStats, ())

    def mine(self) -> Tally:
        """Return the tally of the calling thread."""
        try:
            tally: Tally = self._local.tally
        except AttributeError:
            tally = self._local.tally = Tally(threading.get_native_id())
            with self._lock:
                self._tallies.append(tally)
        return tally

    def tallies(self) -> tuple[Tally, ...]:
        """Return the tallies of the threads of this process."""
        with self._lock:
            return tuple(self._tallies)

    def absorb(self, counts: ReadCounts) -> None:
        """Add counts that are in no tally of this process."""
        with self._lock:
            for edge, count in counts.latencies.items():
                self._more_latencies[_AT[edge]] += count
            self._more = self._more.plus(counts._replace(latencies={}))

    def snapshot(self) -> ReadCounts:
        """Return the counts since the last `drain`."""
        return _since(self._drained, self._total())

    def drain(self) -> ReadCounts:
        """Return the counts since the last `drain`, and reset them."""
        before, self._drained = self._drained, self._total()
        return _since(before, self._drained)

    def _total(self) -> tuple[ReadCounts, Buckets]:
        with self._lock:
            tallies, total, latencies = tuple(self._tallies), self._more, self._more_latencies.copy()
        for tally in tallies:
            counts, its_latencies = tally.counts()
            total, latencies = total.plus(counts), latencies + its_latencies
        return total._replace(stored=total.stored + _fetched() - self._before), latencies


def _since(before: tuple[ReadCounts, Buckets], now: tuple[ReadCounts, Buckets]) -> ReadCounts:
    added = now[1] - before[1]
    latencies = {EDGES[at]: int(added[at]) for at in np.flatnonzero(added)}
    return now[0].less(before[0])._replace(latencies=latencies)


def _fetched() -> int:
    """Return the bytes that block devices and NFS have delivered to this process; FUSE counts none."""
    return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock
