"""A storage throttled to a known bandwidth and latency, which the ranks of a host share.

The emulated device is one number in shared memory, `tail`: the time until which it is booked. A read is cut
into chunks. Each chunk books the device for bytes / rate seconds, from max(tail, now - burst) on, does the
real read meanwhile, and sleeps until its booking ends. So the device costs no process and no CPU, and late
wake-ups do not add up: the next booking begins where the last one ended, not when its reader woke.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emulator.errors import StorageError, storage_errors
from emulator.files import Closing, memory_folder
from emulator.storage.base import HEAD, Blob, Storage
from emulator.units import BLOCK_BYTES

_BURST_NS = 10_000_000
"""Longest time that a booking may reach back, to make up for late wake-ups; an idle device gains no more."""
_CHUNK_SECONDS = 0.002
"""Duration of a chunk: short enough to take turns, long enough for an exact sleep."""
_CHUNK_LEAST = 64 * 1024
_CHUNK_MOST = 4 * 1024 * 1024
_TAIL = struct.Struct("q")
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid (0 for open file descriptions)."""
_RANK_LOCKS = 64
"""Byte of the first rank's lock; the lock of `tail` is byte 0."""


class NodeLimiter(Closing):
    """The bandwidth of one emulated device, which the ranks of a host share through a small file.

    The first rank creates it, the others join by `path`, and `unlink` removes the name when all have it open,
    so that no file remains however the ranks end. Worker processes unpickle it: they join through the rank's
    open file, and share its part of the bandwidth.

    A rank holds one booking at a time, whatever the number of its readers. So busy ranks get equal bandwidth;
    otherwise one with more readers would get more.
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
        """Make a device of `rate` bytes/s and `latency` seconds per request. Raises StorageError."""
        with storage_errors("cannot make the shared file of the shaped storage"):
            fd, path = tempfile.mkstemp(prefix="feedrate-", dir=memory_folder())
            os.truncate(fd, mmap.PAGESIZE)
        return cls(path, fd, rate, latency, rank)

    @classmethod
    def join(cls, path: str, rate: float, latency: float, rank: int) -> NodeLimiter:
        """Open the device that another process of this host made. Raises StorageError."""
        with storage_errors("cannot open the shared file of the shaped storage"):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return cls(path, fd, rate, latency, rank)

    def unlink(self) -> None:
        """Remove the file's name; processes that have it open keep it."""
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
        """Hold this rank's turn while the device takes its time for `size` bytes."""
        # Two locks: the kernel's excludes other processes of the rank, but not the threads of this one, which
        # share its open file; these queue for `_turn`.
        with self._turn, self._locked(_RANK_LOCKS + self.rank):
            end = self._book(size)
            yield
            _sleep_until(end)

    def _book(self, size: int) -> int:
        """Book `size` bytes; return the time at which the device has done them, in nanoseconds."""
        with self._locked(0):
            try:
                tail: int = _TAIL.unpack_from(self._shared)[0]
                end = max(tail, time.monotonic_ns() - _BURST_NS) + round(size / self.rate * 1e9)
                _TAIL.pack_into(self._shared, 0, end)
            except ValueError:  # the mmap is closed: a reader outlived its loader
                raise StorageError("the shaped storage is closed") from None
        return end

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        # An open file description lock: the kernel drops it when its process dies, and unlike a POSIX record
        # lock it also excludes another descriptor of the same process.
        with storage_errors("cannot lock the shared file of the shaped storage"):
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))


class _Turn:
    """A fair lock: threads get it first come, first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = self._serving = 0

    def __enter__(self) -> None:
        with self._changed:
            ticket = self._tickets
            self._tickets += 1
            self._changed.wait_for(lambda: self._serving == ticket)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._serving += 1
            self._changed.notify_all()


class ShapedStorage(Storage):
    """A storage that is no faster than `limiter` allows."""

    turns = True

    def __init__(self, inner: Storage, limiter: NodeLimiter) -> None:
        self.inner = inner
        self.limiter = limiter
        self.stats = inner.stats

    def path(self, name: str) -> str:
        return self.inner.path(name)

    def blob(self, name: str, size: int | None) -> ShapedBlob:
        return ShapedBlob(self, self.inner.blob(name, size), self.path(name))


class ShapedBlob(Blob):
    """One open sample whose requests are read in chunks, booked one after the other."""

    __slots__ = ("_inner", "_limiter")

    def __init__(self, storage: ShapedStorage, inner: Blob, path: str) -> None:
        super().__init__(inner.name, inner.size, storage.stats, path, inner.alignment)
        self._inner = inner
        self._limiter = storage.limiter

    def advise(self, offset: int, length: int) -> None:
        self._inner.advise(offset, length)

    def close(self) -> None:
        self._inner.close()

    def fill(self, offset: int, buffer: memoryview, length: int) -> int:
        limiter, whole = self._limiter, length <= len(buffer)
        if limiter.latency > 0:
            _sleep_until(time.monotonic_ns() + round(limiter.latency * 1e9))
        done = 0
        while done < length:
            size = min(limiter.chunk, length - done)
            useful = min(size, self.size - offset - done)  # O_DIRECT asks for more than the file's end has
            if useful <= 0:
                break
            # Later chunks of discarded bytes must not overwrite the head that the first one read.
            room = buffer[done : done + size] if whole else buffer[HEAD:] if done else buffer
            with limiter.booked(useful):
                got = self._inner.fill(offset + done, room, size)
            done += got
            if got < useful:
                break
        return done


def _sleep_until(deadline: int) -> None:
    """Sleep until CLOCK_MONOTONIC shows `deadline` nanoseconds."""
    remaining = deadline - time.monotonic_ns()
    if remaining > 0:
        time.sleep(remaining / 1e9)
