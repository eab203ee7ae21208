"""Read the page faults of a process in mapped files, with their offsets, from perf_event_open(2).

Formats: linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CALLS = {"x86_64": 298, "aarch64": 241}
"""Number of the system call perf_event_open."""
_PAGES = 64
"""Pages of a thread's buffer, a power of two: 8,192 faults."""
_ATTRIBUTES = struct.Struct("IIQQQQQ80x")
"""type, size, config, sample_period, sample_type, read_format, flags; the other fields are 0."""
_SOFTWARE, _PAGE_FAULTS = 1, 2
_TID, _TIME, _ADDRESS = 1 << 1, 1 << 2, 1 << 3
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _MMAP_DATA, _SAMPLE_ID_ALL = 1 << 5, 1 << 6, 1 << 17, 1 << 18
_CLOSE_ON_EXEC = 1 << 3
_HEADER = struct.Struct("IHH")
"""Type, flags, and bytes of a record."""
_MAP = struct.Struct("IIQQQ")
"""PID, TID, address, bytes and offset in its file of a map, before its name."""
_LAST_ID = 16
"""Bytes of TID and time at the end of records that are no samples."""
_MAP_RECORD, _LOST_RECORD, _SAMPLE_RECORD = 1, 2, 9
_SAMPLE = np.dtype([("head", "<u8"), ("thread", "<u8"), ("time", "<u8"), ("address", "<u8")])
_POSITIONS = 1024
"""Offset of data_head and data_tail in the first page of a buffer."""


class Fault(NamedTuple):
    """A page fault in a mapped file."""

    path: bytes
    offset: int
    """First byte of the page in its file."""
    first: bool
    """True for the first fault in its map."""


class _Buffer:
    """The buffer to which the kernel writes the faults and maps of a thread."""

    def __init__(self, thread: int) -> None:
        """Raises OSError if it is not permitted."""
        flags = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _MMAP_DATA | _SAMPLE_ID_ALL
        sample = _TID | _TIME | _ADDRESS
        attributes = _ATTRIBUTES.pack(_SOFTWARE, _ATTRIBUTES.size, _PAGE_FAULTS, 1, sample, 0, flags)
        number = _CALLS.get(platform.machine(), -1)
        call = ctypes.CDLL(None, use_errno=True).syscall
        self._event = call(ctypes.c_long(number), attributes, thread, -1, -1, ctypes.c_ulong(_CLOSE_ON_EXEC))
        if self._event < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")
        try:
            self._memory = mmap.mmap(self._event, (1 + _PAGES) * mmap.PAGESIZE)
        except OSError:
            os.close(self._event)
            raise

    def read(self) -> bytes:
        """Return the new records."""
        head, tail = struct.unpack_from("QQ", self._memory, _POSITIONS)
        size = _PAGES * mmap.PAGESIZE
        ring = memoryview(self._memory)[mmap.PAGESIZE :]
        begin, end = tail % size, head % size
        data = bytes(ring[begin:end]) if begin <= end else bytes(ring[begin:]) + bytes(ring[:end])
        ring.release()
        struct.pack_into("Q", self._memory, _POSITIONS + 8, head)
        return data

    def close(self) -> None:
        self._memory.close()
        os.close(self._event)


class _Map(NamedTuple):
    path: bytes
    begin: int
    end: int
    """Addresses."""
    offset: int
    """Offset in the file of the first address."""


class Faults:
    """The page faults of a process in files that it maps from now on."""

    def __init__(self, process: int) -> None:
        """Raises OSError if it is not permitted."""
        self._process = process
        self._buffers = {process: _Buffer(process)}
        self._maps: dict[_Map, bool] = {}
        """Maps of files, and whether one of their pages has faulted."""

    def read(self) -> list[Fault]:
        """Return the faults since the last call, in order."""
        with suppress(OSError):  # it may have ended
            for thread in map(int, os.listdir(f"/proc/{self._process}/task")):  # noqa: PTH208  often
                if thread not in self._buffers:
                    self._buffers[thread] = _Buffer(thread)
        maps: list[tuple[int, _Map | None]] = []
        samples: list[NDArray[np.void]] = []
        for buffer in self._buffers.values():
            _parse(buffer.read(), maps, samples)
        faults = np.concatenate([np.zeros(0, _SAMPLE), *samples])
        faults = faults[np.argsort(faults["time"], kind="stable")]
        maps.sort(key=lambda one: one[0])
        found: list[Fault] = []
        at = 0
        for time, made in maps:
            until = int(np.searchsorted(faults["time"], time))
            found += self._in_files(faults["address"][at:until])
            at = until
            if made is None:  # records were lost
                self._maps.clear()
                continue
            for old in [one for one in self._maps if one.begin < made.end and made.begin < one.end]:
                del self._maps[old]
            if made.path.startswith(b"/") and not made.path.startswith(b"//"):  # //anon is none
                self._maps[made] = False
        return found + self._in_files(faults["address"][at:])

    def _in_files(self, addresses: NDArray[np.uint64]) -> list[Fault]:
        """Return the faults at these addresses that are in files."""
        found: list[tuple[int, _Map]] = []
        for one in self._maps:
            inside = np.flatnonzero((addresses >= one.begin) & (addresses < one.end))
            found += [(int(number), one) for number in inside]
        faults = []
        for number, one in sorted(found):
            at = int(addresses[number]) - one.begin + one.offset
            faults.append(Fault(one.path, at - at % mmap.PAGESIZE, not self._maps[one]))
            self._maps[one] = True
        return faults

    def close(self) -> None:
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()


def _parse(data: bytes, maps: list[tuple[int, _Map | None]], samples: list[NDArray[np.void]]) -> None:
    """Add the records in `data` to `maps`, each with its time, None for lost records, and `samples`."""
    at = 0
    while at < len(data):
        kind, _, size = _HEADER.unpack_from(data, at)
        if kind == _SAMPLE_RECORD:  # most are: as many at once as follow each other
            rows = np.frombuffer(data, _SAMPLE, (len(data) - at) // _SAMPLE.itemsize, at)
            others = np.flatnonzero(rows["head"] != rows["head"][0])
            rows = rows[: others[0]] if len(others) else rows
            samples.append(rows)
            at += rows.nbytes
            continue
        (time,) = struct.unpack_from("Q", data, at + size - 8)
        if kind == _MAP_RECORD:
            _, _, begin, length, offset = _MAP.unpack_from(data, at + _HEADER.size)
            name = data[at + _HEADER.size + _MAP.size : at + size - _LAST_ID].partition(b"\0")[0]
            maps.append((time, _Map(name, begin, begin + length, offset)))
        elif kind == _LOST_RECORD:
            maps.append((time, None))
        at += size
