"""Files that appear whole or not at all: written under a temporary name, synced, renamed.

The temporary file lies in the same folder. Its name has a random part, and it is opened with O_EXCL: nobody
can put a link in its place beforehand, and two writers, on one host or on two, never share it. It is removed
when anything fails; only a killed process leaves one behind, and `is_temporary` knows it by its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from emulator.errors import storage_errors

TEMPORARY = ".part"
"""End of the name of a file that is being written."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `os.open` for a temporary file. The mode is 0o666 less the umask."""

_TEMPORARY = re.compile(rf".+\.[\w.-]*-\d+-[0-9a-f]{{16}}{re.escape(TEMPORARY)}", re.DOTALL)

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)
"""What network file systems answer that cannot sync a folder."""


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses: `NAME.HOST-PID-RANDOM.part`, at most 255 bytes."""
    writer = f"{socket.gethostname()[:32]}-{os.getpid()}-{os.urandom(8).hex()}"
    return path.with_name(f"{path.name[:40]}.{writer}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    """True for names that `temporary_name` gives."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` when the body ends without an error.

    Raises StorageError, also for an OSError of the body.
    """
    temporary = temporary_name(path)
    with storage_errors(f"cannot write {path}"):
        try:
            with os.fdopen(os.open(temporary, NEW_FILE, 0o666), "wb") as file:
                try:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                    temporary.replace(path)
                except BaseException:
                    with suppress(OSError):
                        temporary.unlink()
                    raise
        except OSError as error:
            error.filename = None  # the message names `path`, not the temporary file
            raise
    sync_folder(path.parent)


def memory_folder() -> str | None:
    """A folder whose files lie in memory; None, which tempfile takes for its own, where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_whole(path: Path, content: bytes | str) -> None:
    """`content`, text as UTF-8, in place of what was in the file `path`. Raises StorageError."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """The names in `folder` on the disk, where the file system can do that. Raises StorageError."""
    with storage_errors("cannot sync the folder"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return  # one may write into a folder that one may not read
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(descriptor)


def lock(path: Path) -> int:
    """A descriptor that holds the lock file `path` until it is closed, where the file system has locks.

    Makes the file, and the folder that it is in. Raises BlockingIOError when somebody else holds it, OSError.
    """
    while True:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # no locks here
            return descriptor
        if os.fstat(descriptor).st_nlink:  # else its last holder removed it since it was opened
            return descriptor
        os.close(descriptor)


class RecordFile:
    """Records of `unit` bytes at the end of a file. Each is one write, so that threads may share it."""

    def __init__(self, path: Path, unit: int) -> None:
        """Open the file, make it if need be, and cut off a torn last record. Raises OSError."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(self._descriptor).st_size
        if size % unit:
            os.ftruncate(self._descriptor, size - size % unit)

    def append(self, records: bytes) -> None:
        """Hand records to the system: they outlive this process, not a power cut. Raises OSError."""
        left = memoryview(records)
        while left:  # twice only when the disk is full: then the second write says so
            left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises OSError: some file systems fail only here."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
