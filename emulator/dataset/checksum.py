"""CRC-32, as zip files use it: by libdeflate, four times as fast as zlib, and joined without another pass."""

from __future__ import annotations

from collections.abc import Iterable

import deflate


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32 of `data` behind bytes whose CRC-32 is `value`."""
    return int(deflate.crc32(data, value))


def _times(matrix: list[int], vector: int) -> int:
    """Multiply over GF(2); row i of `matrix` is the image of bit i."""
    total = 0
    for row in matrix:
        if vector & 1:
            total ^= row
        vector >>= 1
    return total


def _powers() -> list[list[int]]:
    """The matrices that append 2^k zero bytes to a CRC-32, for k = 0 ... 47."""
    polynomial = 0xEDB88320
    bit = [polynomial] + [1 << i for i in range(31)]
    for _ in range(3):  # one bit -> one byte
        bit = [_times(bit, row) for row in bit]
    powers = [bit]
    for _ in range(47):
        powers.append([_times(powers[-1], row) for row in powers[-1]])
    return powers


_POWERS = _powers()


def crc32_join(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of a file from the (CRC-32, length in bytes) of its consecutive parts."""
    total = 0
    for crc, length in parts:
        power = 0
        while length >> power:
            if length >> power & 1:
                total = _times(_POWERS[power], total)
            power += 1
        total ^= crc
    return total
