"""The blocks of a file, each read once, in whatever order they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from emulator.dataset.checksum import crc32, crc32_join
from emulator.errors import StorageError
from emulator.loader.buffers import aligned_buffer
from emulator.loader.reading import WholeReader
from emulator.storage.base import Blob


class Ring:
    """Buffers of the same size, used again and again; the one that was used last comes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """A buffer; a new one when all are in use."""
        return self._free.pop() if self._free else aligned_buffer(self._size)

    def give(self, buffer: memoryview) -> None:
        """Back for the next one."""
        self._free.append(buffer)


class FileBlocks:
    """One open file of a sample. Used by one thread.

    What reads raises DatasetError when the file ends early or cannot be a sample, and StorageError when it
    cannot be read or the loader is closed.
    """

    def __init__(
        self, whole: WholeReader, part: str, blob: Blob, ring: Ring, cancelled: Callable[[], bool]
    ) -> None:
        self.part = part
        self.blob = blob
        self._kept: dict[int, memoryview] = {}  # blocks that somebody looked at
        self._seen: set[int] = set()
        self._whole = whole
        self._ring = ring
        self._cancelled = cancelled
        self._sums: dict[int, tuple[int, int]] = {}

    @property
    def _count(self) -> int:
        """Blocks of the file."""
        return -(-self.blob.size // self._whole.block)

    def peek(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset` on; their blocks are kept."""
        if length <= 0:
            return memoryview(b"")
        block = self._whole.block
        first, last = offset // block, (offset + length - 1) // block
        for number in range(first, last + 1):
            if number not in self._kept:
                self._kept[number] = self._ring.take()
                self._read(number, self._kept[number])
        begin = offset - first * block
        if first == last:
            return self._kept[first][begin : begin + length]
        joined = b"".join(self._kept[number][:block] for number in range(first, last + 1))
        return memoryview(joined)[begin : begin + length]

    def drop_within(self, begin: int, end: int) -> None:
        """Keep no longer the blocks that lie within the bytes `begin` to `end`."""
        for number in list(self._kept):
            offset, length = self._extent(number)
            if begin <= offset and offset + length <= end:
                self._ring.give(self._kept.pop(number))

    def drop_all(self) -> None:
        """Keep no block any longer."""
        self.drop_within(0, self.blob.size)

    def stream(self, wanted: Callable[[int, int], bool]) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) of the blocks, each until the next: first those kept, then what was not read.

        Blocks of which `wanted(begin, end)` says that none of their bytes is are read, but left out.
        """
        unread = [number for number in range(self._count) if number not in self._seen]
        for number in list(self._kept):
            offset, length = self._extent(number)
            yield offset, self._kept[number][:length]
            self._ring.give(self._kept.pop(number))
        buffer = self._ring.take()
        try:
            for number in unread:
                offset, length = self._extent(number)
                if wanted(offset, offset + length) or not self._whole.can_skim(self.blob):
                    yield offset, self._read(number, buffer)
                else:
                    self._go_on()
                    self._whole.skim_block(self.part, self.blob, offset, length, buffer)
        finally:
            self._ring.give(buffer)

    def whole(self, buffer: memoryview) -> memoryview:
        """All bytes of the file, in `buffer`, which has room for the padding of its last block."""
        for number in range(self._count):
            offset, length = self._extent(number)
            if number in self._seen:
                buffer[offset : offset + length] = self._kept[number][:length]
            else:
                self._read(number, buffer[offset:])
        return buffer[: self.blob.size]

    def _extent(self, number: int) -> tuple[int, int]:
        """Offset and length of block `number`."""
        offset = number * self._whole.block
        return offset, min(self._whole.block, self.blob.size - offset)

    def _go_on(self) -> None:
        if self._cancelled():
            raise StorageError("the loader is closed")

    def _read(self, number: int, buffer: memoryview) -> memoryview:
        self._go_on()
        offset, length = self._extent(number)
        self._seen.add(number)
        data = self._whole.read_block(self.part, self.blob, offset, length, buffer)
        if self._whole.checksums is not None:
            self._sums[number] = (crc32(data), length)
        return data

    def sums(self) -> list[tuple[int, int]]:
        """(CRC-32, bytes) of the blocks, in order. Raises KeyError unless all have been read."""
        return [self._sums[number] for number in range(self._count)]


def check_sum(whole: WholeReader, index: int, files: Sequence[FileBlocks]) -> None:
    """Compare sample `index`, read whole, with its checksum where one is known. Raises DatasetError."""
    if whole.checksums is not None:
        whole.check_sum(index, crc32_join(pair for file in files for pair in file.sums()))
