"""Read the page faults of a process in mapped files, with their offsets, from perf_event_open(2).

Formats: linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CALLS = {"x86_64": 298, "aarch64": 241}
"""Number of the system call perf_event_open."""
_PAGES = 16
"""Pages of a CPU's buffer, a power of two: 2,048 faults."""
MOST_EVENTS = 256
"""Most open events of a process, one for each of its threads and CPUs."""
_MOST_MAPS = 64
"""Most maps of a process that are followed. No record tells when a map ends."""
_MOST_FAULTS = 4096
"""Most faults of a map that are kept."""
_ATTRIBUTES = struct.Struct("IIQQQQQ80x")
"""type, size, config, sample_period, sample_type, read_format, flags; the other fields are 0."""
_SOFTWARE, _PAGE_FAULTS = 1, 2
_TID, _TIME, _ADDRESS = 1 << 1, 1 << 2, 1 << 3
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_MMAP_DATA, _SAMPLE_ID_ALL = 1 << 17, 1 << 18
_CLOSE_ON_EXEC = 1 << 3
_SET_OUTPUT = 0x2405
"""PERF_EVENT_IOC_SET_OUTPUT."""
_HEADER = struct.Struct("IHH")
"""Type, flags, and bytes of a record."""
_MAP = struct.Struct("IIQQQ")
"""PID, TID, address, bytes and offset in its file of a map, before its name."""
_LAST_ID = 16
"""Bytes of TID and time at the end of records that are no samples."""
_MAP_RECORD, _LOST_RECORD, _SAMPLE_RECORD = 1, 2, 9
_SAMPLE = np.dtype(
    [("head", "<u8"), ("process", "<u4"), ("thread", "<u4"), ("time", "<u8"), ("address", "<u8")]
)
_POSITIONS = 1024
"""Offset of data_head and data_tail in the first page of a buffer."""


def _opened(thread: int, cpu: int) -> int:
    """Return an event of the page faults of `thread`, and of what it starts, on a CPU. Raises OSError."""
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _MMAP_DATA | _SAMPLE_ID_ALL
    sample = _TID | _TIME | _ADDRESS
    attributes = _ATTRIBUTES.pack(_SOFTWARE, _ATTRIBUTES.size, _PAGE_FAULTS, 1, sample, 0, flags)
    number = ctypes.c_long(_CALLS.get(platform.machine(), -1))
    call = ctypes.CDLL(None, use_errno=True).syscall
    event = int(call(number, attributes, thread, cpu, -1, ctypes.c_ulong(_CLOSE_ON_EXEC)))
    if event < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return event


class _Buffer:
    """The buffer to which the kernel writes the faults and maps of some threads on a CPU."""

    def __init__(self, threads: Sequence[int], cpu: int) -> None:
        """Raises OSError if it is not permitted, or a thread has ended."""
        self._events = []
        try:
            for thread in threads:
                self._events.append(_opened(thread, cpu))
            self._memory = mmap.mmap(self._events[0], (1 + _PAGES) * mmap.PAGESIZE)
            for other in self._events[1:]:
                fcntl.ioctl(other, _SET_OUTPUT, self._events[0])
        except OSError:
            self._close_events()
            raise

    def read(self) -> bytes:
        """Return the new records."""
        head, tail = struct.unpack_from("QQ", self._memory, _POSITIONS)
        size = _PAGES * mmap.PAGESIZE
        begin, end = mmap.PAGESIZE + tail % size, mmap.PAGESIZE + head % size
        whole = head == tail or begin < end
        data = self._memory[begin:end] if whole else self._memory[begin:] + self._memory[mmap.PAGESIZE : end]
        struct.pack_into("Q", self._memory, _POSITIONS + 8, head)
        return data

    def close(self) -> None:
        self._memory.close()
        self._close_events()

    def _close_events(self) -> None:
        while self._events:
            os.close(self._events.pop())


class _Map(NamedTuple):
    process: int
    path: bytes
    begin: int
    end: int
    """Addresses."""
    offset: int
    """Offset in the file of the first address."""


class Touched(NamedTuple):
    """The page faults in a map."""

    path: bytes
    offsets: Sequence[int]
    """First byte in the file of each page that faulted, in order."""


class Faults:
    """The page faults of a process in files that it maps from now on."""

    def __init__(self, process: int) -> None:
        """Raises OSError if it is not permitted, takes too many events, or the process has ended."""
        self._process = process
        self._buffers: list[_Buffer] = []
        self._maps: dict[_Map, list[int]] = {}
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task")]  # noqa: PTH208
        cpus = sorted(os.sched_getaffinity(process))
        self.events = len(threads) * len(cpus)
        if self.events > MOST_EVENTS:
            raise OSError(errno.EMFILE, "perf_event_open")
        try:
            for cpu in cpus:
                self._buffers.append(_Buffer(threads, cpu))
        except OSError:
            self.close()
            raise

    def read(self) -> list[Touched]:
        """Return the faults of the maps that ended since the last call."""
        maps: list[tuple[int, _Map | None]] = []
        samples: list[NDArray[np.void]] = []
        for buffer in self._buffers:
            _parse(buffer.read(), maps, samples)
        faults = np.concatenate([np.zeros(0, _SAMPLE), *samples])
        faults = faults[faults["process"] == self._process]
        faults = faults[np.argsort(faults["time"], kind="stable")]
        ended: list[Touched] = []
        at = 0
        for time, made in sorted(maps, key=lambda one: one[0]):
            until = int(np.searchsorted(faults["time"], time))
            self._add(faults["address"][at:until])
            at = until
            if made is None:  # records were lost
                self._maps.clear()
            elif made.process == self._process:
                ended += self._replace(made)
        self._add(faults["address"][at:])
        return ended

    def _replace(self, made: _Map) -> list[Touched]:
        """Follow the map `made`, and return the faults of those that it shows to have ended."""
        ended = self._end([one for one in self._maps if one.begin < made.end and made.begin < one.end])
        if made.path.startswith(b"/") and not made.path.startswith(b"//"):  # //anon
            ended += self._end(list(self._maps)[: max(0, len(self._maps) + 1 - _MOST_MAPS)])  # the oldest
            self._maps[made] = []
        return ended

    def _end(self, maps: Sequence[_Map]) -> list[Touched]:
        ended = [Touched(one.path, self._maps.pop(one)) for one in maps]
        return [one for one in ended if one.offsets]

    def _add(self, addresses: NDArray[np.uint64]) -> None:
        """Add the faults at these addresses to the maps of files that they are in."""
        for one, offsets in self._maps.items():
            inside = addresses[(addresses >= one.begin) & (addresses < one.end)].astype(np.int64)
            pages = (inside - one.begin + one.offset) // mmap.PAGESIZE * mmap.PAGESIZE
            offsets.extend(pages[: _MOST_FAULTS - len(offsets)].tolist())

    def close(self) -> list[Touched]:
        """End, and return the faults since the last call of `read`, and of the maps that were left."""
        ended = self.read()
        while self._buffers:
            self._buffers.pop().close()
        return ended + self._end(list(self._maps))


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
            process, _, begin, length, offset = _MAP.unpack_from(data, at + _HEADER.size)
            name = data[at + _HEADER.size + _MAP.size : at + size - _LAST_ID].partition(b"\0")[0]
            maps.append((time, _Map(process, name, begin, begin + length, offset)))
        elif kind == _LOST_RECORD:
            maps.append((time, None))
        at += size
