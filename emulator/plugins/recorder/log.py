"""What the traced processes of a job call, in memory: opens, reads, advice and maps of data files."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from emulator.calls import ADVISE, MAP, OPEN, READ
from emulator.plugins.recorder.observation import Reads

BEGIN, END = -1, -2
"""Events that are no calls: a batch begins, and ends."""
MOST_EVENTS = 400_000
"""Most events that are kept; tracing ends with them."""
_LATEST = 32
"""Most recent opens of a process that are searched for the file of a duplicated descriptor."""

_CODE = (".py", ".pyc", ".so", ".pyd", ".a", ".o", ".egg-link", ".ipynb", "/pyvenv.cfg")
_PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python", ".dist-info/", ".egg-info/")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_SHARED = ("/dev/shm/torch_", "/dev/shm/sem.", "/dev/shm/pym-")
_OF_SYSTEM = ("/usr/share/zoneinfo/", "/run/systemd/", "/run/dbus/", "/run/user/", "/run/lock/")


def is_data(path: str) -> bool:
    """Return True if a file may have data, because it is not code, a library or a system file."""
    if path.endswith(_CODE) or ".so." in path or any(part in path for part in _PACKAGES):
        return False
    if path.startswith("/dev/shm/"):
        return not path.startswith(_SHARED)
    return not path.startswith((*_SYSTEM, *_OF_SYSTEM))


class Event(NamedTuple):
    """One call, or a border of a batch."""

    op: int
    thread: int
    file: int
    offset: int
    bytes: int
    start: float
    """Seconds of the wall clock."""
    end: float


@dataclass(slots=True)
class File:
    """A data file."""

    path: bytes
    bytes: int
    number: int


@dataclass(slots=True)
class _Open:
    """An open file of a process."""

    file: File
    at: int | None
    """Offset of the next read; None: unknown."""


@dataclass
class CallLog:
    """The events of the traced processes. Not thread-safe."""

    files: list[File] = field(default_factory=list)
    events: dict[int, list[Event]] = field(default_factory=dict)
    """By process, in the order of their ends."""
    direct: set[int] = field(default_factory=set)
    """Files that were opened with O_DIRECT."""
    count: int = 0
    """Number of events."""

    def __post_init__(self) -> None:
        self._known: dict[bytes, File | None] = {}
        self._open: dict[tuple[int, int], _Open] = {}
        self._latest: dict[int, deque[_Open]] = {}

    @property
    def full(self) -> bool:
        """True when no more events are kept."""
        return self.count >= MOST_EVENTS

    def file(self, path: bytes) -> File | None:
        """Return the data file at `path`; None if it is not a regular data file."""
        if path not in self._known:
            size = _size(os.fsdecode(path))
            found = File(path, size, len(self.files)) if size >= 0 else None
            self._known[path] = found
            if found is not None:
                self.files.append(found)
        return self._known[path]

    def move(self, thread: int, process: int) -> None:
        """Give the events of a thread, which was taken for a process, to its process."""
        if thread in self.events:
            self.events.setdefault(process, []).extend(self.events.pop(thread))

    def add(self, process: int, event: Event) -> None:
        """Add an event of a process."""
        if not self.full:
            self.count += 1
            self.events.setdefault(process, []).append(event)

    def opened(self, process: int, thread: int, fd: int, path: bytes, when: tuple[float, float], *,
               direct: bool = False, before: bool = False) -> None:  # fmt: skip
        """Add an open of `path`; `before`: before the process was traced."""
        self._open.pop((process, fd), None)
        file = self.file(path)
        if file is None:
            return
        (self.direct.add if direct else self.direct.discard)(file.number)
        handle = self._open[process, fd] = _Open(file, 0)
        self._latest.setdefault(process, deque(maxlen=_LATEST)).appendleft(handle)
        if not before:
            self.add(process, Event(OPEN, thread, file.number, 0, 0, *when))

    def _handle(self, process: int, fd: int, path: bytes) -> _Open | None:
        handle = self._open.get((process, fd))
        if handle is not None and handle.file.path == path:
            return handle
        file = self.file(path)
        if file is None:
            return None
        same = (one for one in self._latest.get(process, ()) if one.file is file)
        handle = self._open[process, fd] = next(same, None) or _Open(file, None)
        return handle

    def sought(self, process: int, fd: int, path: bytes, at: int) -> None:
        """Set the offset of the next read to `at` bytes."""
        if (handle := self._handle(process, fd, path)) is not None:
            handle.at = at

    def read(self, process: int, thread: int, fd: int, path: bytes, at: int | None, size: int,
             when: tuple[float, float]) -> None:  # fmt: skip
        """Add a read of `size` bytes at offset `at`; None: at the file's own offset."""
        handle = self._handle(process, fd, path)
        if handle is None or size <= 0:
            return
        begin = handle.at if at is None else at
        if at is None and begin is not None:
            handle.at = begin + size
        self.add(process, Event(READ, thread, handle.file.number, begin or 0, size, *when))

    def advised(self, process: int, thread: int, path: bytes, offset: int, size: int,
                when: tuple[float, float]) -> None:  # fmt: skip
        """Add that the kernel was told to read `size` bytes of the file; 0: all of it."""
        if (file := self.file(path)) is not None:
            self.add(process, Event(ADVISE, thread, file.number, offset, size or file.bytes, *when))

    def mapped(self, process: int, thread: int, path: bytes, size: int, when: tuple[float, float]) -> None:
        """Add a map of `size` bytes of the file."""
        if (file := self.file(path)) is not None:
            self.add(process, Event(MAP, thread, file.number, 0, min(size, file.bytes), *when))

    def named(self, process: int, path: bytes, at: float) -> None:
        """Add an open of `path` whose reads are not traced, and one read of the whole file."""
        if (file := self.file(path)) is not None:
            self.add(process, Event(OPEN, process, file.number, 0, 0, at, at))
            self.add(process, Event(READ, process, file.number, 0, file.bytes, at, at))

    def summary(self, processes: Iterable[int]) -> Reads:
        """Return the reads of these processes."""
        events = [event for process in processes for event in self.events.get(process, ())]
        reads = [event for event in events if event.op == READ]
        files = {event.file for event in events if event.op in (READ, MAP)}
        return Reads(
            files=len(files),
            files_bytes=sum(self.files[number].bytes for number in files),
            requests=len(reads),
            bytes=sum(event.bytes for event in reads),
            seconds=round(sum(event.end - event.start for event in reads), 6),
            maps=sum(event.op == MAP for event in events),
            direct=sum(event.bytes for event in reads if event.file in self.direct),
        )

    def border(self, process: int, thread: int, op: int, loader: int, at: float) -> None:
        """Add that a batch of a loader begins or ends."""
        self.add(process, Event(op, thread, -1, 0, loader, at, at))


def _size(path: str) -> int:
    """Return the size of a regular data file, or -1 for anything else."""
    if is_data(path):
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116  a million of them
            if stat.S_ISREG(status.st_mode):
                return status.st_size
    return -1
