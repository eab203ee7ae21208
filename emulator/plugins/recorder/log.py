"""What the traced processes of a job call, in memory: opens, reads, advice and maps of data files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from emulator.calls import ADVISE, MAP, OPEN, READ
from emulator.plugins.recorder.observation import Reads

BATCH_BEGINS, BATCH_ENDS = -1, -2
"""Events that are no calls: a batch begins, and ends."""
MOST_EVENTS = 400_000
"""Most events that are kept; tracing ends with them."""

_NO_DATA = re.compile(
    r"^/(proc|sys|etc|lib|lib64|usr/lib|usr/lib64|usr/share/zoneinfo|run/(systemd|dbus|user|lock))/"
    r"|^/dev/(?!shm/)|^/dev/shm/(torch_|sem\.|pym-|sm_segment\.|vader_segment\.|nccl-|ucx_shm_|mpich_)"
    r"|/(site|dist)-packages/|/lib/python|\.(dist|egg)-info/|/(ompi|prte)\.|\.so\."
    r"|(\.(pyc?|so|pyd|a|o|egg-link|ipynb)|/pyvenv\.cfg)$"
)
"""Code, libraries, system files, and what PyTorch, MPI and NCCL share among processes."""


class Event(NamedTuple):
    """One call, or a border of a batch."""

    op: int
    thread: int
    file: int
    offset: int
    bytes: int
    """Of a border: the number of the loader."""
    start: float
    """Seconds of the wall clock."""
    end: float


@dataclass(slots=True)
class File:
    """A data file."""

    path: bytes
    bytes: int
    number: int


@dataclass
class CallLog:
    """The events of the traced processes, by the process that strace was attached to. Not thread-safe."""

    files: list[File] = field(default_factory=list)
    events: dict[int, list[Event]] = field(default_factory=dict)
    count: int = 0
    """Number of events."""
    when: tuple[float, float] = (0.0, 0.0)
    """Start and end of the call that is added next."""
    _known: dict[bytes, File | None] = field(default_factory=dict)
    _offsets: dict[tuple[int, int, bytes], int] = field(default_factory=dict)
    """Offset of the next read of a descriptor, in bytes."""

    @property
    def full(self) -> bool:
        """True when no more events are kept."""
        return self.count >= MOST_EVENTS

    def file(self, path: bytes) -> File | None:
        """Return the data file at `path`; None if it is not a regular data file, or is empty so far."""
        if path not in self._known:
            size = _size(os.fsdecode(path))
            if not size:
                return None
            file = File(path, size, len(self.files)) if size > 0 else None
            self._known[path] = file
            if file is not None:
                self.files.append(file)
        return self._known[path]

    def _add(self, process: int, op: int, thread: int, path: bytes, offset: int, size: int) -> None:
        file = self.file(path)
        if file is not None and not self.full:
            self.count += 1
            event = Event(op, thread, file.number, offset, min(size, file.bytes), *self.when)
            self.events.setdefault(process, []).append(event)

    def opened(self, process: int, thread: int, fd: int, path: bytes) -> None:
        """Add an open of `path`."""
        self._offsets[process, fd, path] = 0
        self._add(process, OPEN, thread, path, 0, 0)

    def sought(self, process: int, fd: int, path: bytes, offset: int) -> None:
        """Set the offset of the next read to `offset` bytes."""
        self._offsets[process, fd, path] = offset

    def read(self, process: int, thread: int, fd: int, path: bytes, offset: int | None, size: int) -> None:
        """Add a read of `size` bytes at `offset`; None: at the file's own offset."""
        if size <= 0 or self.file(path) is None:
            return
        if offset is None:
            # A file that was open before tracing began, and never sought, counts as read from its start.
            offset = self._offsets.get((process, fd, path), 0)
            self._offsets[process, fd, path] = offset + size
        self._add(process, READ, thread, path, offset, size)

    def advised(self, process: int, thread: int, path: bytes, offset: int, size: int) -> None:
        """Add that the kernel was told to read `size` bytes of the file; 0: all of it."""
        if (file := self.file(path)) is not None:
            self._add(process, ADVISE, thread, path, offset, size or file.bytes)

    def mapped(self, process: int, thread: int, path: bytes, size: int) -> None:
        """Add a map of `size` bytes of the file."""
        self._add(process, MAP, thread, path, 0, size)

    def border(self, process: int, thread: int, op: int, loader: int) -> None:
        """Add that a batch of a loader begins or ends."""
        if not self.full:
            self.events.setdefault(process, []).append(Event(op, thread, -1, 0, loader, *self.when))

    def summary(self, events: Sequence[Event]) -> Reads:
        """Return the sum of these events."""
        reads = [event for event in events if event.op == READ]
        files = {event.file for event in events if event.op in (READ, MAP)}
        return Reads(
            files=len(files),
            files_bytes=sum(self.files[number].bytes for number in files),
            requests=len(reads),
            bytes=sum(event.bytes for event in reads),
        )


def _size(path: str) -> int:
    """Return the size of a regular data file, or -1 for anything else."""
    if _NO_DATA.search(path) is None:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116  a million of them
            if stat.S_ISREG(status.st_mode):
                return status.st_size
    return -1
