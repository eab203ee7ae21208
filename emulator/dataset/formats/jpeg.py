"""JPEG files of the right size, with the markers of baseline JPEG around bytes that are no image.

Start, application segment 15 (name, shape), frame, scan, data, end. The data is the sample, image (float32)
before label (uint8), as it is: not entropy-coded, so that no decoder makes pixels of it. A loader reads a
JPEG file whole and never looks inside, and the data does not compress, as that of a photograph.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.dataset.formats.base import Array, Even, Hole, Index, Layout, OneFile, Peek, Shape, Span, bad

_NAME = b"feedrate\0"
_SHAPE = struct.Struct(">3L")
_START, _END = b"\xff\xd8", b"\xff\xd9"


def _segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + (2 + len(data)).to_bytes(2, "big") + data


_OPENING = _START + _segment(0xEF, _NAME + bytes(_SHAPE.size))
_FRAME = _segment(0xC0, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0])) + _segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
"""Baseline, 8 bits, 8 x 8 pixels, one component; one scan of it."""
_HEAD = len(_OPENING) + len(_FRAME)


def _head(shape: Sequence[int]) -> bytes:
    return _START + _segment(0xEF, _NAME + _SHAPE.pack(*shape)) + _FRAME


def _shape(head: memoryview, size: int, name: str) -> Shape:
    """The shape of the sample in a file of `size` bytes that begins with `head`. Raises DatasetError."""
    if len(head) < _HEAD or bytes(head[:2]) != _START:
        raise bad(name, "not a JPEG file, or its end is missing")
    at = len(_OPENING) - _SHAPE.size
    edges = _SHAPE.unpack(head[at : at + _SHAPE.size])
    if bytes(head[:_HEAD]) != _head(edges):
        raise bad(name, "a JPEG file that feedrate did not make: it holds no arrays")
    if _HEAD + 5 * math.prod(edges) + len(_END) != size or not math.prod(edges):
        raise bad(name, f"{size} bytes do not hold the shape {edges} that it states")
    return (1, *edges)


class Jpeg(OneFile):
    """One .jpeg file a sample."""

    suffix = ".jpeg"
    records = True

    def planned_bytes(self, voxels: Any) -> Any:
        return _HEAD + 5 * voxels + len(_END)

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        voxels = math.prod(shape)
        return (Layout([_head(shape[1:]), Hole("x", 4 * voxels), Hole("y", voxels), _END]),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        spans = self.spans(lambda offset, length: data[offset : offset + length], len(data), name)
        return {
            key: np.frombuffer(data, span.dtype, math.prod(span.shape), span.offset).reshape(span.shape)
            for key, span in spans.items()
        }

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span]:
        shape = _shape(peek(0, min(size, _HEAD)), size, name)
        label = _HEAD + 4 * math.prod(shape)
        return {"x": Span(_HEAD, np.dtype("<f4"), shape), "y": Span(label, np.dtype("|u1"), shape)}

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        if columns or samples != 1:
            raise bad(name, "a JPEG file is one sample without columns")
        return Even(name, size, 1, lambda data: "")

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if bytes(head[:3]) != _START + b"\xff" or size < 4:
            raise bad(name, "not a JPEG file")
        if bytes(head[: len(_START) + 4 + len(_NAME)]) == _OPENING[: len(_START) + 4 + len(_NAME)]:
            _shape(head, size, name)  # others' files state no size
