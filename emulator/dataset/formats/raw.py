"""Raw blocks for object stores: a block of 4096 bytes that says what follows, then x, then y.

bytes 0-7  b"feedraw1"    8-39  samples, depth, height, width as little-endian uint64    rest zero
bytes 4096 ...   x, float32, C order, zeros up to a multiple of 4096
then             y, uint8, C order, zeros up to a multiple of 4096
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Format,
    Piece,
    Shape,
    Sources,
    bad,
    read_whole,
    require_size,
)
from emulator.storage.posix import padded
from emulator.units import BLOCK_BYTES

_HEAD = struct.Struct("<8s4Q")
_MAGIC = b"feedraw1"


class Raw(Format):
    """One file of 4096-byte blocks a sample."""

    suffix = ".raw"

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return BLOCK_BYTES + padded(4 * samples * voxels) + padded(samples * voxels)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        head = _HEAD.pack(_MAGIC, *shape).ljust(BLOCK_BYTES, b"\0")
        x, y = ArrayBytes("x", 4 * math.prod(shape)), ArrayBytes("y", math.prod(shape))
        return [(head, x, bytes(padded(x.size) - x.size), y, bytes(padded(y.size) - y.size))]

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < BLOCK_BYTES or bytes(head[:8]) != _MAGIC:
            raise bad(name, "not a raw sample")
        voxels = math.prod(_HEAD.unpack_from(head)[1:])
        if not voxels:
            raise bad(name, "a sample without voxels")
        require_size(name, size, self.planned_bytes(voxels))

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
        data = read_whole(opened)
        shape = _HEAD.unpack_from(data)[1:]
        voxels = math.prod(shape)
        x = np.frombuffer(data, "<f4", voxels, BLOCK_BYTES)
        y = np.frombuffer(data, "|u1", voxels, BLOCK_BYTES + padded(4 * voxels))
        return {"x": x.reshape(shape), "y": y.reshape(shape)}
