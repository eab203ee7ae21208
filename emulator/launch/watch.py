"""The watchdog: a thread in each process that detects a call into the storage which does not return.

A thread hangs if it has used no CPU for `storage_timeout` seconds within one call into a file system
(launch.blocked). A call that syncs may take ten times as long while its mount's counters show that the
storage moves data: an fsync of gigabytes is slow but does not hang.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path

from emulator.errors import FeedrateError, RankError, SpecError, StorageError
from emulator.files import SCRATCH_VARIABLE
from emulator.launch.blocked import Call, blocked_call, bytes_moved, open_files
from emulator.launch.launched import end_launcher, guard_launcher, rank_hint
from emulator.launch.process import die_with_parent, let_go_of_output, write_stderr
from emulator.units import parse_seconds, show_seconds

OPTION = "--storage-timeout"
DEFAULT_TIMEOUT = 30.0

_MOST_PATIENCE = 10.0
"""Limit of a call that syncs while the storage moves data, as a multiple of the timeout."""
UNWATCHED = "briefly"
"""Name of threads that the watchdog ignores, because nothing waits for them."""
_LONG_CALLS = {
    *("fsync", "fdatasync", "sync", "syncfs", "close", "munmap"),
    *("unlink", "truncate", "ftruncate", "fallocate"),
}
"""Calls that may sync data, and so last longer."""
_MOVING = 1e6
"""Lowest rate in bytes/s that counts as moving data."""
_STALL = re.compile(r"loader\.stall_timeout=(.+)")


def storage_timeout(words: Sequence[str] = ()) -> float:
    """Return the time limit in seconds of a call into the storage, from the command line `words`.

    A loader's longer stall_timeout applies to calls, too. Raises SpecError.
    """
    given, stall = "", ""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "--":
            break
        if word == OPTION:
            given = following
        elif word.startswith(OPTION + "="):
            given = word.partition("=")[2]
        elif match := _STALL.fullmatch(word.removeprefix("--set=")):
            stall = match[1]
    if stall and not given:
        return max(DEFAULT_TIMEOUT, parse_seconds(stall))
    seconds = parse_seconds(given) if given else DEFAULT_TIMEOUT
    if not seconds > 0:
        raise SpecError(f"{OPTION} {given!r} is not a time above zero", "write it like 30s or 2min")
    return seconds


class Watchdog:
    """A thread that checks all others for hangs in the storage, and sends heartbeats."""

    def __init__(
        self,
        timeout: float,
        hung: Callable[[StorageError], object],
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """Call `hung(error)` at the first hang, and `beat()` several times in `timeout` seconds."""
        self._timeout = timeout
        self._hung = hung
        self._beat = beat
        self._seen: dict[int, tuple[int, float]] = {}
        self._files = open_files()
        """Paths of files that are or were open, by descriptor."""
        self._moved: dict[str, tuple[int, float, float]] = {}
        """Bytes moved, time of that reading, and last time when data moved, by mount."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        pause = max(0.1, min(2.0, self._timeout / 6))
        before = time.monotonic()
        while True:
            self._beat()
            time.sleep(pause)
            now = time.monotonic()
            if now - before > pause + self._timeout / 2:
                self._seen.clear()  # this process was stopped: CPU times say nothing
            before = now
            error = self._look(now)
            if error is not None:
                self._hung(error)
                return

    def _look(self, now: float) -> StorageError | None:
        """Return the error of a thread that hangs in the storage, or None."""
        seen, self._seen = self._seen, {}
        self._files.update(open_files())
        for thread in threading.enumerate():
            # Until Python 3.12, threading keeps the parent's number of the main thread after a fork.
            number = os.getpid() if thread is threading.main_thread() else thread.native_id
            if number is None or thread.name == UNWATCHED or thread is threading.current_thread():
                continue
            try:
                used = time.clock_gettime_ns((~number << 3) | 6)  # Linux: the CPU clock of that thread
            except OSError:
                continue  # it has ended
            last, since = seen.get(number, (-1, now))
            self._seen[number] = (used, since if used == last else now)
            if used != last or now - since < self._timeout / 2:
                continue
            call = blocked_call(number, self._files)
            # `_moves` needs two readings of the counters: begin at half the timeout.
            if call is None or self._moves(call, now, since) or now - since < self._timeout:
                continue
            return StorageError(
                f"{call} has not answered for {show_seconds(now - since)}",
                f"the storage hangs; see the system log, or give it longer with {OPTION}",
            )
        return None

    def _moves(self, call: Call, now: float, since: float) -> bool:
        """Return True if the mount that `call` waits for has moved data within the timeout."""
        if call.name not in _LONG_CALLS or now - since > _MOST_PATIENCE * self._timeout:
            return False
        mount, size = bytes_moved(call.path)
        before, then, alive = self._moved.get(mount, (size, now, 0.0))
        if size - before >= _MOVING * (now - then) > 0:
            alive = now
        self._moved[mount] = (size, now, alive)
        return now - alive < self._timeout


def briefly(action: Callable[[], object], seconds: float = 3.0) -> bool:
    """Run `action()` in a thread, wait `seconds` at most, and return True if it ended in time."""
    thread = threading.Thread(target=action, name=UNWATCHED, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


LAST_WORDS_SECONDS = 1.5
"""Seconds for the first rank that fails to report why, before a later one ends all ranks.

If the first is on a host that has lost its network, a rank that notices its absence reports it in this time.
"""
REASON = "reason"
"""Name of the file in the scratch folder with the exit status of the first rank to fail, and its reason."""


def watch_rank(rank: int, timeout: float) -> None:
    """Watch this process, which is a rank, and write heartbeats for feedrate's launcher, if there is one.

    The rank ends with the process that started it.
    """
    die_with_parent(os.getppid())
    guard_launcher()
    host, scratch = socket.gethostname(), os.environ.get(SCRATCH_VARIABLE, "")
    beat: Callable[[], object] = int
    if scratch:
        with suppress(OSError):
            file = os.open(Path(scratch) / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

            def beat() -> object:
                # CLOCK_MONOTONIC is the same for all processes of a host, and nobody sets it.
                return os.pwrite(file, f"{os.getpid()} {time.monotonic():020.3f} {host}\n".encode(), 0)

            beat()

    def beat_all() -> None:
        beat()
        for action in _at_each_beat:
            action()

    Watchdog(timeout, partial(end_rank, rank), beat_all)


_at_each_beat: list[Callable[[], object]] = []


def at_each_beat(action: Callable[[], object]) -> None:
    """Have the watchdog of this rank call `action()` several times in each --storage-timeout."""
    _at_each_beat.append(action)


def watch_worker(hung: Callable[[StorageError], object]) -> None:
    """Watch this process, a worker of a rank's loader, and end it with its rank; `hung` as in Watchdog."""
    # The kernel's death signal does not help: a worker's parent is the fork server, which outlives its rank.
    rank = multiprocessing.parent_process()

    def end_with_rank() -> None:
        if rank is not None:
            rank.join()
            os._exit(RankError.exit_code)

    threading.Thread(target=end_with_rank, name=UNWATCHED, daemon=True).start()
    Watchdog(storage_timeout(sys.argv[1:]), hung)


def end_rank(rank: int, error: FeedrateError, *, witness: bool = False, aloud: bool = False) -> None:
    """Report `error`, end this process, which is rank `rank`, and end all others through MPI.

    Any thread may call it. It prints nothing if another rank has ended the run before, unless `aloud`.
    `witness`: the error is that of another rank, which cannot report it.
    """
    line = str(error) if witness else f"rank {rank} on {socket.gethostname()}: {error}"
    first = [end_with(line, error.exit_code)]
    for action in _before_end:
        briefly(partial(lambda action: first.append(action(line)), action), 1.0)
    if aloud or all(first):
        write_stderr(f"feedrate: error: {line}")
    else:
        time.sleep(LAST_WORDS_SECONDS)
    end_launcher()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        briefly(partial(mpi.COMM_WORLD.Abort, error.exit_code))
    let_go_of_output()
    os._exit(error.exit_code)


_before_end: list[Callable[[str], bool]] = []


def before_end(action: Callable[[str], bool]) -> None:
    """Have `action(reason)` called before this rank ends because of a hang, with a time limit of 1 s.

    It returns False if another rank of any host has reported a reason before: then this rank prints nothing.
    """
    _before_end.append(action)


def end_with(line: str, code: int) -> bool:
    """Report to the launcher why the run ends; return False if another rank has done so.

    `code` is the exit status.
    """
    scratch = os.environ.get(SCRATCH_VARIABLE, "")
    try:
        if scratch:
            with (Path(scratch) / REASON).open("x", encoding="utf-8") as file:
                file.write(f"{code} {line}")
    except FileExistsError:
        return False
    except OSError:
        pass  # without a launcher's file, this rank reports
    return True


_STATUS = "status-"


def leave_status(status: int) -> None:
    """Leave the exit status of this rank, which ends by itself, for the launcher: see `left_statuses`."""
    scratch = os.environ.get(SCRATCH_VARIABLE, "")
    if scratch:
        with suppress(OSError):
            (Path(scratch) / f"{_STATUS}{rank_hint()}").write_text(str(status))


def left_statuses(folder: Path) -> list[int]:
    """Return the exit statuses that ranks of this host have left in `folder`.

    The launcher needs them if it has to kill an mpirun that does not end after its ranks, as on a host with
    far too few cores.
    """
    return [int(file.read_text() or 1) for file in folder.glob(f"{_STATUS}*")]


def told_why(folder: Path) -> tuple[int, str] | None:
    """Return the exit status and the reason that a rank reported by `end_with`; None if none has."""
    try:
        code, _, line = (folder / REASON).read_text(encoding="utf-8").partition(" ")
        return int(code), line
    except (OSError, ValueError):
        return None
