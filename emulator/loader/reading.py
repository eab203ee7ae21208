"""Read samples: whole files, or their parts of files of many, in requests of at most a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from emulator.calls import Calls
from emulator.config.workload import AccessSpec
from emulator.dataset.formats.base import Format, Index
from emulator.dataset.manifest import Manifest
from emulator.errors import DAMAGE, damaged
from emulator.loader.played import Player
from emulator.order import Read
from emulator.storage.base import HEAD, SKIM, Blob, Cancelled, Storage, closed, cut_short, wrong_size
from emulator.storage.batches import BatchReader, Engine, Pieces
from emulator.storage.posix import PosixStorage, aligned_buffer, padded
from emulator.units import BLOCK_BYTES

ALL = AccessSpec()
"""Access to whole samples in random order."""
OPEN_FILES = 64
"""Most files of many samples that a reader keeps open: closing one evicts its pages, and with them the
kernel's read-ahead."""
_SIZES_KEPT = 2**18
"""Most files of which a rank keeps the sizes in memory: 2 MB."""
_INDICES_KEPT = 64
"""Most file indices kept in memory: that of a Parquet file is as large as its footer."""


def request(blob: Blob, offset: int, length: int, buffer: memoryview, cancelled: Cancelled) -> memoryview:
    """Read `length` bytes at `offset` in one request; return a view of `buffer`.

    `buffer` has room for whole blocks of `blob.alignment` bytes. If it is smaller, the view has only the
    first bytes, of which HEAD are valid. Raises DatasetError if the file ends before, StorageError for a
    failed read and if `cancelled()`.
    """
    if cancelled():
        raise closed()
    before = offset % blob.alignment
    aligned = padded(before + length, blob.alignment)
    done = blob.read_into(offset - before, buffer[:aligned], aligned)
    if done < before + length:
        raise cut_short(blob.name, offset - before + done, blob.size)
    return buffer[before : before + length]


@dataclass(eq=False, repr=False)
class Reader:
    """Reads every byte of samples. Thread-safe; a pickled copy knows nothing of the files.

    Its methods raise DatasetError for a missing, truncated or corrupt file, StorageError for a failed read
    and if `cancelled()`.
    """

    storage: Storage
    samples: Manifest
    form: Format
    block: int
    """Bytes per request, a multiple of BLOCK_BYTES."""
    arrays: bool = False
    """True if a loader of tensors loads the samples' arrays with the format's library."""
    access: AccessSpec = ALL
    """How samples are read: the columns of a file of many."""
    calls: Calls | None = None
    """Recorded batches to play instead."""

    def __post_init__(self) -> None:
        self.in_parts = self.samples.samples_per_file > 1 or bool(self.access.columns)
        """True if a sample is a part of a file, where the file's index says."""
        self._sizes: NDArray[np.int64] | None = None
        self._indices: dict[int, Index] = {}  # in the order in which they were read
        self._lock = threading.Lock()
        self._making = [threading.Lock() for _ in range(64)]  # no two threads read the same footer

    def __reduce__(self) -> tuple[object, ...]:
        return (Reader, tuple(getattr(self, field.name) for field in fields(self)))

    def player(self, *, sleeps: bool) -> Player:
        """Return a player of the recorded batches."""
        assert self.calls is not None
        return Player(self.storage, self.samples, self.calls, sleeps=sleeps)

    def room(self) -> int:
        """Return the size of a buffer for a block, the head of its file, and the pages around its ends."""
        return self.block + 3 * HEAD

    def size(self, index: int) -> int:
        """Return the bytes of sample `index`, in all its files."""
        return int(self.samples.sizes[index])

    def sample_bytes(self) -> int:
        """Return the mean bytes that are read for a sample, estimated from the first 64 files; at least 1."""
        mean = int(np.mean(self.samples.sizes[:64])) // self.samples.samples_per_file
        return max(1, mean)

    # ---- Batches of reads, of files on a mount.

    def engine(self, depth: int, batch: int) -> Engine | None:
        """Return what reads batches of so many samples, `depth` at a time; None: blobs do."""
        in_one_file = len(self.form.parts(self.samples.names[0])) == 1
        if self.calls is not None or not isinstance(self.storage, PosixStorage) or not in_one_file:
            return None
        return self.storage.engine(depth, batch, self.sample_bytes())

    def batches(self, engine: Engine, depth: int, files: int) -> BatchReader:
        """Return a reader of batches for the calling thread, which keeps at most `files` files open."""
        assert isinstance(self.storage, PosixStorage)
        return BatchReader(self.storage, engine, depth, self.block, files)

    def pieces(self, reads: Sequence[Read]) -> Pieces:
        """Return the pieces of files that `reads` need."""
        if not self.in_parts:
            files = [read.file for read in reads]
            table = np.zeros((len(files), 4), np.int64)
            table[:, 0] = -1
            table[:, 2] = table[:, 3] = self._sizes_of(files)
            return Pieces([self.samples.names[file] for file in files], table)
        names: list[str] = []
        rows: list[tuple[int, int, int, int]] = []
        for read in reads:
            extents = self._extents(read)
            rows += [(0, offset, length, self.size(read.file)) for offset, length in extents]
            names += [self.samples.names[read.file]] * len(extents)
        return Pieces(names, np.array(rows, np.int64).reshape(-1, 4))

    def _sizes_of(self, files: Sequence[int]) -> NDArray[np.int64] | Sequence[int]:
        """Return the bytes of files, from memory where those of all files take little."""
        sizes = self.samples.sizes
        if len(sizes) > _SIZES_KEPT:
            return [int(sizes[file]) for file in files]
        if self._sizes is None:
            self._sizes = np.asarray(sizes[:])
        return self._sizes[files]

    # ---- Blobs: objects, shaped storage, samples of several files.

    def fetch(self, read: Read, buffer: memoryview, cancelled: Cancelled) -> int:
        """Read `read` through `buffer` of `room()` bytes, discard it, and return the number of bytes."""
        for _ in self.stream(read, buffer, cancelled, keep=False):
            pass
        if not self.in_parts:
            return self.size(read.file)
        return sum(length for _, length in self._extents(read))

    def stream(
        self, read: Read, buffer: memoryview, cancelled: Cancelled, keep: bool = True
    ) -> Iterator[memoryview]:
        """Yield the bytes of `read` by request, as views of `buffer` that are valid until the next one.

        Without `keep`, only the first HEAD bytes of each request are valid.
        """
        if not self.in_parts:
            yield from self._whole(read.file, buffer, cancelled, keep)
            return
        extents = self._extents(read)
        if extents:  # a stream that has not reached its next block reads nothing
            with self.open(read.file) as blob:
                for offset, length in self._requests(extents):
                    yield request(blob, offset, length, buffer, cancelled)

    def _whole(
        self, index: int, buffer: memoryview, cancelled: Cancelled, keep: bool
    ) -> Iterator[memoryview]:
        parts = self.form.parts(self.samples.names[index])
        total = 0
        for part in parts:
            # Of several files the manifest has only the total size.
            with self.storage.open(part, self.size(index) if len(parts) == 1 else None) as blob:
                total += blob.size
                if part == parts[-1] and total != self.size(index):
                    raise wrong_size(blob.name, total, self.size(index))
                # Discarded bytes overwrite each other. Not with O_DIRECT: a device may write a request in any
                # order, and not every driver accepts the same page twice.
                skims = not keep and blob.alignment == 1
                room = buffer[: HEAD + SKIM] if skims else buffer
                for offset, length in self._requests([(0, blob.size)]):
                    data = request(blob, offset, length, room, cancelled)
                    if offset == 0:
                        self.form.check_head(data[:HEAD] if skims else data, blob.size, part)
                    yield data

    def open(self, file: int) -> Blob:
        """Open a file of many samples."""
        blob = self.storage.open(self.samples.names[file], self.size(file))
        if blob.size != self.size(file):
            blob.close()
            raise wrong_size(blob.name, blob.size, self.size(file))
        return blob

    def _requests(self, extents: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Divide `extents`, pairs of offset and length, into requests of at most a block."""
        for offset, size in extents:
            for at in range(offset, offset + size, self.block):
                yield at, min(self.block, offset + size - at)

    def _extents(self, read: Read) -> Sequence[tuple[int, int]]:
        """Return where the samples are; a file's index is read again after _INDICES_KEPT other files."""
        index = self._indices.get(read.file)
        if index is None:
            with self._making[read.file % len(self._making)]:
                index = self._indices.get(read.file) or self._read_index(read.file)
            with self._lock:
                self._indices[read.file] = index
                if len(self._indices) > _INDICES_KEPT:
                    del self._indices[next(iter(self._indices))]
        return index.extents(read, self.block)

    def _read_index(self, file: int) -> Index:
        name = self.samples.names[file]
        with self.open(file) as blob:
            # Never cancelled: h5py leaks a file that it fails to open, and then crashes at exit.
            def peek(offset: int, length: int) -> memoryview:
                buffer = aligned_buffer(padded(length) + 2 * BLOCK_BYTES)
                return request(blob, offset, length, buffer, lambda: False)

            try:
                samples, columns = self.samples.samples_per_file, self.access.columns
                return self.form.index(peek, blob.size, name, samples, columns)
            except DAMAGE as error:
                raise damaged(name, error) from None
