"""NumPy's files: samples as a pair `_x.npy`, `_y.npy`, as the reference training reads them, and .npz.

An .npy header is checked by a strict pattern, which no array of Python objects passes.

An .npz is a zip of stored `x.npy` and `y.npy`, as numpy.savez, DLIO and MLPerf Storage write it. It is
written here and not by `zipfile`, which would need the array in memory. Arrays begin at multiples of 64
bytes, as page-aligned readers like it.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Deferred,
    Format,
    Key,
    PairFormat,
    Piece,
    Shape,
    Sources,
    bad,
    require_size,
)

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'[<>|=][fiub](?P<itemsize>[1248])',\s*'fortran_order':\s*(?:True|False),"
    rb"\s*'shape':\s*\((?P<shape>(?:\d{1,15}, ?){0,7}(?:\d{1,15})?)\),?\s*\}\s*"
)


def npy_header(shape: tuple[int, ...], descr: str) -> bytes:
    """Header of a C-ordered array, byte for byte as numpy.save writes it: a multiple of 64 bytes."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = -(-(10 + len(text) + 1) // 64) * 64
    length = (padded - 10).to_bytes(2, "little")
    return _MAGIC + b"\x01\x00" + length + text.ljust(padded - 11).encode() + b"\n"


def npy_bytes(head: memoryview, name: str) -> int:
    """Return the size that a file states whose first bytes are `head`: header and array.

    Raises DatasetError, also for an array of Python objects, which only a pickle can hold.
    """
    if len(head) < 12 or bytes(head[:6]) != _MAGIC:
        raise bad(name, "not an .npy array")
    start = 12 if head[6] >= 2 else 10
    length = int.from_bytes(head[8:start], "little")
    if head[6] not in (1, 2, 3) or length > 4096 or start + length > len(head):
        raise bad(name, "an .npy header that is too long or cut off")
    match = _HEADER.fullmatch(bytes(head[start : start + length]))
    if match is None:
        raise bad(name, "an .npy header that is not of a plain array of numbers (no pickled objects)")
    edges = [int(edge) for edge in match["shape"].replace(b" ", b"").split(b",") if edge]
    return start + length + int(match["itemsize"]) * math.prod(edges)


class NpyPair(PairFormat):
    """`NAME_x.npy` (float32) and `NAME_y.npy` (uint8)."""

    suffix = "_x.npy"
    library = "np.load"
    library_opens = False

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return 5 * samples * voxels + 256

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        return [
            (npy_header(shape, "<f4"), ArrayBytes("x", 4 * voxels)),
            (npy_header(shape, "|u1"), ArrayBytes("y", voxels)),
        ]

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        require_size(name, size, npy_bytes(head, name))

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
        return {self.key(name): np.load(opened)}


class NpyArray(Format):
    """One `NAME.npy` a sample, whatever array of numbers it holds: DLIO's. Its bytes are read, not loaded."""

    suffix = ".npy"
    written = False

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        require_size(name, size, npy_bytes(head, name))


# ---- The zip around two of them.

_LOCAL = struct.Struct("<4s5H3L2H")
"""PK\\3\\4, version, flags, method, time, date, crc, packed, size, bytes of the name, of the extra field."""
_LOCAL_CRC = 14
"""Offset of the checksum in it."""
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_DIRECTORY = _CENTRAL.size + 5 + _END.size
"""Bytes behind the last member of a file that has only one, x.npy."""
_DATE = (1 << 5) | 1  # 1 January 1980: the same bytes whenever they are written
_STORED, _DEFLATED = 0, 8
_ALIGNMENT = 64


def _local(data: memoryview, name: str) -> tuple[str, int, int, int]:
    """Return name, method, packed bytes or all ones, and offset of the data, from a member's local header."""
    if len(data) < _LOCAL.size or bytes(data[:4]) != b"PK\3\4":
        raise bad(name, "not an .npz file, or a broken member of one")
    entry = _LOCAL.unpack_from(data)
    start = _LOCAL.size
    member = str(data[start : start + entry[9]], "utf-8", "replace")
    return member, entry[3], entry[7], start + entry[9] + entry[10]


class Npz(Format):
    """One .npz file a sample."""

    suffix = ".npz"
    library = "np.load"
    library_opens = False

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        voxels = samples * voxels
        x = 192 + 4 * voxels
        second = x + (-(x + 35 + 4) % _ALIGNMENT) + 4 + 35
        return second + 128 + voxels + _DIRECTORY + _CENTRAL.size + 5

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

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
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
        if method == _STORED:
            packed = npy_bytes(head[start:], name)
        elif packed == 0xFFFFFFFF:  # the size is in the extra field
            packed = 0
        needed = start + packed + _DIRECTORY  # x.npy may be all that it has
        if needed > size:
            raise bad(name, f"{size} bytes where its first header asks for at least {needed}")
