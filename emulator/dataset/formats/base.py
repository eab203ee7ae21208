"""File formats: they make the files of a sample, and know where samples lie in them.

Making: a format gives each file as pieces in order, and `write_file` puts them on storage through one small
buffer, however large the file is. Finding: a format says where the arrays of a file lie (`spans`), or which
bytes a read of some of its samples is (`index`); the loaders do the reading.

A new format is a subclass of Format, an entry point in the group `feedrate.formats`, and a subclass of the
test in `tests/contracts/format_contract.py`.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import Recipe
from emulator.config.workload import AccessSpec
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
        given, self._rest = self._rest[:size], self._rest[size:]
        memory[:size] = given
        self.crc = crc32(given, self.crc)


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

    `buffer` is page-aligned memory of whole pages. A page with a deferred piece is written twice when it has
    left the buffer before the piece is known.
    """
    base = used = 0  # offset of the buffer in the file, bytes in it
    sums: list[tuple[int, int]] = []
    deferred: list[tuple[int, int, Deferred]] = []  # number of the piece, offset
    again: dict[int, memoryview] = {}  # offset of a page -> its bytes
    for number, piece in enumerate(pieces):
        if isinstance(piece, Deferred):
            deferred.append((number, base + used, piece))
        if isinstance(piece, ArrayBytes):
            source, size = sources[piece.key], piece.size
        else:
            data = piece.data if isinstance(piece, Deferred) else piece
            source, size = MemorySource(data), len(data)
        done = 0
        while done < size:
            step = min(size - done, len(buffer) - used)
            source.into(buffer[used:], step)
            done, used = done + step, used + step
            if used == len(buffer):
                for _, at, late in deferred:
                    for page in range(at // BLOCK_BYTES * BLOCK_BYTES, at + len(late.data), BLOCK_BYTES):
                        if base <= page < base + used:
                            again[page] = aligned_buffer(BLOCK_BYTES)
                            again[page][:] = buffer[page - base : page - base + BLOCK_BYTES]
                draft.put(buffer, base)
                base, used = base + used, 0
        sums.append((source.crc, size))
    for number, at, late in deferred:
        sums[number] = (crc32(late.data), len(late.data))
        for offset, byte in enumerate(late.data, start=at):
            if offset >= base:
                buffer[offset - base] = byte
            else:
                again[offset // BLOCK_BYTES * BLOCK_BYTES][offset % BLOCK_BYTES] = byte
    end = padded(used)
    buffer[used:end] = bytes(end - used)
    draft.put(buffer[:end], base)
    for page, memory in again.items():
        draft.put(memory, page)
    draft.end(base + used)
    return crc32_join(sums), base + used


# ---- Finding samples in files.


@dataclass(frozen=True, slots=True)
class Span:
    """The place of an uncompressed array in its file."""

    offset: int
    """Bytes before it."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False
    """In Fortran order. `Format.spans` gives only arrays in C order."""

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.dtype.itemsize * math.prod(self.shape)

    def view(self, data: memoryview) -> Array:
        """The array in `data`, the bytes of the whole file."""
        return np.ndarray(self.shape, self.dtype, data, self.offset, order="F" if self.fortran else "C")


class Extent(NamedTuple):
    """Consecutive bytes of a file."""

    offset: int
    size: int


Pieces = Sequence[tuple[Extent, memoryview]]
"""Extents and their bytes."""

Peek = Callable[[int, int], memoryview]
"""(offset, length) -> those bytes of a file. They must lie within it."""


class Index(Protocol):
    """The places of the samples of one file. Pure."""

    def extents(self, read: Read, block: int) -> Sequence[tuple[int, int]]:
        """Offset and bytes of what `read` asks for; a stream asks for whole blocks of `block` bytes."""
        ...

    def checked(self, read: Read) -> Sequence[Extent]:
        """The bytes that are needed to check what `read` asks for. Raises DatasetError: no checksums."""
        ...

    def check(self, read: Read, pieces: Pieces) -> None:
        """Raises DatasetError when the bytes of `checked` are not what was written."""
        ...


class Unsummed:
    """The verbs for checksums in the Index of a file that keeps none of its parts."""

    __slots__ = ()
    name: str
    unsummed: ClassVar[str]
    """The reason for which `--verify-reads` has nothing to compare with."""

    def checked(self, read: Read) -> Sequence[Extent]:
        raise DatasetError(
            f"{self.name}: {self.unsummed}", "leave --verify-reads out; feedrate verify compares whole files"
        )

    def check(self, read: Read, pieces: Pieces) -> None:
        self.checked(read)


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
    library = "open().read"
    """The call by which `load` reads a file, for people."""
    records = False
    """True when samples are records of bytes, which no loader crops; False when they are volumes."""

    def of(self, recipe: Recipe) -> Format:
        """The format as `recipe` wants it, where its files depend on more than the shape of a sample."""
        return self

    partial = False
    """True when parts of a file of one sample are read: the index says which."""

    def read_as(self, access: AccessSpec) -> Format:
        """The format as a job with this access pattern reads it."""
        return self

    def parts(self, name: str) -> tuple[str, ...]:
        """Names of the files of the sample `name`: a loader reads each of them whole."""
        return (name,)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        """The files of a sample, each as pieces made from `sources`. They are written one after the other."""
        raise NotImplementedError

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        """Bytes of all files of `samples` samples of so many voxels each (a number or an array of numbers).

        An upper estimate for formats that compress or are written by a library.
        """
        raise NotImplementedError

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        """Find the arrays in the file `name` of `size` bytes; None when they have to be unpacked.

        Looks at a few kB of it. Raises DatasetError.
        """
        raise NotImplementedError

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        """The arrays "x" (image), "y" (label) or both in `data`, the bytes of the whole file `name`.

        Views of `data` unless they have to be unpacked. Raises DatasetError.
        """
        spans = self.spans(lambda offset, length: data[offset : offset + length], len(data), name)
        if spans is None:
            return self.unpack(data, name)
        return {key: span.view(data) for key, span in spans.items()}

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        """The arrays of a file that has no spans. Raises DatasetError."""
        raise NotImplementedError

    def load(self, opened: str | io.BufferedReader, name: str) -> dict[str, Array]:
        """The arrays of the file `name` as a training loads them: through the format's own library.

        `opened` is its path, or where it has none the open file. Raises what the library raises.
        """
        data = Path(opened).read_bytes() if isinstance(opened, str) else opened.read()
        return self.arrays(memoryview(data), name)

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        """Find the `samples` samples of the file `name`, or these columns of them.

        Looks at as little of the file as readers of the format do. Raises DatasetError.
        """
        raise bad(name, f"the format holds one sample a file, not {samples}, and no columns")

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Check that a file of `size` bytes that begins with `head` can be a sample.

        `head` is the first 4096 bytes or more, or the whole file. Raises DatasetError.
        """
        self.spans(lambda offset, length: head[offset : offset + length], size, name)


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
    """The error of a file that is not what it should be."""
    return DatasetError(f"{name}: {why}", "generate the dataset again, or see feedrate verify")


def inflate(packed: memoryview, size: int, window: int, name: str) -> memoryview:
    """`size` bytes out of a deflate stream, never more; `window` is zlib's. Raises DatasetError."""
    if size > 1032 * len(packed) + 64:  # deflate cannot make more than 1032 bytes of one
        raise bad(name, f"{len(packed)} packed bytes cannot hold {size}")
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise bad(name, f"broken compression ({error})") from None
    if len(data) != size:
        raise bad(name, "its compressed data have another size than its header says")
    return memoryview(data)


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
