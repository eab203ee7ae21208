"""The activity of a host during a point: in total, and second by second in OUT/hosts.parquet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError
from emulator.record.device import DeviceReads, counters_of
from emulator.record.machine import read_text
from emulator.record.rows import read_rows, write_rows

HOSTS = "hosts.parquet"
HOST = np.dtype(
    [
        ("point", "<i4"),  # index into the result's list of points
        ("host", "<i4"),  # index into the point's list of hosts
        ("second", "<f8"),  # end of the span, seconds since the start of the point
        # Means over the span, which begins where the host's row before it ends; NaN: not known.
        ("busy", "<f8"),  # share of the ranks' cores that was busy, with any program
        ("steal", "<f8"),  # share of the same time that a hypervisor took away
        ("received", "<f8"),  # bytes/s on network interfaces, loopback left out
        ("sent", "<f8"),  # bytes/s
        ("device_requests", "<f8"),  # read requests/s of the dataset's block device or NFS mount
        ("device_read", "<f8"),  # bytes/s
        ("device_written", "<f8"),  # bytes/s
        # At the end of the span.
        ("page_cache", "<f8"),  # bytes
        ("available", "<f8"),  # bytes of memory that programs could still get
    ]
)
"""Layout of a row: a second of a host."""

HostRows = NDArray[np.void]
"""Rows of dtype HOST, shape (seconds,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Counters of this host at a moment."""

    at: float
    """Seconds of time.monotonic."""
    ticks: Sequence[int]
    """Ticks of the cores: user, nice, system, idle, iowait, irq, softirq, steal, ..."""
    nic: tuple[int, int] | None
    """Bytes received and sent, without loopback."""
    device: DeviceReads | None
    page_cache: float
    available: float

    def cpu_shares(self, before: _Sample) -> tuple[float, float] | None:
        """Return the shares of busy and of stolen time since `before`; None if nothing was counted."""
        spent = [after - earlier for after, earlier in zip(self.ticks, before.ticks, strict=False)]
        total = sum(spent[:8])
        return (1 - (spent[3] + spent[4]) / total, spent[7] / total) if total else None

    def device_since(self, before: _Sample) -> DeviceReads | None:
        """Return the device's increase since `before`."""
        return self.device.since(before.device) if self.device and before.device else None


class HostProbe:
    """Watches this host from `start()` to `stop()`, in a thread that wakes twice a second."""

    PERIOD = 0.5
    """Seconds between two samples of the run queue."""
    PERIODS = 2
    """Periods between two samples of the counters."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is that of the dataset, whose device is watched; None if it is no mounted folder."""
        self._counters = counters_of(folder) if folder else lambda: None
        self._done = Event()
        self._cores = frozenset(os.sched_getaffinity(0))
        self._queue: list[int] = []
        self._samples: list[_Sample] = []
        self._thread = Thread(target=self._watch, name="host-probe", daemon=True)

    def start(self) -> None:
        self._samples.append(self._sample())
        self._thread.start()

    def stop(self) -> None:
        """End the thread and take the last sample."""
        self._done.set()
        self._thread.join()
        self._samples.append(self._sample())

    @property
    def device(self) -> DeviceReads | None:
        """Return the increase of the device's counters since `start()`; None if it has none."""
        return self._samples[-1].device_since(self._samples[0])

    @property
    def activity(self) -> dict[str, Any]:
        """Return CPU and network of the host since `start()`: busy_share to nic_bytes of a HostShare."""
        first, last = self._samples[0], self._samples[-1]
        busy, steal = last.cpu_shares(first) or (None, None)
        return {
            "busy_share": busy,
            "steal_share": steal,
            "runqueue": sum(self._queue) / len(self._queue) if self._queue else None,
            "nic_bytes": last.nic[0] - first.nic[0] if last.nic and first.nic else None,
        }

    def rows(self, point: int) -> HostRows:
        """Return the seconds since `start()` as rows of a point, of its first host."""
        return np.array([(point, 0, *row) for row in self._spans()], HOST)

    def _spans(self) -> Iterator[tuple[float, ...]]:
        """Yield the columns of HOST from `second` on."""
        unknown = (np.nan, np.nan)
        for before, now in pairwise(self._samples):
            seconds = now.at - before.at
            if seconds < self.PERIOD / 2 and before is not self._samples[0]:
                continue  # the last sample, right after another: a rate over it would be noise
            device = now.device_since(before)
            nic = [after - was for after, was in zip(now.nic or (), before.nic or (), strict=False)]
            counted = (device.requests, device.bytes, device.written_bytes) if device else (np.nan,) * 3
            rates = (count / seconds for count in (*(nic or unknown), *counted))
            shares = now.cpu_shares(before) or unknown
            yield (now.at - self._samples[0].at, *shares, *rates, now.page_cache, now.available)

    def _sample(self) -> _Sample:
        memory = {line.split(":")[0]: line.split()[1] for line in read_text("/proc/meminfo").splitlines()}
        page_cache, available = (1024 * float(memory.get(name, "nan")) for name in ("Cached", "MemAvailable"))
        return _Sample(
            at=time.monotonic(),
            ticks=_ticks(self._cores),
            nic=_nic_bytes(),
            device=self._counters(),
            page_cache=page_cache,
            available=available,
        )

    def _watch(self) -> None:
        for period in count(1):
            due = self._samples[0].at + period * self.PERIOD
            if self._done.wait(max(0.0, due - time.monotonic())):
                return
            if running := _runnable():
                self._queue.append(max(0, running - 1))  # this thread is one of them
            if period % self.PERIODS == 0:
                self._samples.append(self._sample())


def _runnable() -> int | None:
    """Return the number of runnable threads of the host."""
    for line in read_text("/proc/stat").splitlines():
        if line.startswith("procs_running "):
            return int(line.split()[1])
    return None


def _ticks(cores: frozenset[int]) -> list[int]:
    """Return the summed ticks of these cores, in the order of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in read_text("/proc/stat").splitlines()]
    rows = [map(int, numbers) for name, *numbers in filter(None, lines) if name in names]
    return [sum(column) for column in zip(*rows, strict=False)]


def _nic_bytes() -> tuple[int, int] | None:
    rows = (row.split(":", 1) for row in read_text("/proc/net/dev").splitlines()[2:])
    counts = [rest.split() for name, rest in rows if name.strip() != "lo"]
    if not counts:
        return None
    return sum(int(count[0]) for count in counts), sum(int(count[8]) for count in counts)


def read_hosts(out: Path) -> HostRows:
    """Return the rows of OUT/hosts.parquet; empty without one. Raises StorageError, SpecError."""
    if not (out / HOSTS).is_file():
        return np.zeros(0, HOST)
    rows = read_rows(out / HOSTS, HOST)
    if len(rows) and not (
        rows["point"].min() >= 0 and 0 <= rows["second"].min() <= rows["second"].max() < 1e9
    ):
        raise SpecError(f"{out / HOSTS} has no seconds of hosts", "the file is damaged")
    return rows


def write_hosts(out: Path, rows: HostRows) -> None:
    """Write OUT/hosts.parquet atomically. Raises StorageError."""
    write_rows(out / HOSTS, HOST, [rows])
