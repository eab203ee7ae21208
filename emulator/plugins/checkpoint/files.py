"""Checkpoints in a folder, which are committed atomically and checked for damage when they are read.

    DIR/feedrate-checkpoints/checkpoint-000007/              complete: all files and the marker are durable
    DIR/feedrate-checkpoints/checkpoint-000008.4f1c.part/    being written, or left by a killed run

A checkpoint is written into a `.part` folder. When every rank has synced its files, rank 0 writes the marker
`checkpoint.json` with every file's name, size and checksum, syncs it and the folder, and atomically renames
the folder. To remove a checkpoint, it is renamed to `.part` first. So an incomplete checkpoint always has a
`.part` name, whichever process is killed; the next run removes it, and complete ones that a run that died was
to remove.

The bytes of a file are AES-128 in counter mode, keyed by run, checkpoint, rank and file, so that no storage
can compress or deduplicate them. A few threads each fill a block, compute its checksum while it is in the CPU
cache, and write it: requests of a rank overlap, and a shard of any size uses the same few buffers.
"""

from __future__ import annotations

import hashlib
import json
import queue
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from emulator.config.checkpoint import Shard
from emulator.config.reader import Source, build, read_json, to_plain
from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import SLACK
from emulator.dataset.grow import RandomSource
from emulator.errors import DatasetError, SpecError, StorageError, storage_error, storage_errors
from emulator.files import Closing, Lock, Owner, is_plain, sync_folder, write_whole, written_by
from emulator.notes import doing
from emulator.record.out import require_apart
from emulator.storage.base import WriteOptions
from emulator.storage.folder import FileDraft
from emulator.storage.posix import PosixStorage, aligned_buffer, padded
from emulator.units import BLOCK_BYTES

FOLDER = "feedrate-checkpoints"
"""Folder below DIR with the checkpoints."""
MARKER = "checkpoint.json"
PART = ".part"
_LOCK = ".lock"
_COMPLETE = re.compile(r"checkpoint-(\d{6,})")
_UNFINISHED = re.compile(rf"checkpoint-\d{{6,}}\.[\w-]+{re.escape(PART)}")
_SHARD = re.compile(r"[\w-]+-(model|optimiser)")
_OWNER = "owner.json"
"""File with the writer of an unfinished checkpoint. A folder without it is not feedrate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file of a complete checkpoint, as in its marker."""

    name: str
    size: int
    """Bytes."""
    crc: int
    """CRC-32 of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of checkpoint.json, which makes a checkpoint complete."""

    model: str
    ranks: int
    data: int
    """Copies of the model: its data parallelism."""
    scale: str
    """Scale of the sizes, as a fraction."""
    seed: int
    files: tuple[tuple[WrittenFile, ...], ...]
    """The files of each rank."""
    keep: bool = True
    """False if the run that wrote it was to remove it: then the next run does, if that one died."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for files in self.files for file in files)


def folder_name(number: int) -> str:
    """Return `checkpoint-000007` for 7."""
    return f"checkpoint-{number:06d}"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Make the folder and hold its lock during the body; leave no folder without a checkpoint.

    Raises SpecError if another run holds the lock, StorageError.
    """
    require_apart(root, "choose another folder")
    with storage_errors("cannot make the folder of checkpoints", root):
        try:
            lock = Lock(root / _LOCK)
        except BlockingIOError as error:
            raise SpecError(
                f"another run writes checkpoints in {root}: {error.strerror}",
                "wait for it, or choose another folder",
            ) from None
    with lock:
        try:
            yield
        finally:
            with suppress(OSError, StorageError):  # the storage has failed, which has been reported
                if _names(root) == [_LOCK]:
                    (root / _LOCK).unlink()
                    root.rmdir()


def complete(root: Path) -> list[int]:
    """Return the numbers of the complete checkpoints, ascending. Raises StorageError."""
    matches = [_COMPLETE.fullmatch(name) for name in _names(root) if (root / name / MARKER).is_file()]
    return sorted(int(match[1]) for match in matches if match)


def unfinished(root: Path) -> list[Path]:
    """Return the folders of killed runs. Raises StorageError."""
    return [root / name for name in _names(root) if _UNFINISHED.fullmatch(name)]


def _names(root: Path) -> list[str]:
    with storage_errors("cannot list the folder of checkpoints", root):
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []


def begin(root: Path, number: int, run: str) -> Path:
    """Make the folder for writing checkpoint `number`. Raises StorageError."""
    part = root / f"{folder_name(number)}.{run}{PART}"
    with storage_errors("cannot begin a checkpoint", part):
        part.mkdir()
        (part / _OWNER).write_bytes(Owner.me().line())
    sync_folder(root)
    return part


def commit(part: Path, number: int, marker: Marker) -> None:
    """Turn the folder `part` into the complete checkpoint `number`. Raises StorageError.

    All files of all ranks must be durable.
    """
    # The name says that it is complete, so it comes last.
    write_whole(part / MARKER, json.dumps(to_plain(marker, named=True)) + "\n")
    with storage_errors("cannot complete the checkpoint", part):
        (part / _OWNER).unlink(missing_ok=True)
        part.rename(part.parent / folder_name(number))
    sync_folder(part.parent)


def read_marker(root: Path, number: int) -> Marker:
    """Read the marker of the complete checkpoint `number`. Raises DatasetError, StorageError."""
    path = root / folder_name(number) / MARKER
    try:
        marker = build(Marker, read_json(path), Source(str(path)))
    except SpecError as error:
        raise DatasetError(error.what, "the checkpoint is damaged") from None
    for name in (file.name for files in marker.files for file in files):
        if not re.fullmatch(r"[\w-]+", name):
            raise DatasetError(f"{path} lists a file {name!r}", "the checkpoint is damaged")
    return marker


def remove(path: Path) -> None:
    """Remove a checkpoint, complete or not. It is renamed first, so that it never looks complete.

    It stays if anything in it may not be feedrate's. Raises StorageError.
    """
    with storage_errors("cannot remove a checkpoint", path), suppress(FileNotFoundError):
        if path.is_symlink() or not _only_ours(path):
            return
        if not path.name.endswith(PART):
            path = path.rename(path.with_name(f"{path.name}.removed{PART}"))
            sync_folder(path.parent)
        # What names its writer goes last: an interrupted removal is continued by the next run.
        for file in sorted(path.iterdir(), key=lambda file: file.name in (MARKER, _OWNER)):
            file.unlink(missing_ok=True)
        path.rmdir()


def _only_ours(path: Path) -> bool:
    """Return True if a folder has no bytes, or only plain files that its writer or marker accounts for."""
    files = list(path.iterdir())
    if not all(is_plain(path, file) for file in files):
        return False
    sizes = {file.name: file.stat().st_size for file in files}
    shards = sizes.keys() - {MARKER, _OWNER}
    if not shards and not any(sizes.values()):
        return True  # its writer was killed before it wrote its name; nothing is lost
    if _OWNER in sizes and Owner.named_in(path / _OWNER) is not None:
        return all(map(_is_of_a_writer, shards))
    written = _sizes_in_marker(path)
    return written is not None and all(written.get(name) == sizes[name] for name in shards)


def _sizes_in_marker(path: Path) -> dict[str, int] | None:
    """Return the bytes of each file that a checkpoint's marker names; None if there is no valid marker."""
    try:
        marker = build(Marker, read_json(path / MARKER))
    except (SpecError, StorageError):
        return None
    return {file.name: file.size for files in marker.files for file in files}


def _is_of_a_writer(name: str) -> bool:
    """Return True for the name of a shard, and of a temporary file of a shard or a marker."""
    temporary = written_by(name)
    final = temporary[0] if temporary else name
    return final == MARKER or _SHARD.fullmatch(final) is not None


def clean(root: Path, *, unfinished_too: bool = True) -> list[str]:
    """Remove what runs that died have left, and return its names. Raises StorageError.

    That is complete checkpoints whose marker says that they were not to be kept, and every unfinished one:
    no rank may write to it any more.
    """
    left = unfinished(root) if unfinished_too else []
    for number in complete(root):
        with suppress(DatasetError):  # a damaged marker, or another program's
            if not read_marker(root, number).keep:
                left.append(root / folder_name(number))
    for path in left:
        remove(path)
    return [path.name for path in left if not path.exists()]


class ShardIO(Closing):
    """The I/O threads and buffers of a rank, which all blocks share."""

    def __init__(self, workers: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.done = 0
        """Bytes of all blocks read or written so far."""
        self._buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(workers):
            buffer = aligned_buffer(block_bytes + max(SLACK, BLOCK_BYTES))
            _fill(buffer, block_bytes, bytes(32), 0)  # touch its pages, and load the cipher
            self._buffers.put(buffer)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="checkpoint")

    @contextmanager
    def buffer(self) -> Iterator[memoryview]:
        """Lend a buffer with room for a block and its padding."""
        buffer = self._buffers.get()
        try:
            yield buffer
        finally:
            self._buffers.put(buffer)

    def each_block(self, size: int, action: Callable[[int, int], int]) -> int:
        """Call `action(offset, length)` on every block of `size` bytes; combine the returned checksums.

        After the first error, blocks that have not begun are skipped. Raises as `action` does.
        """
        blocks = [(at, min(self.block_bytes, size - at)) for at in range(0, size, self.block_bytes)]
        waiting = [self._pool.submit(action, at, length) for at, length in blocks]
        try:
            sums = []
            for future, (_, length) in zip(waiting, blocks, strict=True):
                sums.append(future.result())
                self.done += length
        except BaseException:
            for future in waiting:
                future.cancel()
            wait(waiting)  # no thread may write to the file after this
            raise
        return crc32_join((crc, length) for crc, (_, length) in zip(sums, blocks, strict=True))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def key_of(seed: int, number: int, rank: int, name: str) -> bytes:
    """Return an AES key of 32 bytes that is unique to the file, checkpoint and run."""
    return hashlib.sha256(f"feedrate checkpoint {seed} {number} {rank} {name}".encode()).digest()


def write_shard(folder: Path, shard: Shard, key: bytes, io: ShardIO, direct: bool) -> WrittenFile:
    """Write one file and sync it before it gets its name. Raises StorageError."""
    path = folder / shard.name
    try:
        with FileDraft(path, WriteOptions(direct=direct, sync=True)) as target:

            def write(at: int, length: int) -> int:
                with io.buffer() as buffer:
                    crc = _fill(buffer, length, key, at // io.block_bytes)
                    end = padded(length, BLOCK_BYTES)
                    buffer[length:end] = bytes(end - length)
                    target.put(buffer[:end], at)
                return crc

            crc = io.each_block(shard.size, write)
            target.end(shard.size)
            target.publish()
    except OSError as error:
        error.filename = str(path)
        raise storage_error(error, "cannot write the checkpoint") from None
    return WrittenFile(name=shard.name, size=shard.size, crc=crc)


def _fill(buffer: memoryview, length: int, key: bytes, block: int) -> int:
    """Fill the head of `buffer` with the first `length` bytes of a block, and return their CRC-32."""
    source = RandomSource(key, block)
    source.into(buffer, length)
    return source.crc


def read_shard(storage: PosixStorage, folder: str, written: WrittenFile, io: ShardIO) -> None:
    """Read one whole file and compare its checksum.

    Raises DatasetError if a byte differs or is missing, StorageError if it cannot be read.
    """
    path = storage.root / folder / written.name
    if not path.is_file():
        raise _damaged(path, "it is missing")
    name = f"{folder}/{written.name}"
    with doing("read", storage.path(name)), storage.open(name) as blob:
        if blob.size != written.size:
            raise _damaged(path, f"it has {blob.size} bytes, but {written.size} were written")

        def read(at: int, length: int) -> int:
            with io.buffer() as buffer:
                done = blob.read_into(at, buffer[: padded(length, blob.alignment)])
                if done < length:
                    raise _damaged(path, f"it ends at byte {at + done}")
                return crc32(buffer[:length])

        crc = io.each_block(written.size, read)
    if crc != written.crc:
        raise _damaged(path, f"its checksum is {crc:08x}, but {written.crc:08x} was written")


def _damaged(path: Path, why: str) -> DatasetError:
    return DatasetError(f"{path} is damaged: {why}", "the storage or another program changed it")
