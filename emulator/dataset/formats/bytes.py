"""Files of opaque bytes, as any job reads them, whatever its format is.

A file of N samples is N equal stretches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.config.recipe import VOXEL_BYTES, Recipe
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

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how != "alone":
            return stream_blocks(read, self.size, self.samples, block)
        begin = self.size * read.first // self.samples
        end = self.size * (read.first + read.samples) // self.samples
        return [Extent(begin, end - begin)] if end > begin else []


class Bytes(Format):
    """One file of bytes, of one sample or many."""

    suffix = ".bytes"
    many = True
    records = True

    def __init__(self, voxel: int = VOXEL_BYTES) -> None:
        """`voxel`: bytes of one, when files are made."""
        self._voxel = voxel

    def of(self, recipe: Recipe) -> Bytes:
        return Bytes(recipe.size.voxel_bytes)

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return self._voxel * samples * voxels

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        if self._voxel == 1:
            return [(ArrayBytes("x", voxels),)]
        return [(ArrayBytes("x", (self._voxel - 1) * voxels), ArrayBytes("y", voxels))]

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Stretches:
        if columns:
            raise bad(name, "a file of bytes has no columns")
        return Stretches(name, size, samples)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Any file will do."""
