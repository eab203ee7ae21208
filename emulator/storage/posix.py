"""Files of a mounted file system as samples: preadv(2), O_DIRECT, and what the page cache has of them."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from contextlib import suppress
from pathlib import Path

from emulator.config.storage import Cache
from emulator.errors import DatasetError, storage_error, storage_errors
from emulator.storage.base import HEAD, Blob, ReadStats, Storage
from emulator.units import BLOCK_BYTES

_SAMPLED_OPENS = 8
"""Every eighth open is looked at with mincore: it costs as much as a small read."""
_SAMPLED_BYTES = 64 * 2**20
"""Bytes of a file that are looked at, at most."""
_MOST_PIECES = 1000
"""Buffers of one preadv: Linux takes 1024."""
_HUGE = 2 * 2**20
"""Bytes of a huge page."""


class PosixStorage(Storage):
    """Files below `root`.

    Cold: a file is pushed out of the page cache when it is opened, before its first byte is read, and when it
    is closed unless O_DIRECT kept it out. Whether that worked is sampled into `stats`.
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

    def open(self, name: str, size: int | None = None) -> PosixBlob:
        """Raises as Storage.open does; whether a file has `size` bytes is for the caller to compare."""
        path = self._prefix + name
        try:
            fd = os.open(path, self._flags)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(
                f"the sample {path} is not there", "regenerate the dataset or check its path"
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
        return PosixBlob(fd, path, length, BLOCK_BYTES if self.direct else 1, cold and not self.direct)


class PosixBlob(Blob):
    """One open file."""

    __slots__ = ("_evict", "_fd")

    def __init__(self, fd: int, name: str, size: int, alignment: int, evict_on_close: bool) -> None:
        self.name = name
        self.size = size
        self.alignment = alignment
        self._fd = fd
        self._evict = evict_on_close

    def read_into(self, offset: int, buffer: memoryview) -> int:
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
        """The kernel copies all bytes, but into memory that stays in the processor's cache."""
        done = 0
        try:
            while done < length:
                more = os.preadv(self._fd, _overlapping(buffer, done, length), offset + done)
                done += more
                if more == 0 or offset + done >= self.size:
                    break
        except OSError as error:
            error.filename = self.name
            raise storage_error(error, "cannot read") from None
        return done

    def close(self) -> None:
        if self._fd >= 0:
            if self._evict:
                evict(self._fd)
            os.close(self._fd)
            self._fd = -1


def _overlapping(buffer: memoryview, done: int, length: int) -> list[memoryview]:
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

    (0, 0) when it cannot be known: nothing to map, no mmap on this file system, or a file that the caller
    neither owns nor may write, about which Linux tells nothing true (since 5.2, mincore(2)).
    """
    if size <= 0:
        return 0, 0
    user = os.geteuid()
    if not (user == 0 or os.fstat(fd).st_uid == user or os.access(f"/proc/self/fd/{fd}", os.W_OK)):
        return 0, 0
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address == ctypes.c_void_p(-1).value:
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


def probe_direct(folder: Path) -> bool:
    """Whether the file system of `folder` takes O_DIRECT reads; False when it cannot be tried.

    Tries the first non-empty file, or a nameless one where the folder has none. Raises StorageError.
    """
    with storage_errors("cannot try O_DIRECT"):
        try:
            with os.scandir(folder) as entries:
                files = (entry.path for entry in entries if entry.is_file() and entry.stat().st_size)
                name = next(files, None)
            if name:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            else:
                try:
                    fd = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC, 0o600)
                except PermissionError:
                    return False
            try:
                if not name:
                    os.truncate(fd, BLOCK_BYTES)
                return os.preadv(fd, (aligned_buffer(BLOCK_BYTES),), 0) > 0
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise


def aligned_buffer(size: int) -> memoryview:
    """`size` bytes of private memory, aligned to 2 MiB where it is as large, else to a page.

    O_DIRECT asks for the alignment. Huge pages spare the TLB, and O_DIRECT has to pin fewer of them: preadv
    from the page cache was twice as fast into them, and a virtual machine's disk three times (DESIGN.md).
    Pages come into being when they are first written; the memory is freed when the view is dropped.
    """
    if size < _HUGE:
        return memoryview(_private(size))[:size]
    area = _private(size + _HUGE)
    # Only kernels since 6.7 align large areas by themselves; what is cut off is never touched.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % _HUGE
    return memoryview(area)[start : start + size]


def _private(size: int) -> mmap.mmap:
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without transparent huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    return area


def padded(size: int, alignment: int = BLOCK_BYTES) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
