"""A file as a sequence of literal bytes and arrays: composed in memory, or streamed to storage.

Checksums of the arrays are known only once they are written, so that a layout says which bytes of its
literals are put in afterwards (the CRC fields of a zip).
"""

from __future__ import annotations

import io
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32, crc32_join
from emulator.errors import DatasetError
from emulator.plan import Read

Key = Literal["x", "y"]
Patches = Mapping[int, bytes]
"""Offset in the file -> the bytes that belong there."""


class Source(Protocol):
    """The bytes of an array, one after another."""

    crc: int
    """CRC-32 of what it has given so far."""

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        ...


@dataclass(frozen=True, slots=True)
class Hole:
    """Where an array goes: image "x" or label "y"."""

    key: Key
    size: int
    """Bytes."""


def nothing_late(sums: Mapping[Key, int]) -> Patches:
    """No literal depends on the arrays."""
    return {}


@dataclass(frozen=True, slots=True)
class Layout:
    """One file."""

    pieces: Sequence[bytes | Hole]
    late: Callable[[Mapping[Key, int]], Patches] = nothing_late
    """From the CRC-32 of the arrays to bytes of literals; the offsets do not depend on the sums."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(_length(piece) for piece in self.pieces)

    def placed(self) -> Iterator[tuple[int, bytes | Hole]]:
        """The pieces, each with its offset."""
        at = 0
        for piece in self.pieces:
            yield at, piece
            at += _length(piece)

    def crc(self, sums: Mapping[Key, int]) -> int:
        """CRC-32 of the file with arrays of these checksums."""
        patches = self.late(sums)
        parts = []
        for at, piece in self.placed():
            if isinstance(piece, Hole):
                parts.append((sums[piece.key], piece.size))
            else:
                parts.append((crc32(_patched(piece, at, patches)), len(piece)))
        return crc32_join(parts)


def _length(piece: bytes | Hole) -> int:
    return piece.size if isinstance(piece, Hole) else len(piece)


def _patched(literal: bytes, at: int, patches: Patches) -> bytes:
    """`literal`, which begins at offset `at`, with the patches that fall into it."""
    inside = {offset: data for offset, data in patches.items() if at <= offset < at + len(literal)}
    if not inside:
        return literal
    changed = bytearray(literal)
    for offset, data in inside.items():
        changed[offset - at : offset - at + len(data)] = data
    return bytes(changed)


# ---- Where the samples of a file with many lie: what a reader of a part of it has to know.


class Extent(NamedTuple):
    """Consecutive bytes of a file."""

    offset: int
    size: int


Pieces = Sequence[tuple[Extent, memoryview]]
"""Extents and their bytes."""

CheckRecord = Callable[[memoryview], str]
"""Bytes of a sample as it is stored -> what is wrong with it; empty: nothing."""


class Index(Protocol):
    """Where the samples of one file lie. Pure."""

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        """The bytes that `read` asks for; a stream asks for whole blocks of `block` bytes."""
        ...

    def checked(self, read: Read) -> Sequence[Extent]:
        """The bytes that are needed to check what `read` asks for. Raises DatasetError: no checksums."""
        ...

    def check(self, read: Read, pieces: Pieces) -> None:
        """Raises DatasetError when the bytes of `checked` are not what was written."""
        ...


@dataclass(frozen=True, slots=True)
class Even:
    """Samples of the same size, one behind the other, from the first byte of the file to its last."""

    name: str
    size: int
    """Bytes of the file."""
    samples: int
    check_record: CheckRecord

    def _at(self, number: int) -> int:
        return self.size * number // self.samples

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how == "alone":
            return self.checked(read)
        begin, end = self._at(read.first), self._at(read.first + read.samples)
        first = begin // block if read.how == "start" else -(-begin // block)
        last = -(-end // block)
        return [Extent(first * block, min(last * block, self.size) - first * block)] if first < last else []

    def checked(self, read: Read) -> Sequence[Extent]:
        if self.size % self.samples:
            raise DatasetError(
                f"{self.name}: {self.size} bytes are not {self.samples} samples of one size",
                "--set access.pattern=sequential reads such files, without --verify-reads",
            )
        begin = self._at(read.first)
        return [Extent(begin, self._at(read.first + read.samples) - begin)]

    def check(self, read: Read, pieces: Pieces) -> None:
        ((_, data),) = pieces
        each = self.size // self.samples
        for number in range(read.samples):
            wrong = self.check_record(data[number * each : (number + 1) * each])
            if wrong:
                raise DatasetError(
                    f"{self.name}: {wrong} (sample {read.first + number})",
                    "its bytes are not those that were generated; run feedrate verify on the dataset",
                )


@dataclass(frozen=True, slots=True)
class Stacked:
    """Arrays whose first axis counts the samples, as HDF5 files hold them."""

    name: str
    spans: tuple[Span, ...]

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        found = []
        for span in self.spans:
            each = span.size // span.shape[0]
            found.append(Extent(span.offset + read.first * each, read.samples * each))
        return found

    def checked(self, read: Read) -> Sequence[Extent]:
        raise DatasetError(
            f"{self.name}: the format keeps no checksums of single samples",
            "leave --verify-reads out; feedrate verify compares whole files",
        )

    def check(self, read: Read, pieces: Pieces) -> None:
        self.checked(read)


def stacked(spans: Mapping[str, Span] | None, samples: int, name: str) -> Stacked:
    """The index of a file whose arrays lie at `spans`. Raises DatasetError."""
    if spans is None or any(span.shape[0] != samples for span in spans.values()):
        raise DatasetError(
            f"{name}: it does not hold {samples} samples one behind the other",
            "generate the dataset again, or read whole files",
        )
    return Stacked(name, tuple(spans.values()))


def total(extents: Iterable[Extent]) -> int:
    """Bytes of `extents`."""
    return sum(extent.size for extent in extents)


# ---- What a format can do, and the memory that files are composed in.


Array = NDArray[Any]
Shape = tuple[int, int, int, int]
"""Samples (1 but for formats with many a file), depth, height, width in voxels."""

PAGE = 4096
SLACK = 64
"""Bytes of a Room beyond what was asked for: AES writes whole blocks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Image and label of one volume (or of several of the same shape)."""

    x: NDArray[np.float32]
    y: NDArray[np.uint8]


class Room:
    """Page-aligned memory that grows to the largest request and is used again: one per worker."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}

    def __call__(self, part: int, size: int) -> memoryview:
        """At least `size` bytes + SLACK, rounded up to pages, for the file number `part` of a sample."""
        needed = -(-(size + SLACK) // PAGE) * PAGE
        memory = self._memory.get(part)
        if memory is None or len(memory) < needed:
            memory = mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE") and needed > 2 << 20:
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._memory[part] = memory
        return memoryview(memory)[:needed]


Fill = Callable[["Place", "Place"], None]
"""Puts image and label where the format wants them, and notes their checksums."""


class Place:
    """Where the bytes of an array go, and their CRC-32 once they are there."""

    __slots__ = ("crc", "data", "size", "slack")

    def __init__(self, memory: memoryview, offset: int, size: int) -> None:
        self.data = memory[offset : offset + size]
        self.slack = memory[offset : min(offset + size + SLACK, len(memory))]
        self.size = size
        self.crc = 0

    def seal(self) -> None:
        """Take the checksum of what is there now."""
        self.crc = crc32(self.data)


@dataclass(frozen=True, slots=True)
class Span:
    """Where an array lies in its file, as it is and in C order."""

    offset: int
    """Bytes before it."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.dtype.itemsize * math.prod(self.shape)


Peek = Callable[[int, int], memoryview]
"""(offset, length) -> those bytes of a file, which has them."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One file, composed: its bytes lie at the head of page-aligned memory."""

    memory: memoryview
    """Zero behind `size`, up to the next page."""
    size: int
    crc: int
    """CRC-32 of its bytes."""


class Format(Protocol):
    """A file format. Its instances hold no state."""

    @property
    def suffix(self) -> str:
        """End of the (first) file's name."""
        ...

    def parts(self, name: str) -> tuple[str, ...]:
        """Names of the files of the sample `name`: the loader reads each of them whole."""
        ...

    def write(self, file: BinaryIO, sample: Sample) -> None:
        """Write `sample` as one file (formats with two parts: one after the other, for tests)."""
        ...

    @property
    def streams(self) -> bool:
        """True when files are their layouts; False when these are compressed first."""
        ...

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        """The files of a sample, before compression. Not of serial formats."""
        ...

    @property
    def serial(self) -> bool:
        """True for a format of one file that is written from its first byte to its last: by `blocks`."""
        ...

    def blocks(self, shape: Shape, sources: Mapping[Key, Source]) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a serial file, in order, made of those of `sources`; `encode` makes the same."""
        ...

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        """Compose the files of a sample in memory; `fill` is called once with places for x and y."""
        ...

    def planned_bytes(self, voxels: Any) -> Any:
        """Bytes of a sample of so many voxels, all parts; an upper estimate for compressed formats."""
        ...

    def file_bytes(self, voxels: Any, samples: int) -> Any:
        """Bytes of a file of `samples` samples of so many voxels each, as `planned_bytes`."""
        ...

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        """Views of the arrays ("x": image, "y": label) in `data`, the bytes of the whole file `name`.

        Copies only where decompression forces it. Raises DatasetError.
        """
        ...

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        """Where the arrays lie in the file `name` of `size` bytes; None when they have to be unpacked.

        Looks at a few kB of it. Raises DatasetError.
        """
        ...

    @property
    def records(self) -> bool:
        """True when samples are records of bytes, which no loader crops; False when they are volumes."""
        ...

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        """Where the `samples` samples of the file `name` lie, or these columns of them.

        Looks at as little of the file as readers of the format do. Raises DatasetError.
        """
        ...

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Check that a file of `size` bytes that begins with `head` can be a sample.

        `head` is the first 4096 bytes or more, or the whole file. Raises DatasetError.
        """
        ...


class Laid:
    """What formats whose files are their layouts share."""

    streams = True
    records = False
    serial = False

    def blocks(self, shape: Shape, sources: Mapping[Key, Source]) -> Iterator[NDArray[np.uint8]]:
        raise NotImplementedError

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        raise NotImplementedError

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        raise bad(name, f"the format holds one sample a file, not {samples}, and no columns")

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        return compose(self.layouts(shape), fill, room)

    def planned_bytes(self, voxels: Any) -> Any:
        raise NotImplementedError

    def file_bytes(self, voxels: Any, samples: int) -> Any:
        return self.planned_bytes(voxels * samples)

    def write(self, file: BinaryIO, sample: Sample) -> None:
        shape = sample.x.shape
        if len(shape) != 4 or sample.y.shape != shape:
            raise DatasetError(f"a sample has shape (samples, depth, height, width), not {shape}")
        for part in self.encode((shape[0], shape[1], shape[2], shape[3]), fill_from(sample), Room()):
            file.write(part.memory[: part.size])


class OneFile(Laid):
    """What formats with one file a sample share."""

    def parts(self, name: str) -> tuple[str, ...]:
        return (name,)


class TwoFiles(Laid):
    """What formats with an image file and a label file share: `NAME_x.SUFFIX` and `NAME_y.SUFFIX`."""

    suffix: str

    def parts(self, name: str) -> tuple[str, ...]:
        if not name.endswith(self.suffix):
            raise DatasetError(f"{name} does not end in {self.suffix}")
        return (name, name.removesuffix(self.suffix) + self.suffix.replace("_x", "_y", 1))


def compose(layouts: Sequence[Layout], fill: Fill, room: Room) -> tuple[Encoded, ...]:
    """The files of `layouts` in memory."""
    places: dict[str, Place] = {}
    memories = []
    for part, layout in enumerate(layouts):
        memory = room(part, layout.size)
        memories.append(memory)
        for at, piece in layout.placed():
            if isinstance(piece, Hole):
                places[piece.key] = Place(memory, at, piece.size)
            else:
                memory[at : at + len(piece)] = piece
    fill(places["x"], places["y"])
    sums: dict[Key, int] = {"x": places["x"].crc, "y": places["y"].crc}
    encoded = []
    for layout, memory in zip(layouts, memories, strict=True):
        for at, data in layout.late(sums).items():
            memory[at : at + len(data)] = data
        memory[layout.size :] = bytes(len(memory) - layout.size)
        encoded.append(Encoded(memory, layout.size, layout.crc(sums)))
    return tuple(encoded)


def fill_from(sample: Sample) -> Fill:
    """A Fill that copies `sample`."""

    def fill(x: Place, y: Place) -> None:
        for place, array, kind in ((x, sample.x, np.float32), (y, sample.y, np.uint8)):
            target = np.frombuffer(place.data, dtype=kind)
            target[:] = array.reshape(-1)
            place.seal()

    return fill


def bad(name: str, why: str) -> DatasetError:
    """The error of a file that is not what it should be."""
    return DatasetError(f"{name}: {why}", "generate the dataset again, or see feedrate verify")


# ---- Files for libraries that want to seek, over bytes that lie elsewhere.


class Seekable(io.RawIOBase):
    """What h5py and pyarrow want of a file besides reading and writing."""

    size = 0
    at = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def truncate(self, size: int | None = None) -> int:
        self.size = self.at if size is None else size
        return self.size
