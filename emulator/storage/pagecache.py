"""The page cache of this host: push a file out of it, and see what is still in it."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

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
