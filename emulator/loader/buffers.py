"""Memory to read into: page-aligned for O_DIRECT, of huge pages to spare the TLB, reused for ever."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

PAGE = 4096
"""Bytes that everything is aligned to: a page, and what O_DIRECT asks for."""
_HUGE = 2 * 2**20


def aligned_buffer(size: int) -> memoryview:
    """`size` bytes of private memory, aligned to 2 MiB where it is as large, else to a page.

    Pages come into being when they are first written. Freed when the view is dropped.
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


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
