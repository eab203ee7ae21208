"""Files of a mounted file system as samples: preadv(2), O_DIRECT, and their pages in the page cache."""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

from emulator.config.storage import Cache
from emulator.errors import storage_error, storage_errors
from emulator.notes import doing
from emulator.storage.base import HEAD, Blob, Storage, missing
from emulator.storage.batches import Engine, engine_for, request_buffers
from emulator.storage.counts import ReadCounts, ReadStats
from emulator.units import BLOCK_BYTES

_SAMPLED_OPENS = 8
"""Opens per check of a file's pages with mincore, which costs as much as a small read."""
_SAMPLED_DIRECT = 64
"""The same with O_DIRECT, where only a file system that ignores it has pages."""
_SAMPLED_BYTES = 64 * 2**20
"""Most bytes of a file that are checked with mincore."""
_MOST_BYTES = 2**60
_TMPFS = 0x01021994
"""The magic number that statfs returns for tmpfs."""
_POPULATE_READ = 22
"""MADV_POPULATE_READ: fault pages in, and report a failure."""
_POPULATED = 2**16
"""Bytes of a map that are populated at once. Of more, the kernel merges requests that a job waits for one by
one: for 2.2 MB on ext4 it made 10 of 235 kB, and 18 where each page was touched."""
_HUGE = 2 * 2**20


class PosixStorage(Storage):
    """Files below `root`.

    Cold: a file is evicted from the page cache when it is opened, before its first byte is read, and again
    when it is closed unless it was read with O_DIRECT; `stats` samples whether eviction worked. A
    BatchReader keeps a file of many samples open, and its read-ahead pages stay in the page cache as long.
    Warm: the page cache is left alone.
    """

    def __init__(self, root: Path, *, direct: bool, cache: Cache, stats: ReadStats | None = None) -> None:
        self.root = root
        self.direct = direct
        self.cache = cache
        self.stats = stats or ReadStats()
        self._flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
        self._prefix = os.fspath(root) + "/"
        self._opens = 0
        self.alignment = BLOCK_BYTES if direct else 1
        self.evicts_on_close = cache == "cold" and not direct

    def blob(self, name: str, size: int | None) -> PosixBlob:
        """Open the sample `name`, and leave comparing its size to the caller. Raises as Storage.open does."""
        path = self.path(name)
        return PosixBlob(self, path, *self.descriptor(path))

    def reopen(self, name: str, size: int | None = None) -> PosixBlob:
        path = self.path(name)
        with self.stats.mine().opens(path):
            fd = self.opened(path)
            return PosixBlob(self, path, fd, os.lseek(fd, 0, os.SEEK_END), keeps=True)

    def library_file(self, name: str, by_path: bool) -> tuple[str | io.BufferedReader, int]:
        """Return the sample `name` for a library, as a path or opened, and its size.

        Evicts the file from the page cache if reads are cold. Raises as `open` does.
        """
        path = self.path(name)
        with self.stats.mine().opens(path):
            fd, length = self.descriptor(path)
            if by_path:
                os.close(fd)  # the library opens the file again
                return path, length
            try:
                os.lseek(fd, 0, os.SEEK_SET)
                return open(path, "rb", opener=lambda *_: fd), length
            except OSError as error:  # a folder
                raise storage_error(error, "cannot read") from None

    def engine(self, depth: int, batch: int, sample_bytes: int) -> Engine:
        """Return what reads batches of so many samples, `depth` at a time."""
        return engine_for(self.direct, _in_memory(self.root), depth, batch, sample_bytes)

    def path(self, name: str) -> str:
        """Return the path of the file `name`."""
        return self._prefix + name

    def descriptor(self, path: str) -> tuple[int, int]:
        """Open a file, evict it if reads are cold; return its descriptor and bytes. Raises as `open` does."""
        fd = self.opened(path)
        try:
            length = os.lseek(fd, 0, os.SEEK_END)  # a seventh of the time of fstat
        except OSError:
            length = -1
        if not 0 <= length <= _MOST_BYTES:  # a folder: the error comes with the first read
            length = os.fstat(fd).st_size
        if self.cache == "cold":
            evict(fd)
            self._opens += 1
            if self._opens % _SAMPLED_OPENS == 1:
                self._look(fd, length)
        return fd, length

    def _look(self, fd: int, length: int) -> None:
        # Memory is the storage then. It is the file that tells: a link in `root` may lead to another disk.
        if _in_memory(Path(f"/proc/self/fd/{fd}")):
            return
        sampled, resident = resident_pages(fd, 0, min(length, _SAMPLED_BYTES))
        self.stats.absorb(ReadCounts(pages_sampled=sampled, pages_resident=resident))

    def sample_pages(self, paths: Sequence[str]) -> None:
        """Look whether the page cache has the pages of some files of a batch that are to be read cold."""
        if self.cache == "warm":
            return
        period = _SAMPLED_DIRECT if self.direct else _SAMPLED_OPENS
        # Every `period`-th file, counted over all batches.
        for path in paths[-self._opens % period :: period]:
            fd = self.opened(path)
            try:
                evict(fd)
                self._look(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        self._opens += len(paths)

    def opened(self, path: str) -> int:
        """Open a file; return its descriptor. Raises as `open` does."""
        try:
            return os.open(path, self._flags)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(path) from None
        except OSError as error:
            raise storage_error(error, "cannot open") from None

    def close(self, fd: int) -> None:
        """Close what `descriptor` opened."""
        if self.evicts_on_close:
            evict(fd)
        os.close(fd)


class PosixBlob(Blob):
    """One open file."""

    __slots__ = ("_fd", "_keeps", "_map", "_storage")

    def __init__(self, storage: PosixStorage, path: str, fd: int, size: int, *, keeps: bool = False) -> None:
        """`keeps`: its pages stay in the page cache when it is closed."""
        super().__init__(path, size, storage.stats, path, storage.alignment)
        self._keeps = keeps
        self._map: _Map | None = None
        self._fd = fd
        self._storage = storage

    def fill(self, offset: int, buffer: memoryview, length: int) -> int:
        try:
            return _filled(self._fd, buffer, offset, length, self.alignment)
        except OSError as error:
            error.filename = self.name
            raise storage_error(error, "cannot read") from None

    def read_mapped(self, offset: int, buffer: memoryview, length: int) -> int:
        if self._map is None:
            self._map = _Map(self._fd, self.size)
        return self._stats.mine().timed(self._map.copy, offset, buffer, length, doing=self._doing)

    def advise(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            self._map = None
            with doing("close", self.name):
                (os.close if self._keeps else self._storage.close)(self._fd)
            self._fd = -1


class _Map:
    """A mapped file, whose pages the kernel faults in."""

    def __init__(self, fd: int, size: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
        self._address = self._bytes.ctypes.data

    def copy(self, begin: int, buffer: memoryview, length: int) -> int:
        """Copy bytes, over each other if `buffer` is shorter; return how many have pages that can be read."""
        end = min(begin + length, len(self._bytes))
        room, step = np.frombuffer(buffer, np.uint8), min(len(buffer), _POPULATED)
        for at in range(begin, end, step):
            # Touching a page of a file that was truncated, or whose storage fails, kills the process:
            # populate the pages first. Linux before 5.14 lacks this advice; there they are copied unchecked.
            page, stop = at - at % mmap.PAGESIZE, min(at + step, end)
            failed = _libc().madvise(self._address + page, stop - page, _POPULATE_READ)
            if failed and ctypes.get_errno() == errno.EFAULT:
                return at - begin
            # NumPy copies without the GIL, so that other threads read while a page fault waits.
            np.copyto(room[: stop - at], self._bytes[at:stop])
        return max(0, end - begin)


def _filled(fd: int, buffer: memoryview, offset: int, length: int, alignment: int) -> int:
    """Read `length` bytes; return how many there were.

    Of a `buffer` that is shorter, only the first HEAD bytes are valid: later ones overwrite each other. A
    short read need not be the end of the file: a signal or a server may shorten it. With O_DIRECT, one that
    does not end at a block boundary is the end.
    """
    done, fits = 0, length <= len(buffer)
    while done < length and done % alignment == 0:
        pieces = request_buffers(buffer, len(buffer) - HEAD, 0, done, length, fits)
        more = os.preadv(fd, pieces, offset + done)
        if more == 0:
            break
        done += more
    return done


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.statfs.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    return libc


def _in_memory(path: Path) -> bool:
    """Return True if a file or folder is in memory (tmpfs)."""
    status = ctypes.create_string_buffer(256)
    with doing("statfs", path):
        failed = _libc().statfs(os.fsencode(path), status)
    return not failed and int.from_bytes(status.raw[:4], sys.byteorder) == _TMPFS


def evict(fd: int) -> None:
    """Ask the kernel to drop the clean pages of an open file; a file system may decline."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_pages(fd: int, offset: int, size: int) -> tuple[int, int]:
    """Return (pages, pages in the page cache) of `size` bytes from `offset`, a multiple of the page size.

    (0, 0) if that is unknown: the file is empty, the file system has no mmap, or the caller neither owns the
    file nor may write it, for which Linux does not answer (since 5.2, mincore(2)).
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


_PROBE_PREFIX = ".feedrate-"


def probe_direct(folder: Path) -> bool:
    """Return True if the file system of `folder` accepts O_DIRECT reads; False if that cannot be tested.

    Reads the first file with content, or one of its own. Raises StorageError.
    """
    with storage_errors("cannot try O_DIRECT", folder), ExitStack() as stack:
        with os.scandir(folder) as entries:
            # Not the file of another rank that tries it at the same time.
            kept = (entry for entry in entries if not entry.name.startswith(_PROBE_PREFIX))
            files = (entry.path for entry in kept if entry.is_file() and entry.stat().st_size)
            name = next(files, None)
        if name is None:
            # Not O_TMPFILE: FUSE and NFS refuse it, though they may have O_DIRECT.
            try:
                own = stack.enter_context(NamedTemporaryFile(dir=folder, prefix=_PROBE_PREFIX))
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    return False
                raise
            own.truncate(BLOCK_BYTES)
            name = own.name
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return os.preadv(fd, (aligned_buffer(BLOCK_BYTES),), 0) > 0
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise


def aligned_buffer(size: int) -> memoryview:
    """Return `size` bytes of private memory in huge pages, aligned to a page, or to 2 MiB if larger.

    O_DIRECT requires the alignment. Huge pages save TLB misses, and O_DIRECT pins fewer of them: a request
    into 4 kB pages is split into many, at half the rate of a virtual machine's disk.
    Buffers of less than 2 MiB share huge pages. Pages that are never written use no memory; it is freed with
    the last view.
    """
    if size >= _HUGE:
        return _huge_pages(size)
    return _shared_pages.take(size)


def _huge_pages(size: int) -> memoryview:
    area = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without transparent huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    # Only kernels since 6.7 align large areas themselves; the skipped bytes are never touched.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % _HUGE
    return memoryview(area)[start : start + size]


class _SharedPages:
    """Huge pages for small buffers, which are cut from them one after the other."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._rest = memoryview(b"")

    def take(self, size: int) -> memoryview:
        with self._lock:
            if len(self._rest) < size:
                self._rest = _huge_pages(4 * _HUGE)
            taken, self._rest = self._rest[:size], self._rest[padded(size) :]
        return taken


_shared_pages = _SharedPages()
# After a fork, a write to a huge page that parent and child share copies it into small pages.
os.register_at_fork(after_in_parent=_shared_pages.forget, after_in_child=_shared_pages.forget)


def padded(size: int, alignment: int = BLOCK_BYTES) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
