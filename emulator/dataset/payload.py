"""How far files compress and repeat: storage that compresses or deduplicates would look faster."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import zstandard

from emulator.storage.base import Store
from emulator.units import BLOCK_BYTES

_WINDOWS = 5  # the last one shows labels: a fifth of a sample is
_WINDOW = 1 << 20


def measure_payload(store: Store, names: Sequence[str]) -> dict[str, float]:
    """Measure how the files `names` compress at zstd level 3, and their share of unique 4 KiB blocks.

    zstd_ratio: bytes / compressed bytes. unique_blocks: distinct / all blocks, over all files together
    (0 to 1). bytes: what was looked at, of large files windows. Raises DatasetError, StorageError.
    """
    compressor = zstandard.ZstdCompressor(level=3)
    digests: set[bytes] = set()
    total = packed = blocks = 0
    buffer = memoryview(bytearray(_WINDOW))
    for name in names:
        with store.open(name) as blob:
            windows: Sequence[int] = range(0, blob.size, _WINDOW)
            if len(windows) > _WINDOWS:
                spread = np.linspace(0, blob.size - _WINDOW, _WINDOWS).astype(int)
                windows = (spread // BLOCK_BYTES * BLOCK_BYTES).tolist()
            for offset in windows:
                data = buffer[: blob.read_into(offset, buffer[: min(_WINDOW, blob.size - offset)])]
                total += len(data)
                packed += len(compressor.compress(data))
                for at in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
                    digests.add(hashlib.blake2b(data[at : at + BLOCK_BYTES], digest_size=16).digest())
                    blocks += 1
    return {
        "files": len(names),
        "bytes": total,
        "zstd_ratio": round(total / packed, 4) if packed else 1.0,
        "unique_blocks": round(len(digests) / blocks, 6) if blocks else 1.0,
    }
