"""Files on their way to storage: under a temporary name, O_DIRECT where it works, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator.errors import DatasetError
from emulator.files import NEW_FILE, TEMPORARY, sync_folder, temporary_name, write_whole
from emulator.storage.base import Entry, WriteOptions
from emulator.storage.posix import DIRECT_ALIGNMENT, PosixStorage

REQUEST = 16 << 20
"""Bytes of one write request."""

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)


class Target:
    """A file that is written under a temporary name. A context manager: not published, it is removed."""

    def __init__(self, path: Path, options: WriteOptions) -> None:
        """Raises OSError."""
        self._path = path
        self._sync = options.sync
        self._temporary = temporary_name(path)
        self._descriptor = -1
        try:
            self._direct = options.direct
            flags = NEW_FILE | (os.O_DIRECT if options.direct else 0)
            self._descriptor = os.open(self._temporary, flags, 0o666)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not options.direct:
                raise
            self._direct = False
            self._temporary.unlink(missing_ok=True)  # some kernels make the file before they refuse O_DIRECT
            self._descriptor = os.open(self._temporary, NEW_FILE, 0o666)

    def put(self, memory: memoryview, at: int) -> None:
        """As Draft.put. Raises OSError."""
        done = 0
        while done < len(memory):
            piece = memory[done : done + REQUEST]
            try:
                done += os.pwrite(self._descriptor, piece, at + done)
            except OSError as error:
                if error.errno not in _UNSUPPORTED or not self._direct:
                    raise
                self._direct = False
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def end(self, size: int) -> None:
        """As Draft.end. Raises OSError."""
        if size % DIRECT_ALIGNMENT:
            os.ftruncate(self._descriptor, size)
        if self._sync:
            os.fsync(self._descriptor)
        self._close()

    def publish(self) -> None:
        """As Draft.publish. Raises OSError."""
        self._temporary.replace(self._path)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._close()
        if error is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()


class FileAppender:
    """Records of `unit` bytes at the end of a file. Each is one write, so that threads may share it."""

    def __init__(self, path: Path, unit: int) -> None:
        """Opens the file and cuts off a torn record. Raises OSError."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        torn = os.fstat(self._descriptor).st_size % unit
        if torn:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - torn)

    def append(self, record: bytes) -> None:
        """As Appender.append. Raises OSError."""
        written = os.write(self._descriptor, record)
        if written != len(record):  # the disk is full: the torn record counts for nothing
            os.write(self._descriptor, record[written:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


# ---- A folder of a mounted file system as a Store: where a dataset is made.


_IGNORED = ("lost+found",)


class FolderStore(PosixStorage):
    """Files below `root`, read as they are on storage and not as the page cache has them.

    A copy that travels to another process has an absolute `root`: its working directory may be another.
    """

    request = 1 << 20

    def __init__(self, root: Path) -> None:
        super().__init__(root, direct=False, cache="cold")

    def __reduce__(self) -> tuple[object, ...]:
        return (FolderStore, (self.root.resolve(),))

    def __str__(self) -> str:
        return str(self.root)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """As Store.entries; what is in lost+found is nobody's. Raises OSError."""
        folder, _, start = prefix.rpartition("/")
        for name, entry in _entries(self.root / folder, folder + "/" if folder else "", start):
            with suppress(FileNotFoundError):
                yield Entry(name, entry.stat(follow_symlinks=False).st_size)

    def size(self, name: str) -> int | None:
        """As Store.size. Raises OSError."""
        try:
            return (self.root / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def get(self, name: str) -> bytes | None:
        """As Store.get. Raises OSError."""
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, data: bytes) -> None:
        """As Store.put: on the disk before it gets its name. Raises StorageError, OSError."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)

    def delete(self, names: Iterable[str]) -> None:
        """As Store.delete. Raises OSError."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def target(self, name: str, options: WriteOptions) -> Target:
        """As Store.target. Raises OSError."""
        return Target(self.root / name, options)

    def appender(self, name: str, unit: int) -> FileAppender:
        """As Store.appender. Raises OSError."""
        return FileAppender(self.root / name, unit)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """As Store.exclusive, by a lock on the file `name`. Raises DatasetError, OSError."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(lock, self.root)
            yield
        finally:
            os.close(lock)

    def arrange(self, folders: Iterable[str]) -> None:
        """As Store.arrange. Raises OSError."""
        for folder in folders:
            (self.root / folder).mkdir(exist_ok=True)
        self._tidy()

    def settle(self, folders: Iterable[str]) -> None:
        """As Store.settle. Raises StorageError, OSError."""
        for folder in folders:
            sync_folder(self.root / folder)
        self._tidy()

    def clear(self, folders: Iterable[str]) -> None:
        """As Store.clear."""
        for folder in folders:
            with suppress(OSError):  # somebody else's files are in it
                (self.root / folder).rmdir()

    def free(self) -> int | None:
        """As Store.free; of the nearest folder that is there. Raises OSError."""
        here = self.root.absolute()
        return shutil.disk_usage(next(place for place in (here, *here.parents) if place.is_dir())).free

    def _tidy(self) -> None:
        """Remove what a killed worker left half-written."""
        for name, _ in _entries(self.root, "", ""):
            if name.endswith(TEMPORARY):
                (self.root / name).unlink(missing_ok=True)


def _entries(folder: Path, inside: str, start: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files in `folder` whose names begin with `start`, and all in folders that do."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            name = inside + entry.name
            if not entry.name.startswith(start) or name in _IGNORED:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), name + "/", "")
            else:
                yield name, entry


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatasetError(f"another feedrate generate is at work in {folder}", "wait for it") from None
    except OSError:
        return  # a file system without locks
