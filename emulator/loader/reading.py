"""Reading one sample whole, the way both loaders do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.errors import DatasetError, StorageError
from emulator.loader.base import SampleFormat, SampleList
from emulator.loader.buffers import PAGE, padded
from emulator.storage.base import Blob, Storage
from emulator.units import show_seconds

Checksums = Sequence[int] | NDArray[np.uint32]
"""CRC-32 of each sample, over all its files."""

MOST_PARTS = 2
"""Files of one sample, at most (image and label apart)."""


class WholeReader:
    """Reads every byte of samples, in requests of `block` bytes, whatever their format."""

    def __init__(
        self,
        storage: Storage,
        samples: SampleList,
        form: SampleFormat,
        block: int,
        checksums: Checksums | None = None,
    ) -> None:
        self.storage = storage
        self.samples = samples
        self.form = form
        self.block = block
        self.checksums = checksums

    def room(self) -> int:
        """Bytes of a buffer that holds any sample whole."""
        return padded(int(np.max(self.samples.sizes, initial=0)), PAGE) + MOST_PARTS * PAGE

    def size(self, index: int) -> int:
        """Bytes of sample `index`."""
        return int(self.samples.sizes[index])

    def read(
        self, index: int, buffer: memoryview, keep: bool, cancelled: Callable[[], bool]
    ) -> list[tuple[str, memoryview]]:
        """Read sample `index`; its files' names and bytes as views of `buffer` with `keep`.

        Without, each block overwrites the last one, and `buffer` needs only the size of a block.
        Raises DatasetError when a file is missing, truncated or corrupt, StorageError when it cannot
        be read and when `cancelled` says so.
        """
        name, size = self.samples.names[index], self.size(index)
        parts = self.form.parts(name)
        read: list[tuple[str, memoryview]] = []
        start = total = crc = 0
        for number, part in enumerate(parts, start=1):
            with self.storage.open(part) as blob:
                total += blob.size
                if number == len(parts) and total != size:
                    raise DatasetError(
                        f"the sample {blob.name} has {total} bytes, but the manifest says {size}",
                        "run feedrate verify on the dataset",
                    )
                crc = self._read_blocks(part, blob, buffer[start:], crc, keep, cancelled)
                if keep:
                    read.append((part, buffer[start : start + blob.size]))
                    start += padded(blob.size, PAGE)
        if self.checksums is not None and crc != int(self.checksums[index]):
            raise DatasetError(
                f"the sample {name} has the CRC-32 {crc:08x}, but the manifest says "
                f"{int(self.checksums[index]):08x}",
                "its bytes are not those that were generated; run feedrate verify on the dataset",
            )
        return read

    def _read_blocks(
        self, part: str, blob: Blob, buffer: memoryview, crc: int, keep: bool, cancelled: Callable[[], bool]
    ) -> int:
        """Read one file; the CRC-32 of its bytes behind those of `crc`, when checksums are wanted."""
        offset, size, alignment = 0, blob.size, blob.alignment
        while offset < size:
            if cancelled():
                raise StorageError("the loader is closed")
            useful = min(self.block, size - offset)
            place = offset if keep else 0
            got = blob.read_into(offset, buffer[place : place + padded(useful, alignment)])
            if got < useful:
                raise DatasetError(
                    f"the sample {blob.name} ends at byte {offset + got} of {size}",
                    "it was cut while it was read; run feedrate verify on the dataset",
                )
            if offset == 0:
                self.form.check_head(buffer[:useful], size, part)
            if self.checksums is not None:
                crc = crc32(buffer[place : place + useful], crc)
            offset += useful
        return crc


def stalled(timeout: float) -> StorageError:
    """What a consumer raises that has waited for `timeout` seconds."""
    return StorageError(
        f"no batch for {show_seconds(timeout)}",
        "the storage hangs, or it is too slow for loader.stall_timeout",
    )
