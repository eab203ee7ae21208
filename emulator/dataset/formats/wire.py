"""tf.train.Example in protocol buffers' wire format: the one message that TFRecord files here hold.

Example{features: Features{feature: map<string, Feature>}}, Feature{bytes_list | int64_list}; each of these
is a field of length-delimited bytes, written by hand and read within bounds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from emulator.dataset.formats.base import bad

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
