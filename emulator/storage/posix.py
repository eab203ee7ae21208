"""The page cache of this host: push a file out of it, and see what is still in it."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator.config.storage import Cache
from emulator.errors import DatasetError, storage_error
from emulator.storage.base import HEAD, ReadStats

_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return libc


def evict(fd: int) -> None:
    """Ask the kernel to drop the clean pages of an open file. A file system may decline."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_pages(fd: int, offset: int, size: int) -> tuple[int, int]:
    """(pages, pages in the page cache) of `size` bytes from `offset`, a multiple of the page size.

    (0, 0) when it cannot be known: nothing to map, no mmap on this file system, or a file that the
    caller neither owns nor may write, of which Linux says nothing true (since 5.2, mincore(2)).
    """
    if size <= 0 or not _may_ask(fd):
        return 0, 0
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address == _FAILED:
        return 0, 0
    try:
        pages = -(-size // mmap.PAGESIZE)
        vector = ctypes.create_string_buffer(pages)
        if libc.mincore(address, size, vector) != 0:
            return 0, 0
        states = vector.raw
        # Only the lowest bit of a byte is defined.
        return pages, pages - states.count(0) if max(states) <= 1 else sum(state & 1 for state in states)
    finally:
        libc.munmap(address, size)


def _may_ask(fd: int) -> bool:
    user = os.geteuid()
    return user == 0 or os.fstat(fd).st_uid == user or os.access(f"/proc/self/fd/{fd}", os.W_OK)


# ---- Samples as files of a mounted file system, read with preadv(2).


DIRECT_ALIGNMENT = 4096
"""What O_DIRECT asks of offsets, lengths and addresses: no file system of today asks for more."""

_SAMPLED_OPENS = 8
"""Every eighth open is looked at with mincore: it costs as much as a small read."""
_SAMPLED_BYTES = 64 * 2**20
"""Bytes of a file that are looked at, at most."""


class PosixStorage:
    """Files below `root`.

    Cold: a file is pushed out of the page cache when it is opened, before its first byte is read, and
    when it is closed unless O_DIRECT kept it out; whether that worked is sampled into `stats`.
    Warm: the page cache does what it does.
    """

    def __init__(self, root: Path, *, direct: bool, cache: Cache, stats: ReadStats | None = None) -> None:
        self.root = root
        self.direct = direct
        self.cache = cache
        self.stats = stats or ReadStats()
        self._flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
        self._prefix = os.fspath(root) + "/"
        self._opens = 0

    @property
    def pages_sampled(self) -> int:
        """Pages looked at after eviction and before reading."""
        return self.stats.snapshot().pages_sampled

    @property
    def pages_resident(self) -> int:
        """Those of them that were in the page cache all the same."""
        return self.stats.snapshot().pages_resident

    def open(self, name: str, size: int | None = None) -> PosixBlob:
        """As Storage.open: the file has the size that it has."""
        try:
            fd = os.open(self._prefix + name, self._flags)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(
                f"the sample {self._prefix}{name} is not there", "regenerate the dataset or check its path"
            ) from None
        except OSError as error:
            raise storage_error(error, "cannot open") from None
        length = os.fstat(fd).st_size
        cold = self.cache == "cold"
        if cold:
            evict(fd)
            self._opens += 1
            if self._opens % _SAMPLED_OPENS == 1:
                self.stats.add_pages(*resident_pages(fd, 0, min(length, _SAMPLED_BYTES)))
        return PosixBlob(
            fd, self._prefix + name, length, DIRECT_ALIGNMENT if self.direct else 1, cold and not self.direct
        )


class PosixBlob:
    """One open file."""

    __slots__ = ("_evict", "_fd", "alignment", "name", "size")

    def __init__(self, fd: int, name: str, size: int, alignment: int, evict_on_close: bool) -> None:
        self.name = name
        self.size = size
        self.alignment = alignment
        self._fd = fd
        self._evict = evict_on_close

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `offset` on; returns the bytes read. Raises StorageError."""
        try:
            done = os.preadv(self._fd, (buffer,), offset)
            # A short read is no end of file: a signal or a server may cut one anywhere.
            while done < len(buffer) and offset + done < self.size:
                more = os.preadv(self._fd, (buffer[done:],), offset + done)
                if more == 0:
                    break
                done += more
        except OSError as error:
            error.filename = self.name
            raise storage_error(error, "cannot read") from None
        return done

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """As Blob.skim: the kernel copies all bytes, into memory that stays in the processor's cache."""
        done = 0
        try:
            while done < length:
                more = os.preadv(self._fd, _over(buffer, done, length), offset + done)
                done += more
                if more == 0 or offset + done >= self.size:
                    break
        except OSError as error:
            error.filename = self.name
            raise storage_error(error, "cannot read") from None
        return done

    def close(self) -> None:
        """Close it, and leave nothing of it in the page cache when that was asked for."""
        if self._fd >= 0:
            if self._evict:
                evict(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_MOST_PIECES = 1000
"""Buffers of one preadv: Linux takes 1024."""


def _over(buffer: memoryview, done: int, length: int) -> list[memoryview]:
    """Where bytes `done` to `length` of a request go: the first HEAD to stay, the others over each other."""
    pieces = [buffer[done : min(HEAD, length)]] if done < HEAD else []
    left = length - max(done, HEAD)
    if left > 0:
        rest = buffer[HEAD:]
        whole, ragged = divmod(left, len(rest))
        pieces += [rest] * min(whole, _MOST_PIECES)
        if ragged and whole <= _MOST_PIECES:
            pieces.append(rest[:ragged])
    return pieces


def probe_direct(folder: Path) -> bool:
    """Whether the file system of `folder` takes O_DIRECT reads; False when it cannot be tried.

    Tries the first non-empty file, or a nameless one where the folder has none. Raises StorageError.
    """
    try:
        with os.scandir(folder) as entries:
            candidates = (entry.path for entry in entries if entry.is_file() and entry.stat().st_size)
            name = next(candidates, None)
        return _reads_direct(name) if name else _reads_direct_nameless(folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise storage_error(error, "cannot try O_DIRECT") from None


def _reads_direct(name: str) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        return _one_read(fd)
    finally:
        os.close(fd)


def _reads_direct_nameless(folder: Path) -> bool:
    with suppress(PermissionError):
        fd = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(fd, DIRECT_ALIGNMENT)
            return _one_read(fd)
        finally:
            os.close(fd)
    return False


def _one_read(fd: int) -> bool:
    with mmap.mmap(-1, DIRECT_ALIGNMENT) as page:
        return os.preadv(fd, (page,), 0) > 0
