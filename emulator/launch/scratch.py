"""The scratch folder of a run, in /dev/shm if that has room.

The launcher removes it, or a guard if the launcher is killed.

It holds MPI's shared memory, the step barrier's pipes, the shared file of the shaped storage, and sockets of
DataLoader workers; their semaphores have its name as a prefix. Its mode is 0700. Its name has the boot ID,
the launcher's process ID and 64 random bits. The launcher holds a lock on it: a folder that can be locked is
stale, and the next start removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from emulator.errors import storage_errors
from emulator.files import MEMORY, PREFIX_VARIABLE, SCRATCH_VARIABLE, roomy_memory
from emulator.launch.process import has_ended, let_go_of_output, set_name, started_with

_NAME = re.compile(r"feedrate-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")


@contextmanager
def scratch() -> Iterator[tuple[Path, dict[str, str]]]:
    """Make the folder of this process, and the environment by which ranks use it. Removes stale ones first.

    If this process is killed during the body, a guard removes the folder and ends the processes that were
    started with it in their command line.
    """
    parent = roomy_memory() or Path(tempfile.gettempdir())  # the path of a socket must be short
    remove_dead()
    folder = parent / f"feedrate-{_boot()}-{os.getpid()}-{secrets.token_hex(8)}"
    with storage_errors("cannot make a folder for temporary files"):
        folder.mkdir(0o700)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with _guarded(folder):
            yield (
                folder,
                {
                    "TMPDIR": str(folder),
                    "OMPI_MCA_btl_sm_backing_directory": str(folder),
                    PREFIX_VARIABLE: folder.name,
                    SCRATCH_VARIABLE: str(folder),
                },
            )
    finally:
        _remove(folder)
        os.close(held)


GUARD = "feedrate-guard"
_TRIES, _PAUSE = 20, 0.1
"""Number of attempts by the guard to remove the folder, and seconds between them."""


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Run the guard of `folder` during the body. It waits on a pipe whose write end only this process has."""
    watched, held = os.pipe()
    guard = os.fork()
    if not guard:
        try:
            os.setsid()
            set_name(GUARD)
            let_go_of_output()
            # Close the lock: the folder must be stale when its owner ends. Close the dataset's files: the
            # kernel would close them when the guard ends, which hangs on storage that hangs.
            os.closerange(3, watched)
            os.closerange(watched + 1, os.sysconf("SC_OPEN_MAX"))
            if not os.read(watched, 1):  # EOF without a byte: the launcher was killed
                _clear(folder)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            os.write(held, b".")
        os.close(held)
        os.waitpid(guard, 0)


def _clear(folder: Path) -> None:
    """Remove the folder of a process that was killed, and end the processes that use it."""
    for attempt in range(_TRIES):
        number, users = 0 if attempt else signal.SIGTERM, 0
        for process in started_with(folder.name):
            with suppress(OSError):
                os.kill(process, number)
                users += 1
        _remove(folder)
        time.sleep(_PAUSE)  # ranks may make files until they have ended
        if not users and not folder.exists():
            break


class RankFile(NamedTuple):
    """The heartbeat file of a rank (launch.watch)."""

    pid: int
    beat: float
    """Last heartbeat, in seconds of time.monotonic."""
    host: str


def ranks_in(folder: Path) -> dict[int, RankFile]:
    """Return the ranks of this host that have started, by number."""
    ranks = {}
    for file in folder.glob("rank-*"):
        with suppress(OSError, ValueError):
            pid, beat, host = file.read_text().split()
            ranks[int(file.name.removeprefix("rank-"))] = RankFile(int(pid), float(beat), host)
    return ranks


def processes_of(folder: Path) -> list[int]:
    """Return the processes with this folder in their environment, and their descendants.

    These are ranks and their children. A process that hangs while it exits has no environment left.
    """
    name, found, parents = os.fsencode(folder), set[int](), dict[int, int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if name in (process / "environ").read_bytes():
                found.add(int(process.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def remove_dead() -> None:
    """Remove this user's folders whose launcher was killed. Never raises."""
    with suppress(OSError):
        for parent in (MEMORY, Path(tempfile.gettempdir())):
            for folder in parent.glob("feedrate-*-*-*"):
                with suppress(OSError):
                    if _is_dead(folder):
                        _remove(folder)


def _is_dead(folder: Path) -> bool:
    name = _NAME.fullmatch(folder.name)
    if name is None or folder.lstat().st_uid != os.geteuid():
        return False
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if name[1] != _boot():
            return True
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError, an OSError: the owner is alive
        # The owner may not have locked it yet: then its process is alive.
        return has_ended(int(name[2]))
    finally:
        os.close(held)


def _remove(folder: Path) -> None:
    for semaphore in MEMORY.glob(f"sem.{folder.name}-*"):
        semaphore.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0" * 8
