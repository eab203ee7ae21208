"""Would storage that compresses or deduplicates be flattered by this dataset? Measured on its files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from emulator.storage.base import Store

BLOCK = 4096
_FILES = 16
_WINDOWS = 5  # the last one shows labels: a fifth of a sample is
_WINDOW = 1 << 20
_LEVEL = 3


def chosen(count: int, wanted: int = _FILES) -> list[int]:
    """At most `wanted` of `count` indices, evenly spread."""
    spread: list[int] = np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(int)).tolist()
    return spread


def _windows(size: int) -> list[int]:
    """Offsets, multiples of BLOCK, of the windows of a file that are looked at."""
    if size <= _WINDOWS * _WINDOW:
        return list(range(0, size, _WINDOW))
    return [int(at) // BLOCK * BLOCK for at in np.linspace(0, size - _WINDOW, _WINDOWS)]


def measure_payload(store: Store, names: Sequence[str]) -> dict[str, float]:
    """What zstd level 3 makes of the files `names`, and the share of 4 KiB blocks that are in them once.

    zstd_ratio: bytes / compressed bytes. unique_blocks: distinct / all blocks, over all files together
    (0 to 1). bytes: what was looked at, of large files windows. Raises DatasetError, StorageError.
    """
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    digests: set[bytes] = set()
    total = packed = blocks = 0
    room = memoryview(bytearray(_WINDOW))
    for name in names:
        with store.open(name) as blob:
            for offset in _windows(blob.size):
                data = room[: blob.read_into(offset, room[: min(_WINDOW, blob.size - offset)])]
                total += len(data)
                packed += len(compressor.compress(data))
                for at in range(0, len(data) - BLOCK + 1, BLOCK):
                    digests.add(hashlib.blake2b(data[at : at + BLOCK], digest_size=16).digest())
                    blocks += 1
    return {
        "files": len(names),
        "bytes": total,
        "zstd_ratio": round(total / packed, 4) if packed else 1.0,
        "unique_blocks": round(len(digests) / blocks, 6) if blocks else 1.0,
    }
