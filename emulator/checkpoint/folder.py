"""A folder of checkpoints, in which what is unfinished never looks complete.

    DIR/feedrate-checkpoints/checkpoint-000007/              complete: all files and the marker, on the disk
    DIR/feedrate-checkpoints/checkpoint-000008.4f1c.part/    being written, or left by a run that was killed

A checkpoint is written into a `.part` folder. When every rank has synced its files, rank 0 writes the marker
`checkpoint.json` with every file's name, size and checksum, syncs it and the folder, and renames the folder:
one atomic step. It is removed the other way round: renamed to `.part` first. So at any moment a checkpoint is
complete or has a name that says that it is not, whoever is killed; the next run removes such leftovers.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.checkpoint.files import Written
from emulator.errors import DatasetError, SpecError, StorageError, storage_error
from emulator.record.codec import from_plain, to_plain
from emulator.storage.files import sync_folder, write_small

FOLDER = "feedrate-checkpoints"
"""Folder below DIR with the checkpoints."""
MARKER = "checkpoint.json"
PART = ".part"
_LOCK = ".lock"
_COMPLETE = re.compile(r"checkpoint-(\d{6,})")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a complete checkpoint says of itself."""

    model: str
    """Name of the model."""
    ranks: int
    """Ranks that wrote it."""
    data: int
    """Copies of the model: its data parallelism."""
    scale: str
    """Share of the real sizes, as a fraction."""
    seed: int
    """What its bytes were made from."""
    files: tuple[tuple[Written, ...], ...]
    """For each rank its files."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for files in self.files for one in files)


def name_of(number: int) -> str:
    """`checkpoint-000007`."""
    return f"checkpoint-{number:06d}"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Make the folder, and keep other runs out of it, as far as the file system has locks.

    Raises SpecError when another run is in it, StorageError.
    """
    try:
        descriptor = _lock(root)
    except BlockingIOError:
        raise SpecError(
            f"another run writes checkpoints in {root}", "wait for it, or choose another folder"
        ) from None
    except OSError as error:
        raise storage_error(error, "cannot make the folder of checkpoints") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(root: Path) -> int:
    """A descriptor that holds the lock. Raises BlockingIOError where another one does, OSError."""
    while True:
        root.mkdir(exist_ok=True)
        descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # else its last holder removed it since it was opened
                return descriptor
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)


def complete(root: Path) -> list[int]:
    """Numbers of the checkpoints that are complete, ascending. Raises StorageError."""
    found = (_COMPLETE.fullmatch(name) for name in _names(root))
    numbers = sorted(int(match[1]) for match in found if match)
    return [number for number in numbers if (root / name_of(number) / MARKER).is_file()]


def unfinished(root: Path) -> list[Path]:
    """Folders that runs left behind that were killed. Raises StorageError."""
    return [root / name for name in _names(root) if name.startswith("checkpoint-") and name.endswith(PART)]


def _names(root: Path) -> list[str]:
    try:
        return sorted(path.name for path in root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, "cannot look into the folder of checkpoints") from None


def begin(root: Path, number: int, run: str) -> Path:
    """The folder that checkpoint `number` is written into, new and empty. Raises StorageError."""
    part = root / f"{name_of(number)}.{run}{PART}"
    try:
        part.mkdir()
    except OSError as error:
        raise storage_error(error, "cannot begin a checkpoint") from None
    sync_folder(root)
    return part


def commit(part: Path, number: int, marker: Marker) -> Path:
    """Make what is in `part` the complete checkpoint `number`. Raises StorageError.

    All files of all ranks must be on the disk.
    """
    final = part.parent / name_of(number)
    try:
        write_small(part / MARKER, json.dumps(to_plain(marker)).encode() + b"\n")
        part.rename(final)
    except OSError as error:
        raise storage_error(error, "cannot complete the checkpoint") from None
    sync_folder(final.parent)
    return final


def read_marker(root: Path, number: int) -> Marker:
    """What the complete checkpoint `number` says of itself. Raises DatasetError, StorageError."""
    path = root / name_of(number) / MARKER
    try:
        marker: Marker = from_plain(Marker, json.loads(path.read_bytes()))
    except (ValueError, RecursionError, SpecError) as error:
        raise DatasetError(f"{path} cannot be read ({error})", "the checkpoint is damaged") from None
    except OSError as error:
        raise storage_error(error, "cannot read the checkpoint's marker") from None
    for name in (one.name for files in marker.files for one in files):
        if not re.fullmatch(r"[\w-]+", name):
            raise DatasetError(f"{path} names a file {name!r}", "the checkpoint is damaged")
    return marker


def remove(path: Path) -> None:
    """Remove a checkpoint, complete or not; it stops looking complete first. Raises StorageError."""
    try:
        if not path.name.endswith(PART):
            path = path.rename(path.with_name(f"{path.name}.removed{PART}"))
            sync_folder(path.parent)
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "cannot remove a checkpoint") from None


def clean(root: Path) -> list[str]:
    """Remove what killed runs left behind; the names. Raises StorageError."""
    found = unfinished(root)
    for path in found:
        remove(path)
    return [path.name for path in found]


def leave(root: Path) -> None:
    """Remove the folder itself when nothing is in it any more but the lock. Never raises."""
    try:
        if _names(root) == [_LOCK]:
            (root / _LOCK).unlink()
            root.rmdir()
    except (OSError, StorageError):
        return
