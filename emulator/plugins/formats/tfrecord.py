"""TFRecord: records of tf.train.Example in the framing of TensorFlow's TFRecordWriter, without TensorFlow.

A record: length (uint64), masked CRC-32C of it, data, masked CRC-32C of the data; little-endian. The data
is an Example with the features `shape` (bytes of three uint32), `size` (int64) and `image` (bytes), the
latter two as in DLIO: the image (float32) and after it the label (uint8). All records of a file have the same
length, so that the offset of the n-th one can be computed.

Example{features: Features{feature: map<string, Feature>}}, Feature{bytes_list | int64_list}: each of these
is a length-delimited field of protocol buffers' wire format, written without their library.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats.base import (
    SLACK,
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
from emulator.errors import DatasetError
from emulator.order import Read

# ---- The Example: its head depends only on the shape, and its last 5 x voxels bytes are the arrays.

_SHAPE = struct.Struct("<3L")
"""Three numbers of a fixed length, not varints, so that the bytes of a record depend only on its voxels."""
_IMAGE = b"\x0a\x05image"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _opening(number: int, length: int) -> bytes:
    """Return the head of a length-delimited field (wire type 2) of `length` bytes."""
    return bytes([number << 3 | 2]) + _varint(length)


def _field(number: int, data: bytes) -> bytes:
    return _opening(number, len(data)) + data


def _feature(name: bytes, value: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, value))


_BEFORE_SHAPE = _feature(b"shape", _field(1, _field(1, bytes(_SHAPE.size))))[: -_SHAPE.size]


def example_head(shape: tuple[int, int, int]) -> bytes:
    """Return an Example without the bytes of its image, which are its last 5 x voxels."""
    size = 5 * math.prod(shape)
    first = _BEFORE_SHAPE + _SHAPE.pack(*shape)
    first += _feature(b"size", _field(3, _field(1, _varint(size))))
    image = b""
    for number in (1, 1, 2):  # BytesList.value, Feature.bytes_list, the map entry's value
        image = _opening(number, size + len(image)) + image
    image = _IMAGE + image
    image = _opening(1, size + len(image)) + image
    return _opening(1, size + len(first) + len(image)) + first + image


def example_bytes(voxels: Any) -> Any:
    """Return the bytes of the Example of a sample with `voxels` (a number or an array), image included."""

    def varint_bytes(value: Any) -> Any:
        return 1 + sum((value >= 1 << 7 * turn) * 1 for turn in range(1, 6))

    size = 5 * voxels
    first = len(_BEFORE_SHAPE) + _SHAPE.size
    first += len(_feature(b"size", _field(3, _field(1, b"")))) + varint_bytes(size)
    image = size
    for _ in range(3):
        image = image + 1 + varint_bytes(image)
    image = image + len(_IMAGE)
    image = image + 1 + varint_bytes(image)
    return first + image + 1 + varint_bytes(first + image)


# ---- The records around it.

_LENGTH = struct.Struct("<QL")
_FOOT = 4
_FRAME = _LENGTH.size + _FOOT
_AT_ONCE = 1 << 20
"""Bytes of records that are framed at once; at least one record is."""


def masked_crc32c(data: NDArray[np.uint8] | bytes) -> int:
    """Return the CRC-32C of `data` with TFRecord's mask, which makes CRCs of data with CRCs safe."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _length_of(head: memoryview, left: int, name: str) -> int:
    """Return the bytes of data of the record at `head`; the file has `left` more. Raises DatasetError."""
    if len(head) < _LENGTH.size:
        raise bad(name, "not a TFRecord file, or its end is missing")
    length, crc = _LENGTH.unpack_from(head)
    if masked_crc32c(bytes(head[:8])) != crc:
        raise bad(name, "not a TFRecord file: the checksum of a record's length is wrong")
    if length + _FRAME > left:
        raise bad(name, f"a record of {length} bytes, but {max(left - _FRAME, 0)} are left")
    return int(length)


@dataclass(frozen=True, slots=True)
class Records(Index):
    """The index of a file of contiguous records of the same size."""

    name: str
    size: int
    """Bytes of the file."""
    samples: int

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how != "alone":
            return stream_blocks(read, self.size, self.samples, block)
        sample_bytes, rest = divmod(self.size, self.samples)
        if rest:
            raise DatasetError(
                f"{self.name}: {self.size} bytes are not {self.samples} samples of the same size",
                "use --set access.pattern=sequential",
            )
        return [Extent(read.first * sample_bytes, read.samples * sample_bytes)]


class TfRecord(Format):
    """A .tfrecord file of one or many samples."""

    suffix = ".tfrecord"
    many = True
    records = True

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return samples * (_FRAME + example_bytes(voxels))

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        return [self._blocks(shape, sources)]

    def _blocks(self, shape: Shape, sources: Sources) -> Iterator[Piece]:
        """Yield the file by blocks of records, which are the rows of an array."""
        samples, voxels = shape[0], math.prod(shape[1:])
        head = example_head(shape[1:])
        length = len(head) + 5 * voxels
        opening = length.to_bytes(8, "little")
        opening += masked_crc32c(opening).to_bytes(4, "little") + head
        many = max(1, min(samples, _AT_ONCE // (5 * voxels)))
        arrays = [
            (source, size, memoryview(bytearray(many * size + SLACK)))
            for source, size in ((sources["x"], 4 * voxels), (sources["y"], voxels))
        ]
        for first in range(0, samples, many):
            rows = np.empty((min(many, samples - first), length + _FRAME), np.uint8)
            rows[:, : len(opening)] = np.frombuffer(opening, np.uint8)
            at = len(opening)
            for source, size, memory in arrays:
                source.into(memory, len(rows) * size)
                rows[:, at : at + size] = np.frombuffer(memory, np.uint8, len(rows) * size).reshape(-1, size)
                at += size
            sums = [masked_crc32c(row[_LENGTH.size : -_FOOT]) for row in rows]
            rows[:, -_FOOT:] = np.array(sums, "<u4").view(np.uint8).reshape(-1, _FOOT)
            yield rows.reshape(-1).data

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Records:
        if columns:
            raise bad(name, "a TFRecord file has no columns")
        return Records(name, size, samples)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        _length_of(head, size, name)
