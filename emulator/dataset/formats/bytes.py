"""Files of opaque bytes, as any job reads them, whatever its format is.

A file of N samples is N equal stretches. All of a sample is read, or some places in it, or in a larger part
of the file, which other samples share: a recording says where (`config.workload.AccessSpec`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.config.recipe import VOXEL_BYTES, Recipe
from emulator.config.workload import AccessSpec
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import (
    ArrayBytes,
    Extent,
    Format,
    Index,
    Peek,
    Piece,
    Shape,
    Sources,
    bad,
    stream_blocks,
)
from emulator.order import Read
from emulator.units import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Stretches(Index):
    """The index of a file: samples one behind the other, from its first byte to its last."""

    name: str
    size: int
    """Bytes of the file."""
    samples: int
    bytes_read: int = 0
    """Bytes of a sample that are read; 0: all of it."""
    places: tuple[tuple[int, ...], ...] = ()
    """As of AccessSpec."""
    chunk: int = 1
    """Samples that overlap are read from multiples of these bytes, and others, if they are whole blocks."""
    unsummed = "nothing is known of the sums of parts of a file"

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how != "alone":
            return stream_blocks(read, self.size, self.samples, block)
        begin = self.size * read.first // self.samples
        end = self.size * (read.first + read.samples) // self.samples
        if not self.bytes_read:
            return [Extent(begin, end - begin)] if end > begin else []
        return [place for number in range(read.samples) for place in self._places(read.first + number)]

    def _places(self, sample: int) -> list[Extent]:
        begin = self.size * sample // self.samples
        own = self.size * (sample + 1) // self.samples - begin
        drawn = _mixed(crc32(self.name.encode()) + sample)
        flat = self.places[drawn % len(self.places)] if self.places else (0, self.bytes_read)
        places = list(zip(flat[::2], flat[1::2], strict=True))
        spare = own - max(map(sum, places))
        if spare < 0:
            begin = max(0, min(begin, self.size - own + spare))
        elif self.samples > 1 or not self.places:  # a file of one sample begins with its header
            begin += _mixed(drawn) % (spare + 1)
        chunk = self.chunk if spare < 0 or self.chunk % BLOCK_BYTES == 0 else 1
        found = [(begin + at - (begin + at) % chunk, length) for at, length in places]
        return [Extent(at, min(length, self.size - at)) for at, length in found if at < self.size]


def _mixed(number: int) -> int:
    """A number below 2^64 that is always the same for `number`, and looks random."""
    mixed = (number * 0x9E3779B97F4A7C15 + 0x165667B19E3779F9) % 2**64
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % 2**64
    return mixed ^ mixed >> 32


def chunk_of(places: Sequence[Sequence[int]]) -> int:
    """The least bytes of a place, exceptions aside: those of a chunk of HDF5, say; 1 without places."""
    counts = Counter(length for one in places for length in one[1::2])
    return min((length for length, count in counts.items() if 10 * count >= counts.total()), default=1)


class Bytes(Format):
    """One file of bytes, of one sample or many."""

    suffix = ".bytes"
    many = True
    records = True

    def __init__(self, access: AccessSpec | None = None, voxel: int = VOXEL_BYTES) -> None:
        """`voxel`: bytes of one, when files are made."""
        self._access = access or AccessSpec()
        self._chunk = chunk_of(self._access.places)
        self._voxel = voxel
        self.partial = self._access.bytes_read > 0

    def of(self, recipe: Recipe) -> Bytes:
        return Bytes(self._access, recipe.size.voxel_bytes)

    def read_as(self, access: AccessSpec) -> Bytes:
        return Bytes(access)

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return self._voxel * samples * voxels

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        label = [ArrayBytes("y", voxels)] if self._voxel > 1 else []
        return [(ArrayBytes("x", self._voxel * voxels - sum(one.size for one in label)), *label)]

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Stretches:
        if columns:
            raise bad(name, "a file of bytes has no columns")
        return Stretches(name, size, samples, self._access.bytes_read, self._access.places, self._chunk)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Any file will do."""
