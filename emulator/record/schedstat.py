"""Divide a process's time by schedstat: on a core, ready to run without one, asleep in a request.

Linux counts for every thread the nanoseconds that it ran and those that it was ready and had no core
(/proc/PID/task/TID/schedstat). Readers count the seconds within their requests. `Books` combines both. A look
takes 2 us a thread, since the files stay open; nothing is sampled, and there is no load average or threshold.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from emulator.record.machine import cgroup_files

_REFRESH = 1.0
"""Seconds between two searches for threads that have begun or ended."""


def thread_busy_seconds() -> float:
    """Return the seconds that the calling thread was on a core or waited for one; 0 without schedstat."""
    with suppress(OSError):
        return sum(map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2])) / 1e9
    return 0.0


class Reader(Protocol):
    """The counters of a thread that reads, readable at any time by others."""

    thread: int
    """Thread id of the kernel."""

    @property
    def requests(self) -> int:
        """Return the number of read requests that have ended."""
        ...

    def within(self, now: float) -> float:
        """Return the seconds within requests up to `now` (time.monotonic), including the one in progress."""
        ...


class Stretch(NamedTuple):
    """Time by cause, in seconds."""

    storage: float = 0.0
    """Seconds with a request in progress and its thread asleep."""
    cores: float = 0.0
    """Seconds in which a thread was runnable but had no core."""
    quota: float = 0.0
    """Seconds as in `cores`, because the CPU quota of the cgroup was used up."""
    work: float = 0.0
    """Seconds in which a thread was on a core."""
    loader: float = 0.0
    """Seconds with none of these: no request was in progress."""

    def plus(self, other: Stretch) -> Stretch:
        """Return the sum of this and the other."""
        return Stretch(*map(operator.add, self, other))

    def throttled(self, seconds: float) -> Stretch:
        """Return the same with up to `seconds` of `cores` as `quota`."""
        quota = min(self.cores, seconds)
        return self._replace(cores=self.cores - quota, quota=quota)

    def lasting(self, seconds: float) -> Stretch:
        """Return the same shares of `seconds`; an empty stretch counts as the loader's."""
        total = sum(self)
        if total <= 0:
            return Stretch(loader=seconds)
        return Stretch(*(part * seconds / total for part in self))


class _Entry(NamedTuple):
    """The counters of a thread at one moment, in seconds."""

    ran: float
    ready: float
    """Seconds ready to run without a core."""
    within: float
    """Seconds within requests, including the one in progress."""
    requests: int


class Page(NamedTuple):
    """The schedstat and the counters of all threads at one moment."""

    time: float
    """Seconds of time.monotonic."""
    entries: Mapping[int, _Entry]
    """Entries by thread id."""
    throttled: float
    """Seconds that the cgroup was throttled by its quota."""


class Books:
    """The schedstat of this process's threads, made by the thread that consumes what the others read.

    `kept` is False where the kernel has no schedstat (without CONFIG_SCHED_INFO).
    """

    def __init__(self, readers: Callable[[], Iterable[Reader]], together: int = 1) -> None:
        """`readers` gives the threads that read. `together` is the number of readers that a shaped device
        serialises, 1 for none."""
        self._readers = readers
        self._together = together
        self._owner = threading.get_native_id()
        self._files: dict[int, int] = {}
        self._quotas = [file for file in cgroup_files("cpu", "cpu.stat") if _has_quota(file.parent)]
        self._refreshed = 0.0
        self._refresh(time.monotonic())
        self.kept = self._owner in self._files

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        while self._files:
            os.close(self._files.popitem()[1])

    def look(self) -> Page:
        """Read all counters."""
        now = time.monotonic()
        if now - self._refreshed > _REFRESH:
            self._refresh(now)
        readers = {reader.thread: reader for reader in self._readers()}
        entries = {}
        for thread, file in self._files.items():
            try:
                ran, ready, _ = os.pread(file, 96, 0).split()
            except (OSError, ValueError):  # it has ended
                continue
            within, requests = 0.0, 0
            if (reader := readers.get(thread)) is not None:
                within, requests = reader.within(now), reader.requests
            entries[thread] = _Entry(int(ran) / 1e9, int(ready) / 1e9, within, requests)
        return Page(now, entries, sum(map(_throttled, self._quotas)))

    def _refresh(self, now: float) -> None:
        self._refreshed = now
        with suppress(OSError):
            threads = {int(place.name) for place in Path("/proc/self/task").iterdir()}
            for gone in self._files.keys() - threads:
                os.close(self._files.pop(gone))
            for new in threads - self._files.keys():
                with suppress(OSError):
                    self._files[new] = os.open(f"/proc/self/task/{new}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def reading(self, before: Page, after: Page, lock_seconds: float = 0.0) -> Stretch:
        """Divide the time between two pages by cause, while the owner waited for what others read.

        `lock_seconds` is the time to take Python's lock, with which each request ends.
        """
        readers, others = self._threads(before, after)
        seconds, throttled = after.time - before.time, after.throttled - before.throttled
        return divided(seconds, readers, others, throttled, self._together, lock_seconds)

    def readers(self, before: Page, after: Page) -> Stretch:
        """Sum the time of all threads that read between two pages: on a core, or without one."""
        pairs = _pairs(before, after, {reader.thread for reader in self._readers()})
        ready = sum(max(0.0, now.ready - then.ready) for then, now in pairs)
        ran = sum(max(0.0, now.ran - then.ran) for then, now in pairs)
        return Stretch(cores=ready, work=ran).throttled(after.throttled - before.throttled)

    def others(self, before: Page, after: Page) -> Stretch:
        """Sum the time of all threads that do not read between two pages; being asleep is the loader's."""
        _, others = self._threads(before, after)
        return divided(after.time - before.time, [], others, after.throttled - before.throttled)

    def _threads(self, before: Page, after: Page) -> tuple[list[_Thread], list[_Thread]]:
        """Return the threads that read, and the others, between two pages."""
        seconds, reading = after.time - before.time, {reader.thread for reader in self._readers()}
        readers = [_Thread.of(seconds, *pair) for pair in _pairs(before, after, reading)]
        others = [
            _Thread.of(seconds, *pair) for pair in _pairs(before, after, after.entries.keys() - reading)
        ]
        return readers, others


def _pairs(before: Page, after: Page, threads: Iterable[int]) -> list[tuple[_Entry, _Entry]]:
    """Return the entries of these threads then and now, without threads that had not begun."""
    nothing = _Entry(0.0, 0.0, 0.0, 0)
    return [
        (before.entries.get(thread, nothing), after.entries[thread])
        for thread in threads
        if thread in after.entries
    ]


class _Thread(NamedTuple):
    """The time of one thread by cause, in seconds."""

    ran: float
    ready: float
    asleep: float
    within: float
    """Largest possible number of seconds asleep within a request."""
    requests: float

    @classmethod
    def of(cls, seconds: float, before: _Entry, after: _Entry) -> _Thread:
        ran, ready = max(0.0, after.ran - before.ran), max(0.0, after.ready - before.ready)
        # A wait for a core is written down when it ends, and may have begun before the stretch did.
        ran = min(ran, seconds)
        ready = min(ready, seconds - ran)
        asleep = seconds - ran - ready
        within = min(max(0.0, after.within - before.within), asleep)
        return cls(ran, ready, asleep, within, after.requests - before.requests)


def divided(
    seconds: float,
    readers: Iterable[_Thread],
    others: Iterable[_Thread],
    throttled: float = 0.0,
    together: int = 1,
    lock_seconds: float = 0.0,
) -> Stretch:
    """Divide `seconds` of waiting for `readers` by what these, and `others`, which help them, did.

    Readers work side by side, so their times are averaged over those that did anything. Where a shaped
    device serialises `together` of them, the one that has it holds up all, so its times are summed. The
    time in which not even the busiest of them did anything is the loader's, and so is sleeping for Python's
    lock. While a helper (of an object store's client, or with Python's lock) has no core, requests wait.
    """
    helpers = list(others)
    helpers_ran = sum(helper.ran for helper in helpers)
    helpers_ready = sum(helper.ready for helper in helpers)
    busy = [reader for reader in readers if reader.ran + reader.ready + reader.within > 0.01 * seconds]
    if not busy or seconds <= 0:
        ready = min(seconds, helpers_ready)
        ran = min(seconds - ready, helpers_ran)
        return Stretch(cores=ready, work=ran, loader=seconds - ready - ran).throttled(throttled)
    count = len(busy)
    active = seconds - min(max(0.0, reader.asleep - reader.within) for reader in busy)
    locked = sum(min(reader.within, reader.requests * lock_seconds) for reader in busy) / count
    # Those that take turns at a shaped device add up.
    share = max(count, together) if together > 1 else 1
    ready = min(active, share * sum(reader.ready for reader in busy) / count)
    ran = min(active - ready, share * sum(reader.ran for reader in busy) / count)
    storage = sum(reader.within for reader in busy) / count - locked
    storage = min(storage, active - ready - ran)
    # A helper without a core holds up what waits for it.
    starved = storage * min(1.0, helpers_ready / seconds)
    stretch = Stretch(
        storage=storage - starved, cores=ready + starved, work=ran + helpers_ran / count, loader=locked
    )
    return stretch.throttled(throttled).lasting(active).plus(Stretch(loader=seconds - active))


def _throttled(file: Path) -> float:
    """Return the throttled seconds so far, from a cgroup's cpu.stat; 0 if it cannot be read."""
    with suppress(OSError, ValueError):
        for line in file.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name == b"throttled_usec":
                return int(value) / 1e6
            if name == b"throttled_time":
                return int(value) / 1e9
    return 0.0


def _has_quota(group: Path) -> bool:
    """True when the cgroup (v1 or v2) in this folder has a CPU quota."""
    with suppress(OSError, ValueError):
        return (group / "cpu.max").read_text().split()[0] != "max"
    with suppress(OSError, ValueError):
        return int((group / "cpu.cfs_quota_us").read_text()) > 0
    return False
