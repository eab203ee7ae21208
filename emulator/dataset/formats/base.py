"""The base class of file formats: how the files of a sample are made, checked and read.

Making: a format gives each file as pieces in order, and `write_file` puts them on storage through one small
buffer, however large the file is. Checking: `check_head` compares the start of a file with its size. Reading:
`load` calls the library that a training calls, and `index` says which bytes a read of some samples is.

A new format is a subclass of Format, an entry point in the group `feedrate.formats`, and a subclass of the
test in `tests/contracts/format_contract.py`.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray

from emulator.config.recipe import Recipe
from emulator.dataset.checksum import crc32, crc32_join
from emulator.errors import DatasetError
from emulator.order import Read
from emulator.storage.base import Draft
from emulator.storage.posix import aligned_buffer, padded
from emulator.units import BLOCK_BYTES

Key = Literal["x", "y"]
"""The arrays of a sample: x is the image (float32), y the label (uint8)."""
Array = NDArray[Any]
Shape = tuple[int, int, int, int]
"""Samples (1 but for formats with many a file), depth, height, width in voxels."""

SLACK = 64
"""Bytes that a source may write past the end of what it was asked for: AES works in whole blocks."""


# ---- Making files.


class Source(Protocol):
    """The bytes of an array, one after another."""

    crc: int
    """CRC-32 of the bytes given so far."""

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`, which should be SLACK bytes longer."""
        ...


Sources = Mapping[Key, Source]


class MemorySource:
    """Bytes that are there already. A Source."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._rest = memoryview(data)
        self.crc = 0

    def into(self, memory: memoryview, size: int) -> None:
        data, self._rest = self._rest[:size], self._rest[size:]
        memory[:size] = data
        self.crc = crc32(data, self.crc)


@dataclass(frozen=True, slots=True)
class ArrayBytes:
    """A piece of a file: the whole of an array. Its source writes it straight into the buffer."""

    key: Key
    size: int


class Deferred:
    """A piece of a file that depends on what follows it, like a checksum in front of the data.

    The format puts `size` bytes into `data` before its pieces end.
    """

    def __init__(self, size: int) -> None:
        self.data = bytes(size)


Piece = bytes | memoryview | ArrayBytes | Deferred


def write_file(
    draft: Draft, pieces: Iterable[Piece], sources: Sources, buffer: memoryview
) -> tuple[int, int]:
    """Write the file that consists of `pieces`; its (CRC-32, bytes). Raises OSError, StorageError.

    `buffer` is page-aligned memory of whole pages.
    """
    file = _BufferedFile(draft, buffer)
    sums: list[tuple[int, int]] = []
    deferred: list[tuple[int, int, Deferred]] = []  # number of the piece, its offset
    for number, piece in enumerate(pieces):
        if isinstance(piece, ArrayBytes):
            source, size = sources[piece.key], piece.size
        elif isinstance(piece, Deferred):
            source, size = MemorySource(piece.data), len(piece.data)
            deferred.append((number, file.size, piece))
            file.keep(size)
        else:
            source, size = MemorySource(piece), len(piece)
        file.append(source, size)
        sums.append((source.crc, size))
    for number, offset, piece in deferred:
        file.replace(offset, piece.data)
        sums[number] = (crc32(piece.data), len(piece.data))
    file.finish()
    return crc32_join(sums), file.size


class _BufferedFile:
    """A file that leaves through one buffer. Pages that are to change later are kept, and written again."""

    def __init__(self, draft: Draft, buffer: memoryview) -> None:
        self._draft, self._buffer = draft, buffer
        self._begin = 0  # offset of the buffer in the file
        self._used = 0  # bytes in the buffer
        self._kept: dict[int, memoryview | None] = {}  # offset of a page -> its bytes when it has left

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return self._begin + self._used

    def keep(self, size: int) -> None:
        """Keep the pages of the next `size` bytes for `replace`."""
        first = self.size // BLOCK_BYTES * BLOCK_BYTES
        self._kept |= dict.fromkeys(range(first, self.size + size, BLOCK_BYTES))

    def append(self, source: Source, size: int) -> None:
        """Append the next `size` bytes of `source`. Raises OSError, StorageError."""
        while size:
            step = min(size, len(self._buffer) - self._used)
            source.into(self._buffer[self._used :], step)
            self._used += step
            size -= step
            if self._used == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        for page in self._kept:
            if self._begin <= page < self.size:
                memory = self._kept[page] = aligned_buffer(BLOCK_BYTES)
                start = page - self._begin
                memory[:] = self._buffer[start : start + BLOCK_BYTES]
        self._draft.put(self._buffer, self._begin)
        self._begin, self._used = self.size, 0

    def replace(self, offset: int, data: bytes) -> None:
        """Replace bytes that were kept."""
        for at, byte in enumerate(data, start=offset):
            if at >= self._begin:
                self._buffer[at - self._begin] = byte
            else:
                page = self._kept[at // BLOCK_BYTES * BLOCK_BYTES]
                assert page is not None  # it has left the buffer
                page[at % BLOCK_BYTES] = byte

    def finish(self) -> None:
        """Write what is left. Raises OSError, StorageError."""
        end = padded(self._used)
        self._buffer[self._used : end] = bytes(end - self._used)  # O_DIRECT takes whole pages
        self._draft.put(self._buffer[:end], self._begin)
        for page, memory in self._kept.items():
            if memory is not None:
                self._draft.put(memory, page)
        self._draft.end(self.size)


# ---- Finding samples in files.


class Extent(NamedTuple):
    """Consecutive bytes of a file."""

    offset: int
    size: int


Peek = Callable[[int, int], memoryview]
"""(offset, length) -> those bytes of a file. They must lie within it."""


class Index(ABC):
    """The places of the samples of one file. Pure."""

    __slots__ = ()
    name: str

    @abstractmethod
    def extents(self, read: Read, block: int) -> Sequence[tuple[int, int]]:
        """Return offset and bytes of what `read` asks for; a stream asks for blocks of `block` bytes."""


def stream_blocks(read: Read, size: int, samples: int, block: int) -> Sequence[Extent]:
    """Return the whole blocks that a stream reads for `read` in a file of `size` bytes.

    The block with the first byte of `read` was read before, unless the stream starts there.
    """
    begin, end = size * read.first // samples, size * (read.first + read.samples) // samples
    first = begin // block if read.how == "start" else -(-begin // block)
    last = -(-end // block)  # rounded up
    if first >= last:  # all of it was read before
        return []
    return [Extent(first * block, min(last * block, size) - first * block)]


class Format:
    """A file format. The defaults suit one file per sample, with uncompressed arrays in C order."""

    suffix: str
    """End of the name of a sample's (first) file. With `_x`, as in `_x.npy`, the label's has `_y`. With a
    slash, as in `.zarr/zarr.json`, each sample has a folder."""
    other_suffix = ""
    """Another end that other programs give such files; empty: none."""
    many = False
    """True when a file can hold many samples."""
    written = True
    """False when only files of others are read."""
    records = False
    """True when samples are records of bytes, which are not decoded or cropped; False for volumes."""
    partial = False
    """True when parts of a file of one sample are read: the index says which."""
    library = "open().read"
    """The call by which `load` reads a file, for people."""
    library_opens = True
    """True if the library of `load` is given a path; False if it reads an open file by the same calls."""
    imports: tuple[str, ...] = ()
    """Packages that `load` imports. A training has imported them before its workers start."""

    def of(self, recipe: Recipe) -> Format:
        """Return the format as `recipe` wants it, where files depend on more than the shape of a sample."""
        return self

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the files of the sample `name`: a loader reads each of them whole."""
        return (name,)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        """Return the files of a sample as pieces made from `sources`. They are written in this order."""
        raise NotImplementedError

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        """Return the bytes of all files of `samples` samples of `voxels` voxels (a number or an array) each.

        An upper estimate for formats that compress or are written by a library.
        """
        raise NotImplementedError

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Check that a file of `size` bytes that begins with `head` can be a sample.

        `head` is the first 4096 bytes or more, or the whole file. Raises DatasetError.
        """
        raise NotImplementedError

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
        """Return the arrays "x", "y" or both of the file `name`, read by the library that a training calls.

        `opened` is its path, or the open file where it has none or `library_opens` is False. Raises what the
        library raises. Formats of records need not implement it.
        """
        raise NotImplementedError

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        """Find the `samples` samples of the file `name`, or these columns of them.

        Looks at as little of the file as readers of the format do. Raises DatasetError.
        """
        raise bad(name, f"the format holds one sample a file, not {samples}, and no columns")


class PairFormat(Format):
    """A format with an image file and a label file: `NAME_x.END` and `NAME_y.END`."""

    def parts(self, name: str) -> tuple[str, ...]:
        if not name.endswith(self.suffix):
            raise DatasetError(f"{name} does not end in {self.suffix}")
        return (name, name.removesuffix(self.suffix) + self.suffix.replace("_x", "_y", 1))

    def key(self, name: str) -> Key:
        """Name the array that the file `name` holds."""
        return "y" if name.endswith(self.suffix.replace("_x", "_y", 1)) else "x"


def bad(name: str, why: str) -> DatasetError:
    """Return the error for a file that is not a sample of its format."""
    return DatasetError(f"{name}: {why}", "generate the dataset again, or see feedrate verify")


def require_size(name: str, size: int, stated: int) -> None:
    """Raises DatasetError unless the file `name` of `size` bytes has the size that its header states."""
    if size != stated:
        raise bad(name, f"{size} bytes where its header says {stated}")


def read_whole(opened: str | io.BufferedIOBase) -> bytes:
    """Return the bytes of a file by its path or of an open one. Raises OSError."""
    return Path(opened).read_bytes() if isinstance(opened, str) else opened.read()


class PeekFile(io.RawIOBase):
    """A file to be read, for libraries that want to seek, over bytes that lie elsewhere."""

    def __init__(self, peek: Peek, size: int) -> None:
        self._peek = peek
        self._at = 0
        self.size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self.size - self._at))
        if length:
            target[:length] = self._peek(self._at, length)
        self._at += length
        return length
