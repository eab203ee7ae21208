"""What a format can do, and the memory that files are composed in."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.layout import Hole, Key, Layout, Source
from emulator.errors import DatasetError

if TYPE_CHECKING:
    from emulator.dataset.formats.index import Index

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
