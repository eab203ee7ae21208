"""Progress of a long job: kept in journals, counted over threads and processes, shown once in a while.

A dataset that is being made has one journal per worker, in one file or in several objects: 24 bytes a file,
kept before the file gets its name. A record that was cut off by a kill has a wrong check and counts for
nothing; a file without a record is made again, which gives the same bytes. In a folder a journal begins with
a record of its writer, so that the temporary files which a killed one leaves can be told from other people's.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator import live
from emulator.dataset.names import HIDDEN
from emulator.errors import DatasetError, StorageError
from emulator.live import Now
from emulator.storage.base import Closing, Store
from emulator.storage.folder import FolderStore
from emulator.units import show_bytes

Done = Callable[[int, int], None]
"""Called with the (files, bytes) that were just finished; from many threads."""

READERS = 16
"""Files that a process reads at once unless told otherwise: storage that answers late needs many."""

Value = TypeVar("Value")
_TOGETHER = 64
"""Indices of a task, at most: handing one to a thread takes as long as a small file."""
_AHEAD = 1024
"""Tasks that wait for a thread, at most: each takes a kilobyte or two."""
_ALONE = 16
"""Tasks of one thread, after which it is asked again whether others would help."""
_QUICK_SECONDS = 2e-4
"""An index that takes less, on a core and not waiting for storage, is mostly Python, whose lock threads would
hand to each other at each call. Files of 512 bytes in memory took 64 us with one, 190 with two."""


def by_threads(work: Callable[[int], Value], indices: NDArray[np.int64], threads: int) -> Iterator[Value]:
    """Yield work(index) of each of `indices`, in order, by so many threads, or by this one where they
    would only be in each other's way. Raises what it raises."""
    each, over = min(_TOGETHER, 1 + len(indices) // (32 * threads)), threading.Event()

    def some(begin: int) -> list[Value]:
        return [work(index) for index in indices[begin : begin + each].tolist() if not over.is_set()]

    with ThreadPoolExecutor(threads) as pool:
        try:
            begin = 0
            while begin < len(indices):
                since, worked = time.monotonic(), time.thread_time()
                found = some(begin)
                seconds, worked = time.monotonic() - since, time.thread_time() - worked
                alone = worked > 0.8 * seconds and seconds < _QUICK_SECONDS * len(found)
                yield from found
                end = begin + each * (_ALONE if alone else _AHEAD)
                rest = range(begin + each, min(end, len(indices)), each)
                yield from chain.from_iterable(map(some, rest) if alone else pool.map(some, rest))
                begin = end
        except BaseException:
            over.set()
            pool.shutdown(cancel_futures=True)
            raise


RECORD = np.dtype([("index", "<i8"), ("bytes", "<i8"), ("crc", "<u4"), ("check", "<u4")])
Records = NDArray[np.void]
"""Files that are done, as rows of dtype RECORD."""


JOURNALS = f"{HIDDEN}/journal-"
"""The beginning of the names of all journals."""

_WRITER = -1
"""The index of a record that names a writer: process in `bytes`, CRC-32 of the host's name in `crc`."""


def journal_name(worker: int) -> str:
    """Return the beginning of the names of the journal of worker number `worker`."""
    return f"{JOURNALS}{worker:06d}"


def _whole(size: int) -> int:
    """Bytes of the whole records in `size` bytes."""
    return size // RECORD.itemsize * RECORD.itemsize


class Journal(Closing):
    """Keeps the records of one worker, whose threads may share it. A context manager."""

    def __init__(self, store: Store, worker: int) -> None:
        """Raises OSError, StorageError."""
        self._appender = store.appender(journal_name(worker), RECORD.itemsize)
        if isinstance(store, FolderStore):
            self.add(_WRITER, os.getpid(), zlib.crc32(socket.gethostname()[:32].encode()))
            self._appender.sync()

    def add(self, index: int, size: int, crc: int) -> None:
        """File `index` has `size` bytes and the CRC-32 `crc`. Raises OSError, StorageError."""
        head = index.to_bytes(8, "little", signed=True) + size.to_bytes(8, "little")
        head += crc.to_bytes(4, "little")
        self._appender.append(head + zlib.crc32(head).to_bytes(4, "little"))

    def close(self) -> None:
        self._appender.close()


def journalled(store: Store, worker: int | None = None) -> Iterator[Records]:
    """The valid records of all journals, or of one worker's, some at a time.

    Of an index that comes again, the last one holds. Raises StorageError.
    """
    for records in _records(store, JOURNALS if worker is None else journal_name(worker)):
        yield records[records["index"] >= 0]


def read_writers(store: Store) -> set[tuple[int, int]]:
    """(process, CRC-32 of its host's name) of all that kept a journal in a folder. Raises StorageError."""
    writers = (records[records["index"] == _WRITER] for records in _records(store, JOURNALS))
    return {(int(row["bytes"]), int(row["crc"])) for rows in writers for row in rows}


def _records(store: Store, prefix: str) -> Iterator[Records]:
    """The valid records of journals, those of writers too, some at a time. Raises StorageError."""
    for name in sorted(store.names(prefix)):
        data = store.get(name) or b""
        for begin in range(0, _whole(len(data)), _AT_ONCE):
            part = data[begin : min(begin + _AT_ONCE, _whole(len(data)))]
            records = np.frombuffer(part, RECORD)
            checks = [zlib.crc32(part[at : at + 20]) for at in range(0, len(part), RECORD.itemsize)]
            yield records[records["check"] == np.array(checks, dtype=np.uint32)]


_AT_ONCE = 2**16 * RECORD.itemsize
"""Bytes of a journal that are looked at together."""


class Tally:
    """Files and bytes that are done: those of this process, and what others add to their journals."""

    def __init__(self, store: Store | None = None, workers: Iterable[int] = ()) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._files = 0
        self._bytes = 0
        self._store = store
        self.watch(workers)

    def add(self, files: int, size: int) -> None:
        """So many more are done by this process."""
        with self._lock:
            self._files += files
            self._bytes += size

    def watch(self, workers: Iterable[int]) -> None:
        """Count what these workers add to their journals in `store` from now on."""
        self._journals = tuple(journal_name(worker) for worker in workers)
        self._read = {name: _whole(size) for name, size in self._found()}

    def _found(self) -> list[tuple[str, int]]:
        """Name and bytes of each journal that is watched."""
        if self._store is None or not self._journals:
            return []
        found = [(entry.name, entry.size) for entry in self._store.entries(JOURNALS)]
        return [pair for pair in found if pair[0].startswith(self._journals)]

    def now(self) -> tuple[int, int]:
        """(files, bytes) so far; what cannot be read counts later."""
        with self._reading, suppress(DatasetError, StorageError):
            for name, size in self._found():
                at, end = self._read.get(name, 0), _whole(size)
                if self._store is not None and end > at:
                    data = memoryview(bytearray(end - at))
                    with self._store.open(name) as blob:
                        whole = _whole(blob.read_into(at, data))
                    self._read[name] = at + whole
                    records = np.frombuffer(data[:whole], RECORD)
                    records = records[records["index"] >= 0]
                    self.add(len(records), int(records["bytes"].sum()))
        with self._lock:
            return self._files, self._bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Progress of a job at some moment."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int
    seconds: float
    cpu_seconds: float
    """User + system seconds of this process since the start."""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float:
        """Seconds until it is done at this rate; infinite when nothing is done yet."""
        left = max(self.bytes_all - self.bytes, 0)
        return left / self.bytes_per_second if self.bytes_per_second > 0 else float("inf")


@contextmanager
def shown(verb: str, tally: Tally, files: int, size: int) -> Iterator[Callable[[], State]]:
    """Show how far `verb` is while the block runs; gives a function for the state now.

    `files` and `size` are those of the whole job.
    """
    start, cpu = time.monotonic(), time.process_time()

    def state() -> State:
        done_files, done_bytes = tally.now()
        return State(
            files=done_files,
            files_all=files,
            bytes=done_bytes,
            bytes_all=size,
            seconds=time.monotonic() - start,
            cpu_seconds=time.process_time() - cpu,
        )

    with live.telling(lambda: _now(verb, state())):
        yield state


def _now(verb: str, state: State) -> Now:
    return Now(
        verb=verb,
        doing=f"{show_bytes(state.bytes)} of {show_bytes(state.bytes_all)}",
        unit="file",
        part=state.files,
        parts=state.files_all,
        share=state.bytes / state.bytes_all if state.bytes_all else 1.0,
        seconds=state.seconds,
        eta_seconds=state.eta_seconds if state.bytes else None,
        bytes_per_second=state.bytes_per_second,
    )
