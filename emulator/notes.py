"""What each thread does with files, and since when, in memory that it shares with its watcher.

A call into a storage that hangs does not return, and may keep its process from ending. So each thread writes
a note before such a call, and another process, which calls no storage, reads all notes (`launch.watch`).
Processes that are started later, such as DataLoader workers, find the memory through an environment variable.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, NamedTuple

VARIABLE = "FEEDRATE_NOTES"
"""Environment variable with the rank of a process and the path of the memory: `3:/proc/77/fd/5`."""

_SLOT = 1024
"""Bytes of a thread: begin of the call, process, thread, rank, text."""
_SLOTS = 16384
_HEAD = 4096
"""Bytes before the first slot: number of slots, exit status, first failure."""
_OWNER = struct.Struct("=iii")
_TEXT = 64
"""Where the text of a slot begins."""
_USED, _STATUS, _FAILED = 0, 8, 16
_FAILURE, _OUT = slice(64, 2048), slice(2048, _HEAD)
_END = b"\0"
_CALLS = (
    *("access", "listdir", "lstat", "mkdir", "open", "readlink", "rename", "replace", "rmdir", "scandir"),
    *("stat", "statvfs", "unlink"),
    *("close", "fsync", "ftruncate", "pwrite"),
)
"""Functions of `os` whose first argument is a path, or a descriptor."""


class Seen(NamedTuple):
    """A thread's note, as its watcher reads it."""

    process: int
    thread: int
    rank: int
    """-1 if the process is no rank."""
    since: float
    """Begin of the call in seconds of time.monotonic; 0.0 if there is none."""
    text: str
    """The call and its file: `read of /mnt/a/f17`."""


class Note:
    """The slot of one thread, which alone writes it."""

    __slots__ = ("_memory", "_process", "_since", "memory")

    def __init__(self, memory: memoryview, rank: int) -> None:
        self._memory, self._since = memory, memory[:8].cast("d")
        self.memory = memory[_TEXT:]
        """Where the text is: the call and the path, ended by a zero byte."""
        self._process = os.getpid()
        self._since[0] = 0.0
        _OWNER.pack_into(memory, 8, self._process, threading.get_native_id(), rank)

    @property
    def since(self) -> float:
        """Begin of the call under way, in seconds of time.monotonic; 0.0 if there is none."""
        return self._since[0]

    @since.setter
    def since(self, moment: float) -> None:
        self._since[0] = moment

    def write(self, text: bytes) -> None:
        """Name the call that begins: the result of `phrase`."""
        self.memory[: len(text)] = text

    def text(self) -> bytes:
        """Return what `write` wrote."""
        return bytes(self.memory).partition(_END)[0] + _END

    def __del__(self) -> None:
        if self._process == os.getpid():  # a forked child has copies of its parent's notes
            _OWNER.pack_into(self._memory, 8, 0, 0, 0)


def phrase(call: str, path: str) -> bytes:
    """Return the text of a note."""
    text = os.fsencode(f"{call} of {path}")
    return text[: _SLOT - _TEXT - 1] + _END


def _fill(memory: memoryview, text: str) -> None:
    data = os.fsencode(text)[: len(memory) - 1] + _END
    memory[: len(data)] = data


def _filled(memory: memoryview) -> str:
    return os.fsdecode(bytes(memory).partition(_END)[0])


class Page:
    """The notes of a process and of those that it starts, and what they report of their end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = memoryview(mmap.mmap(descriptor, _HEAD + _SLOT * _SLOTS))
        self._numbers = self._memory[:64].cast("q")
        self._lock = threading.Lock()

    @classmethod
    def new(cls) -> Page:
        """Make an empty page. Children that this process forks share it."""
        descriptor = os.memfd_create("feedrate-notes")
        os.truncate(descriptor, _HEAD + _SLOT * _SLOTS)
        return cls(descriptor)

    def path(self) -> str:
        """Return a path by which other processes of this user can open the page."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def note(self, rank: int) -> Note:
        """Take a slot for this thread."""
        with self._locked(0):
            used = self._numbers[_USED // 8]
            for number in range(used):
                slot = self._slot(number)
                if not _OWNER.unpack_from(slot, 8)[0]:
                    return Note(slot, rank)
            if used == _SLOTS:
                return Note(memoryview(bytearray(_SLOT)), rank)  # unwatched
            note = Note(self._slot(used), rank)
            self._numbers[_USED // 8] = used + 1
            return note

    def _slot(self, number: int) -> memoryview:
        return self._memory[_HEAD + number * _SLOT : _HEAD + (number + 1) * _SLOT]

    def notes(self) -> Iterator[Seen]:
        """Yield the notes of all threads."""
        for number in range(self._numbers[_USED // 8]):
            slot = self._slot(number)
            process, thread, rank = _OWNER.unpack_from(slot, 8)
            if process:
                since = slot[:8].cast("d")[0]
                text = bytes(slot[_TEXT:]).partition(_END)[0] if since else b""
                yield Seen(process, thread, rank, since, os.fsdecode(text))

    def forget(self, process: int) -> None:
        """Free the slots of a process that has ended."""
        for number in range(self._numbers[_USED // 8]):
            slot = self._slot(number)
            if _OWNER.unpack_from(slot, 8)[0] == process:
                slot[:8].cast("d")[0] = 0.0
                _OWNER.pack_into(slot, 8, 0, 0, 0)

    @property
    def status(self) -> int | None:
        """Exit status of the command once it has finished; None before."""
        return self._numbers[_STATUS // 8] - 1 if self._numbers[_STATUS // 8] else None

    @status.setter
    def status(self, status: int) -> None:
        self._numbers[_STATUS // 8] = 1 + (status & 0xFF)

    def fail(self, line: str, status: int) -> bool:
        """Record why everything ends, and the exit status; False if another has done so before."""
        with self._locked(1):
            if self._numbers[_FAILED // 8]:
                return False
            _fill(self._memory[_FAILURE], line)
            self._numbers[_FAILED // 8] = 1 + status
            return True

    def failure(self) -> tuple[str, int] | None:
        """Return what the first call of `fail` recorded; None if there was none."""
        if not (failed := self._numbers[_FAILED // 8]):
            return None
        return _filled(self._memory[_FAILURE]), failed - 1

    @property
    def out(self) -> str:
        """The folder of the result, in which the first failure is recorded, too; empty if there is none."""
        return _filled(self._memory[_OUT])

    @out.setter
    def out(self, folder: str) -> None:
        _fill(self._memory[_OUT], folder)

    def unlock(self) -> None:
        """Forget that a thread of the process that was forked may have held the lock."""
        self._lock = threading.Lock()

    @contextmanager
    def _locked(self, which: int) -> Iterator[None]:
        """Exclude other threads and processes, unless one is stopped while it has the lock."""
        end = time.monotonic() + 1.0
        with self._lock:
            while time.monotonic() < end:
                with suppress(OSError):
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, which)
                    break
                time.sleep(0.001)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, which)


class _Own:
    """This process's page and rank, and the notes of its threads."""

    page: Page | None = None
    rank = -1
    threads = threading.local()


def share(page: Page, rank: int = -1) -> Page:
    """Write the notes of this process, and of children from now on, to `page`; return it."""
    _Own.page, _Own.rank, _Own.threads = page, rank, threading.local()
    os.environ[VARIABLE] = f"{rank}:{page.path()}"
    return page


def _join() -> None:
    """Write the notes of this process to the page of the process that started it, if that has one."""
    rank, _, path = os.environ.get(VARIABLE, "").partition(":")
    with suppress(OSError, ValueError):
        _Own.page, _Own.rank = Page(os.open(path, os.O_RDWR | os.O_CLOEXEC)), int(rank)


def page() -> Page | None:
    """Return the page of this process."""
    return _Own.page


def mine() -> Note:
    """Return the note of the calling thread."""
    try:
        note: Note = _Own.threads.note
    except AttributeError:
        note = _Own.page.note(_Own.rank) if _Own.page else Note(memoryview(bytearray(_SLOT)), _Own.rank)
        _Own.threads.note = note
    return note


def unwatched() -> None:
    """Keep the notes of the calling thread to itself, because nothing waits for the thread."""
    _Own.threads.note = Note(memoryview(bytearray(_SLOT)), _Own.rank)


@contextmanager
def doing(call: str, path: object) -> Iterator[None]:
    """Note that this thread calls `call` for the file `path` during the body."""
    note = mine()
    before = note.text() if note.since else b""
    note.write(phrase(call, str(path)))
    note.since = time.monotonic()
    try:
        yield
    finally:
        note.write(before or _END)
        note.since = time.monotonic() if before else 0.0


def note_file_calls() -> None:
    """Have Python's own file functions write notes, where no other note says what this thread does.

    So that small calls, such as whether a folder exists, are noted wherever they are.
    """
    for name in _CALLS:
        setattr(os, name, _noting(name, getattr(os, name)))
    builtins.open = io.open = _noting("open", io.open)  # pathlib uses that of io


def _noting(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def noting(file: Any = ".", *words: Any, **options: Any) -> Any:
        path = "" if mine().since else _path_of(file)
        if not path:
            return function(file, *words, **options)
        with doing(call, path):
            return function(file, *words, **options)

    return noting


_readlink = os.readlink


def _path_of(file: Any) -> str:
    """Return the path of `file`, which may be a descriptor; empty if it is no file."""
    if not isinstance(file, int):
        return str(file) if isinstance(file, (str, os.PathLike)) else ""
    try:
        path = _readlink(f"/proc/self/fd/{file}")
    except OSError:
        return ""
    return path if path.startswith("/") and not path.startswith("/dev/") else ""


def _forked() -> None:
    _Own.threads = threading.local()
    if _Own.page:
        _Own.page.unlock()


os.register_at_fork(after_in_child=_forked)
_join()
