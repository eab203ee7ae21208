"""Files that appear whole or not at all: written under a temporary name, synced, renamed.

The temporary file lies in the same folder. Its name has a random part, and it is opened with O_EXCL: nobody
can put a link in its place beforehand, and two writers, on one host or on two, never share it. It is removed
when anything fails; only a killed process leaves one behind, and its name says which process that was.

A `Lock` keeps other processes out of a folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self

from emulator.errors import storage_errors

TEMPORARY = ".part"
"""End of the name of a file that is being written."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `os.open` for a temporary file. The mode is 0o666 less the umask."""

_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_TEMPORARY = re.compile(rf"(.+)\.([\w.-]*)-(\d+)-[0-9a-f]{{16}}{re.escape(TEMPORARY)}", re.DOTALL)

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)
"""What network file systems answer that cannot sync a folder."""


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses: `NAME.HOST-PID-RANDOM.part`, at most 255 bytes."""
    writer = f"{socket.gethostname()[:32]}-{os.getpid()}-{os.urandom(8).hex()}"
    return path.with_name(f"{path.name[:40]}.{writer}{TEMPORARY}")


def written_by(name: str) -> tuple[str, str, int] | None:
    """Of a name that `temporary_name` gives: the file's name (40 characters), host and process; else None."""
    match = _TEMPORARY.fullmatch(name)
    return (match[1], match[2], int(match[3])) if match else None


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


SCRATCH_VARIABLE = "FEEDRATE_SCRATCH"
"""Environment variable: the folder in memory that the launcher shares with its ranks, and removes."""
PREFIX_VARIABLE = "FEEDRATE_SEMAPHORES"
"""Environment variable: prefix of the semaphores between a rank and its workers (loader.worker_server)."""


def memory_folder() -> str | None:
    """A folder whose files lie in memory; None, which tempfile takes for its own, where there is none."""
    shared = os.environ.get(SCRATCH_VARIABLE)
    return shared or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def write_whole(path: Path, content: bytes | str) -> None:
    """`content`, text as UTF-8, in place of what was in the file `path`. Raises StorageError.

    Bytes of a name that are no UTF-8 are escaped as JSON has it, which reads them back as they were.
    """
    with replacing(path) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def open_plain(path: Path) -> BinaryIO:
    """The file `path`, open for reading. A pipe, on which one would wait for ever, is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        folder = stat.S_ISDIR(mode)
        raise OSError(errno.EISDIR if folder else errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def require_writable(path: Path) -> None:
    """Try whether the file `path` can be written, before work is put into it. Raises StorageError."""
    probe = temporary_name(path)
    with storage_errors(f"cannot write {path}"):
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            os.close(os.open(probe, NEW_FILE, 0o600))
            probe.unlink()
        except OSError as error:
            error.filename = None  # the message names `path`
            raise


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock, as the lock tells it."""

    host: str
    pid: int
    started: int = 0
    """When the process started, in ticks since its host did: numbers of processes are used again."""
    nonce: str = ""
    """Random: no two holders are the same."""

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), pid=pid, started=_start(pid), nonce=os.urandom(8).hex())

    @classmethod
    def read(cls, data: bytes) -> Owner | None:
        """The holder that `data` names; None when it is no lock of ours."""
        try:
            found = json.loads(data)
            known = {name: found[name] for name in ("host", "pid", "started", "nonce")}
        except (ValueError, RecursionError, KeyError, TypeError):
            return None
        types = {"host": str, "pid": int, "started": int, "nonce": str}
        if found.get("feedrate") != "lock" or any(type(known[name]) is not types[name] for name in types):
            return None
        return cls(**known)

    def line(self) -> bytes:
        """What a lock says."""
        return json.dumps({"feedrate": "lock", **asdict(self)}).encode() + b"\n"

    @property
    def gone(self) -> bool:
        """True when it is a process of this host that has ended; of other hosts nobody knows."""
        return self.host == socket.gethostname() and _start(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _start(pid: int) -> int:
    """When a process started, in ticks since the host did; 0: there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def in_use(path: Path) -> str:
    """Who holds the lock in the file `path`, in words; empty: nobody, as far as that can be seen.

    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"{Owner.read(os.pread(descriptor, BLOCK, 0)) or 'another process'} is at work"
    except OSError:  # no locks here
        pass
    finally:
        os.close(descriptor)
    return ""


class Lock:
    """A file that says who is at work, locked until `release`; one that a killed process left is taken over.

    Where the file system has no locks, what the file says decides: then a process of another host that was
    killed leaves a lock that the user has to remove.
    """

    def __init__(self, path: Path) -> None:
        """Makes the file, and the folder that it is in.

        Raises BlockingIOError saying who holds it, FileExistsError when a file of somebody else is in its
        place, OSError.
        """
        self.path = path
        self.before: Owner | None = None
        """Who left the lock behind."""
        while True:
            path.parent.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o644)
            if self._taken():
                return
            os.close(self._descriptor)

    def _taken(self) -> bool:
        """False when its last holder removed the file since it was opened. Raises as __init__ does."""
        try:
            locks = True
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(
                    errno.EAGAIN, in_use(self.path) or "another process is at work"
                ) from None
            except OSError:
                locks = False
            if not os.fstat(self._descriptor).st_nlink:
                return False
            found = os.pread(self._descriptor, BLOCK, 0).strip(b"\0")  # a power cut may leave zeros
            self.before = Owner.read(found)
            if found and self.before is None:
                raise FileExistsError(errno.EEXIST, "it is no lock of feedrate; move it away", str(self.path))
            if self.before and not locks and not self.before.gone:
                raise BlockingIOError(
                    errno.EAGAIN, f"{self.before} is at work (if it is not, remove {self.path})"
                )
            line = Owner.me().line()
            os.pwrite(self._descriptor, line, 0)
            os.ftruncate(self._descriptor, len(line))
            os.fsync(self._descriptor)  # whose temporary files may be removed is known after a power cut, too
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise
        return True

    @property
    def held(self) -> bool:
        """True until it is released."""
        return self._descriptor >= 0

    def release(self, *, remove: bool = False) -> None:
        """Let others in; with `remove` the file goes. A second call does nothing. Never raises."""
        if self._descriptor >= 0:
            with suppress(OSError):
                if remove:
                    self.path.unlink()
                else:
                    os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:  # given up without a word: what it says stays true
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


BLOCK = 4096
"""Bytes of a lock that are read, at most."""


class RecordFile:
    """Records of `unit` bytes at the end of a file. Each is one write, so that threads may share it."""

    def __init__(self, path: Path, unit: int) -> None:
        """Open the file, make it if need be, and cut off a torn last record. Raises OSError."""
        self._descriptor = os.open(path, _APPENDED, 0o666)
        size = os.fstat(self._descriptor).st_size
        if size % unit:
            os.ftruncate(self._descriptor, size - size % unit)

    def append(self, records: bytes) -> None:
        """Hand records to the system: they outlive this process, not a power cut. Raises OSError."""
        left = memoryview(records)
        while left:  # twice only when the disk is full: then the second write says so
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Put what was appended on the disk. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises OSError: some file systems fail only here."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
