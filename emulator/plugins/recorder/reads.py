"""What processes read, reduced as it comes: sizes, counts and times, in memory that does not grow with time.

Reads are counted for each group of processes: the workers of one DataLoader, or all else. A *visit* is what
is read of a file between two of its opens; a *run* is reads one behind the other, without a gap.
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
"""Files that are told apart; what is read of further ones is counted, but not which they are."""
_MOST_PATHS = 20_000
"""Files of a group whose paths are kept in memory, for the replay that checks the recording."""

_MOST_PAGES = 2**20
_MOST_RUNS = 2**18
"""Runs of a group whose places are kept, 32 bytes each."""
_LATEST = 32
"""Files of a process among which one is looked for that got a second number without being opened again."""

QUANTILES = 257
"""Sizes that describe a distribution of sizes: its quantiles 0, 1/256 ... 1."""

BINS = 4 * 48
"""Bins of a histogram of bytes: four to each power of two, up to 2^48."""

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
    """Whether a file may hold data: it is no code, no library, no part of the system."""
    if path.endswith(_CODE) or ".so." in path:
        return False
    if any(part in path for part in _PACKAGES):
        return False
    return not path.startswith(_SYSTEM) or (
        path.startswith("/dev/shm/")
        and not path.startswith(("/dev/shm/torch_", "/dev/shm/sem.", "/dev/shm/pym-"))
    )


def bin_of(size: int) -> int:
    """The bin that `size` bytes fall into."""
    if size < 1:
        return 0
    power = size.bit_length() - 1
    quarter = (size << 2 >> power) & 3
    return min(4 * power + quarter, BINS - 1)


def bin_bytes(number: int) -> tuple[int, int]:
    """The first size of a bin, and of the next."""

    def edge(at: int) -> int:
        power, quarter = divmod(at, 4)
        return (4 + quarter << power) >> 2

    return edge(number), max(edge(number + 1), edge(number) + 1)


class Histogram:
    """How many pieces there were of which size, and their bytes."""

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
        """What is kept of it."""
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
    """Largest bytes that a piece of the bin can have."""
    counts: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    """Bytes of all pieces of the bin."""

    def __post_init__(self) -> None:
        if not len(self.upper) == len(self.counts) == len(self.bytes) or list(self.upper) != sorted(
            self.upper
        ):
            raise SpecError("upper, counts and bytes must be of one length, upper ascending")

    @property
    def count(self) -> int:
        """Of all pieces."""
        return sum(self.counts)

    def typical(self) -> float:
        """Mean bytes in the bin that the middle byte lies in: most bytes come in about such pieces."""
        total, so_far = sum(self.bytes), 0
        for count, size in zip(self.counts, self.bytes, strict=True):
            so_far += size
            if size and 2 * so_far >= total:
                return size / count
        return 0.0

    def plus(self, other: Pieces) -> Pieces:
        """Both together."""
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
    """What a group of processes read of data files."""

    files: int = 0
    """Different files."""
    files_bytes: int = 0
    """Bytes of these files."""
    sizes: tuple[int, ...] = ()
    """Quantiles of their bytes: 0, 1/256 ... 1."""
    opens: int = 0
    stats: int = 0
    """Calls for a file's size and times by its name."""
    visits: int = 0
    """Opens after which something was read."""
    visit_bytes: int = 0
    """Bytes read in these visits."""
    visit_size: int = 0
    """Bytes of the files of these visits, each as often as it was visited."""
    bytes: int = 0
    """Bytes that were read by read(2) and its like."""
    requests: Pieces = field(default_factory=Pieces)
    """Single reads."""
    runs: Pieces = field(default_factory=Pieces)
    """Reads one behind the other, without a gap."""
    followed_files: int = 0
    """Pairs of a process and a file whose large reads were followed from place to place."""
    followed_bytes: int = 0
    """Bytes of the reads that were followed."""
    backward: int = 0
    """Times that a large read began before the last one of the same process and file."""
    direct: int = 0
    """Those of `bytes` that were read with O_DIRECT, past the page cache."""
    mapped: int = 0
    """Bytes of files that were mapped into memory: reads of mapped pages are no calls."""
    resident: float = 0.0
    """Share of the pages of mapped files that were in memory when they were mapped, of those looked at."""
    call_bytes: int | None = None
    """Bytes that read(2) and its like returned, of files and all else; None: the system does not tell."""
    storage_bytes: int | None = None
    """Bytes that came from storage, read-ahead included; None: the system does not tell."""
    faults: int = 0
    """Page faults that waited for storage."""
    call_seconds: float = 0.0
    """Seconds within these calls, all processes together."""
    readahead: int = 131072
    """Bytes that the kernel reads ahead of sequential reads on the storage of most bytes."""
    sizes_only: bool = False
    """True: calls were not traced; only opened files and the bytes of all calls are known."""

    def __post_init__(self) -> None:
        at_least(0, self, "files", "files_bytes", "opens", "stats", "visits", "visit_bytes", "visit_size")
        at_least(0, self, "bytes", "direct", "mapped", "call_bytes", "storage_bytes", "faults", "readahead")
        at_least(0, self, "call_seconds", "followed_files", "followed_bytes", "backward")

    def plus(self, other: Reads) -> Reads:
        """Of two ranks. A file that both read counts twice: their names are not kept."""
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
    """The quantiles 0, 1/256 ... 1 of `sizes`; none of nothing."""
    if not len(sizes):
        return ()
    found = np.quantile(sizes, np.linspace(0, 1, QUANTILES))
    return tuple(int(value) for value in np.rint(found))


def pooled_sizes(parts: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Quantiles of all parts together, each with its number of files."""
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
    """What one group of processes has read so far."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}  # number of a file -> its bytes
        self.paths: dict[int, bytes] = {}  # the same of the first ones -> where it is
        self.opens = self.stats = self.visits = self.visit_bytes = self.visit_size = 0
        self.bytes = self.direct = self.mapped = 0
        self.requests, self.runs = Histogram(), Histogram()
        self.call_seconds = 0.0
        self.pages = self.resident = 0  # pages of mapped files that were looked at, and those in memory
        self.readahead: dict[int, int] = {}  # device -> bytes
        self.readers: Counter[int] = Counter()  # thread -> bytes that it read
        self.places = array("q")  # of each run: process, file, first byte, bytes

    def ended(self, handle: _Open) -> None:
        """Count a run that is over."""
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
    """An open file of a process: where it is, and what was read since it was opened."""

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
    """Takes calls one by one. Its groups are named by whoever decides which process belongs to which.

    Not safe to use from two threads.
    """

    def __init__(self, keep_names: bool = False) -> None:
        self.groups: dict[object, _Group] = {}
        self.names: dict[str, int] | None = {} if keep_names else None
        """Path -> bytes, where names are to be kept."""
        self.uncounted = 0
        """Files beyond MOST_FILES, each as often as it was met."""
        self._numbers: dict[bytes, tuple[int, int, int]] = {}  # digest of a path -> number, bytes, device
        self._open: dict[tuple[int, int], _Open] = {}
        self._latest: dict[int, deque[_Open]] = {}  # process -> what its threads opened last
        self._direct: set[int] = set()  # files that were opened with O_DIRECT

    def group(self, key: object) -> _Group:
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = _Group()
        return found

    def move(self, old: object, new: object) -> None:
        """What was counted for `old` belongs to `new`."""
        if old in self.groups and old != new:
            moved = self.groups.pop(old)
            target = self.group(new)
            target.merge(moved)
            for handle in self._open.values():
                if handle.group is moved:
                    handle.group = target

    def file(self, path: bytes) -> tuple[int, int, int] | None:
        """Number, bytes and device of a data file; None of what is none, or is no regular file."""
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
        """A file that is not here, but in a trace, has so many bytes."""
        digest = hashlib.blake2b(path, digest_size=8).digest()
        old = self._numbers.get(digest)
        number = len(self._numbers) if old is None else old[0]
        self._numbers[digest] = (number, max(size, old[1] if old else 0), 0)

    def _holds(self, group: _Group, number: int, path: bytes, size: int) -> None:
        """The group reads the file."""
        group.files[number] = size
        if len(group.paths) < _MOST_PATHS:
            group.paths[number] = path
        if self.names is not None:
            self.names[os.fsdecode(path)] = size

    def opened(self, key: object, process: int, fd: int, path: bytes, direct: bool = False) -> None:
        """The file `path` got the number `fd` in `process`, of the group `key`; `direct`: with O_DIRECT."""
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
        """The file `path` was opened; nothing more is known."""
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
        """Its size and times were asked for by name."""
        if self.file(path) is not None:
            self.group(key).stats += 1

    def _handle(self, key: object, process: int, fd: int, path: bytes) -> _Open | None:
        handle = self._open.get((process, fd))
        if handle is not None and handle.path == path:
            return handle
        if handle is not None:
            self._end(self._open.pop((process, fd)))
        for latest in self._latest.get(process, ()):
            if latest.path == path:  # a second number of it, as np.load takes one
                self._open[process, fd] = latest
                return latest
        found = self.file(path)
        if found is None:
            return None
        handle = self._open[process, fd] = _Open(process, path, found[0], found[1], None, self.group(key))
        return handle

    def sought(self, key: object, process: int, fd: int, path: bytes, at: int) -> None:
        """The next read begins at byte `at`."""
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
        """`size` bytes were read by `thread` from `at` on; None: from where the last read ended."""
        handle = self._handle(key, process, fd, path)
        if handle is None:
            return
        group = self.group(key)
        group.call_seconds += seconds
        if size <= 0:
            return
        if handle.group is not group:  # another loader of the same process goes on with it
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
        """`size` bytes of the file were mapped into memory."""
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
        """What is kept of the group `key`; `usage` as `feedrate_probe.usage` sums it up."""
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
    """Return (pairs of process and file, bytes of their reads, moves back) of the runs in `places`.

    Runs of less than half the typical size are headers and indexes, which libraries go back to: they do not
    tell the order of samples.
    """
    runs = np.array(places, np.int64).reshape(-1, 4)
    large = runs[2 * runs[:, 3] >= typical]
    by_file = large[np.lexsort((large[:, 1], large[:, 0]))]  # stable: in the order of reading
    same = (by_file[1:, :2] == by_file[:-1, :2]).all(axis=1)
    back = same & (by_file[1:, 2] < by_file[:-1, 2])
    pairs = len(by_file) - int(same.sum())
    return pairs, int(runs[:, 3].sum()), int(back.sum())


def _in_memory(path: bytes, size: int) -> tuple[int, int]:
    """Pages of a file that were looked at, and those of them that are in memory."""
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
    """Bytes that the kernel reads ahead on that device; 128 KiB, its default, where it does not tell."""
    path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return int(path.read_text(encoding="ascii")) * 1024
    except (OSError, ValueError):
        return 131072
