"""A folder of a mounted file system as a Store, in which datasets are made."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from emulator.config.storage import Cache
from emulator.errors import DatasetError, storage_errors
from emulator.files import (
    DOCUMENT_BYTES,
    NEW_FILE,
    Lock,
    Owner,
    RecordFile,
    read_document,
    sync_folder,
    temporary_name,
    write_whole,
)
from emulator.storage.base import Appender, Draft, Entry, Store, WriteOptions
from emulator.storage.posix import PosixStorage, probe_direct
from emulator.units import BLOCK_BYTES

REQUEST = 16 << 20
"""Most bytes of one write request."""

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_FOLDERS = 4096
"""Number of directories whose resolved path is cached."""
_ABSENT = (FileNotFoundError, NotADirectoryError)


class FolderStore(PosixStorage, Store):
    """Files below `root`, read from the storage and not from the page cache."""

    request = 1 << 20

    def __init__(self, root: Path) -> None:
        super().__init__(root, direct=False, cache="cold")
        self._real = lru_cache(_FOLDERS)(os.path.realpath)

    def __reduce__(self) -> tuple[object, ...]:
        return (FolderStore, (self.root.resolve(),))  # another process may have another working directory

    def __str__(self) -> str:
        return str(self.root)

    def for_ranks(self, *, direct: bool, cache: Cache) -> PosixStorage:
        return PosixStorage(self.root, direct=direct, cache=cache)

    def takes_direct(self) -> bool:
        return probe_direct(self.root)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """See Store.entries. Leaves out lost+found, which only root can read."""
        with storage_errors(f"cannot list {self}"):
            for name, entry in _walk(self.root, prefix):
                with suppress(FileNotFoundError):  # somebody removes files meanwhile
                    yield Entry(name, entry.stat(follow_symlinks=False).st_size)

    def names(self, prefix: str = "") -> Iterator[str]:
        with storage_errors(f"cannot list {self}"):
            for name, _ in _walk(self.root, prefix):
                yield name

    def size(self, name: str) -> int | None:
        status = self._stat(name)
        return status.st_size if status else None

    def oddity(self, name: str, inside: bool) -> str:
        with storage_errors("cannot stat a file", self.path(name)), suppress(*_ABSENT):
            status = os.lstat(self.path(name))
            linked = stat.S_ISLNK(status.st_mode)
            if linked:
                status = os.stat(self.path(name))  # noqa: PTH116  a Path takes four times as long
            if not stat.S_ISREG(status.st_mode):
                return f"is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no regular file')}"
            folder, _, leaf = self.path(name).rpartition("/")
            target = os.path.realpath(self.path(name)) if linked else f"{self._real(folder)}/{leaf}"
            if inside and not target.startswith(f"{self._real(self.root)}/".replace("//", "/")):
                return f"leads out of the dataset, to {target}"
        return ""

    def _stat(self, name: str) -> os.stat_result | None:
        with storage_errors("cannot stat a file", self.path(name)), suppress(*_ABSENT):
            return os.stat(self.path(name))  # noqa: PTH116  a Path takes four times as long
        return None

    def get(self, name: str, most: int = DOCUMENT_BYTES) -> bytes | None:
        path = self.root / name
        with storage_errors("cannot read a file", path), suppress(*_ABSENT):
            return read_document(path, most)
        return None

    def put(self, name: str, data: bytes | memoryview) -> None:
        path = self.root / name
        with storage_errors(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, bytes(data))

    def delete(self, names: Iterable[str]) -> None:
        with storage_errors("cannot remove a file", self.root):
            root = self._real(self.root)
            for name in names:
                # A link in place of a folder would lead the removal out of the dataset.
                folder = name.rpartition("/")[0]
                if self._real(self.root / folder) != f"{root}/{folder}".rstrip("/"):
                    raise OSError(errno.ELOOP, "a link leads there: move it away", str(self.root / name))
                (self.root / name).unlink(missing_ok=True)

    def draft(self, name: str, options: WriteOptions) -> FileDraft:
        return FileDraft(self.root / name, options)

    def appender(self, name: str, unit: int) -> Appender:
        return _FileAppender(self.root / name, unit)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[Owner | None]:
        """Lock the file `name`; remove it afterwards, and its folder if that is empty."""
        with storage_errors(f"cannot prepare {self}"):
            try:
                held = Lock(self.root / name)
            except BlockingIOError as error:
                raise DatasetError(f"{self} is in use: {error.strerror}", "wait for it") from None
        try:
            yield held.before
        finally:
            held.release(remove=True)
            self.clear([name.rpartition("/")[0]])

    def arrange(self, folders: Iterable[str]) -> None:
        with storage_errors(f"cannot prepare {self}"):
            for folder in folders:
                (self.root / folder).mkdir(exist_ok=True)

    def settle(self, folders: Iterable[str]) -> None:
        for folder in folders:
            sync_folder(self.root / folder)

    def clear(self, folders: Iterable[str]) -> None:
        for folder in folders:
            with suppress(OSError):  # it is not empty
                (self.root / folder).rmdir()

    def free(self) -> int | None:
        with storage_errors("cannot read the free space", self.root):
            return shutil.disk_usage(self._nearest()).free

    def free_files(self) -> int | None:
        """Return the free inodes; None if the file system has no limit."""
        with storage_errors("cannot read the free space", self.root):
            status = os.statvfs(self._nearest())
        return status.f_favail if status.f_files else None

    def _nearest(self) -> Path:
        """Return the root, or its nearest parent that exists."""
        here = self.root.absolute()
        return next(place for place in (here, *here.parents) if place.is_dir())


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """List the files below `root` whose names begin with `prefix`."""
    folder, slash, start = prefix.rpartition("/")
    inside = folder + slash
    with suppress(FileNotFoundError), os.scandir(root / folder) as entries:
        for entry in entries:
            name = inside + entry.name
            if not entry.name.startswith(start) or name == "lost+found":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, name + "/")
            else:
                yield name, entry


class FileDraft(Draft):
    """A file that is written under a temporary name, without O_DIRECT if the file system refuses it."""

    def __init__(self, path: Path, options: WriteOptions) -> None:
        """Raises OSError."""
        self._path = path
        self._sync = options.sync
        self._temporary = temporary_name(path)
        self._published = False
        self._direct = options.direct
        try:
            self._descriptor = os.open(self._temporary, NEW_FILE | self._direct * os.O_DIRECT, 0o666)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not self._direct:
                raise
            self._direct = False
            self._temporary.unlink(missing_ok=True)  # some kernels make the file before they refuse O_DIRECT
            self._descriptor = os.open(self._temporary, NEW_FILE, 0o666)

    def put(self, memory: memoryview, at: int) -> None:
        done = 0
        while done < len(memory):
            piece = memory[done : done + REQUEST]
            try:
                done += os.pwrite(self._descriptor, piece, at + done)
            except OSError as error:
                if error.errno not in _UNSUPPORTED or not self._direct:
                    raise
                # Some file systems refuse O_DIRECT only when they write.
                self._direct = False
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def end(self, size: int) -> None:
        if size % BLOCK_BYTES:
            os.ftruncate(self._descriptor, size)

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            # Forgotten before the close, which may fail: its number may then be another file's.
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def publish(self) -> None:
        if self._sync:
            os.fsync(self._descriptor)
        self._close_file()
        try:
            self._temporary.replace(self._path)
        except IsADirectoryError:
            raise DatasetError(f"a folder is in the way of the sample {self._path}", "move it away") from None
        self._published = True

    def close(self) -> None:
        with suppress(OSError):
            self._close_file()
        if not self._published:
            with suppress(OSError):
                self._temporary.unlink()


class _FileAppender(RecordFile, Appender):
    """A RecordFile as an Appender."""
