"""Raw blocks for object stores: a block of 4096 bytes that says what follows, then x, then y.

bytes 0-7  b"feedraw1"    8-39  samples, depth, height, width as little-endian uint64    rest zero
bytes 4096 ...   x, float32, C order, zeros up to a multiple of 4096
then             y, uint8, C order, zeros up to a multiple of 4096
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emulator.dataset.formats.base import PAGE, ArrayBytes, Format, Peek, Piece, Shape, Sources, Span, bad

_HEAD = struct.Struct("<8s4Q")
_MAGIC = b"feedraw1"


def _blocks(size: Any) -> Any:
    """`size` rounded up to whole blocks."""
    return -(-size // PAGE) * PAGE


class Raw(Format):
    """One file of 4096-byte blocks a sample."""

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return PAGE + _blocks(4 * samples * voxels) + _blocks(samples * voxels)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        x, y = 4 * math.prod(shape), math.prod(shape)
        head = _HEAD.pack(_MAGIC, *shape).ljust(PAGE, b"\0")
        return [(head, ArrayBytes("x", x), bytes(-x % PAGE), ArrayBytes("y", y), bytes(-y % PAGE))]

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span]:
        head = peek(0, min(size, PAGE))
        if len(head) < PAGE or bytes(head[:8]) != _MAGIC:
            raise bad(name, "not a raw sample")
        shape: Shape = _HEAD.unpack_from(head)[1:]
        voxels = math.prod(shape)
        if not voxels or self.planned_bytes(voxels) != size:
            raise bad(name, f"{size} bytes do not hold the shape {shape} that it states")
        label = PAGE + _blocks(4 * voxels)
        return {"x": Span(PAGE, np.dtype("<f4"), shape), "y": Span(label, np.dtype("|u1"), shape)}
