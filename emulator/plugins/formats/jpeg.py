"""JPEG files of the right size, with the markers of baseline JPEG around bytes that are not an image.

Start, application segment 15 (name, shape), frame, scan, data, end. The data are the sample, image (float32)
before label (uint8), without entropy coding, so that no decoder can turn them into pixels. Loaders read JPEG
files as opaque bytes, and the data do not compress, like those of a photograph.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from emulator.dataset.formats.base import ArrayBytes, Format, Piece, Shape, Sources, bad, require_size

_NAME = b"feedrate\0"
_SHAPE = struct.Struct(">3L")
_START, _END = b"\xff\xd8", b"\xff\xd9"


def _segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + (2 + len(data)).to_bytes(2, "big") + data


_OPENING = _START + _segment(0xEF, _NAME + bytes(_SHAPE.size))
_FRAME = _segment(0xC0, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0])) + _segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
"""Baseline, 8 bits, 8 x 8 pixels, one component; one scan of it."""
_HEAD = len(_OPENING) + len(_FRAME)
_EDGES = len(_OPENING) - _SHAPE.size
"""Offset of the shape; the bytes before it identify files of feedrate."""


class Jpeg(Format):
    """A .jpeg file per sample."""

    suffix = ".jpeg"
    other_suffix = ".jpg"
    records = True

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return _HEAD + 5 * samples * voxels + len(_END)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        head = _START + _segment(0xEF, _NAME + _SHAPE.pack(*shape[1:])) + _FRAME
        return [(head, ArrayBytes("x", 4 * voxels), ArrayBytes("y", voxels), _END)]

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        first = bytes(head[:_HEAD])
        if not first.startswith(_START + b"\xff") or size < 4:
            raise bad(name, "not a JPEG file")
        if not first.startswith(_OPENING[:_EDGES]):
            return  # files of other tools state no size
        if len(first) < _HEAD or not first.endswith(_FRAME):
            raise bad(name, "a truncated JPEG file")
        require_size(name, size, self.planned_bytes(math.prod(_SHAPE.unpack_from(first, _EDGES))))
