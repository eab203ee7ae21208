"""NumPy's .npz: a zip of stored `x.npy` and `y.npy`, as numpy.savez, DLIO and MLPerf Storage write it.

The zip directory is read here and not by `zipfile`, which copies and sums every byte: a rank needs
to know where the arrays lie, checksums are the business of `feedrate verify`. In files written here
the arrays begin at multiples of 64 bytes, as page-aligned readers like it.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import Array, Hole, Key, Layout, OneFile, Patches, Peek, Shape, Span, bad
from emulator.dataset.formats.npy import HEAD, npy_array, npy_header, parse_npy

_LOCAL = struct.Struct(
    "<4s5H3L2H"
)  # PK\3\4, version, flags, method, time, date, crc, packed, size, name, extra
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCAL_CRC, _CENTRAL_CRC = 14, 16  # offsets of the checksum in the headers
_DATE = (1 << 5) | 1  # 1 January 1980: the same bytes whenever they are written
_STORED, _DEFLATED = 0, 8
_MEMBERS = 16
_TAIL = 4096
"""Bytes of the end of a file that hold the directory of any .npz file but a contrived one."""
_ALIGNMENT = 64
_INFLATION = 1032
"""Deflate cannot make more than this many bytes of one."""
_ALL_ONES = 0xFFFFFFFF


class Member(NamedTuple):
    """One member of a zip, from its central directory."""

    name: str
    method: int
    packed: int
    """Bytes as stored."""
    size: int
    """Bytes once unpacked."""
    header: int
    """Offset of its local header."""


def _directory(data: memoryview, base: int, name: str) -> tuple[int, int]:
    """(members, offset of the central directory in `data`) of a zip. Raises DatasetError.

    `data` are the bytes of the file from `base` on; negative when the directory begins before them.
    """
    at = len(data) - _END.size
    if at < 0 or bytes(data[at : at + 4]) != b"PK\5\6":
        raise bad(name, "not an .npz file, or its end is missing")
    _, disk, _, _, count, _, offset, comment = _END.unpack_from(data, at)
    if offset == _ALL_ONES or count == 0xFFFF:
        count, offset = _directory64(data, base, at - _LOCATOR.size, name)
    if disk or comment or not 0 < count <= _MEMBERS or offset > base + at:
        raise bad(name, "a zip directory that is no .npz file's")
    return count, offset - base


def _directory64(data: memoryview, base: int, at: int, name: str) -> tuple[int, int]:
    if at < 0 or bytes(data[at : at + 4]) != b"PK\6\7":
        raise bad(name, "a zip64 directory without its locator")
    end = _LOCATOR.unpack_from(data, at)[2] - base
    if not 0 <= end <= at - _END64.size or bytes(data[end : end + 4]) != b"PK\6\6":
        raise bad(name, "a zip64 directory that lies outside of the file")
    fields = _END64.unpack_from(data, end)
    return fields[7], fields[9]


def _zip64(extra: memoryview, values: list[int], name: str) -> list[int]:
    """`values` (size, packed, offset) with those that are all ones replaced from the zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        field = extra[at + 4 : at + 4 + length]
        if kind == 1:
            numbers = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            return [next(numbers, -1) if value == _ALL_ONES else value for value in values]
        at += 4 + length
    return values


def members(data: memoryview, name: str) -> list[Member]:
    """The members of the zip in `data`, checked to lie within it. Raises DatasetError."""
    return _members(data, 0, *_directory(data, 0, name), name)


def _members(data: memoryview, base: int, count: int, at: int, name: str) -> list[Member]:
    """The `count` members that the directory at `at` in `data` lists; `base` as in _directory."""
    found = []
    for _ in range(count):
        if at + _CENTRAL.size > len(data) or bytes(data[at : at + 4]) != b"PK\1\2":
            raise bad(name, "a broken zip directory")
        entry = _CENTRAL.unpack_from(data, at)
        flags, method = entry[3], entry[4]
        start = at + _CENTRAL.size
        after_name, after_extra = start + entry[10], start + entry[10] + entry[11]
        if after_extra > len(data) or flags & 1 or method not in (_STORED, _DEFLATED):
            raise bad(name, "a zip member that is cut off, encrypted or packed in an unknown way")
        size, packed, header = _zip64(data[after_name:after_extra], [entry[9], entry[8], entry[16]], name)
        if min(size, packed, header) < 0 or header + _LOCAL.size + packed > base + len(data):
            raise bad(name, "a zip member that lies outside of the file")
        found.append(Member(str(data[start:after_name], "utf-8", "replace"), method, packed, size, header))
        at = after_extra + entry[12]
    return found


def _local(data: memoryview, at: int, name: str) -> tuple[str, int, int, int]:
    """(name, method, packed bytes or all ones, offset of the data) of the local header at `at`."""
    if at + _LOCAL.size > len(data) or bytes(data[at : at + 4]) != b"PK\3\4":
        raise bad(name, "not an .npz file, or a broken member of one")
    entry = _LOCAL.unpack_from(data, at)
    start = at + _LOCAL.size
    return (
        str(data[start : start + entry[9]], "utf-8", "replace"),
        entry[3],
        entry[7],
        start + entry[9] + entry[10],
    )


def _unpack(data: memoryview, member: Member, name: str) -> memoryview:
    """The bytes of `member`: a view when it is stored. Raises DatasetError."""
    _, method, _, start = _local(data, member.header, name)
    if method != member.method or start + member.packed > len(data):
        raise bad(name, f"its member {member.name} contradicts the zip directory")
    packed = data[start : start + member.packed]
    if method == _STORED:
        if member.size != member.packed:
            raise bad(name, f"its stored member {member.name} has two sizes")
        return packed
    return inflate(packed, member.size, -15, name)


def _span(peek: Peek, member: Member, size: int, name: str) -> Span | None:
    """Where the array of a stored `member` lies, None when it is packed. Raises DatasetError."""
    head = peek(member.header, min(size - member.header, _LOCAL.size + HEAD))
    _, method, _, start = _local(head, 0, name)
    if method != member.method or member.header + start + member.packed > size:
        raise bad(name, f"its member {member.name} contradicts the zip directory")
    if method != _STORED:
        return None
    array = parse_npy(head[start : start + member.packed], name)
    if member.size != member.packed or array.offset + array.size != member.size:
        raise bad(name, f"its member {member.name} has another size than its header says")
    offset = member.header + start + array.offset
    return None if array.fortran else Span(offset, array.dtype, array.shape)


def inflate(packed: memoryview, size: int, window: int, name: str) -> memoryview:
    """`size` bytes out of a deflate stream: never allocates more. Raises DatasetError."""
    if size > len(packed) * _INFLATION + 64:
        raise bad(name, f"{len(packed)} packed bytes cannot hold {size}")
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise bad(name, f"broken compression ({error})") from None
    if len(data) != size:
        raise bad(name, "its compressed data have another size than its header says")
    return memoryview(data)


class Npz(OneFile):
    """One .npz file a sample."""

    suffix = ".npz"

    def planned_bytes(self, voxels: Any) -> Any:
        x = 192 + 4 * voxels
        second = x + (-(x + 35 + 4) % _ALIGNMENT) + 4 + 35
        return second + 128 + voxels + 2 * (_CENTRAL.size + 5) + _END.size

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        return (_layout(shape),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        found = {}
        for member in members(data, name):
            key = member.name.removesuffix(".npy")
            if key in ("x", "y"):
                found[key] = npy_array(_unpack(data, member, name), f"{name}, {member.name}")
        if len(found) != 2:
            raise bad(name, "an .npz file without the arrays x and y")
        return found

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        base = max(0, size - _TAIL)
        tail = peek(base, size - base)
        count, at = _directory(tail, base, name)
        if at < 0:
            return None
        found = {}
        for member in _members(tail, base, count, at, name):
            key = member.name.removesuffix(".npy")
            if key in ("x", "y"):
                found[key] = _span(peek, member, size, name)
        if len(found) != 2:
            raise bad(name, "an .npz file without the arrays x and y")
        spans = {key: span for key, span in found.items() if span is not None}
        return spans if len(spans) == 2 else None

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        member, method, packed, start = _local(head, 0, name)
        if member not in ("x.npy", "y.npy") or method not in (_STORED, _DEFLATED):
            raise bad(name, f"begins with {member[:40]!r} and not with x.npy or y.npy")
        if start > len(head):
            raise bad(name, "a zip member with an endless header")
        tail = 2 * (_CENTRAL.size + 5) + _END.size
        if method == _DEFLATED:
            if packed != _ALL_ONES and start + packed + tail > size:
                raise bad(name, f"{size} bytes are too few for its first member")
            return
        array = parse_npy(head[start:], name)
        needed = start + array.offset + array.size + _LOCAL.size + tail
        if needed > size:
            raise bad(name, f"{size} bytes where its first header asks for more than {needed}")


def _aligned(offset: int) -> int:
    """Where the data of a member whose local header begins at `offset` start."""
    start = offset + _LOCAL.size + 5 + 4
    return start + -start % _ALIGNMENT


def _layout(shape: Shape) -> Layout:
    """Zip headers and directory around two stored members; their checksums come late."""
    voxels = math.prod(shape)
    pieces: list[bytes | Hole] = []
    directory = b""
    members: list[tuple[Key, bytes, int, int]] = []
    at = 0
    for name, descr, hole in ((b"x.npy", "<f4", Hole("x", 4 * voxels)), (b"y.npy", "|u1", Hole("y", voxels))):
        header = npy_header(shape, descr)
        size = len(header) + hole.size
        padding = _aligned(at) - at - _LOCAL.size - len(name)
        common = (20, 0, _STORED, 0, _DATE, 0, size, size, len(name))
        local = _LOCAL.pack(b"PK\3\4", *common, padding) + name
        local += struct.pack("<2H", 0xD935, padding - 4) + bytes(padding - 4)  # a field that all readers skip
        pieces += [local + header, hole]
        members.append((hole.key, header, hole.size, at))
        directory += _CENTRAL.pack(b"PK\1\2", 20, *common, 0, 0, 0, 0, 0o600 << 16, at) + name
        at += len(local) + size
    pieces.append(directory + _END.pack(b"PK\5\6", 0, 0, 2, 2, len(directory), at, 0))

    def late(sums: Mapping[Key, int]) -> Patches:
        patches: dict[int, bytes] = {}
        for number, (key, header, size, local) in enumerate(members):
            crc = crc32_join([(crc32(header), len(header)), (sums[key], size)]).to_bytes(4, "little")
            patches[local + _LOCAL_CRC] = crc
            patches[at + number * len(directory) // 2 + _CENTRAL_CRC] = crc
        return patches

    return Layout(pieces, late)
