"""Reading samples out of files that hold many: the bytes that the file's index names, and no others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.index import Extent, Index
from emulator.errors import DatasetError, StorageError
from emulator.loader.base import SampleFormat, SampleList
from emulator.loader.buffers import PAGE, aligned_buffer, padded
from emulator.loader.reading import Checksums, WholeReader
from emulator.plan.reads import Read
from emulator.storage.base import HEAD, Blob, Storage

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
