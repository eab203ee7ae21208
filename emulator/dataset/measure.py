"""Would storage that compresses or deduplicates be flattered by this dataset? Measured on its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from emulator.errors import storage_error

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


def measure_payload(paths: Sequence[Path]) -> dict[str, float]:
    """What zstd level 3 makes of the files `paths`, and the share of 4 KiB blocks that are in them once.

    zstd_ratio: bytes / compressed bytes. unique_blocks: distinct / all blocks, over all files together
    (0 to 1). bytes: what was looked at. Windows of large files are looked at. Raises StorageError.
    """
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    digests: set[bytes] = set()
    total = packed = blocks = 0
    try:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for offset in _windows(os.fstat(descriptor).st_size):
                    data = os.pread(descriptor, _WINDOW, offset)
                    total += len(data)
                    packed += len(compressor.compress(data))
                    for at in range(0, len(data) - BLOCK + 1, BLOCK):
                        digests.add(hashlib.blake2b(data[at : at + BLOCK], digest_size=16).digest())
                        blocks += 1
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise storage_error(error, "cannot read a sample") from None
    return {
        "files": len(paths),
        "bytes": total,
        "zstd_ratio": round(total / packed, 4) if packed else 1.0,
        "unique_blocks": round(len(digests) / blocks, 6) if blocks else 1.0,
    }
