"""A folder of a mounted file system as a Store: where a dataset is made."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emulator.errors import DatasetError
from emulator.storage.base import Entry, WriteOptions
from emulator.storage.files import TEMPORARY, FileAppender, Target, sync_folder, write_small
from emulator.storage.posix import PosixStorage

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
        """As Store.put: on the disk before it gets its name. Raises OSError."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_small(path, data)

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
        """As Store.settle. Raises OSError."""
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
