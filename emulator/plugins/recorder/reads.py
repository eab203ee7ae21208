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
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least
from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.faults import Touched
from emulator.storage.posix import resident_pages
from emulator.units import BLOCK_BYTES

MOST_FILES = 2_000_000
"""Most files to distinguish. Reads of others count, without their files."""
_MOST_PATHS = 20_000
"""Most paths kept per group, for the replay that checks the recording."""
_MOST_PAGES = 2**20
"""Most pages of mapped files that are looked up in the page cache."""
_TAIL = 2**16
"""Most bytes from a run at the end of a file to that end."""
_MOST_RUNS = 2**18
"""Most runs per group whose offsets are kept, 32 bytes each."""
_INDEX = 3
"""A page that is read so many times as often as the median page of its file is an index, not a sample."""
_SMALL = 1 / 16
"""Size of a request, relative to the next one in its run, up to which both count as one: programs that read
through a small buffer divide what they ask for so, such as Python's (4 and 252 kB of 256)."""
_NEAR = 0.05
"""Largest gap between adjacent runs, relative to a typical run."""
_TRAIL = 4096
"""Most runs, and page faults, of which the places are kept."""
_LATEST = 32
"""Most recent opens of a process that are searched for the file of a duplicated descriptor."""
_QUANTILES = 257
"""Number of quantiles that describe a distribution of sizes: 0, 1/256 ... 1."""

_CODE = (".py", ".pyc", ".pth", ".so", ".pyd", ".a", ".o", ".egg-link", ".ipynb", "/pyvenv.cfg")
_PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python", ".dist-info/", ".egg-info/")
_SYSTEM = (
    *("/proc/", "/sys/", "/dev/", "/etc/", "/run/"),
    *("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/share/zoneinfo/"),
)


def is_data(path: str) -> bool:
    """Return True if a file may have data, because it is not code, a library or a system file."""
    if path.endswith(_CODE) or ".so." in path or any(part in path for part in _PACKAGES):
        return False
    return not path.startswith(_SYSTEM) or (
        path.startswith("/dev/shm/")
        and not path.startswith(("/dev/shm/torch_", "/dev/shm/sem.", "/dev/shm/pym-"))
    )


def bin_top(size: int) -> int:
    """Return the largest size in the bin of `size` bytes. There are four bins per power of two."""
    width = max(1, 1 << max(0, size.bit_length() - 3))
    return (size // width + 1) * width - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A histogram of sizes, in ascending order, without empty bins."""

    upper: tuple[int, ...] = ()
    """Largest size of a piece in each bin, in bytes."""
    counts: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    """Total bytes of the pieces in each bin."""

    def __post_init__(self) -> None:
        lengths = {len(self.upper), len(self.counts), len(self.bytes)}
        if len(lengths) > 1 or list(self.upper) != sorted(self.upper):
            raise SpecError("upper, counts and bytes must have the same length, and upper must ascend")

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

    def __add__(self, other: Pieces) -> Pieces:
        tally = Tally()
        for one in (self, other):
            tally.counts.update(dict(zip(one.upper, one.counts, strict=True)))
            tally.bytes.update(dict(zip(one.upper, one.bytes, strict=True)))
        return tally.pieces()


class Tally:
    """A histogram that pieces are added to: counts and bytes by the largest size in the bin."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()

    def add(self, size: int) -> None:
        top = bin_top(size)
        self.counts[top] += 1
        self.bytes[top] += size

    def merge(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.bytes.update(other.bytes)

    def pieces(self) -> Pieces:
        upper = tuple(sorted(self.counts))
        return Pieces(
            upper=upper,
            counts=tuple(self.counts[top] for top in upper),
            bytes=tuple(self.bytes[top] for top in upper),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The reads of data files by a group of processes."""

    files: int = 0
    """Number of distinct files."""
    files_bytes: int = 0
    """Total size of these files, in bytes."""
    sizes: tuple[int, ...] = ()
    """The file sizes, ascending, in bytes; of more than 257 files their quantiles 0, 1/256 ... 1."""
    visits: int = 0
    """Number of opens that were followed by a read."""
    visit_bytes: int = 0
    """Bytes read in these visits."""
    visit_size: int = 0
    """Sum over these visits of the size of the file, in bytes."""
    bytes: int = 0
    """Bytes read by read(2), pread(2), readv(2) and the like."""
    requests: Pieces = field(default_factory=Pieces)
    """Sizes of requests: of single reads, or of a small one and the next one of its run."""
    heads: Pieces = field(default_factory=Pieces)
    """Sizes of the first read of each visit."""
    runs: Pieces = field(default_factory=Pieces)
    """Sizes of runs of contiguous reads."""
    large_runs: int = 0
    """Number of large runs whose offsets were kept."""
    trail: tuple[tuple[int, int, int], ...] = ()
    """First byte and bytes of some runs, and 1 for the first of its process and file, otherwise 0."""
    faulted: tuple[tuple[int, int], ...] = ()
    """First byte of the pages of some page faults in mapped files, and 1 for the first of its map, otherwise
    0."""
    followed_files: int = 0
    """Number of (process, file) pairs whose large runs were followed by offset."""
    followed_bytes: int = 0
    """Bytes of the runs whose offsets were kept."""
    backward: int = 0
    """Number of large runs that began at a lower offset than the last one of the same process and file."""
    adjacent: int = 0
    """Number of places where a large run ends and another one, read at any time, begins."""
    tails: int = 0
    """Number of visits in which the end of the file was read before most of it, as a zip's directory."""
    tail_bytes: int = 0
    """Bytes of these ends."""
    index_bytes: int = 0
    """Bytes, included in `bytes`, of offsets that are read again and again, such as footers and indexes."""
    direct: int = 0
    """Bytes, included in `bytes`, that were read with O_DIRECT, past the page cache."""
    advised: int = 0
    """Bytes that the kernel was told to read, by posix_fadvise."""
    mapped: int = 0
    """Bytes of files that were mapped into memory. Reads of mapped pages make no system call."""
    map_random: bool = False
    """True if the kernel was told that most of what is mapped is read at random (MADV_RANDOM)."""
    resident: float = 0.0
    """Share of the examined pages of mapped files that were in memory when the file was mapped."""
    call_bytes: int | None = None
    """Bytes that read(2) and similar calls returned, from files and others; None if unknown."""
    storage_bytes: int | None = None
    """Bytes that came from storage, read-ahead included; None if unknown."""
    faults: int = 0
    """Number of page faults that waited for storage."""
    call_seconds: float = 0.0
    """Seconds in the traced read calls, summed over processes."""
    readahead: int = 131072
    """Kernel read-ahead of the device that most bytes were read from, in bytes."""
    sizes_only: bool = False
    """True if calls were not traced: only opened files and the bytes of all calls are known."""

    def __post_init__(self) -> None:
        at_least(0, self, "files", "files_bytes", "visits", "visit_bytes", "visit_size", "bytes")
        at_least(0, self, "index_bytes", "direct", "mapped", "call_bytes", "storage_bytes", "faults")
        at_least(0, self, "readahead", "call_seconds", "followed_files", "followed_bytes")
        at_least(0, self, "backward", "adjacent", "advised", "tails", "tail_bytes", "large_runs")

    def plus(self, other: Reads) -> Reads:
        """Return the sum over two ranks. A file that both read counts twice, because names are unknown."""
        total: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            here, there = getattr(self, name), getattr(other, name)
            if name in ("map_random", "resident", "readahead", "sizes_only"):
                total[name] = max(here, there)
            else:
                total[name] = here if there is None else there if here is None else here + there
        total["trail"] = (self.trail + other.trail)[:_TRAIL]
        total["faulted"] = (self.faulted + other.faulted)[:_TRAIL]
        total["sizes"] = _pooled([(self.sizes, self.files), (other.sizes, other.files)])
        return Reads(**total)


def size_quantiles(sizes: NDArray[np.int64]) -> tuple[int, ...]:
    """Return `sizes`, ascending; of more than 257 their quantiles 0, 1/256 ... 1."""
    if len(sizes) <= _QUANTILES:
        return tuple(np.sort(sizes).tolist())
    values = np.quantile(sizes, np.linspace(0, 1, _QUANTILES))
    return tuple(int(value) for value in np.rint(values))


def _pooled(parts: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Return the sizes of all parts pooled. A part is (its `Reads.sizes`, number of files)."""
    known = [(sizes, count) for sizes, count in parts if sizes]
    if all(len(sizes) == count for sizes, count in known):
        return size_quantiles(np.array([size for sizes, _ in known for size in sizes], np.int64))
    most = max((count for _, count in known), default=0)
    grid = [
        np.interp(np.linspace(0, 1, max(2, round(4096 * count / most))), np.linspace(0, 1, len(sizes)), sizes)
        for sizes, count in known
    ]
    return size_quantiles(np.concatenate(grid).astype(np.int64)) if grid else ()


class _File(NamedTuple):
    number: int
    """Number among all files; -1 if it is not a regular data file."""
    bytes: int
    device: int


class _Group:
    """The running totals of one group of processes."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()  # fields of Reads that are sums of integers
        self.call_seconds = 0.0
        self.files: dict[int, int] = {}  # number of a file -> its bytes
        self.paths: dict[int, bytes] = {}  # number -> path, of the first _MOST_PATHS files
        self.requests, self.heads, self.runs = Tally(), Tally(), Tally()
        self.devices: Counter[int] = Counter()  # device -> bytes read or mapped
        self.readers: Counter[int] = Counter()  # thread -> bytes read
        self.map_random = False
        self.places = array("q")  # of each run: process, file, first byte, bytes
        self.faulted = array("q")  # of each page fault: first byte, 1 for the first of its map

    def end_run(self, handle: _Open) -> None:
        """Count the current run of `handle`, if it has one, and reset it."""
        if not handle.run:
            return
        self.runs.add(handle.run)
        self.end_request(handle)
        if len(self.places) < 4 * _MOST_RUNS:
            self.places.extend((handle.process, handle.file.number, handle.end - handle.run, handle.run))
        handle.run = 0

    def end_request(self, handle: _Open) -> None:
        """Count the last request of `handle`, if it is not counted."""
        if handle.request:
            self.requests.add(handle.request)
        handle.request = 0

    def merge(self, other: _Group) -> None:
        self.totals.update(other.totals)
        self.call_seconds += other.call_seconds
        self.map_random |= other.map_random
        self.files |= other.files
        self.paths |= other.paths
        self.devices.update(other.devices)
        self.readers.update(other.readers)
        self.requests.merge(other.requests)
        self.heads.merge(other.heads)
        self.runs.merge(other.runs)
        self.places.extend(other.places[: 4 * _MOST_RUNS - len(self.places)])
        self.faulted.extend(other.faulted[: 2 * _TRAIL - len(self.faulted)])


@dataclass(slots=True)
class _Open:
    """An open file of a process: its offset, and the bytes read since it was opened."""

    process: int
    path: bytes
    file: _File
    group: _Group
    at: int | None
    """Offset of the next read; None: not known."""
    end: int = -1
    """Offset after the last read; -1: not known."""
    run: int = 0
    """Bytes of the current run."""
    request: int = 0
    """Bytes of the last request of the run, which is not counted yet; 0: none, or the first of a visit."""
    visited: bool = False


class Reduction:
    """Reduces calls to totals per group, whose keys the caller chooses. Not thread-safe."""

    def __init__(self, keep_names: bool = False) -> None:
        self.groups: dict[object, _Group] = {}
        self.names: dict[str, int] | None = {} if keep_names else None
        """Bytes by path; None if names are not kept."""
        self.uncounted = 0
        """Number of lookups of files beyond MOST_FILES."""
        self._files: dict[bytes, _File] = {}  # by the digest of the path
        self._open: dict[tuple[int, int], _Open] = {}
        self._latest: dict[int, deque[_Open]] = {}  # process -> its most recent opens
        self._direct: set[int] = set()  # files that were opened with O_DIRECT
        self._examined: dict[int, tuple[int, int]] = {}  # mapped file -> pages, and those in memory, at first
        self._pages = 0  # examined ones

    def group(self, key: object) -> _Group:
        if key not in self.groups:
            self.groups[key] = _Group()
        return self.groups[key]

    def move(self, old: object, new: object) -> None:
        """Move all counts and open files of the group `old` to the group `new`."""
        if old in self.groups and old != new:
            moved = self.groups.pop(old)
            target = self.group(new)
            target.merge(moved)
            for handle in self._open.values():
                if handle.group is moved:
                    handle.group = target

    def file(self, path: bytes) -> _File | None:
        """Return the data file at `path`; None if it is not a regular data file."""
        digest = _digest(path)
        entry = self._files.get(digest)
        if entry is None:
            size, device = _size_and_device(os.fsdecode(path))
            entry = _File(len(self._files) if size >= 0 else -1, size, device)
            if len(self._files) < MOST_FILES:
                self._files[digest] = entry
            else:
                self.uncounted += size >= 0
        return entry if entry.number >= 0 else None

    def known(self, path: bytes, size: int) -> None:
        """Register a file of `size` bytes that is known only from a trace."""
        number, before, _ = self._files.get(_digest(path), (len(self._files), 0, 0))
        self._files[_digest(path)] = _File(number, max(size, before), 0)

    def _holds(self, group: _Group, file: _File, path: bytes) -> None:
        """Add the file to those that the group reads."""
        group.files[file.number] = file.bytes
        if len(group.paths) < _MOST_PATHS:
            group.paths[file.number] = path
        if self.names is not None:
            self.names[os.fsdecode(path)] = file.bytes

    def opened(self, key: object, process: int, fd: int, path: bytes, direct: bool = False) -> None:
        """Count an open of `path` as descriptor `fd` of `process` in group `key`; `direct`: with O_DIRECT."""
        self._close(process, fd)
        file = self.file(path)
        if file is None:
            return
        group = self.group(key)
        (self._direct.add if direct else self._direct.discard)(file.number)
        handle = self._open[process, fd] = _Open(process, path, file, group, at=0)
        self._latest.setdefault(process, deque(maxlen=_LATEST)).appendleft(handle)

    def _close(self, process: int, fd: int) -> None:
        handle = self._open.pop((process, fd), None)
        if handle is not None:
            handle.group.end_run(handle)

    def named(self, key: object, path: bytes) -> None:
        """Count an open of `path` whose reads are not seen, as one visit that reads the whole file."""
        file = self.file(path)
        if file is None:
            return
        group, size = self.group(key), file.bytes
        group.totals.update(visits=1, visit_bytes=size, visit_size=size, bytes=size)
        group.devices[file.device] += size
        self._holds(group, file, path)

    def _handle(self, key: object, process: int, fd: int, path: bytes) -> _Open | None:
        handle = self._open.get((process, fd))
        if handle is not None and handle.path == path:
            return handle
        self._close(process, fd)
        for latest in self._latest.get(process, ()):
            if latest.path == path:  # a duplicated descriptor, such as np.load's
                self._open[process, fd] = latest
                return latest
        file = self.file(path)
        if file is None:
            return None
        handle = self._open[process, fd] = _Open(process, path, file, self.group(key), at=None)
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
            handle.group.end_run(handle)
            handle.group, handle.visited = group, False
        begin = handle.at if at is None else at
        if begin is None or begin != handle.end:
            group.end_run(handle)
        elif handle.request > _SMALL * size:
            group.end_request(handle)
        handle.run += size
        handle.request += size
        handle.end = -1 if begin is None else begin + size
        if at is None and begin is not None:
            handle.at = handle.end
        if not handle.visited:
            handle.visited = True
            group.heads.add(size)
            group.end_request(handle)
            group.totals.update(visits=1, visit_size=handle.file.bytes)
            group.devices[handle.file.device] += size
            self._holds(group, handle.file, handle.path)
        group.totals["visit_bytes"] += size
        group.totals["bytes"] += size
        group.totals["direct"] += size if handle.file.number in self._direct else 0
        group.readers[thread] += size

    def advised(self, key: object, path: bytes, size: int) -> None:
        """Count that the kernel was told to read `size` bytes of the file; 0: all of it."""
        if (file := self.file(path)) is not None:
            self.group(key).totals["advised"] += size or file.bytes

    def mapped(self, key: object, path: bytes, size: int) -> bool:
        """Count a mapping of `size` bytes of the file into memory; return False if it is no data file."""
        file = self.file(path)
        if file is None:
            return False
        group = self.group(key)
        group.totals["mapped"] += size
        group.devices[file.device] += size
        # Only once: later maps, by other workers or in another epoch, find what the first ones have read.
        if file.number not in self._examined and self._pages < _MOST_PAGES:
            self._examined[file.number] = _in_memory(path, file.bytes)
            self._pages += self._examined[file.number][0]
        self._holds(group, file, path)
        return True

    def faulted(self, key: object, touched: Touched) -> None:
        """Keep the page faults in a map of a file."""
        group = self.group(key)
        if len(group.faulted) < 2 * _TRAIL and self.file(touched.path) is not None:
            for number, offset in enumerate(touched.offsets):
                group.faulted.extend((offset, not number))

    def seen(self, key: object, usage: Mapping[str, int], sizes_only: bool) -> Reads:
        """Return the reads of the group `key`. `usage` has counters as in `feedrate_probe.usage`."""
        for handle in self._open.values():
            handle.group.end_run(handle)
        group = self.groups.get(key) or _Group()
        sizes = np.fromiter(group.files.values(), np.int64, len(group.files))
        examined = [self._examined.get(number, (0, 0)) for number in group.files]
        pages, resident = map(sum, zip((0, 0), *examined, strict=True))
        runs, places = group.runs.pieces(), np.array(group.places, np.int64).reshape(-1, 4)
        places = places[np.lexsort((places[:, 1], places[:, 0]))]  # stable: in the order of reading
        large = places[is_large(places[:, 3], runs.typical())]
        first = _first(large)
        tails, tail_bytes = _tails(places, runs.typical(), group.files)
        return Reads(
            **group.totals,
            files=len(group.files),
            files_bytes=int(sizes.sum()),
            sizes=size_quantiles(sizes),
            requests=group.requests.pieces(),
            heads=group.heads.pieces(),
            runs=runs,
            large_runs=len(large),
            trail=tuple(map(tuple, np.column_stack([places[:, 2:], _first(places)])[:_TRAIL].tolist())),
            faulted=tuple(zip(group.faulted[::2], group.faulted[1::2], strict=True)),
            followed_files=int(first.sum()),
            followed_bytes=int(places[:, 3].sum()),
            backward=int((~first[1:] & (large[1:, 2] < large[:-1, 2])).sum()),
            adjacent=_adjacent(places, runs.typical()),
            tails=tails,
            tail_bytes=tail_bytes,
            index_bytes=_index_bytes(places),
            map_random=group.map_random,
            resident=resident / pages if pages else 0.0,
            call_bytes=usage.get("calls"),
            storage_bytes=usage.get("storage"),
            faults=usage.get("faults", 0),
            call_seconds=round(group.call_seconds, 6),
            readahead=_readahead(max(group.devices, key=group.devices.__getitem__, default=0)),
            sizes_only=sizes_only,
        )


def _digest(path: bytes) -> bytes:
    return hashlib.blake2b(path, digest_size=8).digest()


def _size_and_device(path: str) -> tuple[int, int]:
    """Return the size and device of a regular data file, or (-1, 0) for anything else."""
    if is_data(path):
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116  a million of them
            if stat.S_ISREG(status.st_mode):
                return status.st_size, status.st_dev
    return -1, 0


def _first(runs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each of these runs, in order of process and file, whether it is the first of those."""
    differs = (runs[1:, :2] != runs[:-1, :2]).any(axis=1)
    return np.append(True, differs)[: len(runs)]


def _tails(runs: NDArray[np.int64], typical: float, sizes: Mapping[int, int]) -> tuple[int, int]:
    """Return (number of large runs after small ones at the end of their file, bytes of those ends).

    `runs` are in order of process and file.
    """
    size = np.array([sizes.get(number, 0) for number in runs[:, 1].tolist()], np.int64)
    large, begin = is_large(runs[:, 3], typical), runs[:, 2]
    tail = np.flatnonzero(~large & (begin >= size - _TAIL) & (begin > 0))
    places = np.append(np.flatnonzero(large), 0)
    after = places[np.searchsorted(places[:-1], tail)]
    before = (runs[after, :2] == runs[tail, :2]).all(axis=1) & (begin[after] < begin[tail])
    visits, which = np.unique(after[before], return_inverse=True)
    ends = np.zeros(len(visits), np.int64)
    np.maximum.at(ends, which, (size - begin)[tail[before]])
    return len(visits), int(ends.sum())


def is_large(sizes: NDArray[np.int64], typical: float) -> NDArray[np.bool_]:
    """Return for each run of these bytes whether it is no header or index, which libraries read again.

    Of a sample that is read in chunks, one run may be four times as long as another.
    """
    return np.asarray(4 * sizes >= typical)


def _adjacent(runs: NDArray[np.int64], typical: float) -> int:
    """Return the number of large runs that end where another one of their file begins, to a twentieth."""
    large = np.unique(runs[is_large(runs[:, 3], typical)][:, 1:], axis=0)  # ascending by file and first byte
    gap = large[1:, 1] - large[:-1, 1] - large[:-1, 2]
    near = (large[1:, 0] == large[:-1, 0]) & (abs(gap) <= _NEAR * typical)
    return int(np.count_nonzero(near))


def _index_bytes(runs: NDArray[np.int64]) -> int:
    """Return the bytes of the runs that begin in pages where many more begin than in others of their file."""
    begin = runs[:, 1:3] // (1, BLOCK_BYTES)
    where, which, counts = np.unique(begin, axis=0, return_inverse=True, return_counts=True)
    if not len(where):
        return 0
    often = np.zeros(len(where), bool)
    for mine in np.split(np.arange(len(where)), np.flatnonzero(np.diff(where[:, 0])) + 1):
        often[mine] = counts[mine] >= _INDEX * np.median(counts[mine])
    return int(runs[often[which.ravel()], 3].sum())


def _in_memory(path: bytes, size: int) -> tuple[int, int]:
    """Return the numbers of examined pages, in the first 64 MiB of a file, and of those in memory."""
    with suppress(OSError, FeedrateError), Path(os.fsdecode(path)).open("rb") as file:
        return resident_pages(file.fileno(), 0, min(size, 2**26))
    return 0, 0


def _readahead(device: int) -> int:
    """Return the kernel's read-ahead on the device, in bytes; 128 KiB, its default, if unknown."""
    path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii")) * 1024
    return 131072
