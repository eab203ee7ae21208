"""The scratch folder of a run, in /dev/shm. Its launcher removes it, or a guard if the launcher is killed.

MPI's shared memory, the step barrier's pipes, the shaped storage's clock, and sockets and semaphores of
DataLoader workers are in it or have its name as a prefix. Its mode is 0700. Its name has the boot, the
launcher's process id and 64 random bits. The launcher holds a lock on it: a folder that can be locked is
dead, and the next start removes it.
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
from emulator.files import PREFIX_VARIABLE, SCRATCH_VARIABLE
from emulator.launch.process import let_go_of_output, process_state, set_name

MEMORY = Path("/dev/shm")
_NAME = re.compile(r"feedrate-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")


@contextmanager
def scratch() -> Iterator[tuple[Path, dict[str, str]]]:
    """Make a folder of this process, and the environment by which ranks use it. Removes dead folders first.

    If this process is killed during the body, a guard removes the folder and ends the processes that were
    started with it in their command line.
    """
    parent = _parents()[0]  # /dev/shm if possible: a socket's path must be short
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
"""Name of the guard process."""
_TRIES, _PAUSE = 20, 0.1
"""Number of attempts by the guard to remove the folder, and seconds between them."""


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Run the guard of `folder` during the body. It waits on a pipe whose other end only this process has."""
    watched, held = os.pipe()
    guard = os.fork()
    if not guard:
        try:
            os.setsid()
            set_name(GUARD)
            let_go_of_output()
            # Without the lock: the folder counts as dead when its owner is. Without the dataset's files: the
            # kernel closes them when the guard ends, and that hangs on storage that does.
            os.closerange(3, watched)
            os.closerange(watched + 1, os.sysconf("SC_OPEN_MAX"))
            if not os.read(watched, 1):  # the other end is closed, and nothing was written: it was killed
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
    name = os.fsencode(folder.name)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if name in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGTERM)
    for _ in range(_TRIES):
        _remove(folder)
        time.sleep(_PAUSE)  # ranks need a moment to end, and may make files until then
        if not folder.exists():
            break


class RankFile(NamedTuple):
    """The file that shows the launcher that a rank runs (launch.watch)."""

    pid: int
    beat: float
    """Last heartbeat, in seconds of time.monotonic."""
    host: str


def ranks_in(folder: Path) -> dict[int, RankFile]:
    """Return the ranks of this host that have started, by number."""
    found = {}
    for file in folder.glob("rank-*"):
        with suppress(OSError, ValueError):
            pid, beat, host = file.read_text().split()
            found[int(file.name.removeprefix("rank-"))] = RankFile(int(pid), float(beat), host)
    return found


def processes_of(folder: Path) -> list[int]:
    """Return the processes with this folder in their environment, and their descendants.

    These are ranks and what they started. A process that hangs while it ends has no environment left.
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
        for parent in _parents():
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
        # The owner may not have locked it yet.
        return process_state(int(name[2])) in ("", "Z")
    finally:
        os.close(held)


def _remove(folder: Path) -> None:
    for semaphore in MEMORY.glob(f"sem.{folder.name}-*"):
        semaphore.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _parents() -> list[Path]:
    folders = [MEMORY] if os.access(MEMORY, os.W_OK) else []
    return [*folders, Path(tempfile.gettempdir())]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0" * 8
