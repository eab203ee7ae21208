"""Raw blocks for object stores: a block of 4096 bytes that says what follows, then x, then y.

bytes 0-7  b"feedraw1"    8-39  samples, depth, height, width as little-endian uint64    rest zero
bytes 4096 ...   x, float32, C order, zeros up to a multiple of 4096
then             y, uint8, C order, zeros up to a multiple of 4096
"""

from __future__ import annotations

import math
import struct
from typing import Any, BinaryIO

import numpy as np

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import (
    PAGE,
    Array,
    Encoded,
    Fill,
    OneFile,
    Place,
    Room,
    Sample,
    Shape,
    bad,
    write_sample,
)

_HEAD = struct.Struct("<8s4Q")
_MAGIC = b"feedraw1"


def _blocks(size: Any) -> Any:
    return -(-size // PAGE) * PAGE


def _shape(head: memoryview, size: int, name: str) -> Shape:
    """The shape that `head` states, checked against the `size` of the file. Raises DatasetError."""
    if len(head) < PAGE or bytes(head[:8]) != _MAGIC:
        raise bad(name, "not a raw sample")
    shape: Shape = _HEAD.unpack_from(head)[1:]
    voxels = math.prod(shape)
    if not voxels or PAGE + _blocks(4 * voxels) + _blocks(voxels) != size:
        raise bad(name, f"{size} bytes do not hold the shape {shape} that it states")
    return shape


class Raw(OneFile):
    """One file of 4096-byte blocks a sample."""

    suffix = ".raw"

    def planned_bytes(self, voxels: Any) -> Any:
        return PAGE + _blocks(4 * voxels) + _blocks(voxels)

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        voxels = math.prod(shape)
        second = PAGE + _blocks(4 * voxels)
        end = second + _blocks(voxels)
        memory = room(0, end)
        memory[:PAGE] = _HEAD.pack(_MAGIC, *shape).ljust(PAGE, b"\0")
        x, y = Place(memory, PAGE, 4 * voxels), Place(memory, second, voxels)
        fill(x, y)
        gaps = (second - PAGE - x.size, end - second - y.size)
        memory[second - gaps[0] : second] = bytes(gaps[0])
        memory[end - gaps[1] :] = bytes(len(memory) - end + gaps[1])
        pieces = [(crc32(memory[:PAGE]), PAGE)]
        for place, gap in zip((x, y), gaps, strict=True):
            pieces += [(place.crc, place.size), (crc32(bytes(gap)), gap)]
        return (Encoded(memory, end, crc32_join(pieces)),)

    def write(self, file: BinaryIO, sample: Sample) -> None:
        write_sample(self, file, sample)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        shape = _shape(data, len(data), name)
        voxels = math.prod(shape)
        x = np.frombuffer(data, "<f4", voxels, PAGE).reshape(shape)
        y = np.frombuffer(data, "|u1", voxels, PAGE + _blocks(4 * voxels)).reshape(shape)
        return {"x": x, "y": y}

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        _shape(head, size, name)
