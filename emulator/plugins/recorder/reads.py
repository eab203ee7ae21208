"""Reduce a stream of read calls to sizes, counts and times, in memory that does not grow with time.

Reads are counted per group of processes: the workers of one DataLoader, or all other processes. A *visit* is
the reads of a file between two opens of it. A *run* is a sequence of contiguous reads.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least
from emulator.errors import FeedrateError, SpecError
from emulator.storage.posix import resident_pages

MOST_FILES = 2_000_000
"""Most files that are told apart. Reads of further files are counted, but not which files they are."""
_MOST_PATHS = 20_000
"""Most files of a group whose paths are kept, for the replay that checks the recording."""

_MOST_PAGES = 2**20
_MOST_RUNS = 2**18
"""Most runs of a group whose places are kept, 32 bytes each."""
_LATEST = 32
"""Most recent opens of a process that are searched for the file of a duplicated descriptor."""

QUANTILES = 257
"""The number of quantiles that describe a distribution of sizes: 0, 1/256 ... 1."""

BINS = 4 * 48
"""The number of bins in a histogram of bytes: four per power of two, up to 2^48."""

_CODE = (".py", ".pyc", ".pth", ".so", ".pyd", ".a", ".o", ".egg-link", ".ipynb", "/pyvenv.cfg")
_PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python", ".dist-info/", ".egg-info/")
_SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/",
    "/etc/",
    "/run/",
    "/lib/",
    "/lib64/",
    "/usr/lib/",
    "/usr/lib64/",
    "/usr/share/zoneinfo/",
)


def is_data(path: str) -> bool:
    """Return True if a file may hold data: it is not code, a library or a system file."""
    if path.endswith(_CODE) or ".so." in path:
        return False
    if any(part in path for part in _PACKAGES):
        return False
    return not path.startswith(_SYSTEM) or (
        path.startswith("/dev/shm/")
        and not path.startswith(("/dev/shm/torch_", "/dev/shm/sem.", "/dev/shm/pym-"))
    )


def bin_of(size: int) -> int:
    """Return the number of the bin for `size` bytes."""
    if size < 1:
        return 0
    power = size.bit_length() - 1
    quarter = (size << 2 >> power) & 3
    return min(4 * power + quarter, BINS - 1)


def bin_bytes(number: int) -> tuple[int, int]:
    """Return the first size in a bin and the first size in the next bin, in bytes."""

    def edge(at: int) -> int:
        power, quarter = divmod(at, 4)
        return (4 + quarter << power) >> 2

    return edge(number), max(edge(number + 1), edge(number) + 1)


class Histogram:
    """A histogram of pieces by size: their count and bytes per bin."""

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.bytes = [0] * BINS

    def add(self, size: int) -> None:
        number = bin_of(size)
        self.counts[number] += 1
        self.bytes[number] += size

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.bytes = [a + b for a, b in zip(self.bytes, other.bytes, strict=True)]

    def seen(self) -> Pieces:
        """Return the bins that are not empty."""
        used = [number for number in range(BINS) if self.counts[number]]
        return Pieces(
            upper=tuple(bin_bytes(number)[1] - 1 for number in used),
            counts=tuple(self.counts[number] for number in used),
            bytes=tuple(self.bytes[number] for number in used),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A histogram of sizes, in ascending order; bins without a piece are left out."""

    upper: tuple[int, ...] = ()
    """Largest size of a piece in each bin, in bytes."""
    counts: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    """Total bytes of the pieces in each bin."""

    def __post_init__(self) -> None:
        if not len(self.upper) == len(self.counts) == len(self.bytes) or list(self.upper) != sorted(
            self.upper
        ):
            raise SpecError("upper, counts and bytes must be of one length, upper ascending")

    @property
    def count(self) -> int:
        """The number of pieces in all bins."""
        return sum(self.counts)

    def typical(self) -> float:
        """Return the mean piece size, in bytes, of the bin that holds the median byte; 0 without bytes."""
        total, so_far = sum(self.bytes), 0
        for count, size in zip(self.counts, self.bytes, strict=True):
            so_far += size
            if size and 2 * so_far >= total:
                return size / count
        return 0.0

    def plus(self, other: Pieces) -> Pieces:
        """Return the sum of two histograms."""
        both: dict[int, tuple[int, int]] = {}
        for one in (self, other):
            for upper, count, size in zip(one.upper, one.counts, one.bytes, strict=True):
                counts, sizes = both.get(upper, (0, 0))
                both[upper] = (counts + count, sizes + size)
        keys = sorted(both)
        return Pieces(
            upper=tuple(keys),
            counts=tuple(both[key][0] for key in keys),
            bytes=tuple(both[key][1] for key in keys),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The reads of data files by a group of processes."""

    files: int = 0
    """Number of distinct files."""
    files_bytes: int = 0
    """Total size of these files, in bytes."""
    sizes: tuple[int, ...] = ()
    """Quantiles 0, 1/256 ... 1 of the file sizes, in bytes."""
    opens: int = 0
    stats: int = 0
    """Number of stat calls that name a data file."""
    visits: int = 0
    """Number of opens that were followed by a read."""
    visit_bytes: int = 0
    """Bytes read in these visits."""
    visit_size: int = 0
    """Sum over these visits of the size of the file, in bytes."""
    bytes: int = 0
    """Bytes read by read(2), pread(2), readv(2) and the like."""
    requests: Pieces = field(default_factory=Pieces)
    """Sizes of single reads."""
    runs: Pieces = field(default_factory=Pieces)
    """Sizes of runs of contiguous reads."""
    followed_files: int = 0
    """Number of (process, file) pairs whose large runs were followed by offset."""
    followed_bytes: int = 0
    """Bytes of the runs whose offsets were kept."""
    backward: int = 0
    """Number of large runs that began at a lower offset than the last one of the same process and file."""
    direct: int = 0
    """Bytes, included in `bytes`, that were read with O_DIRECT, past the page cache."""
    mapped: int = 0
    """Bytes of files that were mapped into memory. Reads of mapped pages make no system call."""
    resident: float = 0.0
    """Share of the examined pages of mapped files that were in memory when the file was mapped."""
    call_bytes: int | None = None
    """Bytes that read(2) and the like returned, from files and anything else; None: not known."""
    storage_bytes: int | None = None
    """Bytes that came from storage, read-ahead included; None: not known."""
    faults: int = 0
    """Number of page faults that waited for storage."""
    call_seconds: float = 0.0
    """Seconds in the traced read calls, summed over processes."""
    readahead: int = 131072
    """Kernel read-ahead of the device that most bytes were read from, in bytes."""
    sizes_only: bool = False
    """True if calls were not traced: only opened files and the bytes of all calls are known."""

    def __post_init__(self) -> None:
        at_least(0, self, "files", "files_bytes", "opens", "stats", "visits", "visit_bytes", "visit_size")
        at_least(0, self, "bytes", "direct", "mapped", "call_bytes", "storage_bytes", "faults", "readahead")
        at_least(0, self, "call_seconds", "followed_files", "followed_bytes", "backward")

    def plus(self, other: Reads) -> Reads:
        """Return the sum over two ranks. A file that both read counts twice, because names are not kept."""
        added = ("files", "files_bytes", "opens", "stats", "visits", "visit_bytes", "visit_size", "bytes",
                 "direct", "mapped", "faults", "call_seconds", "followed_files", "followed_bytes",
                 "backward")  # fmt: skip
        values: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in added}
        called = [one.call_bytes for one in (self, other) if one.call_bytes is not None]
        stored = [one.storage_bytes for one in (self, other) if one.storage_bytes is not None]
        return Reads(
            **values,
            sizes=pooled_sizes([(self.sizes, self.files), (other.sizes, other.files)]),
            requests=self.requests.plus(other.requests),
            runs=self.runs.plus(other.runs),
            call_bytes=sum(called) if called else None,
            storage_bytes=sum(stored) if stored else None,
            resident=max(self.resident, other.resident),
            readahead=max(self.readahead, other.readahead),
            sizes_only=self.sizes_only or other.sizes_only,
        )


def quantiles_of(sizes: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the quantiles 0, 1/256 ... 1 of `sizes`, or an empty tuple for no sizes."""
    if not len(sizes):
        return ()
    found = np.quantile(sizes, np.linspace(0, 1, QUANTILES))
    return tuple(int(value) for value in np.rint(found))


def pooled_sizes(parts: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Return the quantiles of all parts pooled. A part is (quantiles of its file sizes, number of files)."""
    known = [(np.asarray(sizes, np.float64), count) for sizes, count in parts if sizes and count]
    if not known:
        return ()
    if len(known) == 1:
        return tuple(int(size) for size in known[0][0])
    most = max(count for _, count in known)
    grid = [
        np.interp(np.linspace(0, 1, max(2, round(4096 * count / most))), np.linspace(0, 1, len(sizes)), sizes)
        for sizes, count in known
    ]
    return quantiles_of(np.concatenate(grid).astype(np.int64))


_COUNTS = (
    *("opens", "stats", "visits", "visit_bytes", "visit_size", "bytes", "direct", "mapped"),
    *("call_seconds", "pages", "resident"),
)


class _Group:
    """The running totals of one group of processes."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}  # number of a file -> its bytes
        self.paths: dict[int, bytes] = {}  # number -> path, of the first _MOST_PATHS files
        self.opens = self.stats = self.visits = self.visit_bytes = self.visit_size = 0
        self.bytes = self.direct = self.mapped = 0
        self.requests, self.runs = Histogram(), Histogram()
        self.call_seconds = 0.0
        self.pages = self.resident = 0  # pages of mapped files: examined, and in memory
        self.readahead: dict[int, int] = {}  # device -> bytes
        self.readers: Counter[int] = Counter()  # thread -> bytes read
        self.places = array("q")  # of each run: process, file, first byte, bytes

    def ended(self, handle: _Open) -> None:
        """Count the current run of `handle` and reset it."""
        if not handle.run:
            return
        self.runs.add(handle.run)
        if len(self.places) < 4 * _MOST_RUNS:
            self.places.extend((handle.process, handle.number, handle.end - handle.run, handle.run))
        handle.run = 0

    def merge(self, other: _Group) -> None:
        self.files.update(other.files)
        self.paths.update(other.paths)
        self.readers.update(other.readers)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.requests.merge(other.requests)
        self.runs.merge(other.runs)
        self.places.extend(other.places[: 4 * _MOST_RUNS - len(self.places)])
        for device, size in other.readahead.items():
            self.readahead[device] = self.readahead.get(device, 0) + size


class _Open:
    """An open file of a process: its offset, and the bytes read since it was opened."""

    __slots__ = ("at", "end", "group", "number", "path", "process", "run", "size", "visit")

    def __init__(
        self, process: int, path: bytes, number: int, size: int, at: int | None, group: _Group
    ) -> None:
        self.process = process
        self.path = path
        self.number = number
        self.size = size
        self.at = at
        self.end = -1
        self.run = 0
        self.visit = 0
        self.group = group


class Reduction:
    """Reduces calls, one at a time, to totals per group. The caller chooses the key of each group.

    Not thread-safe.
    """

    def __init__(self, keep_names: bool = False) -> None:
        self.groups: dict[object, _Group] = {}
        self.names: dict[str, int] | None = {} if keep_names else None
        """Path -> size in bytes; None if names are not kept."""
        self.uncounted = 0
        """Number of lookups of files beyond MOST_FILES. A file counts each time it is looked up."""
        self._numbers: dict[bytes, tuple[int, int, int]] = {}  # digest of a path -> number, bytes, device
        self._open: dict[tuple[int, int], _Open] = {}
        self._latest: dict[int, deque[_Open]] = {}  # process -> its most recent opens
        self._direct: set[int] = set()  # files that were opened with O_DIRECT

    def group(self, key: object) -> _Group:
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = _Group()
        return found

    def move(self, old: object, new: object) -> None:
        """Move all counts and open files of the group `old` to the group `new`."""
        if old in self.groups and old != new:
            moved = self.groups.pop(old)
            target = self.group(new)
            target.merge(moved)
            for handle in self._open.values():
                if handle.group is moved:
                    handle.group = target

    def file(self, path: bytes) -> tuple[int, int, int] | None:
        """Return (number, bytes, device) of a data file, or None if it is no regular data file."""
        digest = hashlib.blake2b(path, digest_size=8).digest()
        found = self._numbers.get(digest)
        if found is not None:
            return found if found[0] >= 0 else None
        name = os.fsdecode(path)
        size, device = -1, 0
        if is_data(name):
            try:
                status = os.stat(name)  # noqa: PTH116  bytes, and a million of them
                if stat.S_ISREG(status.st_mode):
                    size, device = status.st_size, status.st_dev
            except OSError:
                size = -1
        if len(self._numbers) >= MOST_FILES:
            self.uncounted += size >= 0
            return (MOST_FILES, max(size, 0), device) if size >= 0 else None
        number = len(self._numbers) if size >= 0 else -1
        self._numbers[digest] = (number, size, device)
        return (number, size, device) if number >= 0 else None

    def known(self, path: bytes, size: int) -> None:
        """Register a file of `size` bytes that is known only from a trace."""
        digest = hashlib.blake2b(path, digest_size=8).digest()
        old = self._numbers.get(digest)
        number = len(self._numbers) if old is None else old[0]
        self._numbers[digest] = (number, max(size, old[1] if old else 0), 0)

    def _holds(self, group: _Group, number: int, path: bytes, size: int) -> None:
        """Add the file to those that the group reads."""
        group.files[number] = size
        if len(group.paths) < _MOST_PATHS:
            group.paths[number] = path
        if self.names is not None:
            self.names[os.fsdecode(path)] = size

    def opened(self, key: object, process: int, fd: int, path: bytes, direct: bool = False) -> None:
        """Count an open of `path` as descriptor `fd` of `process` in group `key`; `direct`: with O_DIRECT."""
        old = self._open.pop((process, fd), None)
        if old is not None:
            self._end(old)
        found = self.file(path)
        if found is None:
            return
        number, size, _ = found
        group = self.group(key)
        group.opens += 1
        (self._direct.add if direct else self._direct.discard)(number)
        handle = self._open[process, fd] = _Open(process, path, number, size, 0, group)
        self._latest.setdefault(process, deque(maxlen=_LATEST)).appendleft(handle)

    def named(self, key: object, path: bytes) -> None:
        """Count an open of `path` whose reads are not seen, as one visit that reads the whole file."""
        found = self.file(path)
        if found is None:
            return
        number, size, device = found
        group = self.group(key)
        group.opens += 1
        group.visits += 1
        group.visit_bytes += size
        group.visit_size += size
        group.bytes += size
        self._holds(group, number, path, size)
        group.readahead[device] = group.readahead.get(device, 0) + size

    def looked(self, key: object, path: bytes) -> None:
        """Count a stat call that names `path`."""
        if self.file(path) is not None:
            self.group(key).stats += 1

    def _handle(self, key: object, process: int, fd: int, path: bytes) -> _Open | None:
        handle = self._open.get((process, fd))
        if handle is not None and handle.path == path:
            return handle
        if handle is not None:
            self._end(self._open.pop((process, fd)))
        for latest in self._latest.get(process, ()):
            if latest.path == path:  # a duplicated descriptor, as np.load makes one
                self._open[process, fd] = latest
                return latest
        found = self.file(path)
        if found is None:
            return None
        handle = self._open[process, fd] = _Open(process, path, found[0], found[1], None, self.group(key))
        return handle

    def sought(self, key: object, process: int, fd: int, path: bytes, at: int) -> None:
        """Set the offset of the next read to `at` bytes."""
        handle = self._handle(key, process, fd, path)
        if handle is not None:
            handle.at = at

    def read(
        self,
        key: object,
        process: int,
        fd: int,
        path: bytes,
        at: int | None,
        size: int,
        seconds: float,
        thread: int = 0,
    ) -> None:
        """Count a read of `size` bytes by `thread` at offset `at`; None: at the file offset."""
        handle = self._handle(key, process, fd, path)
        if handle is None:
            return
        group = self.group(key)
        group.call_seconds += seconds
        if size <= 0:
            return
        if handle.group is not group:  # another loader of the process now reads it
            self._end(handle)
            handle.group, handle.visit, handle.run = group, 0, 0
        begin = handle.at if at is None else at
        if begin is None or begin != handle.end:
            group.ended(handle)
        handle.run += size
        handle.end = -1 if begin is None else begin + size
        if at is None and begin is not None:
            handle.at = begin + size
        if not handle.visit:
            group.visits += 1
            group.visit_size += handle.size
            self._holds(group, handle.number, handle.path, handle.size)
            device = self.file(handle.path)
            if device is not None:
                group.readahead[device[2]] = group.readahead.get(device[2], 0) + size
        handle.visit += size
        group.visit_bytes += size
        group.bytes += size
        group.readers[thread] += size
        group.direct += size if handle.number in self._direct else 0
        group.requests.add(size)

    def mapped(self, key: object, path: bytes, size: int) -> None:
        """Count a mapping of `size` bytes of the file into memory."""
        found = self.file(path)
        if found is None:
            return
        group = self.group(key)
        group.mapped += size
        if found[0] not in group.files and group.pages < _MOST_PAGES:
            pages, resident = _in_memory(path, found[1])
            group.pages += pages
            group.resident += resident
        self._holds(group, found[0], path, found[1])
        group.readahead[found[2]] = group.readahead.get(found[2], 0) + size

    def _end(self, handle: _Open) -> None:
        handle.group.ended(handle)

    def seen(self, key: object, usage: Mapping[str, int], sizes_only: bool) -> Reads:
        """Return the reads of the group `key`. `usage` has counters as in `feedrate_probe.usage`."""
        for handle in self._open.values():
            self._end(handle)
        group = self.groups.get(key) or _Group()
        sizes = np.fromiter(group.files.values(), np.int64, len(group.files))
        runs = group.runs.seen()
        followed_files, followed_bytes, backward = _followed(group.places, runs.typical())
        most = max(group.readahead, key=lambda device: group.readahead[device], default=0)
        return Reads(
            files=len(group.files),
            files_bytes=int(sizes.sum()),
            sizes=quantiles_of(sizes),
            opens=group.opens,
            stats=group.stats,
            visits=group.visits,
            visit_bytes=group.visit_bytes,
            visit_size=group.visit_size,
            bytes=group.bytes,
            direct=group.direct,
            requests=group.requests.seen(),
            runs=runs,
            followed_files=followed_files,
            followed_bytes=followed_bytes,
            backward=backward,
            mapped=group.mapped,
            resident=group.resident / group.pages if group.pages else 0.0,
            call_bytes=usage.get("calls"),
            storage_bytes=usage.get("storage"),
            faults=usage.get("faults", 0),
            call_seconds=round(group.call_seconds, 6),
            readahead=_readahead(most),
            sizes_only=sizes_only,
        )


def _followed(places: array[int], typical: float) -> tuple[int, int, int]:
    """Return (process-file pairs with large runs, bytes of all runs, backward moves).

    Runs below half the typical size are headers and indexes, which libraries read again. They say nothing
    about the order of samples, so pairs and backward moves leave them out.
    """
    runs = np.array(places, np.int64).reshape(-1, 4)
    large = runs[2 * runs[:, 3] >= typical]
    by_file = large[np.lexsort((large[:, 1], large[:, 0]))]  # stable: in the order of reading
    same = (by_file[1:, :2] == by_file[:-1, :2]).all(axis=1)
    back = same & (by_file[1:, 2] < by_file[:-1, 2])
    pairs = len(by_file) - int(same.sum())
    return pairs, int(runs[:, 3].sum()), int(back.sum())


def _in_memory(path: bytes, size: int) -> tuple[int, int]:
    """Return the number of pages examined, in the first 64 MiB of a file, and how many are in memory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    try:
        return resident_pages(descriptor, 0, min(size, 2**26))
    except (OSError, FeedrateError):
        return 0, 0
    finally:
        os.close(descriptor)


def _readahead(device: int) -> int:
    """Return the kernel's read-ahead on the device, in bytes; 128 KiB, its default, if it is not known."""
    path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return int(path.read_text(encoding="ascii")) * 1024
    except (OSError, ValueError):
        return 131072
