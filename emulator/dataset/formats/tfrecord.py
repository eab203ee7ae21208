"""tf.train.Example in protocol buffers' wire format: the one message that TFRecord files here hold.

Example{features: Features{feature: map<string, Feature>}}, Feature{bytes_list | int64_list}; each of these
is a field of length-delimited bytes, written by hand and read within bounds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import (
    SLACK,
    Array,
    Encoded,
    Even,
    Fill,
    Index,
    Key,
    OneFile,
    Peek,
    Place,
    Room,
    Shape,
    Source,
    Span,
    bad,
)

_BYTES, _VARINT = 2, 0
"""Wire types: length-delimited, variable-length integer."""
_FIXED = {1: 8, 5: 4}
_MOST_BYTES = 10
_MOST_FIELDS = 64
_SHAPE = struct.Struct("<3L")
"""Three numbers of a fixed length, not varints: the bytes of a record depend on its voxels alone."""
_KEY = b"\x0a\x05image"


class ExampleHead(NamedTuple):
    """What an Example says of its sample."""

    shape: tuple[int, int, int]
    """Depth, height, width in voxels."""
    image: int
    """Offset of the image's bytes, which go on to the end."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _opening(number, len(data)) + data


def _opening(number: int, length: int) -> bytes:
    """A length-delimited field without its `length` bytes."""
    return bytes([number << 3 | _BYTES]) + _varint(length)


def _feature(name: bytes, value: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, value))


def example_head(shape: tuple[int, int, int]) -> bytes:
    """An Example up to the bytes of its image, which are its last 5 x voxels."""
    size = 5 * math.prod(shape)
    first = _feature(b"shape", _field(1, _field(1, _SHAPE.pack(*shape))))
    first += _feature(b"size", _field(3, _field(1, _varint(size))))
    image = b""
    for number in (1, 1, 2):  # BytesList.value, Feature.bytes_list, the map entry's value
        image = _opening(number, size + len(image)) + image
    image = _KEY + image
    image = _opening(1, size + len(image)) + image
    return _opening(1, size + len(first) + len(image)) + first + image


def example_bytes(voxels: Any) -> Any:
    """Bytes of the Example of a sample of so many voxels, its image with them: one number, or an array."""
    size = 5 * voxels
    first = len(_feature(b"shape", _field(1, _field(1, bytes(_SHAPE.size)))))
    first += len(_feature(b"size", _field(3, _field(1, b"")))) + _varint_bytes(size)
    image = size
    for _ in range(3):
        image = image + 1 + _varint_bytes(image)
    image = image + len(_KEY)
    image = image + 1 + _varint_bytes(image)
    return first + image + 1 + _varint_bytes(first + image)


def _varint_bytes(value: Any) -> Any:
    return 1 + sum((value >= 1 << 7 * turn) * 1 for turn in range(1, 6))


def parse_example(data: memoryview, size: int, name: str) -> ExampleHead:
    """The head of an Example of `size` bytes that begins with `data`. Raises DatasetError."""
    shape: tuple[int, ...] = ()
    for number, start, end in _fields(data, 0, size, name):
        if number != 1:
            continue
        for _, first, last in _fields(data, start, end, name):
            key, value = _entry(data, first, last, name)
            if key == b"shape":
                begin, stop = _inner(data, *_inner(data, *value, 1, name), 1, name)
                shape = _SHAPE.unpack(data[begin:stop]) if min(stop, len(data)) - begin == _SHAPE.size else ()
            elif key == b"image":
                begin, stop = _inner(data, *_inner(data, *value, 1, name), 1, name)
                if shape and stop == size and 0 < stop - begin == 5 * math.prod(shape):
                    return ExampleHead((shape[0], shape[1], shape[2]), begin)
                raise bad(name, f"an image of {stop - begin} bytes with the shape {shape}")
    raise bad(name, "an Example without the features shape and image")


def _entry(data: memoryview, start: int, end: int, name: str) -> tuple[bytes, tuple[int, int]]:
    """Key and place of the value of a map entry."""
    key, value = b"", (start, start)
    for number, first, last in _fields(data, start, end, name):
        if number == 1 and last <= len(data):
            key = bytes(data[first : min(last, first + 64)])
        elif number == 2:
            value = (first, last)
    return key, value


def _inner(data: memoryview, start: int, end: int, wanted: int, name: str) -> tuple[int, int]:
    """Place of the first field `wanted` of a message. Raises DatasetError."""
    for number, first, last in _fields(data, start, end, name):
        if number == wanted:
            return first, last
    raise bad(name, "a feature of another kind than TFRecord files here have")


def _fields(data: memoryview, at: int, end: int, name: str) -> Iterator[tuple[int, int, int]]:
    """(number, start, end) of the length-delimited fields of a message; only their heads need to be there."""
    for _ in range(_MOST_FIELDS):
        if at >= end:
            return
        tag, at = _read_varint(data, at, end, name)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _read_varint(data, at, end, name)
            if length > end - at:
                raise bad(name, "a field of an Example reaches beyond its end")
            yield tag >> 3, at, at + length
            at += length
        elif kind == _VARINT:
            _, at = _read_varint(data, at, end, name)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise bad(name, "not a tf.train.Example")
    raise bad(name, "an Example of too many fields")


def _read_varint(data: memoryview, at: int, end: int, name: str) -> tuple[int, int]:
    value = 0
    for turn in range(_MOST_BYTES):
        if at >= min(end, len(data)):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * turn
        if byte < 0x80:
            return value, at
    raise bad(name, "a broken number in an Example")


# ---- TFRecord: records of tf.train.Example as TensorFlow's TFRecordWriter frames them, without TensorFlow.
#
# A record: length (uint64), masked CRC-32C of it, data, masked CRC-32C of the data; little-endian. The data
# is an Example with the features `shape` (bytes of three uint32), `size` (int64) and `image` (bytes), the
# latter two as DLIO has them: the image, float32, and the label, uint8, behind it. All records of a file have
# the same length, so that the n-th one lies where arithmetic says.


_LENGTH = struct.Struct("<QL")
_FOOT = 4
_FRAME = _LENGTH.size + _FOOT
_AT_ONCE = 1 << 20
"""Bytes of records that are framed at once, at least one record."""
_MASK = 0xA282EAD8
_HEAD = 4096
_ALL = 0xFFFFFFFF


def _crc32c(data: NDArray[np.uint8] | bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))


def masked_crc32c(data: NDArray[np.uint8] | bytes) -> int:
    """CRC-32C of `data`, rotated and shifted as TFRecord stores it: sums of sums are no sums then."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _ALL


def _length_of(head: memoryview, room: int, name: str) -> int:
    """Bytes of the data of the record that `head` begins; the file has `room` for it. Raises DatasetError."""
    if len(head) < _LENGTH.size:
        raise bad(name, "not a TFRecord file, or its end is missing")
    length, crc = _LENGTH.unpack_from(head)
    if masked_crc32c(bytes(head[:8])) != crc:
        raise bad(name, "not a TFRecord file: the checksum of a record's length is wrong")
    if length + _FRAME > room:
        raise bad(name, f"a record of {length} bytes where {max(room - _FRAME, 0)} are left")
    return int(length)


def wrong_record(data: memoryview) -> str:
    """What is wrong with a framed record, its checksums compared; empty: nothing."""
    length, crc = _LENGTH.unpack_from(data) if len(data) >= _FRAME else (0, 0)
    if length + _FRAME != len(data) or masked_crc32c(bytes(data[:8])) != crc:
        return "the frame of a record is broken"
    body = np.frombuffer(data[_LENGTH.size : -_FOOT], np.uint8)
    if masked_crc32c(body) != int.from_bytes(data[-_FOOT:], "little"):
        return "the CRC-32C of a record differs from its data's"
    return ""


class TfRecord(OneFile):
    """One .tfrecord file, of one sample or many."""

    suffix = ".tfrecord"
    records = True
    streams = False
    serial = True

    def planned_bytes(self, voxels: Any) -> Any:
        return _FRAME + example_bytes(voxels)

    def file_bytes(self, voxels: Any, samples: int) -> Any:
        return samples * self.planned_bytes(voxels)

    def blocks(self, shape: Shape, sources: Mapping[Key, Source]) -> Iterator[NDArray[np.uint8]]:
        voxels = math.prod(shape[1:])
        many = max(1, min(shape[0], _AT_ONCE // (5 * voxels)))
        x, y = (memoryview(bytearray(many * size * voxels + SLACK)) for size in (4, 1))
        for first in range(0, shape[0], many):
            count = min(many, shape[0] - first)
            sources["x"].into(x, 4 * count * voxels)
            sources["y"].into(y, count * voxels)
            yield _frame(shape[1:], _rows(x, count, 4 * voxels), _rows(y, count, voxels))

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        samples, voxels = shape[0], math.prod(shape[1:])
        places = [
            Place(room(part, samples * size * voxels), 0, samples * size * voxels)
            for part, size in ((1, 4), (2, 1))
        ]
        fill(places[0], places[1])
        framed = _frame(
            shape[1:], _rows(places[0].data, samples, 4 * voxels), _rows(places[1].data, samples, voxels)
        )
        memory = room(0, framed.size)
        memory[: framed.size] = framed.reshape(-1).data
        memory[framed.size :] = bytes(len(memory) - framed.size)
        return (Encoded(memory, framed.size, crc32(memory[: framed.size])),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        found = list(self._samples(data, name))
        if len({x.shape for x, _ in found}) != 1:
            raise bad(name, "its records are not of one shape")
        if len(found) == 1:
            return {"x": found[0][0], "y": found[0][1]}
        return {"x": np.concatenate([x for x, _ in found]), "y": np.concatenate([y for _, y in found])}

    def _samples(self, data: memoryview, name: str) -> Iterator[tuple[Array, Array]]:
        """Image and label of each record, as views. Raises DatasetError."""
        at = 0
        while at < len(data) or at == 0:
            length = _length_of(data[at : at + _LENGTH.size], len(data) - at, name)
            body = data[at + _LENGTH.size : at + _LENGTH.size + length]
            head = parse_example(body, length, name)
            voxels = math.prod(head.shape)
            image = body[head.image :]
            x = np.frombuffer(image, "<f4", voxels).reshape(1, *head.shape)
            yield x, np.frombuffer(image, np.uint8, voxels, 4 * voxels).reshape(1, *head.shape)
            at += length + _FRAME

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        length = _length_of(peek(0, min(size, _LENGTH.size)), size, name)
        if length + _FRAME != size:
            return None  # many records: their arrays do not lie one behind the other
        head = parse_example(peek(_LENGTH.size, min(length, _HEAD)), length, name)
        start, shape = _LENGTH.size + head.image, (1, *head.shape)
        label = start + 4 * math.prod(shape)
        return {"x": Span(start, np.dtype("<f4"), shape), "y": Span(label, np.dtype("|u1"), shape)}

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        if columns:
            raise bad(name, "a TFRecord file has no columns")
        return Even(name, size, samples, wrong_record)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        _length_of(head, size, name)


def _rows(memory: memoryview, count: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8, count * size).reshape(count, size)


def _frame(shape: Sequence[int], x: NDArray[np.uint8], y: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A record a row, of image bytes `x` and label bytes `y`."""
    head = example_head((shape[0], shape[1], shape[2]))
    length = len(head) + x.shape[1] + y.shape[1]
    opening = length.to_bytes(8, "little")
    opening += masked_crc32c(opening).to_bytes(4, "little") + head
    rows = np.empty((len(x), length + _FRAME), np.uint8)
    rows[:, : len(opening)] = np.frombuffer(opening, np.uint8)
    middle = len(opening) + x.shape[1]
    rows[:, len(opening) : middle] = x
    rows[:, middle:-_FOOT] = y
    sums = [masked_crc32c(row[_LENGTH.size : -_FOOT]) for row in rows]
    rows[:, -_FOOT:] = np.array(sums, "<u4").view(np.uint8).reshape(-1, _FOOT)
    return rows
