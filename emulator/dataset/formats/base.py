"""What a format can do, and the memory that files are composed in."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.errors import DatasetError

Array = NDArray[Any]
Shape = tuple[int, int, int, int]
"""Samples (1 but for hdf5 with many a file), depth, height, width in voxels."""

PAGE = 4096
SLACK = 64
"""Bytes of a Room beyond what was asked for: AES writes whole blocks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Image and label of one volume (or of several of the same shape)."""

    x: NDArray[np.float32]
    y: NDArray[np.uint8]


class Room:
    """Page-aligned memory that is used again: one per worker.

    `reserve` bytes are mapped at once for each part; only what is written to takes memory.
    """

    def __init__(self, reserve: int = 0) -> None:
        self._memory: dict[int, mmap.mmap] = {}
        self._reserve = reserve

    def __call__(self, part: int, size: int) -> memoryview:
        """At least `size` bytes + SLACK, rounded up to pages, for the file number `part` of a sample."""
        needed = -(-(size + SLACK) // PAGE) * PAGE
        memory = self._memory.get(part)
        if memory is None or len(memory) < needed:
            mapped = -(-max(needed, self._reserve) // PAGE) * PAGE
            memory = mmap.mmap(-1, mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE") and mapped > 2 << 20:
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

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        """Compose the files of a sample in memory; `fill` is called once with places for x and y."""
        ...

    def planned_bytes(self, voxels: Any) -> Any:
        """Bytes of a sample of so many voxels, all parts; an upper estimate for compressed formats."""
        ...

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        """Views of the arrays ("x": image, "y": label) in `data`, the bytes of the whole file `name`.

        Copies only where decompression forces it. Raises DatasetError.
        """
        ...

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Check that a file of `size` bytes that begins with `head` can be a sample.

        `head` is the first 4096 bytes or more, or the whole file. Raises DatasetError.
        """
        ...


class OneFile:
    """What formats with one file a sample share."""

    def parts(self, name: str) -> tuple[str, ...]:
        return (name,)


class TwoFiles:
    """What formats with an image file and a label file share: `NAME_x.SUFFIX` and `NAME_y.SUFFIX`."""

    suffix: str

    def parts(self, name: str) -> tuple[str, ...]:
        if not name.endswith(self.suffix):
            raise DatasetError(f"{name} does not end in {self.suffix}")
        return (name, name.removesuffix(self.suffix) + self.suffix.replace("_x", "_y", 1))


def fill_from(sample: Sample) -> Fill:
    """A Fill that copies `sample`."""

    def fill(x: Place, y: Place) -> None:
        for place, array, kind in ((x, sample.x, np.float32), (y, sample.y, np.uint8)):
            target = np.frombuffer(place.data, dtype=kind)
            target[:] = array.reshape(-1)
            place.seal()

    return fill


def write_sample(form: Format, file: BinaryIO, sample: Sample) -> None:
    """`Format.write` for every format: compose in memory, then write."""
    shape = sample.x.shape
    if len(shape) != 4 or sample.y.shape != shape:
        raise DatasetError(f"a sample has shape (samples, depth, height, width), not {shape}")
    for part in form.encode((shape[0], shape[1], shape[2], shape[3]), fill_from(sample), Room()):
        file.write(part.memory[: part.size])


def bad(name: str, why: str) -> DatasetError:
    """The error of a file that is not what it should be."""
    return DatasetError(f"{name}: {why}", "generate the dataset again, or see feedrate verify")
