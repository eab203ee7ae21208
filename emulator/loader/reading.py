"""Readers of whole files, or of single samples in files, in requests of at most a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.calls import Calls
from emulator.config.workload import AccessSpec
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import Format, Index
from emulator.dataset.manifest import Manifest
from emulator.dataset.table import Column
from emulator.errors import DAMAGE, DatasetError, damaged
from emulator.loader.played import Player
from emulator.order import Read
from emulator.storage.base import HEAD, SKIM, Blob, Cancelled, Storage, closed, cut_short, wrong_size
from emulator.storage.batches import Engine, Pieces
from emulator.storage.posix import aligned_buffer, padded
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
class WholeReader:
    """Reads every byte of files with one sample each, in any format.

    Its methods raise DatasetError for a missing, truncated or corrupt file, StorageError for a failed read
    and if `cancelled()`.
    """

    storage: Storage
    samples: Manifest
    form: Format
    block: int
    """Bytes per request, a multiple of BLOCK_BYTES."""
    checksums: Column | None = None
    """CRC-32 of each sample to compare; None to compare nothing."""
    arrays: bool = False
    """True if a loader of tensors loads the samples' arrays with the format's library."""
    access: AccessSpec = ALL
    """How samples are read: `columns` applies to parts of files."""
    calls: Calls | None = None
    """Recorded batches to play instead."""
    _sizes: NDArray[np.int64] | None = None

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

    def engine(self, depth: int, batch: int) -> Engine | None:
        """Return what reads batches of so many samples, `depth` at a time; None: they are read through blobs.

        Also None with checksums, and for samples of several files.
        """
        if self.checksums is not None or len(self.form.parts(self.samples.names[0])) > 1:
            return None
        return self.storage.engine(depth, batch, self.sample_bytes())

    def pieces(self, reads: Sequence[Read]) -> Pieces:
        """Return the pieces of files that `reads` need. Raises DatasetError, StorageError."""
        files = [read.file for read in reads]
        table = np.zeros((len(files), 4), np.int64)
        table[:, 0] = -1
        table[:, 2] = table[:, 3] = self._sizes_of(files)
        names = self.samples.names
        return Pieces([names[file] for file in files], table)

    def _sizes_of(self, files: Sequence[int]) -> NDArray[np.int64] | Sequence[int]:
        """Return the bytes of files, from memory where those of all files take little."""
        sizes = self.samples.sizes
        if len(sizes) > _SIZES_KEPT:
            return [int(sizes[file]) for file in files]
        if self._sizes is None:
            self._sizes = np.asarray(sizes[:])
        return self._sizes[files]

    def whole(self, size: int) -> Sequence[tuple[int, int]]:
        """Divide a file of `size` bytes into requests."""
        return self.requests([(0, size)])

    def requests(self, extents: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Divide `extents`, pairs of offset and length, into requests of at most a block."""
        block = self.block
        if all(size <= block for _, size in extents):
            return extents
        return [
            (at, min(block, offset + size - at))
            for offset, size in extents
            for at in range(offset, offset + size, block)
        ]

    def fetch(self, read: Read, buffer: memoryview, cancelled: Cancelled) -> int:
        """Read `read` through `buffer` of `room()` bytes, discard it, and return the number of bytes."""
        for _ in self.stream(read, buffer, cancelled, keep=False):
            pass
        return self.size(read.file)

    def stream(
        self, read: Read, buffer: memoryview, cancelled: Cancelled, keep: bool = True
    ) -> Iterator[memoryview]:
        """Yield the bytes of `read` by request, as views of `buffer` that are valid until the next one.

        Without `keep`, only the first HEAD bytes of each request are valid.
        """
        index = read.file
        parts = self.form.parts(self.samples.names[index])
        total = crc = 0
        for part in parts:
            with self.open(index, part, parts) as blob:
                total += blob.size
                if part == parts[-1]:
                    self.check_size(index, total, blob)
                # Discarded bytes overwrite each other. Not with O_DIRECT: a device may write a request in any
                # order, and not every driver accepts the same page twice.
                skims = not keep and self.checksums is None and blob.alignment == 1
                room = buffer[: HEAD + SKIM] if skims else buffer
                for offset, length in self.whole(blob.size):
                    data = request(blob, offset, length, room, cancelled)
                    if offset == 0:
                        self.form.check_head(data[:HEAD] if skims else data, blob.size, part)
                    if self.checksums is not None:
                        crc = crc32(data, crc)
                    yield data
        self.check_sum(index, crc)

    def open(self, index: int, part: str, parts: Sequence[str]) -> Blob:
        """Open the file `part` of sample `index`. Of several files the manifest has only the total size."""
        return self.storage.open(part, self.size(index) if len(parts) == 1 else None)

    def check_size(self, index: int, total: int, last: Blob) -> None:
        """Raise DatasetError unless the files of sample `index` have `total` bytes."""
        if total != self.size(index):
            raise wrong_size(last.name, total, self.size(index))

    def check_sum(self, index: int, crc: int) -> None:
        """Raise DatasetError if sample `index` has a checksum other than `crc`."""
        if self.checksums is not None and crc != int(self.checksums[index]):
            raise DatasetError(
                f"the sample {self.samples.names[index]} has the CRC-32 {crc:08x}, but the manifest says "
                f"{int(self.checksums[index]):08x}",
                "its bytes have changed since they were generated; run feedrate verify on the dataset",
            )


class _Known(NamedTuple):
    """A file and its index."""

    name: str
    size: int
    where: Index


@dataclass(eq=False, repr=False)
class PartReader(WholeReader):
    """Reads single samples in files of many: only the bytes that the file's index lists. Thread-safe."""

    def __post_init__(self) -> None:
        self._files: dict[int, _Known] = {}  # in the order in which they were read
        self._lock = threading.Lock()
        self._making = [threading.Lock() for _ in range(64)]  # no two threads read the same footer

    def __reduce__(self) -> tuple[object, ...]:
        return (PartReader, tuple(getattr(self, one.name) for one in fields(self)))

    def pieces(self, reads: Sequence[Read]) -> Pieces:
        names: list[str] = []
        rows: list[tuple[int, int, int, int]] = []
        for read in reads:
            if (known := self._files.get(read.file)) is None:
                name = self.samples.names[read.file]
                with self.storage.open(name, self.size(read.file)) as blob:
                    self.check_size(read.file, blob.size, blob)
                    known = self._known(read.file, blob, name)
            extents = known.where.extents(read, self.block)
            rows += [(0, offset, length, known.size) for offset, length in extents]
            names += [known.name] * len(extents)
        return Pieces(names, np.array(rows, np.int64).reshape(-1, 4))

    def fetch(self, read: Read, buffer: memoryview, cancelled: Cancelled) -> int:
        return sum(len(piece) for piece in self.stream(read, buffer, cancelled))

    def stream(
        self, read: Read, buffer: memoryview, cancelled: Cancelled, keep: bool = True
    ) -> Iterator[memoryview]:
        known = self._files.get(read.file)
        if known is not None and self.checksums is None and not known.where.extents(read, self.block):
            return  # a stream that has not reached its next block reads nothing
        name = self.samples.names[read.file]
        with self.storage.open(name, self.size(read.file)) as blob:
            self.check_size(read.file, blob.size, blob)
            index = (known or self._known(read.file, blob, name)).where
            if self.checksums is None:
                for extent in index.extents(read, self.block):
                    yield from self._requests(extent, blob, buffer, cancelled)
                return
            checked = []
            for extent in index.checked(read):
                data = bytearray()
                for piece in self._requests(extent, blob, buffer, cancelled):
                    data += piece
                checked.append((extent, memoryview(data)))
            index.check(read, checked)
            for _, whole in checked:
                yield whole

    def _requests(
        self, extent: tuple[int, int], blob: Blob, buffer: memoryview, cancelled: Cancelled
    ) -> Iterator[memoryview]:
        for offset, length in self.requests([extent]):
            yield request(blob, offset, length, buffer, cancelled)

    def _known(self, file: int, blob: Blob, name: str) -> _Known:
        """Return the index of an open file, which is read again after _INDICES_KEPT other files."""

        # Never cancelled: h5py leaks a file that it fails to open, and then crashes at exit.
        def peek(offset: int, length: int) -> memoryview:
            buffer = aligned_buffer(padded(length) + 2 * BLOCK_BYTES)
            return request(blob, offset, length, buffer, lambda: False)

        with self._making[file % len(self._making)]:
            if (known := self._files.get(file)) is not None:
                return known
            try:
                columns = self.access.columns
                index = self.form.index(peek, blob.size, name, self.samples.samples_per_file, columns)
            except DAMAGE as error:
                raise damaged(name, error) from None
            known = _Known(name, blob.size, index)
            with self._lock:
                self._files[file] = known
                if len(self._files) > _INDICES_KEPT:
                    del self._files[next(iter(self._files))]
        return known
