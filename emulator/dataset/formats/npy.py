"""NumPy's .npy: the header, and samples as a pair `_x.npy`, `_y.npy`, as the reference training reads.

The header is parsed by a strict pattern: nothing is evaluated, no pickle is ever loaded, and a
header that promises more than the file holds is refused before anything is allocated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Format,
    PairFormat,
    Peek,
    Piece,
    Shape,
    Sources,
    Span,
    bad,
)

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[<>|=][fiub](?:1|2|4|8))',\s*'fortran_order':\s*(?P<order>True|False),"
    rb"\s*'shape':\s*\((?P<shape>[0-9, ]*)\),?\s*\}\s*"
)
_HEADER_BYTES = 4096
HEAD = 12 + _HEADER_BYTES
"""Bytes that hold any header that is taken."""
_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Where an array lies in the bytes of a .npy file or zip member."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    """Bytes before the data."""
    size: int
    """Bytes of the data."""


def npy_header(shape: tuple[int, ...], descr: str) -> bytes:
    """Header of a C-ordered array, byte for byte as numpy.save writes it: a multiple of 64 bytes."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = -(-(10 + len(text) + 1) // 64) * 64
    length = (padded - 10).to_bytes(2, "little")
    return _MAGIC + b"\x01\x00" + length + text.ljust(padded - 11).encode() + b"\n"


def parse_npy(data: memoryview, name: str) -> NpyHeader:
    """The header at the start of `data`; the array itself need not be there. Raises DatasetError."""
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
    shape = tuple(int(edge) for edge in edges)
    try:
        dtype = np.dtype(match["descr"].decode())
    except TypeError:
        raise bad(name, f"an .npy array of the unknown type {match['descr']!r}") from None
    size = dtype.itemsize * math.prod(shape)
    return NpyHeader(dtype, shape, match["order"] == b"True", start + length, size)


def npy_array(data: memoryview, name: str) -> Array:
    """The array in the bytes of a whole .npy file or member, as a view. Raises DatasetError."""
    header = parse_npy(data, name)
    if header.size != len(data) - header.offset:
        raise bad(name, f"{len(data) - header.offset} bytes of data where its header says {header.size}")
    return np.ndarray(header.shape, header.dtype, data, header.offset, order="F" if header.fortran else "C")


def _whole_file(peek: Peek, size: int, name: str) -> NpyHeader:
    """The header of a file of `size` bytes with nothing behind its array. Raises DatasetError."""
    header = parse_npy(peek(0, min(size, HEAD)), name)
    if header.offset + header.size != size:
        raise bad(name, f"{size} bytes where its header says {header.offset + header.size}")
    return header


class NpyPair(PairFormat):
    """`NAME_x.npy` (float32) and `NAME_y.npy` (uint8)."""

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return 5 * samples * voxels + 256

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        return [
            (npy_header(shape, "<f4"), ArrayBytes("x", 4 * voxels)),
            (npy_header(shape, "|u1"), ArrayBytes("y", voxels)),
        ]

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        header = _whole_file(peek, size, name)
        if header.fortran:
            return None
        return {self.key(name): Span(header.offset, header.dtype, header.shape)}

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        return {self.key(name): npy_array(data, name)}


class NpyArray(Format):
    """One `NAME.npy` a sample, whatever array of numbers it holds: DLIO's. Read only; there is no label."""

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return voxels + 128

    def spans(self, peek: Peek, size: int, name: str) -> None:
        _whole_file(peek, size, name)

    def unpack(self, data: memoryview, name: str) -> dict[str, Array]:
        return {"x": npy_array(data, name), "y": np.zeros(0, np.uint8)}
