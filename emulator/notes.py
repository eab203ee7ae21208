"""What each thread does with files, and since when, in memory that it shares with its watcher.

A call into a storage that hangs does not return, and may keep its process from ending. So each thread writes
a note before such a call, and another process, which calls no storage, reads all notes (`launch.watch`).
Processes that are started later, such as DataLoader workers, find the memory through an environment variable.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

VARIABLE = "FEEDRATE_NOTES"
"""Environment variable with the rank of a process and the path of the memory: `3:/proc/77/fd/5`."""
DEFAULT_TIMEOUT = 30.0
"""Seconds of --storage-timeout."""

_SLOTS = 16384
_CALLS = (
    *("access", "listdir", "lstat", "mkdir", "open", "readlink", "rename", "replace", "rmdir", "scandir"),
    *("stat", "statvfs", "unlink"),
    *("close", "fstat", "fsync", "ftruncate", "pread", "pwrite"),
)
"""Functions of `os` whose first argument is a path, or a descriptor."""


class Slot(ctypes.Structure):
    """The note of one thread, which alone writes it."""

    _fields_ = (
        ("since", ctypes.c_double),  # begin of the call in seconds of time.monotonic; 0.0 if there is none
        ("process", ctypes.c_int),  # 0 if the slot is free
        ("thread", ctypes.c_int),
        ("rank", ctypes.c_int),  # -1 if the process is no rank
        ("text", ctypes.c_char * 1004),  # the call and its file: `read of /mnt/a/f17`
    )


_TEXT_BYTES = Slot.text.size


class _Head(ctypes.Structure):
    """What concerns all processes of a page. Texts are paths and lines of at most so many bytes."""

    _fields_ = (
        ("timeout", ctypes.c_double),  # --storage-timeout in seconds
        ("used", ctypes.c_int),  # slots
        ("status", ctypes.c_int),  # exit status of the command once it has finished; -1 before
        ("failed", ctypes.c_int),  # exit status of the first failure; -1 if there is none
        ("failure", ctypes.c_char * 2000),  # why everything ends
        ("out", ctypes.c_char * 2072),  # folder of the result, in which that is recorded, too; may be empty
    )


class Note:
    """A slot for as long as its thread lives."""

    __slots__ = ("_process", "memory", "slot")

    def __init__(self, slot: Any, rank: int) -> None:
        self.slot, self._process = slot, os.getpid()
        self.memory = memoryview((ctypes.c_char * _TEXT_BYTES).from_buffer(slot, Slot.text.offset)).cast("B")
        """Where the text is: the call and the path, ended by a zero byte."""
        slot.since, slot.process, slot.thread, slot.rank = 0.0, self._process, threading.get_native_id(), rank

    def __del__(self) -> None:
        if self._process == os.getpid():  # a forked child has copies of its parent's notes
            self.slot.process = 0


def phrase(call: str, path: str) -> bytes:
    """Return the text of a note."""
    return os.fsencode(f"{call} of {path}")[: _TEXT_BYTES - 1]


class Page:
    """The notes of a process and of those that it starts, and what they report of their end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        memory = mmap.mmap(descriptor, ctypes.sizeof(_Head) + _SLOTS * ctypes.sizeof(Slot))
        self.head = _Head.from_buffer(memory)
        self._slots = (Slot * _SLOTS).from_buffer(memory, ctypes.sizeof(_Head))
        self.lock = threading.Lock()

    @classmethod
    def new(cls) -> Page:
        """Make an empty page. Children that this process forks share it."""
        descriptor = os.memfd_create("feedrate-notes")
        os.truncate(descriptor, ctypes.sizeof(_Head) + _SLOTS * ctypes.sizeof(Slot))
        page = cls(descriptor)
        page.head.status = page.head.failed = -1
        page.head.timeout = DEFAULT_TIMEOUT
        return page

    def note(self, rank: int) -> Note:
        """Take a slot for this thread."""
        with self._locked():
            free = next((slot for slot in self._used() if not slot.process), None)
            if free is None and self.head.used < _SLOTS:
                free = self._slots[self.head.used]
                self.head.used += 1
            return Note(Slot() if free is None else free, rank)  # of its own: unwatched

    def _used(self) -> Iterator[Any]:
        return (self._slots[number] for number in range(self.head.used))

    def notes(self) -> Iterator[Slot]:
        """Yield copies of the notes of all threads."""
        return (Slot.from_buffer_copy(slot) for slot in self._used() if slot.process)

    def forget(self, process: int) -> None:
        """Free the slots of a process that has ended."""
        for slot in self._used():
            if slot.process == process:
                slot.since, slot.process = 0.0, 0

    def fail(self, line: str, status: int) -> bool:
        """Record why everything ends, and the exit status; False if another has done so before."""
        with self._locked():
            if self.head.failed >= 0:
                return False
            self.head.failure = os.fsencode(line)[: _Head.failure.size - 1]
            self.head.failed = status
            return True

    def failure(self) -> tuple[str, int] | None:
        """Return what the first call of `fail` recorded; None if there was none."""
        return None if self.head.failed < 0 else (os.fsdecode(self.head.failure), self.head.failed)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other threads and processes, unless one is stopped while it has the lock."""
        end = time.monotonic() + 1.0
        with self.lock:
            while time.monotonic() < end:
                with suppress(OSError):
                    fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.001)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


class _Own:
    """This process's page and rank, and the notes of its threads."""

    page: Page | None = None
    rank = -1
    threads = threading.local()


def share(page: Page, rank: int = -1) -> Page:
    """Write the notes of this process, and of children from now on, to `page`; return it."""
    _Own.page, _Own.rank, _Own.threads = page, rank, threading.local()
    os.environ[VARIABLE] = f"{rank}:/proc/{os.getpid()}/fd/{page.descriptor}"
    return page


def _join() -> None:
    """Write the notes of this process to the page of the process that started it, if that has one."""
    rank, _, path = os.environ.get(VARIABLE, "").partition(":")
    with suppress(OSError, ValueError):
        _Own.page, _Own.rank = Page(os.open(path, os.O_RDWR | os.O_CLOEXEC)), int(rank)


def page() -> Page | None:
    """Return the page of this process."""
    return _Own.page


def timeout() -> float:
    """Return the seconds of --storage-timeout."""
    return float(_Own.page.head.timeout) if _Own.page else DEFAULT_TIMEOUT


def mine() -> Note:
    """Return the note of the calling thread."""
    try:
        note: Note = _Own.threads.note
    except AttributeError:
        note = _Own.page.note(_Own.rank) if _Own.page else Note(Slot(), _Own.rank)
        _Own.threads.note = note
    return note


def unwatched() -> None:
    """Keep the notes of the calling thread to itself, because nothing waits for the thread."""
    _Own.threads.note = Note(Slot(), _Own.rank)


@contextmanager
def doing(call: str, path: object) -> Iterator[None]:
    """Note that this thread calls `call` for the file `path` during the body."""
    slot = mine().slot
    outer = slot.text if slot.since else b""
    slot.text, slot.since = phrase(call, str(path)), time.monotonic()
    try:
        yield
    finally:
        slot.text, slot.since = outer, time.monotonic() if outer else 0.0


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
        path = "" if mine().slot.since else _path_of(file)
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
        _Own.page.lock = threading.Lock()  # another thread may have had it


os.register_at_fork(after_in_child=_forked)
_join()
