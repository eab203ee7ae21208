"""Files of a mounted file system as samples: preadv(2), O_DIRECT, and what the page cache has of them."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from emulator.config.storage import Cache
from emulator.errors import DatasetError, storage_error, storage_errors
from emulator.storage.base import (
    HEAD,
    SKIM,
    Blob,
    Cancelled,
    CheckHead,
    ReadStats,
    Scanner,
    Storage,
    Wanted,
    closed,
    cut_short,
    wrong_size,
)
from emulator.units import BLOCK_BYTES

_SAMPLED_OPENS = 8
"""Every eighth open is looked at with mincore: it costs as much as a small read."""
_SAMPLED_BYTES = 64 * 2**20
"""Bytes of a file that are looked at, at most."""
_MOST_BYTES = 2**60
"""Largest size of a file."""
_MOST_PIECES = 1000
"""Buffers of one preadv: Linux takes 1024."""
_MOST_SIZES = 256
"""Sizes of requests whose places are kept."""
_TMPFS = 0x01021994
"""The magic number that statfs returns for tmpfs."""
_HUGE = 2 * 2**20
"""Bytes of a huge page."""


class PosixStorage(Storage):
    """Files below `root`.

    Cold: a file is pushed out of the page cache when it is opened, before its first byte is read, and when it
    is closed unless O_DIRECT kept it out. Whether that worked is sampled into `stats`. Of a file of many
    samples, which scanners keep open for an epoch, what the kernel has read ahead stays as long.
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
        self.alignment = BLOCK_BYTES if direct else 1
        """Offsets, lengths and addresses of reads must be multiples of this."""
        self.evicts_on_close = cache == "cold" and not direct

    def open(self, name: str, size: int | None = None) -> PosixBlob:
        """Raises as Storage.open does; whether a file has `size` bytes is for the caller to compare."""
        path = self._prefix + name
        fd, length = self.descriptor(path)
        return PosixBlob(fd, path, length, self.alignment, self.evicts_on_close)

    def library_path(self, name: str) -> tuple[str, int]:
        path = self._prefix + name
        fd, length = self.descriptor(path)
        os.close(fd)
        return path, length

    def scanner(self, buffer: memoryview, files: int, give_way: Callable[[], None]) -> PosixScanner:
        return PosixScanner(self, buffer, files, give_way)

    def path(self, name: str) -> str:
        """The path of the file `name`."""
        return self._prefix + name

    def descriptor(self, path: str) -> tuple[int, int]:
        """A file, open, and its bytes. Raises as `open` does."""
        try:
            fd = os.open(path, self._flags)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(
                f"the sample {path} is not there", "regenerate the dataset or check its path"
            ) from None
        except OSError as error:
            raise storage_error(error, "cannot open") from None
        try:
            length = os.lseek(fd, 0, os.SEEK_END)  # a seventh of what fstat takes
        except OSError:
            length = -1
        if not 0 <= length <= _MOST_BYTES:  # a folder: reading it says so
            length = os.fstat(fd).st_size
        if self.cache == "cold":
            evict(fd)
            self._opens += 1
            if self._opens % _SAMPLED_OPENS == 1:
                self.stats.add_pages(*resident_pages(fd, 0, min(length, _SAMPLED_BYTES)))
        return fd, length

    def close(self, fd: int) -> None:
        """Let go of what `descriptor` gave."""
        if self.evicts_on_close:
            evict(fd)
        os.close(fd)


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
        return self.skim(offset, len(buffer), buffer)

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """The kernel copies all bytes, but into memory that stays in the processor's cache."""
        try:
            return _filled(self._fd, buffer, HEAD, offset, 0, length, self.alignment)
        except OSError as error:
            error.filename = self.name
            raise storage_error(error, "cannot read") from None

    def close(self) -> None:
        if self._fd >= 0:
            if self._evict:
                evict(self._fd)
            os.close(self._fd)
            self._fd = -1


class PosixScanner(Scanner):
    """THE loop of small requests: nothing is done for a request but the request."""

    def __init__(
        self, storage: PosixStorage, buffer: memoryview, files: int, give_way: Callable[[], None]
    ) -> None:
        self._storage = storage
        # Without O_DIRECT bytes that nobody wants need no room of their own. With it, a device writes a
        # request in any order, and not every driver takes the same page twice.
        self._buffer = buffer if storage.direct else buffer[: HEAD + SKIM]
        self._files = files
        self._kept: OrderedDict[str, int] = OrderedDict()  # the file that was used last comes last
        self._places: dict[int, Sequence[memoryview]] = {}
        self._give_way = give_way
        # The kernel reads what is in memory, or says that it would have to wait. All of tmpfs is memory.
        self._prompt = 0 if _in_memory(storage.root) else os.RWF_NOWAIT
        self.waits = storage.cache == "cold"

    def scan(
        self,
        wanted: Sequence[Wanted],
        check_head: CheckHead,
        cancelled: Cancelled,
        into: memoryview | None = None,
    ) -> int:
        storage, tally = self._storage, self._storage.stats.mine()
        alignment, kept, known = storage.alignment, self._kept, self._places
        clock = time.monotonic
        may_wait = self.waits
        flags = 0 if may_wait else self._prompt
        times = array("d")
        useful = delivered = 0
        tally.begin = now = clock()
        worked = time.thread_time()
        try:
            for name, size, requests, whole in wanted:
                if not (requests or whole):
                    continue  # a stream whose next block has not been reached
                if cancelled():
                    raise closed()
                start = useful
                if (fd := kept.get(name)) is None:
                    before = now
                    fd = self._open(name, size, whole)
                    now = clock()
                    tally.opening += now - before
                else:
                    kept.move_to_end(name)
                try:
                    for offset, length in requests:
                        if may_wait and cancelled():
                            raise closed()
                        low, asked = offset, length
                        if alignment > 1:
                            low -= offset % alignment
                            asked = padded(offset + length, alignment) - low
                        if into is None:
                            # Of bytes that nobody wants, those that a file begins with stay where they are.
                            key = asked if offset else -asked
                            places = known.get(key) or self._placed(key)
                        else:
                            places = (into[useful : useful + length],)
                        try:
                            # By its name: run.watch reads off the stack which call hangs.
                            done = os.preadv(fd, places, low, flags)
                        except OSError as error:
                            if not flags:
                                raise
                            done, self.waits = 0, error.errno == errno.EOPNOTSUPP
                        if done < asked and low + done < offset + length:
                            flags, may_wait = self._wait(), True
                            room, head = self._room(offset) if into is None else (into[useful:], 0)
                            done = _filled(fd, room, head, low, done, asked, alignment)
                            if low + done < offset + length:
                                raise cut_short(storage.path(name), low + done, size)
                        before = now
                        now = clock()
                        times.append(now - before)
                        useful += length
                        delivered += done
                except OSError as error:
                    error.filename = storage.path(name)
                    raise storage_error(error, "cannot read") from None
                finally:
                    if name not in kept:
                        storage.close(fd)
                if whole and requests:
                    first = self._buffer if into is None else into[start:]
                    check_head(first[: min(size, HEAD)], size, name)
        finally:
            tally.begin = 0.0
            tally.add_all(delivered, times)
            tally.on_core += time.thread_time() - worked
        return useful

    def _room(self, offset: int) -> tuple[memoryview, int]:
        """Room and head (see `_places`) of a request from `offset` on that nobody wants: not over the head of
        its file."""
        return (self._buffer[HEAD:], 0) if offset else (self._buffer, HEAD)

    def _placed(self, key: int) -> Sequence[memoryview]:
        """The places of a request of `abs(key)` bytes; negative: of the first bytes of a file."""
        if len(self._places) == _MOST_SIZES:
            self._places.clear()
        places = self._places[key] = _places(*self._room(max(0, key)), 0, abs(key))
        return places

    def _wait(self) -> int:
        """Let others read while this thread waits for the storage; the flags of a request that does."""
        self._give_way()
        return 0

    def _open(self, name: str, size: int, whole: bool) -> int:
        """A file, open; one that is read in pieces stays so. Raises as Storage.open does."""
        path = self._storage.path(name)
        fd, found = self._storage.descriptor(path)
        if found != size:
            self._storage.close(fd)
            raise wrong_size(path, found, size)
        if not whole and self._files:
            self._kept[name] = fd
            if len(self._kept) > self._files:
                self._storage.close(self._kept.popitem(last=False)[1])
        return fd

    def close(self) -> None:
        while self._kept:
            self._storage.close(self._kept.popitem()[1])


def _places(room: memoryview, head: int, done: int, length: int) -> Sequence[memoryview]:
    """Split bytes `done` to `length` of a request: the first `head` to stay, all others over each other
    where `room` is shorter than the request."""
    if length <= len(room):
        return (room[done:length],)
    pieces = [room[done:head]] if done < head else []
    rest = room[head:]
    whole, ragged = divmod(length - max(done, head), len(rest))
    pieces += [rest] * min(whole, _MOST_PIECES)
    if ragged and whole <= _MOST_PIECES:
        pieces.append(rest[:ragged])
    return pieces


def _filled(fd: int, room: memoryview, head: int, offset: int, done: int, length: int, alignment: int) -> int:
    """Go on with a request of which `done` bytes have come; those that it has at the end.

    A short read is no end of the file: a signal or a server may cut one anywhere. With O_DIRECT one that does
    not end with a block is.
    """
    while done < length and done % alignment == 0:
        more = os.preadv(fd, _places(room, head, done, length), offset + done)
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
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.statfs.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    return libc


def _in_memory(folder: Path) -> bool:
    """True when `folder` lies in memory (tmpfs)."""
    told = ctypes.create_string_buffer(256)
    failed = _libc().statfs(os.fsencode(folder), told)
    return not failed and int.from_bytes(told.raw[:4], sys.byteorder) == _TMPFS


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
    """True when the file system of `folder` takes O_DIRECT reads; False when it cannot be tried.

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
