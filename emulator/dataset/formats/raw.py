"""Raw blocks for object stores: a block of 4096 bytes that says what follows, then x, then y.

bytes 0-7  b"feedraw1"    8-39  samples, depth, height, width as little-endian uint64    rest zero
bytes 4096 ...   x, float32, C order, zeros up to a multiple of 4096
then             y, uint8, C order, zeros up to a multiple of 4096
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from emulator.dataset.formats.base import PAGE, Array, Hole, Layout, OneFile, Peek, Shape, Span, bad

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

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        voxels = math.prod(shape)
        x, y = Hole("x", 4 * voxels), Hole("y", voxels)
        head = _HEAD.pack(_MAGIC, *shape).ljust(PAGE, b"\0")
        return (Layout([head, x, bytes(-x.size % PAGE), y, bytes(-y.size % PAGE)]),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        shape = _shape(data, len(data), name)
        voxels = math.prod(shape)
        x = np.frombuffer(data, "<f4", voxels, PAGE).reshape(shape)
        y = np.frombuffer(data, "|u1", voxels, PAGE + _blocks(4 * voxels)).reshape(shape)
        return {"x": x, "y": y}

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        shape = _shape(peek(0, min(size, PAGE)), size, name)
        label = PAGE + _blocks(4 * math.prod(shape))
        return {"x": Span(PAGE, np.dtype("<f4"), shape), "y": Span(label, np.dtype("|u1"), shape)}

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        _shape(head, size, name)
