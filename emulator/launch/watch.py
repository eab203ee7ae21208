"""The alarm: it reads the notes of all threads of a host (`emulator.notes`), and finds what hangs.

Processes that call no storage run it: the parent of each command, and a child of each rank that mpirun or
srun started (`launch.supervise`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from emulator import notes
from emulator.errors import FeedrateError, RankError, StorageError
from emulator.notes import Page, Slot
from emulator.units import show_seconds

OPTION = "--storage-timeout"
STARTS = "start"
"""The call of a rank that waits for others to start: `start of 64 ranks`."""
_READS = ("read", "open", "list", "stat")
"""Calls that return soon on any storage. Others may write gigabytes before they return."""


class Process(NamedTuple):
    """What the kernel says of a process or a thread."""

    state: str
    """A letter of /proc/PID/stat; empty if there is no such process."""
    used: str = ""
    """CPU time so far, in nanoseconds."""

    @classmethod
    def of(cls, process: int, thread: int) -> Process:
        """Look at a thread of a process; the first has the number of the process."""
        place = Path(f"/proc/{process}/task/{thread}")
        try:
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            return cls(state, (place / "schedstat").read_text().partition(" ")[0])
        except (OSError, IndexError):
            return cls("")


class Alarm:
    """Finds a call into the storage that does not return, and a rank that is stopped or does not run."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._looked = self._since = time.monotonic()
        self._calls: dict[tuple[int, float], tuple[str, float]] = {}
        """CPU time of a thread at the first look at a late call, and that time, by thread and call."""
        self._idle: dict[int, tuple[Process, float]] = {}
        """State of a process that does not run, and since when."""
        self._moved: dict[str, tuple[int, float, float]] = {}
        """Bytes moved, time of that reading, and last time when data moved, by mount."""

    @property
    def _timeout(self) -> float:
        return float(self._page.head.timeout)

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        return max(0.1, min(2.0, self._timeout / 6))

    def look(self) -> tuple[int, FeedrateError] | None:
        """Return a process that hangs or is stopped, and the error; None if there is none."""
        now = time.monotonic()
        if now - self._looked > self.pause + self._timeout / 2:
            self._since = now  # this process was stopped: so may have been the others
        self._looked = now
        ranks: dict[int, int] = {}
        calling = set[int]()
        calls, self._calls = self._calls, {}
        for note in self._page.notes():
            ranks[note.process] = note.rank
            if note.since:
                calling.add(note.process)
            if note.since and now - max(note.since, self._since) > self._timeout / 2:
                error = self._late(note, calls, now)
                if error is not None:
                    return note.process, error
        for process, rank in ranks.items():
            error = self._stopped(process, rank, now, "Tt" if process in calling else "TtD")
            if error is not None:
                return process, error
        return None

    def _late(
        self, note: Slot, calls: dict[tuple[int, float], tuple[str, float]], now: float
    ) -> FeedrateError | None:
        """Return the error of a call that takes long, if its thread does not run meanwhile."""
        text = os.fsdecode(note.text)
        call, _, path = text.partition(" of ")
        if not path:
            return None  # objects have time limits of their own
        if call == STARTS:  # a rank that waits for others in MPI uses its core
            return _not_started(note, now) if now - note.since > self._timeout else None
        thread = Process.of(note.process, note.thread)
        if thread.state in ("", "T", "t"):
            return None
        key = note.thread, note.since
        used, since = calls.get(key, (thread.used, max(note.since, self._since)))
        if thread.used != used:
            used, since = thread.used, now
        self._calls[key] = used, since
        if now - since < self._timeout / 2 or self._moves(call, path, now, since):
            return None  # half the timeout: the mount's counters need two readings
        if now - since < self._timeout:
            return None
        where = f"rank {note.rank} on {socket.gethostname()}: " if note.rank >= 0 else ""
        return StorageError(
            f"{where}{text} has not answered for {show_seconds(now - since)}",
            f"the storage hangs; see the system log, or give it longer with {OPTION}",
        )

    def _moves(self, call: str, path: str, now: float, since: float) -> bool:
        """Return True if the mount that `call` waits for has moved data within the timeout.

        A call that writes or syncs may then take ten times as long: an fsync of gigabytes is slow.
        """
        if call in _READS or now - since > 10 * self._timeout:
            return False
        mount, size = bytes_moved(path)
        before, then, alive = self._moved.get(mount, (size, now, 0.0))
        if size - before >= 1e6 * (now - then) > 0:
            alive = now
        self._moved[mount] = size, now, alive
        return now - alive < self._timeout

    def _stopped(self, process: int, rank: int, now: float, states: str) -> FeedrateError | None:
        """Return the error of a process that has been in one of these `states` for too long."""
        present = Process.of(process, process)
        if present.state in ("", "Z", "X"):
            self._page.forget(process)
            return None
        if present.state not in states or (present.state == "t" and rank < 0):
            self._idle.pop(process, None)  # it runs, or a debugger has stopped the command
            return None
        former, since = self._idle.setdefault(process, (present, now))
        if former != present:
            self._idle[process] = present, now
            return None
        silent = now - max(since, self._since)
        if silent < self._timeout:
            return None
        who = f"rank {rank} on {socket.gethostname()}" if rank >= 0 else "the command"
        why = "it hangs in the kernel" if present.state == "D" else "it is stopped"
        problem = f"{who} has not reported for {show_seconds(silent)}: {why}"
        kind = StorageError if present.state == "D" else RankError
        return kind(f"{problem} (process {process}, state {present.state})")


def _not_started(note: Slot, now: float) -> FeedrateError:
    waited, ranks = show_seconds(now - note.since), os.fsdecode(note.text).partition(" of ")[2]
    who = f"rank {note.rank} on {socket.gethostname()} (process {note.process})"
    return RankError(
        f"{who} has waited {waited} for {ranks} to start: a rank is stopped or hangs, or a host "
        "or the network between hosts does not answer",
        f"give it longer with {OPTION}",
    )


def bytes_moved(path: str) -> tuple[str, int]:
    """Return the mount point of `path` and the bytes read and written there so far; 0 bytes if unknown.

    The kernel counts them for local disks and NFS. This does not access the storage.
    """
    from emulator.record.device import counters_at  # here: most commands never need them
    from emulator.record.machine import mount_of

    mount = mount_of(Path(path or "/"))
    with suppress(OSError, ValueError, IndexError):
        if counters := counters_at(mount)():
            return mount["mount"], counters.bytes + counters.written_bytes
    return mount.get("mount", ""), 0


def briefly(action: Callable[[], object], seconds: float = 3.0) -> bool:
    """Run `action()` in a thread, wait `seconds` at most, and return True if it ended in time."""

    def act() -> None:
        notes.unwatched()
        action()

    thread = threading.Thread(target=act, name="briefly", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
