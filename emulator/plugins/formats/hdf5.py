"""HDF5: contiguous datasets `x` and `y`, with one sample per file or many of the same shape.

h5py writes and reads only the metadata; the data are written and read in place. It is imported on use, so
that a rank that reads whole files does not import it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Extent,
    Format,
    Index,
    Key,
    Peek,
    PeekFile,
    Piece,
    Shape,
    Sources,
    bad,
)
from emulator.errors import DatasetError
from emulator.order import Read
from emulator.storage.posix import padded
from emulator.units import BLOCK_BYTES

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""Offset of the end-of-file address, by version of the superblock."""


class _Metadata(PeekFile):
    """A sparse file in memory, which keeps its writes with their offsets."""

    def __init__(self) -> None:
        super().__init__(lambda offset, length: memoryview(self.between(offset, offset + length)), 0)
        self._writes: list[tuple[int, bytes]] = []

    def write(self, data: Any) -> int:
        written = bytes(data)
        self._writes.append((self._at, written))
        self._at += len(written)
        self.size = max(self.size, self._at)
        return len(written)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def between(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, with zeros for unwritten ones."""
        data = bytearray(end - start)
        for at, written in self._writes:
            first, last = max(at, start), min(at + len(written), end)
            if first < last:
                data[first - start : last - start] = written[first - at : last - at]
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Stacked(Index):
    """The index of a file of arrays, whose first axis is that of samples."""

    name: str
    arrays: tuple[tuple[int, int], ...]
    """Offset of each array, and bytes of a sample in it."""

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        return [Extent(offset + read.first * each, read.samples * each) for offset, each in self.arrays]


class Hdf5(Format):
    """A .h5 file per sample, or per `samples_per_file` samples."""

    suffix = ".h5"
    other_suffix = ".hdf5"
    many = True
    library = "h5py.File"
    imports = ("h5py",)

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        voxels = samples * voxels
        return padded(4 * voxels) + padded(voxels) + 2 * BLOCK_BYTES

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        import h5py

        file = _Metadata()
        arrays: list[tuple[int, ArrayBytes]] = []
        keys: tuple[tuple[Key, str], ...] = (("x", "<f4"), ("y", "|u1"))
        with h5py.File(file, "w", alignment_threshold=BLOCK_BYTES, alignment_interval=BLOCK_BYTES) as store:
            for key, dtype in keys:
                properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                properties.set_layout(h5py.h5d.CONTIGUOUS)
                properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                properties.set_obj_track_times(False)
                kind = h5py.h5t.py_create(np.dtype(dtype))
                space = h5py.h5s.create_simple(shape)
                dataset = h5py.h5d.create(store.id, key.encode(), kind, space, properties)
                size = math.prod(shape) * np.dtype(dtype).itemsize
                arrays.append((dataset.get_offset(), ArrayBytes(key, size)))
        pieces: list[Piece] = []
        at = 0
        for offset, array in sorted(arrays, key=lambda pair: pair[0]):
            pieces += [file.between(at, offset), array]
            at = offset + array.size
        return [[*pieces, file.between(at, max(at, file.size))]]

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
        import h5py

        with h5py.File(opened, "r") as store:
            return {key: store[key][...] for key in ("x", "y")}

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Stacked:
        import h5py

        try:
            with h5py.File(PeekFile(peek, size), "r") as store:
                arrays = [(store[key].id.get_offset(), store[key].nbytes, store[key].shape) for key in "xy"]
        except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise bad(name, f"not an HDF5 file with x and y ({str(error)[:120]})") from None
        # Chunked datasets have no offset.
        if any(offset is None or shape[:1] != (samples,) or not held for offset, held, shape in arrays):
            raise DatasetError(
                f"{name}: it does not have {samples} contiguous samples",
                "generate the dataset again, or read whole files",
            )
        if any(offset + held > size for offset, held, _ in arrays):
            raise bad(name, "a truncated dataset")
        return Stacked(name, tuple((offset, held // samples) for offset, held, _ in arrays))

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < 64 or bytes(head[:8]) != _SIGNATURE or head[8] not in _END_OF_FILE:
            raise bad(name, "not an HDF5 file")
        at = _END_OF_FILE[head[8]]
        end = int.from_bytes(head[at : at + 8], "little")
        if end != size:
            raise bad(name, f"{size} bytes, but its superblock says {end}")
