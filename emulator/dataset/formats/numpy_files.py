"""NumPy's files: samples as a pair `_x.npy`, `_y.npy`, as the reference training reads them, and .npz.

An .npy header is parsed by a strict pattern: nothing is evaluated, no pickle is ever loaded, and a header
that promises more than the file holds is refused before anything is allocated.

An .npz is a zip of stored `x.npy` and `y.npy`, as numpy.savez, DLIO and MLPerf Storage write it. The zip
directory is read here and not by `zipfile`, which copies and sums every byte: a rank needs to know where the
arrays lie, checksums are the business of `feedrate verify`. In files written here the arrays begin at
multiples of 64 bytes, as page-aligned readers like it.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Deferred,
    Format,
    Key,
    PairFormat,
    Peek,
    Piece,
    Shape,
    Sources,
    Span,
    bad,
    inflate,
)

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[<>|=][fiub](?:1|2|4|8))',\s*'fortran_order':\s*(?P<order>True|False),"
    rb"\s*'shape':\s*\((?P<shape>[0-9, ]*)\),?\s*\}\s*"
)
_HEADER_BYTES = 4096
_NPY_HEAD = 12 + _HEADER_BYTES
"""Bytes that hold any header that is taken."""
_DIMENSIONS = 8


def npy_header(shape: tuple[int, ...], descr: str) -> bytes:
    """Header of a C-ordered array, byte for byte as numpy.save writes it: a multiple of 64 bytes."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = -(-(10 + len(text) + 1) // 64) * 64
    length = (padded - 10).to_bytes(2, "little")
    return _MAGIC + b"\x01\x00" + length + text.ljust(padded - 11).encode() + b"\n"


def parse_npy(data: memoryview, name: str) -> Span:
    """Find the array by the header at the start of `data`. Raises DatasetError."""
    if len(data) < 12 or bytes(data[:6]) != _MAGIC:
        raise bad(name, "not an .npy array")
    start = 12 if data[6] >= 2 else 10
    length = int.from_bytes(data[8:start], "little")
    if data[6] not in (1, 2, 3) or length > _HEADER_BYTES or start + length > len(data):
        raise bad(name, "an .npy header that is too long or cut off")
    match = _HEADER.fullmatch(bytes(data[start : start + length]))
    if match is None:
        raise bad(name, "an .npy header that is not of a plain array of numbers (no pickled objects)")
    edges = [edge.strip() for edge in match["shape"].split(b",")]
    if not edges[-1]:
        edges.pop()
    if len(edges) > _DIMENSIONS or any(not edge.isdigit() or len(edge) > 15 for edge in edges):
        text = match["shape"][:40].decode(errors="replace")
        raise bad(name, f"an .npy array of the unlikely shape ({text})")
    try:
        dtype = np.dtype(match["descr"].decode())
    except TypeError:
        raise bad(name, f"an .npy array of the unknown type {match['descr']!r}") from None
    shape = tuple(int(edge) for edge in edges)
    return Span(start + length, dtype, shape, fortran=match["order"] == b"True")


def _sole_array(head: memoryview, size: int, name: str) -> Span:
    """The array of an .npy of `size` bytes that begins with `head`, and is all of it. Raises DatasetError."""
    span = parse_npy(head, name)
    if span.offset + span.size != size:
        raise bad(name, f"{size} bytes where its header says {span.offset + span.size}")
    return span


class NpyPair(PairFormat):
    """`NAME_x.npy` (float32) and `NAME_y.npy` (uint8)."""

    suffix = "_x.npy"

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return 5 * samples * voxels + 256

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        return [
            (npy_header(shape, "<f4"), ArrayBytes("x", 4 * voxels)),
            (npy_header(shape, "|u1"), ArrayBytes("y", voxels)),
        ]

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        span = _sole_array(peek(0, min(size, _NPY_HEAD)), size, name)
        return None if span.fortran else {self.key(name): span}

    library = "np.load"

    def load(self, opened: str | io.BufferedReader, name: str) -> dict[str, Array]:
        return {self.key(name): np.load(opened)}

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        return {self.key(name): _sole_array(data, len(data), name).view(data)}


class NpyArray(Format):
    """One `NAME.npy` a sample, whatever array of numbers it holds: DLIO's. Read only; there is no label."""

    suffix = ".npy"
    written = False

    def spans(self, peek: Peek, size: int, name: str) -> None:
        _sole_array(peek(0, min(size, _NPY_HEAD)), size, name)

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        return {"x": _sole_array(data, len(data), name).view(data), "y": np.zeros(0, np.uint8)}


# ---- The zip around two of them.

_LOCAL = struct.Struct("<4s5H3L2H")
"""PK\\3\\4, version, flags, method, time, date, crc, packed, size, bytes of the name, of the extra field."""
_LOCAL_CRC = 14
"""Offset of the checksum in it."""
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_DIRECTORY = 2 * (_CENTRAL.size + 5) + _END.size
"""Bytes behind the last member of a file written here."""
_DATE = (1 << 5) | 1  # 1 January 1980: the same bytes whenever they are written
_STORED, _DEFLATED = 0, 8
_MEMBERS = 16
_TAIL = 4096
"""Bytes of the end of a file that hold the directory of any .npz file but a contrived one."""
_ALIGNMENT = 64
_ALL_ONES = 0xFFFFFFFF


class Member(NamedTuple):
    """An array of a file, from the zip's central directory."""

    name: str
    method: int
    packed: int
    """Bytes as stored."""
    size: int
    """Bytes once unpacked."""
    header: int
    """Offset of its local header."""


def _arrays(data: memoryview, base: int, name: str) -> dict[str, Member] | None:
    """The members x.npy and y.npy of a zip, checked to lie within it. Raises DatasetError.

    `data` are the bytes of the file from `base` on. None when the directory begins before them.
    """
    at = len(data) - _END.size
    if at < 0 or bytes(data[at : at + 4]) != b"PK\5\6":
        raise bad(name, "not an .npz file, or its end is missing")
    _, disk, _, _, count, _, offset, comment = _END.unpack_from(data, at)
    if offset == _ALL_ONES or count == 0xFFFF:
        count, offset = _directory64(data, base, at - _LOCATOR.size, name)
    if disk or comment or not 0 < count <= _MEMBERS or offset > base + at:
        raise bad(name, "a zip directory that is no .npz file's")
    if offset < base:
        return None
    found = {}
    at = offset - base
    for _ in range(count):
        if at + _CENTRAL.size > len(data) or bytes(data[at : at + 4]) != b"PK\1\2":
            raise bad(name, "a broken zip directory")
        entry = _CENTRAL.unpack_from(data, at)
        flags, method = entry[3], entry[4]
        start = at + _CENTRAL.size
        after_name, after_extra = start + entry[10], start + entry[10] + entry[11]
        if after_extra > len(data) or flags & 1 or method not in (_STORED, _DEFLATED):
            raise bad(name, "a zip member that is cut off, encrypted or packed in an unknown way")
        size, packed, header = _zip64(data[after_name:after_extra], [entry[9], entry[8], entry[16]])
        if min(size, packed, header) < 0 or header + _LOCAL.size + packed > base + len(data):
            raise bad(name, "a zip member that lies outside of the file")
        member = Member(str(data[start:after_name], "utf-8", "replace"), method, packed, size, header)
        if member.name.removesuffix(".npy") in ("x", "y"):
            found[member.name.removesuffix(".npy")] = member
        at = after_extra + entry[12]
    if len(found) != 2:
        raise bad(name, "an .npz file without the arrays x and y")
    return found


def _directory64(data: memoryview, base: int, at: int, name: str) -> tuple[int, int]:
    """(members, offset of the central directory in the file), with the zip64 locator at `at`."""
    if at < 0 or bytes(data[at : at + 4]) != b"PK\6\7":
        raise bad(name, "a zip64 directory without its locator")
    end = _LOCATOR.unpack_from(data, at)[2] - base
    if not 0 <= end <= at - _END64.size or bytes(data[end : end + 4]) != b"PK\6\6":
        raise bad(name, "a zip64 directory that lies outside of the file")
    fields = _END64.unpack_from(data, end)
    return fields[7], fields[9]


def _zip64(extra: memoryview, values: list[int]) -> list[int]:
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


def _local(data: memoryview, name: str) -> tuple[str, int, int, int]:
    """(name, method, packed bytes or all ones, offset of the data) of the local header that begins `data`."""
    if len(data) < _LOCAL.size or bytes(data[:4]) != b"PK\3\4":
        raise bad(name, "not an .npz file, or a broken member of one")
    entry = _LOCAL.unpack_from(data)
    start = _LOCAL.size
    member = str(data[start : start + entry[9]], "utf-8", "replace")
    return member, entry[3], entry[7], start + entry[9] + entry[10]


class Npz(Format):
    """One .npz file a sample."""

    suffix = ".npz"

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        voxels = samples * voxels
        x = 192 + 4 * voxels
        second = x + (-(x + 35 + 4) % _ALIGNMENT) + 4 + 35
        return second + 128 + voxels + _DIRECTORY

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        return [self._zip(shape, sources)]

    def _zip(self, shape: Shape, sources: Sources) -> Iterator[Piece]:
        """Two stored members and the directory. A member's checksum is known once its array is written."""
        directory = b""
        at = 0
        arrays: tuple[tuple[Key, str, int], ...] = (("x", "<f4", 4), ("y", "|u1", 1))
        for key, descr, itemsize in arrays:
            name = f"{key}.npy".encode()
            header, array = npy_header(shape, descr), ArrayBytes(key, itemsize * math.prod(shape))
            size = len(header) + array.size
            padding = 4 + -(at + _LOCAL.size + len(name) + 4) % _ALIGNMENT
            common = (20, 0, _STORED, 0, _DATE)
            sizes = (size, size, len(name))
            local = _LOCAL.pack(b"PK\3\4", *common, 0, *sizes, padding) + name
            local += struct.pack("<2H", 0xD935, padding - 4) + bytes(padding - 4)  # readers skip this field
            checksum = Deferred(4)
            yield local[:_LOCAL_CRC]
            yield checksum
            yield local[_LOCAL_CRC + 4 :] + header
            yield array
            crc = crc32_join([(crc32(header), len(header)), (sources[key].crc, array.size)])
            checksum.data = crc.to_bytes(4, "little")
            directory += (
                _CENTRAL.pack(b"PK\1\2", 20, *common, crc, *sizes, 0, 0, 0, 0, 0o600 << 16, at) + name
            )
            at += len(local) + size
        yield directory + _END.pack(b"PK\5\6", 0, 0, 2, 2, len(directory), at, 0)

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        base = max(0, size - _TAIL)
        members = _arrays(peek(base, size - base), base, name)
        found = {}
        for key, member in (members or {}).items():
            head = peek(member.header, min(size - member.header, _LOCAL.size + _NPY_HEAD))
            _, method, _, start = _local(head, name)
            if method != member.method or member.header + start + member.packed > size:
                raise bad(name, f"its member {member.name} contradicts the zip directory")
            if method != _STORED:
                return None
            if member.size != member.packed:
                raise bad(name, f"its stored member {member.name} has two sizes")
            array = _sole_array(head[start : start + member.packed], member.size, f"{name}, {member.name}")
            if array.fortran:
                return None
            found[key] = replace(array, offset=member.header + start + array.offset)
        return found or None

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        found = {}
        for key, member in (_arrays(data, 0, name) or {}).items():
            _, method, _, start = _local(data[member.header :], name)
            packed = data[member.header + start : member.header + start + member.packed]
            if method != member.method or len(packed) != member.packed:
                raise bad(name, f"its member {member.name} contradicts the zip directory")
            if method == _STORED and member.size != member.packed:
                raise bad(name, f"its stored member {member.name} has two sizes")
            plain = packed if method == _STORED else inflate(packed, member.size, -15, name)
            found[key] = _sole_array(plain, len(plain), f"{name}, {member.name}").view(plain)
        return found

    library = "np.load"

    def load(self, opened: str | io.BufferedReader, name: str) -> dict[str, Array]:
        with np.load(opened) as members:
            found = {key: members[key] for key in ("x", "y") if key in members}
        if not found:
            raise bad(name, "an .npz file without x and y")
        return found

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        member, method, packed, start = _local(head, name)
        if member not in ("x.npy", "y.npy") or method not in (_STORED, _DEFLATED):
            raise bad(name, f"begins with {member[:40]!r} and not with x.npy or y.npy")
        if start > len(head):
            raise bad(name, "a zip member with an endless header")
        if method == _DEFLATED:
            if packed != _ALL_ONES and start + packed + _DIRECTORY > size:
                raise bad(name, f"{size} bytes are too few for its first member")
            return
        array = parse_npy(head[start:], name)
        needed = start + array.offset + array.size + _LOCAL.size + _DIRECTORY
        if needed > size:
            raise bad(name, f"{size} bytes where its first header asks for more than {needed}")
