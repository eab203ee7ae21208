"""A storage slowed down to a known bandwidth and latency: the ranks of a node share the bandwidth.

The emulated device is one number in shared memory, `tail`: the time until which it is booked. A read is cut
into chunks. Each chunk books the device from max(tail, now - burst) on for bytes / rate seconds, does the
real read meanwhile, and sleeps until its booking ends. So the device costs no process and no CPU, and late
wake-ups do not add up: a chunk that wakes late has still booked its right end, and the next one begins there,
unless that is longer ago than the burst.

A rank holds one booking at a time, whatever the number of its reader threads and processes. Ranks that all
want data therefore share the bandwidth equally; without that, one with more readers would get more of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emulator.errors import StorageError, storage_errors
from emulator.files import memory_folder
from emulator.storage.base import HEAD, Blob, Closing, Storage, WrappedBlob
from emulator.units import BLOCK_BYTES

_BURST_NS = 10_000_000
"""Time that a booking may reach back: it makes up for late wake-ups; an idle device saves no more."""
_CHUNK_SECONDS = 0.002
"""A chunk takes about as long: short enough to take turns, long enough for a sleep to be exact."""
_CHUNK_LEAST = 64 * 1024
_CHUNK_MOST = 4 * 1024 * 1024
_TAIL = struct.Struct("q")
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid (0 for open file descriptions)."""
_RANK_LOCKS = 64
"""Byte of the first rank's lock; the lock of `tail` is byte 0."""


class NodeLimiter(Closing):
    """The bandwidth of one emulated device, shared by the ranks of a node through a small file.

    The first rank creates it, the others join by `path`, and when all have it open `unlink` removes the name,
    so that nothing is left behind however the ranks end. Pickled, it is joined through the rank's open file
    by worker processes, which share their rank's part of the bandwidth.
    """

    def __init__(self, path: str, fd: int, rate: float, latency: float, rank: int) -> None:
        self.path = path
        self.rate = rate
        """Bytes per second."""
        self.latency = latency
        """Seconds before each request."""
        self.rank = rank
        chunk = round(min(max(rate * _CHUNK_SECONDS, _CHUNK_LEAST), _CHUNK_MOST))
        self.chunk = chunk // BLOCK_BYTES * BLOCK_BYTES  # whole blocks, as O_DIRECT asks
        self._fd = fd
        self._shared = mmap.mmap(fd, mmap.PAGESIZE)
        self._turn = _Turn()

    @classmethod
    def create(cls, rate: float, latency: float, rank: int) -> NodeLimiter:
        """A new device of `rate` bytes/s and `latency` seconds per request. Raises StorageError."""
        with storage_errors("cannot make the shared file of the shaped storage"):
            fd, path = tempfile.mkstemp(prefix="feedrate-", dir=memory_folder())
            os.truncate(fd, mmap.PAGESIZE)
        return cls(path, fd, rate, latency, rank)

    @classmethod
    def join(cls, path: str, rate: float, latency: float, rank: int) -> NodeLimiter:
        """The device that another process of this node made. Raises StorageError."""
        with storage_errors("cannot open the shared file of the shaped storage"):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return cls(path, fd, rate, latency, rank)

    def unlink(self) -> None:
        """Remove the file's name; those who have it open keep it."""
        with suppress(FileNotFoundError):
            Path(self.path).unlink()

    def close(self) -> None:
        if self._fd >= 0:
            self._shared.close()
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> tuple[object, ...]:
        return (NodeLimiter.join, (f"/proc/{os.getpid()}/fd/{self._fd}", self.rate, self.latency, self.rank))

    @contextmanager
    def booked(self, size: int) -> Iterator[None]:
        """Hold this rank's turn for as long as the device takes for `size` bytes.

        It takes two locks: the kernel's keeps out the other processes of the rank, but not the threads of
        this one, which share its open file. Those take turns in the order of asking.
        """
        with self._turn, self._locked(_RANK_LOCKS + self.rank):
            end = self._book(size)
            yield
            _sleep_until(end)

    def _book(self, size: int) -> int:
        """The time in nanoseconds at which the device is through with `size` bytes."""
        with self._locked(0):
            try:
                tail: int = _TAIL.unpack_from(self._shared)[0]
                end = max(tail, time.monotonic_ns() - _BURST_NS) + round(size / self.rate * 1e9)
                _TAIL.pack_into(self._shared, 0, end)
            except ValueError:  # mmap's word for "closed": a reader that outlived its loader
                raise StorageError("the shaped storage is closed") from None
        return end

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        # A lock of the open file description: the kernel drops it when its process dies, and unlike
        # a POSIX record lock it holds between two openings within one process.
        with storage_errors("cannot lock the shared file of the shaped storage"):
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))


class _Turn:
    """A lock that is handed on in the order of asking: no reader thread overtakes an earlier one."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class ShapedStorage(Storage):
    """`inner`, no faster than `limiter` allows."""

    turns = True

    def __init__(self, inner: Storage, limiter: NodeLimiter) -> None:
        self.inner = inner
        self.limiter = limiter
        self.stats = inner.stats
        self.alignment = inner.alignment

    def open(self, name: str, size: int | None = None) -> ShapedBlob:
        return ShapedBlob(self.inner.open(name, size), self.limiter)


class ShapedBlob(WrappedBlob):
    """One open sample, slowed down: its requests are read in chunks, booked one after the other."""

    __slots__ = ("_limiter",)

    def __init__(self, inner: Blob, limiter: NodeLimiter) -> None:
        super().__init__(inner)
        self._limiter = limiter

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return self._in_chunks(
            offset, len(buffer), lambda at, size: self._inner.read_into(offset + at, buffer[at : at + size])
        )

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        def skim(at: int, size: int) -> int:
            # The chunks after the first must leave the head that it kept alone.
            return self._inner.skim(offset + at, size, buffer[HEAD:] if at else buffer)

        return self._in_chunks(offset, length, skim)

    def _in_chunks(self, offset: int, length: int, read: Callable[[int, int], int]) -> int:
        """`read(bytes since offset, bytes)` chunk by chunk, each as long as the device takes for it."""
        limiter = self._limiter
        if limiter.latency > 0:
            _sleep_until(time.monotonic_ns() + round(limiter.latency * 1e9))
        done = 0
        while done < length:
            size = min(limiter.chunk, length - done)
            useful = min(size, self.size - offset - done)  # O_DIRECT asks for more than the file's end has
            if useful <= 0:
                break
            with limiter.booked(useful):
                got = read(done, size)
            done += got
            if got < useful:
                break
        return done


def _sleep_until(deadline: int) -> None:
    """Sleep until CLOCK_MONOTONIC shows `deadline` nanoseconds."""
    remaining = deadline - time.monotonic_ns()
    if remaining > 0:
        time.sleep(remaining / 1e9)
