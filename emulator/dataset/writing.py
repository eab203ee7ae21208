"""The bytes of a file to its target: from memory at once, or streamed through a small buffer."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import PAGE, Encoded
from emulator.dataset.formats.layout import Hole, Key, Layout, Source
from emulator.storage.base import Draft, WriteOptions
from emulator.storage.files import Target, sync_folder, write_small

__all__ = ["Target", "WriteOptions", "pour", "stream", "sync_folder", "write_encoded", "write_small"]


def write_encoded(target: Draft, encoded: Encoded) -> None:
    """A file that was composed in memory. Raises OSError."""
    target.put(encoded.memory[: -(-encoded.size // PAGE) * PAGE], 0)
    target.end(encoded.size)


def stream(target: Draft, layout: Layout, sources: Mapping[Key, Source], buffer: memoryview) -> None:
    """Write a file through `buffer`, page-aligned memory of whole pages, however large the file is.

    The arrays come from `sources`, in order. Literals that depend on their checksums are written last.
    Raises OSError.
    """
    late = _Late(layout)
    base = used = 0
    for _, piece in layout.placed():
        done, size = 0, piece.size if isinstance(piece, Hole) else len(piece)
        while done < size:
            step = min(size - done, len(buffer) - used)
            if isinstance(piece, Hole):
                sources[piece.key].into(buffer[used:], step)
            else:
                buffer[used : used + step] = piece[done : done + step]
            done, used = done + step, used + step
            if used == len(buffer):
                late.keep(buffer, base)
                target.put(buffer, base)
                base, used = base + used, 0
    sums = {key: source.crc for key, source in sources.items()}
    end = -(-used // PAGE) * PAGE
    buffer[used:end] = bytes(end - used)
    patches = {at + n: byte for at, data in layout.late(sums).items() for n, byte in enumerate(data)}
    for at, byte in patches.items():
        if at >= base:
            buffer[at - base] = byte
    target.put(buffer[:end], base)
    late.write(target, patches)
    target.end(layout.size)


def pour(target: Draft, blocks: Iterable[NDArray[np.uint8]], buffer: memoryview) -> tuple[int, int]:
    """Write a file that comes in blocks, one behind the other, through `buffer`; its (CRC-32, bytes).

    `buffer` is page-aligned memory of whole pages. Raises OSError.
    """
    base = used = crc = 0
    for block in blocks:
        data = block.reshape(-1).data
        crc = crc32(data, crc)
        while len(data):
            step = min(len(data), len(buffer) - used)
            buffer[used : used + step] = data[:step]
            data, used = data[step:], used + step
            if used == len(buffer):
                target.put(buffer, base)
                base, used = base + used, 0
    end = -(-used // PAGE) * PAGE
    buffer[used:end] = bytes(end - used)
    target.put(buffer[:end], base)
    target.end(base + used)
    return crc, base + used


class _Late:
    """Blocks that were written before the checksums in them were known."""

    def __init__(self, layout: Layout) -> None:
        offsets = layout.late({"x": 0, "y": 0})
        self._blocks = sorted(
            {(at + n) // PAGE * PAGE for at, data in offsets.items() for n in range(len(data))}
        )
        self._kept: dict[int, mmap.mmap] = {}

    def keep(self, buffer: memoryview, base: int) -> None:
        """Remember the blocks of `buffer`, which is to be written at offset `base`."""
        for block in self._blocks:
            if base <= block < base + len(buffer):
                self._kept[block] = mmap.mmap(-1, PAGE)  # page-aligned, as O_DIRECT wants it
                self._kept[block][:] = buffer[block - base : block - base + PAGE]

    def write(self, target: Draft, patches: Mapping[int, int]) -> None:
        """Write the blocks again with `patches`: offset in the file -> byte. Raises OSError."""
        for block, memory in self._kept.items():
            for at, byte in patches.items():
                if block <= at < block + PAGE:
                    memory[at - block] = byte
            target.put(memoryview(memory), block)
