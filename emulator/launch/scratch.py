"""The scratch folder of a run, in /dev/shm if that has room. Its owner removes it, or the next start.

It holds the step barrier's pipes, the shared file of the shaped storage, and sockets of DataLoader workers;
their semaphores have its name as a prefix. Its mode is 0700. Its name has the boot ID, the owner's process ID
and 64 random bits. The owner holds a lock on it: a folder that can be locked is stale.
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

from emulator.errors import storage_errors
from emulator.files import MEMORY, PREFIX_VARIABLE, SCRATCH_VARIABLE, roomy_memory
from emulator.launch.process import has_ended

_NAME = re.compile(r"feedrate-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")


@contextmanager
def scratch() -> Iterator[tuple[Path, dict[str, str]]]:
    """Remove stale folders, and make that of this process and the environment by which ranks use it."""
    parent = _parent()
    remove_dead()
    folder = parent / f"feedrate-{_boot()}-{os.getpid()}-{secrets.token_hex(8)}"
    with storage_errors("cannot make a folder for temporary files", folder):
        folder.mkdir(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        variables = {"TMPDIR": str(folder), PREFIX_VARIABLE: folder.name, SCRATCH_VARIABLE: str(folder)}
        yield folder, variables
    finally:
        _remove(folder)
        os.close(descriptor)


def _parent() -> Path:
    """Return the folder of scratch folders. The path of a socket must be short."""
    memory = roomy_memory()
    if memory is not None:
        return memory  # TMPDIR may be on a mount that hangs
    with storage_errors("cannot make a folder for temporary files", os.environ.get("TMPDIR", "/tmp")):
        return Path(tempfile.gettempdir())


def remove_dead(*, wait: bool = False) -> None:
    """Remove this user's folders whose owner was killed. Never raises.

    Ranks inherit the owner's lock. `wait`: until those of a dead owner have ended, too.
    """
    with suppress(OSError):
        for folder in _parent().glob("feedrate-*-*-*"):
            with suppress(OSError):
                if _is_dead(folder, wait):
                    _remove(folder)


def _is_dead(folder: Path, wait: bool) -> bool:
    name = _NAME.fullmatch(folder.name)
    if name is None or folder.lstat().st_uid != os.geteuid():
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if name[1] != _boot():
            return True
        ended = has_ended(int(name[2]))  # False, too, for an owner that has not locked it yet
        # Ranks of a dead owner may still have the lock: wait for their end, or raise BlockingIOError.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait and ended else fcntl.LOCK_NB))
        return ended
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    for semaphore in MEMORY.glob(f"sem.{folder.name}-*"):
        semaphore.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0" * 8
