"""Reading the files of one sample: what both loaders share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32
from emulator.errors import DatasetError, StorageError
from emulator.loader.base import SampleFormat, SampleList
from emulator.loader.buffers import padded
from emulator.plan.reads import Read
from emulator.storage.base import HEAD, Blob, Storage
from emulator.units import show_seconds

Checksums = Sequence[int] | NDArray[np.uint32]
"""CRC-32 of each sample, over all its files."""

SKIM = 2**18
"""Bytes of a buffer that unwanted bytes are read into: stays in a core's second-level cache."""


class WholeReader:
    """Reads every byte of files of one sample, in requests of `block` bytes, whatever their format."""

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
        """Bytes of a buffer that any block can be read or skimmed through."""
        return max(self.block, 3 * HEAD)

    def size(self, index: int) -> int:
        """Bytes of sample `index`."""
        return int(self.samples.sizes[index])

    def fetch(self, read: Read, buffer: memoryview, cancelled: Callable[[], bool]) -> int:
        """Read what `read` asks for through `buffer`, which is `room()` long; the bytes of it.

        Raises as `read` does.
        """
        self.read(read.file, buffer, cancelled)
        return self.size(read.file)

    def known_size(self, index: int, parts: Sequence[str]) -> int | None:
        """Bytes that a file of sample `index` should have; None when only the sum of several is known."""
        return self.size(index) if len(parts) == 1 else None

    def read(self, index: int, buffer: memoryview, cancelled: Callable[[], bool]) -> None:
        """Read sample `index` in order through `buffer`, which is `room()` long, and keep nothing.

        Raises DatasetError when a file is missing, truncated or corrupt, StorageError when it cannot
        be read and when `cancelled` says so.
        """
        parts = self.form.parts(self.samples.names[index])
        total = crc = 0
        for number, part in enumerate(parts, start=1):
            with self.storage.open(part, self.known_size(index, parts)) as blob:
                total += blob.size
                if number == len(parts):
                    self.check_size(index, total, blob)
                for offset in range(0, blob.size, self.block):
                    if cancelled():
                        raise StorageError("the loader is closed")
                    length = min(self.block, blob.size - offset)
                    if self.can_skim(blob):
                        self.skim_block(part, blob, offset, length, buffer)
                    else:
                        data = self.read_block(part, blob, offset, length, buffer)
                        crc = crc32(data, crc) if self.checksums is not None else 0
        self.check_sum(index, crc)

    def read_block(self, part: str, blob: Blob, offset: int, length: int, buffer: memoryview) -> memoryview:
        """`length` bytes of the file `part` from `offset` on, as a view of `buffer`.

        Raises DatasetError when the file ends before or cannot be a sample, StorageError.
        """
        got = blob.read_into(offset, buffer[: padded(length, blob.alignment)])
        self._check_block(part, blob, offset, length, got, buffer[:length])
        return buffer[:length]

    def skim_block(self, part: str, blob: Blob, offset: int, length: int, buffer: memoryview) -> None:
        """Read `length` bytes in one request as `read_block` does, but keep none."""
        got = blob.skim(offset, length, buffer[:SKIM])
        self._check_block(part, blob, offset, length, got, buffer[: min(length, HEAD)])

    def _check_block(
        self, part: str, blob: Blob, offset: int, length: int, got: int, head: memoryview
    ) -> None:
        if got < length:
            raise DatasetError(
                f"the sample {blob.name} ends at byte {offset + got} of {blob.size}",
                "it was cut while it was read; run feedrate verify on the dataset",
            )
        if offset == 0:
            self.form.check_head(head, blob.size, part)

    def can_skim(self, blob: Blob) -> bool:
        """True when bytes that nobody wants need no room of their own.

        Not with O_DIRECT: a device writes a request in any order, and not every driver takes the same
        page twice.
        """
        return self.checksums is None and blob.alignment == 1

    def check_size(self, index: int, total: int, last: Blob) -> None:
        """Raises DatasetError unless `total`, the bytes of all files of sample `index`, is its size."""
        if total != self.size(index):
            raise DatasetError(
                f"the sample {last.name} has {total} bytes, but the manifest says {self.size(index)}",
                "run feedrate verify on the dataset",
            )

    def check_sum(self, index: int, crc: int) -> None:
        """Raises DatasetError when the checksum of sample `index` is known and is not `crc`."""
        if self.checksums is not None and crc != int(self.checksums[index]):
            raise DatasetError(
                f"the sample {self.samples.names[index]} has the CRC-32 {crc:08x}, but the manifest says "
                f"{int(self.checksums[index]):08x}",
                "its bytes are not those that were generated; run feedrate verify on the dataset",
            )


def stalled(timeout: float) -> StorageError:
    """What a consumer raises that has waited for `timeout` seconds."""
    return StorageError(
        f"no batch for {show_seconds(timeout)}",
        "the storage hangs, or it is too slow for loader.stall_timeout",
    )
