"""Memory to read into: page-aligned for O_DIRECT, of huge pages to spare the TLB, reused for ever."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import Extent, Index
from emulator.errors import DatasetError, StorageError
from emulator.loader.base import SampleFormat, SampleList
from emulator.plan import Read
from emulator.storage.base import HEAD, Blob, Storage
from emulator.units import show_seconds

PAGE = 4096
"""Bytes that everything is aligned to: a page, and what O_DIRECT asks for."""
_HUGE = 2 * 2**20


def aligned_buffer(size: int) -> memoryview:
    """`size` bytes of private memory, aligned to 2 MiB where it is as large, else to a page.

    Pages come into being when they are first written. Freed when the view is dropped.
    """
    if size < _HUGE:
        return memoryview(_private(size))[:size]
    area = _private(size + _HUGE)
    # Only kernels since 6.7 align large areas by themselves; what is cut off is never touched.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % _HUGE
    return memoryview(area)[start : start + size]


def _private(size: int) -> mmap.mmap:
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without transparent huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    return area


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


# ---- Reading the files of one sample: what both loaders share.


Checksums = Sequence[int] | NDArray[np.uint32]
"""CRC-32 of each sample, over all its files."""

SKIM = 2**18
"""Bytes of a buffer that unwanted bytes are read into: stays in a core's second-level cache."""


class WholeReader:
    """Reads every byte of files of one sample, in requests of `block` bytes, whatever their format."""

    def __init__(
        self,
        storage: Storage,
        samples: SampleList,
        form: SampleFormat,
        block: int,
        checksums: Checksums | None = None,
    ) -> None:
        self.storage = storage
        self.samples = samples
        self.form = form
        self.block = block
        self.checksums = checksums

    def room(self) -> int:
        """Bytes of a buffer that any block can be read or skimmed through."""
        return max(self.block, 3 * HEAD)

    def size(self, index: int) -> int:
        """Bytes of sample `index`."""
        return int(self.samples.sizes[index])

    def fetch(self, read: Read, buffer: memoryview, cancelled: Callable[[], bool]) -> int:
        """Read what `read` asks for through `buffer`, which is `room()` long; the bytes of it.

        Raises as `read` does.
        """
        self.read(read.file, buffer, cancelled)
        return self.size(read.file)

    def known_size(self, index: int, parts: Sequence[str]) -> int | None:
        """Bytes that a file of sample `index` should have; None when only the sum of several is known."""
        return self.size(index) if len(parts) == 1 else None

    def read(self, index: int, buffer: memoryview, cancelled: Callable[[], bool]) -> None:
        """Read sample `index` in order through `buffer`, which is `room()` long, and keep nothing.

        Raises DatasetError when a file is missing, truncated or corrupt, StorageError when it cannot
        be read and when `cancelled` says so.
        """
        parts = self.form.parts(self.samples.names[index])
        total = crc = 0
        for number, part in enumerate(parts, start=1):
            with self.storage.open(part, self.known_size(index, parts)) as blob:
                total += blob.size
                if number == len(parts):
                    self.check_size(index, total, blob)
                for offset in range(0, blob.size, self.block):
                    if cancelled():
                        raise StorageError("the loader is closed")
                    length = min(self.block, blob.size - offset)
                    if self.can_skim(blob):
                        self.skim_block(part, blob, offset, length, buffer)
                    else:
                        data = self.read_block(part, blob, offset, length, buffer)
                        crc = crc32(data, crc) if self.checksums is not None else 0
        self.check_sum(index, crc)

    def read_block(self, part: str, blob: Blob, offset: int, length: int, buffer: memoryview) -> memoryview:
        """`length` bytes of the file `part` from `offset` on, as a view of `buffer`.

        Raises DatasetError when the file ends before or cannot be a sample, StorageError.
        """
        got = blob.read_into(offset, buffer[: padded(length, blob.alignment)])
        self._check_block(part, blob, offset, length, got, buffer[:length])
        return buffer[:length]

    def skim_block(self, part: str, blob: Blob, offset: int, length: int, buffer: memoryview) -> None:
        """Read `length` bytes in one request as `read_block` does, but keep none."""
        got = blob.skim(offset, length, buffer[:SKIM])
        self._check_block(part, blob, offset, length, got, buffer[: min(length, HEAD)])

    def _check_block(
        self, part: str, blob: Blob, offset: int, length: int, got: int, head: memoryview
    ) -> None:
        if got < length:
            raise DatasetError(
                f"the sample {blob.name} ends at byte {offset + got} of {blob.size}",
                "it was cut while it was read; run feedrate verify on the dataset",
            )
        if offset == 0:
            self.form.check_head(head, blob.size, part)

    def can_skim(self, blob: Blob) -> bool:
        """True when bytes that nobody wants need no room of their own.

        Not with O_DIRECT: a device writes a request in any order, and not every driver takes the same
        page twice.
        """
        return self.checksums is None and blob.alignment == 1

    def check_size(self, index: int, total: int, last: Blob) -> None:
        """Raises DatasetError unless `total`, the bytes of all files of sample `index`, is its size."""
        if total != self.size(index):
            raise DatasetError(
                f"the sample {last.name} has {total} bytes, but the manifest says {self.size(index)}",
                "run feedrate verify on the dataset",
            )

    def check_sum(self, index: int, crc: int) -> None:
        """Raises DatasetError when the checksum of sample `index` is known and is not `crc`."""
        if self.checksums is not None and crc != int(self.checksums[index]):
            raise DatasetError(
                f"the sample {self.samples.names[index]} has the CRC-32 {crc:08x}, but the manifest says "
                f"{int(self.checksums[index]):08x}",
                "its bytes are not those that were generated; run feedrate verify on the dataset",
            )


def stalled(timeout: float) -> StorageError:
    """What a consumer raises that has waited for `timeout` seconds."""
    return StorageError(
        f"no batch for {show_seconds(timeout)}",
        "the storage hangs, or it is too slow for loader.stall_timeout",
    )


# ---- Reading samples out of files that hold many: the bytes that the file's index names, and no others.


_KEPT = 64
"""Indices of files that are kept: that of a Parquet file takes as much as its footer."""


class PartReader(WholeReader):
    """Reads samples, or whole blocks of them, out of files. Safe to use from many threads."""

    def __init__(
        self, storage: Storage, samples: SampleList, form: SampleFormat, block: int,
        checksums: Checksums | None = None, columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(storage, samples, form, block, checksums)
        self.columns = columns
        self._indices: OrderedDict[int, Index] = OrderedDict()
        self._lock = threading.Lock()
        self._making = [threading.Lock() for _ in range(_KEPT)]  # no footer is read by two at the same time

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.storage, self.samples, self.form, self.block, self.checksums, self.columns)
        return (PartReader, given)

    def room(self) -> int:
        """As WholeReader.room: a block, and the pages that its ends lie in."""
        return self.block + 2 * PAGE

    def fetch(self, read: Read, buffer: memoryview, cancelled: Callable[[], bool]) -> int:
        """As WholeReader.fetch."""
        return sum(len(piece) for piece in self.pieces(read, buffer, cancelled))

    def pieces(self, read: Read, buffer: memoryview, cancelled: Callable[[], bool]) -> Iterator[memoryview]:
        """The bytes that `read` asks for, request by request, each in `buffer` until the next.

        Raises as WholeReader.read does.
        """
        known = self._kept(read.file)
        if known is not None and self.checksums is None and not known.extents(read, self.block):
            return  # a stream whose next block has not been reached: nothing is opened
        name = self.samples.names[read.file]
        with self.storage.open(name, self.size(read.file)) as blob:
            self.check_size(read.file, blob.size, blob)
            if self.samples.samples_per_file == 1 and not self.columns:
                yield from self._whole(read.file, blob, buffer, cancelled)
                return
            index = known or self._index(read.file, blob, name)
            if self.checksums is not None:
                yield from self._checked(index, read, blob, buffer, cancelled)
                return
            for extent in index.extents(read, self.block):
                yield from self._extent(extent, blob, buffer, cancelled)

    def _whole(
        self, file: int, blob: Blob, buffer: memoryview, cancelled: Callable[[], bool]
    ) -> Iterator[memoryview]:
        crc = 0
        for piece in self._extent(Extent(0, blob.size), blob, buffer, cancelled, head=True):
            crc = crc32(piece, crc) if self.checksums is not None else 0
            yield piece
        self.check_sum(file, crc)

    def _checked(
        self, index: Index, read: Read, blob: Blob, buffer: memoryview, cancelled: Callable[[], bool]
    ) -> Iterator[memoryview]:
        """The bytes that are needed to check the samples, once they have been."""
        found = []
        for extent in index.checked(read):
            data = bytearray()
            for piece in self._extent(extent, blob, buffer, cancelled):
                data += piece
            found.append((extent, memoryview(data)))
        index.check(read, found)
        for _, checked in found:
            yield checked

    def _extent(
        self, extent: Extent, blob: Blob, buffer: memoryview, cancelled: Callable[[], bool],
        head: bool = False,
    ) -> Iterator[memoryview]:  # fmt: skip
        end = extent.offset + extent.size
        for offset in range(extent.offset, end, self.block):
            if cancelled():
                raise StorageError("the loader is closed")
            data = request(blob, offset, min(self.block, end - offset), buffer)
            if head and offset == 0:
                self.form.check_head(data[:HEAD] if blob.size > HEAD else data, blob.size, blob.name)
            yield data

    def _kept(self, file: int) -> Index | None:
        with self._lock:
            found = self._indices.get(file)
            if found is not None:
                self._indices.move_to_end(file)
            return found

    def _index(self, file: int, blob: Blob, name: str) -> Index:
        """Of an open file; read from it once, and again when many others have been read since."""

        def peek(offset: int, length: int) -> memoryview:
            return request(blob, offset, length, aligned_buffer(padded(length, PAGE) + 2 * PAGE))

        with self._making[file % len(self._making)]:
            made = self._kept(file) or self.form.index(
                peek, blob.size, name, self.samples.samples_per_file, self.columns
            )
            with self._lock:
                self._indices[file] = made
                if len(self._indices) > _KEPT:
                    self._indices.popitem(last=False)
        return made


def request(blob: Blob, offset: int, length: int, buffer: memoryview) -> memoryview:
    """`length` bytes from `offset` on, read in one request, as a view of `buffer`.

    `buffer` has room for the rest of the blocks of `blob.alignment` bytes that its ends lie in. Raises
    DatasetError when the file ends before, StorageError.
    """
    before = offset % blob.alignment
    got = blob.read_into(offset - before, buffer[: padded(before + length, blob.alignment)])
    if got < before + length:
        raise DatasetError(
            f"the sample {blob.name} ends at byte {offset - before + got} of {blob.size}",
            "it was cut while it was read; run feedrate verify on the dataset",
        )
    return buffer[before : before + length]
