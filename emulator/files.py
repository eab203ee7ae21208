"""Files that appear atomically: written under a temporary name, synced, renamed.

The temporary file is in the same folder. Its name has a random part and it is opened with O_EXCL, so that
no other user can put a link in its place and two writers never share it, even on different hosts. It is
removed on any error; only a killed process leaves one, and the name identifies that process.

A `Lock` excludes other processes from a folder. A `Closing` closes itself.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self

from emulator.errors import SpecError, StorageError, storage_errors
from emulator.units import show_bytes

TEMPORARY = ".part"
"""Suffix of a file that is being written."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `os.open` for a temporary file. The mode is 0o666 less the umask."""

_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_TEMPORARY = re.compile(rf"(.+)\.([\w.-]*)-(\d+)-[0-9a-f]{{16}}{re.escape(TEMPORARY)}", re.DOTALL)

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)
"""Errors of network file systems that cannot sync a folder."""


def temporary_name(path: Path) -> Path:
    """Return a unique name beside `path`: `NAME.HOST-PID-RANDOM.part`, at most 255 bytes."""
    writer = f"{socket.gethostname()[:32]}-{os.getpid()}-{os.urandom(8).hex()}"
    return path.with_name(f"{path.name[:40]}.{writer}{TEMPORARY}")


def written_by(name: str) -> tuple[str, str, int] | None:
    """Split a name of `temporary_name` into file name, host and process; None for other names."""
    match = _TEMPORARY.fullmatch(name)
    return (match[1], match[2], int(match[3])) if match else None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the body ends without an error, and keeps its mode.

    A device or a pipe is opened instead: root would otherwise turn /dev/null into a file. Raises
    StorageError, also for an OSError of the body.
    """
    if is_special(path):
        with storage_errors(f"cannot write {path}"), path.open("wb") as special:
            yield special
        return
    temporary = temporary_name(path)
    with storage_errors(f"cannot write {path}"):
        try:
            with os.fdopen(os.open(temporary, NEW_FILE, 0o666), "wb") as file:
                try:
                    yield file
                    file.flush()
                    with suppress(FileNotFoundError):
                        os.fchmod(file.fileno(), stat.S_IMODE(path.lstat().st_mode))
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


def is_special(path: Path) -> bool:
    """Return True if `path` exists, or its target does, and is neither a file nor a folder (/dev/stdout)."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


SCRATCH_VARIABLE = "FEEDRATE_SCRATCH"
"""Environment variable with a folder in memory that the launcher shares with its ranks and removes."""
PREFIX_VARIABLE = "FEEDRATE_SEMAPHORES"
"""Environment variable with the prefix of semaphores between a rank and its workers (loader.torch)."""


MEMORY = Path("/dev/shm")
_ROOM = 2**25
"""Free bytes without which MEMORY is not used: Open MPI starts a rank only where 16 MiB are free, of which it
uses a tenth of a megabyte."""


def roomy_memory() -> Path | None:
    """Return MEMORY; None if it is missing, not writable or almost full: some containers give it 1 MB."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= _ROOM
    return MEMORY if roomy else None


def memory_folder() -> str | None:
    """Return a folder whose files are in memory; None, which is tempfile's default, if there is none."""
    if shared := os.environ.get(SCRATCH_VARIABLE):
        return shared
    return str(memory) if (memory := roomy_memory()) else None


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace the file `path` by `content`; text is written as UTF-8. Raises StorageError.

    Surrogates, which represent the bytes of a file name that is not UTF-8, are escaped as in JSON, so that
    reading the JSON restores them.
    """
    with replacing(path) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def open_plain(path: Path) -> BinaryIO:
    """Open the regular file `path` for reading. Raises OSError for a pipe, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        folder = stat.S_ISDIR(mode)
        raise OSError(errno.EISDIR if folder else errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


DOCUMENT_BYTES = 128 << 20
"""Largest document in bytes: a result of 10,000 hosts, the log of a rank of two million steps."""


def read_document(path: Path, most: int = DOCUMENT_BYTES, *, plain: bool = True) -> bytes:
    """Return the content of the file `path`, which may be a pipe unless `plain`.

    Every document is read here, so that none takes memory or time without limit. Raises SpecError if it has
    more than `most` bytes, OSError.
    """
    data = bytearray()
    with open_plain(path) if plain else path.open("rb") as file:
        while len(data) <= most and (piece := file.read(1 << 20)):
            data += piece
    if len(data) > most:
        raise SpecError(f"{path} has more than {show_bytes(most)}", "check whether it is the right file")
    return bytes(data)


def is_plain(root: Path, file: Path) -> bool:
    """Return True for a regular file below `root` that no link leads to. Raises OSError."""
    return file.is_file() and file.resolve() == root.resolve() / file.relative_to(root)


def refuse_existing(path: Path, force: bool) -> None:
    """Raise SpecError if `path` exists, unless `force`."""
    if path.exists() and not force:
        raise SpecError(f"{path} exists already", "choose another --out, or add --force")


def require_folder(folder: Path) -> None:
    """Raise StorageError without the folder: made in place of a missing mount, it is on another disk."""
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}", "mount the storage, or check the path")


def require_room(folder: Path, needed: int, what: str, hint: str) -> None:
    """Raise SpecError if `folder` has fewer free bytes than `what` needs, StorageError without the folder."""
    require_folder(folder)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SpecError(f"{what} need {show_bytes(needed)}, but {folder} has {show_bytes(free)} free", hint)


_MARKS = {
    "dataset": (("manifest.json", b'"feedrate": "dataset"'), (".feedrate/plan.json", b'"plan": ')),
    "result": (("run.json", b'"status": '),),
}
"""What the first bytes of feedrate's files in a folder say that it is."""


def folder_of(kind: Literal["dataset", "result"], path: Path) -> Path | None:
    """Return the folder of a dataset or a result of feedrate's that `path` is or lies in, if any."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        for name, mark in _MARKS[kind]:
            with suppress(OSError), open_plain(folder / name) as file:
                if mark in file.read(BLOCK):
                    return folder
    return None


def require_writable(path: Path) -> None:
    """Raise StorageError if the file `path` cannot be written, before any work is done for it."""
    if is_special(path):
        return
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
    """Sync the names in `folder` to the disk, if the file system can. Raises StorageError."""
    with storage_errors("cannot sync the folder", folder):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return  # a folder may be writable but not readable
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(descriptor)


class Closing:
    """A context manager that closes itself when its body ends."""

    __slots__ = ()

    def close(self) -> None:
        """Release what is held; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock, as its file records it."""

    host: str
    pid: int
    started: int = 0
    """Start of the process in clock ticks since boot, because process IDs are reused."""
    nonce: str = ""
    """Random text, so that no two holders are equal."""

    @classmethod
    def me(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), pid=pid, started=_start(pid), nonce=os.urandom(8).hex())

    @classmethod
    def named_in(cls, path: Path) -> Owner | None:
        """Return the owner that the lock in the file `path` names. Raises OSError."""
        with open_plain(path) as file:
            return cls.read(file.read(BLOCK))

    @classmethod
    def read(cls, data: bytes) -> Owner | None:
        """Parse the content of a lock; None if it is not feedrate's."""
        try:
            table = json.loads(data)
            known = {name: table[name] for name in ("host", "pid", "started", "nonce")}
        except (ValueError, RecursionError, KeyError, TypeError):
            return None
        types = {"host": str, "pid": int, "started": int, "nonce": str}
        if table.get("feedrate") != "lock" or any(type(known[name]) is not types[name] for name in types):
            return None
        return cls(**known)

    def line(self) -> bytes:
        """Return the content of a lock."""
        return json.dumps({"feedrate": "lock", **asdict(self)}).encode() + b"\n"

    @property
    def gone(self) -> bool:
        """True if the process was on this host and has ended; False for processes of other hosts."""
        return self.host == socket.gethostname() and _start(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _start(pid: int) -> int:
    """Return the start of a process in clock ticks since boot; 0 if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def in_use(path: Path) -> str:
    """Return who holds the lock in the file `path`, as text; empty if nobody does. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"{Owner.read(os.pread(descriptor, BLOCK, 0)) or 'another process'} is at work"
    except OSError:  # the file system has no locks
        pass
    finally:
        os.close(descriptor)
    return ""


class Lock:
    """A file that names its holder and is locked until `release`. The lock of a killed process is taken over.

    On a file system without locks the content decides: the user has to remove the lock of a killed process of
    another host.
    """

    def __init__(self, path: Path) -> None:
        """Make the file and its folder, and lock it.

        Raises BlockingIOError that names the holder, FileExistsError if the file is not a lock, OSError.
        """
        self.path = path
        self.before: Owner | None = None
        """The killed process whose lock this one took over."""
        while True:
            path.parent.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o644)
            if self._taken():
                return
            os.close(self._descriptor)

    def _taken(self) -> bool:
        """Lock the open file; return False if its last holder has removed it. Raises as __init__ does."""
        try:
            locks = self._flocked()
            if not os.fstat(self._descriptor).st_nlink:
                return False
            content = os.pread(self._descriptor, BLOCK, 0).strip(b"\0")  # a power cut may leave zeros
            self.before = Owner.read(content)
            if content and self.before is None:
                raise FileExistsError(errno.EEXIST, "it is no lock of feedrate; move it away", str(self.path))
            if self.before and not locks and not self.before.gone:
                raise BlockingIOError(
                    errno.EAGAIN, f"{self.before} is at work (if it is not, remove {self.path})"
                )
            line = Owner.me().line()
            os.pwrite(self._descriptor, line, 0)
            os.ftruncate(self._descriptor, len(line))
            os.fsync(self._descriptor)  # after a power cut it still names the owner of temporary files
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise
        return True

    def _flocked(self) -> bool:
        """Lock the open file; return False if its file system has no locks. Raises BlockingIOError."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = in_use(self.path) or "another process is at work"
            raise BlockingIOError(errno.EAGAIN, holder) from None
        except OSError:
            return False
        return True

    @property
    def held(self) -> bool:
        """True until `release`."""
        return self._descriptor >= 0

    def release(self, *, remove: bool = False) -> None:
        """Unlock the file, or remove it. A second call does nothing. Never raises."""
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
        if getattr(self, "_descriptor", -1) >= 0:  # not released: keep the content, which names this process
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


BLOCK = 4096
"""Most bytes of a lock to read."""


class RecordFile:
    """Appends records of `unit` bytes to a file. Each append is one write, so that threads may share it."""

    def __init__(self, path: Path, unit: int) -> None:
        """Open or make the file and truncate an incomplete last record. Raises OSError."""
        self._descriptor = os.open(path, _APPENDED, 0o666)
        size = os.fstat(self._descriptor).st_size
        if size % unit:
            os.ftruncate(self._descriptor, size - size % unit)

    def append(self, records: bytes) -> None:
        """Write records to the page cache, where they survive this process but not a power cut."""
        left = memoryview(records)
        while left:  # a short write means a full disk, and the next write raises the error
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Sync the file to the disk. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises OSError, on some file systems only here."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
