"""Files of opaque bytes, as any job reads them, whatever its format is.

A file of N samples is N equal stretches. Of a sample all is read, or some pieces of it: a recording says how
many and how large (`config.workload.AccessSpec`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.config.recipe import VOXEL_BYTES, Recipe
from emulator.config.workload import AccessSpec
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


@dataclass(frozen=True, slots=True)
class Stretches(Index):
    """The index of a file: samples one behind the other, from its first byte to its last."""

    name: str
    size: int
    """Bytes of the file."""
    samples: int
    bytes_read: int = 0
    """Bytes of a sample that are read; 0: all of it."""
    pieces: int = 1
    """Places that they lie at, evenly spread over the sample."""
    unsummed = "nothing is known of the sums of parts of a file"

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how != "alone":
            return stream_blocks(read, self.size, self.samples, block)
        begin = self.size * read.first // self.samples
        end = self.size * (read.first + read.samples) // self.samples
        if not self.bytes_read:
            return [Extent(begin, end - begin)] if end > begin else []
        return [piece for number in range(read.samples) for piece in self._pieces(read.first + number)]

    def _pieces(self, sample: int) -> list[Extent]:
        begin = self.size * sample // self.samples
        room = self.size * (sample + 1) // self.samples - begin
        wanted = min(self.bytes_read, room)
        pieces = max(1, min(self.pieces, wanted))
        found = []
        for number in range(pieces):
            length = wanted * (number + 1) // pieces - wanted * number // pieces
            before = (room - wanted) * number // pieces  # left out so far
            spare = (room - wanted) * (number + 1) // pieces - before
            place = wanted * number // pieces + before + _somewhere(sample, number, spare)
            found.append(Extent(begin + place, length))
        return found


def _somewhere(sample: int, piece: int, spare: int) -> int:
    """A place from 0 to `spare`, always the same for a sample and a piece; few begin at round numbers."""
    mixed = (sample * 0x9E3779B97F4A7C15 + piece * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) % 2**64
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % 2**64
    return (mixed ^ mixed >> 32) % (spare + 1)


class Bytes(Format):
    """One file of bytes, of one sample or many."""

    suffix = ".bytes"
    many = True
    records = True

    def __init__(self, access: AccessSpec | None = None, voxel: int = VOXEL_BYTES) -> None:
        """`voxel`: bytes of one, when files are made."""
        self._access = access or AccessSpec()
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
        return Stretches(name, size, samples, self._access.bytes_read, self._access.pieces)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Any file will do."""
