"""A file as a sequence of literal bytes and arrays: composed in memory, or streamed to storage.

Checksums of the arrays are known only once they are written, so that a layout says which bytes of its
literals are put in afterwards (the CRC fields of a zip).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from emulator.dataset.checksum import crc32, crc32_join

Key = Literal["x", "y"]
Patches = Mapping[int, bytes]
"""Offset in the file -> the bytes that belong there."""


class Source(Protocol):
    """The bytes of an array, one after another."""

    crc: int
    """CRC-32 of what it has given so far."""

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        ...


@dataclass(frozen=True, slots=True)
class Hole:
    """Where an array goes: image "x" or label "y"."""

    key: Key
    size: int
    """Bytes."""


def nothing_late(sums: Mapping[Key, int]) -> Patches:
    """No literal depends on the arrays."""
    return {}


@dataclass(frozen=True, slots=True)
class Layout:
    """One file."""

    pieces: Sequence[bytes | Hole]
    late: Callable[[Mapping[Key, int]], Patches] = nothing_late
    """From the CRC-32 of the arrays to bytes of literals; the offsets do not depend on the sums."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(_length(piece) for piece in self.pieces)

    def placed(self) -> Iterator[tuple[int, bytes | Hole]]:
        """The pieces, each with its offset."""
        at = 0
        for piece in self.pieces:
            yield at, piece
            at += _length(piece)

    def crc(self, sums: Mapping[Key, int]) -> int:
        """CRC-32 of the file with arrays of these checksums."""
        patches = self.late(sums)
        parts = []
        for at, piece in self.placed():
            if isinstance(piece, Hole):
                parts.append((sums[piece.key], piece.size))
            else:
                parts.append((crc32(_patched(piece, at, patches)), len(piece)))
        return crc32_join(parts)


def _length(piece: bytes | Hole) -> int:
    return piece.size if isinstance(piece, Hole) else len(piece)


def _patched(literal: bytes, at: int, patches: Patches) -> bytes:
    """`literal`, which begins at offset `at`, with the patches that fall into it."""
    inside = {offset: data for offset, data in patches.items() if at <= offset < at + len(literal)}
    if not inside:
        return literal
    changed = bytearray(literal)
    for offset, data in inside.items():
        changed[offset - at : offset - at + len(data)] = data
    return bytes(changed)
