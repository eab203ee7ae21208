"""What a run has in memory: one folder, gone with its launcher, or at the next start when that was killed.

MPI's shared memory, the step barrier's pipes, the shaped storage's clock, sockets and semaphores of
DataLoader workers all lie there or carry its name. It is the user's alone (0700); its name has the boot, the
launcher's process and 64 random bits. The launcher holds a lock on it: whoever gets the lock has found a
dead one.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from emulator.errors import storage_errors
from emulator.files import PREFIX_VARIABLE, SCRATCH_VARIABLE
from emulator.launch.process import process_state

MEMORY = Path("/dev/shm")
_NAME = re.compile(r"feedrate-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")


@contextmanager
def scratch() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder of this process, and the environment by which ranks use it. Removes dead ones before."""
    parent = _parents()[0]  # a short path where there is one: those of sockets have a limit
    remove_dead()
    folder = parent / f"feedrate-{_boot()}-{os.getpid()}-{secrets.token_hex(8)}"
    with storage_errors("cannot make a folder for temporary files"):
        folder.mkdir(0o700)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
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


class RankFile(NamedTuple):
    """What a rank of this machine writes of itself (launch.watch)."""

    pid: int
    beat: float
    """When it last showed that it runs, in seconds of time.monotonic."""
    host: str


def ranks_in(folder: Path) -> dict[int, RankFile]:
    """The ranks of this machine that have begun, by number."""
    found = {}
    for file in folder.glob("rank-*"):
        with suppress(OSError, ValueError):
            pid, beat, host = file.read_text().split()
            found[int(file.name.removeprefix("rank-"))] = RankFile(int(pid), float(beat), host)
    return found


def remove_dead() -> None:
    """Remove the folders that killed processes of this user have left. Never raises."""
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
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its owner lives, wherever it is
        # A living owner may not have taken its lock yet. A zombie has ended.
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
