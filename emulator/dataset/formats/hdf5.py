"""HDF5: contiguous datasets `x` and `y`, one sample a file or many of the same shape.

h5py writes and reads the metadata only; the data are composed and viewed in place.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import (
    PAGE,
    Array,
    Encoded,
    Fill,
    OneFile,
    Place,
    Room,
    Sample,
    Shape,
    bad,
    write_sample,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""Version of the superblock -> offset of the end-of-file address."""


class _Memory(io.RawIOBase):
    """A file in memory that somebody else owns; h5py reads and writes through it."""

    def __init__(self, memory: memoryview, size: int) -> None:
        self._memory = memory
        self._at = 0
        self._high = 0
        self.size = size

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        source = self._memory[self._at : min(self._at + len(target), self.size)]
        target[: len(source)] = source
        self._at += len(source)
        return len(source)

    def write(self, data: ReadableBuffer) -> int:
        source = memoryview(data).cast("B")
        self.clear(self._at)
        self._memory[self._at : self._at + len(source)] = source
        self._at += len(source)
        self.size = max(self.size, self._at)
        self._high = max(self._high, self._at)
        return len(source)

    def clear(self, end: int) -> None:
        """Zeros from what was written last up to `end`: the memory was used before."""
        if end > self._high:
            self._memory[self._high : end] = bytes(end - self._high)
            self._high = end

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size


class Hdf5(OneFile):
    """One .h5 file a sample, or for `samples_per_file` of them."""

    suffix = ".h5"

    def planned_bytes(self, voxels: Any) -> Any:
        return PAGE + -(-4 * voxels // PAGE) * PAGE + -(-voxels // PAGE) * PAGE + PAGE

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        import h5py

        voxels = math.prod(shape)
        memory = room(0, int(self.planned_bytes(voxels)) + 4 * PAGE)
        file = _Memory(memory, 0)
        places = []
        with h5py.File(file, "w", alignment_threshold=PAGE, alignment_interval=PAGE) as store:
            for key, dtype in (("x", "<f4"), ("y", "|u1")):
                properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                properties.set_layout(h5py.h5d.CONTIGUOUS)
                properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                properties.set_obj_track_times(False)
                kind = h5py.h5t.py_create(np.dtype(dtype))
                dataset = h5py.h5d.create(
                    store.id, key.encode(), kind, h5py.h5s.create_simple(shape), properties
                )
                places.append((dataset.get_offset(), voxels * np.dtype(dtype).itemsize))
        file.clear(len(memory))
        x, y = (Place(memory, offset, size) for offset, size in places)
        fill(x, y)
        size = max(file.size, *(offset + length for offset, length in places))
        return (Encoded(memory, size, _crc(memory, size, sorted(zip(places, (x, y), strict=True)))),)

    def write(self, file: BinaryIO, sample: Sample) -> None:
        write_sample(self, file, sample)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        import h5py

        try:
            with h5py.File(_Memory(data, len(data)), "r") as store:
                return {key: _view(store[key], data, name) for key in ("x", "y")}
        except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise bad(name, f"not an HDF5 file with x and y ({str(error)[:120]})") from None

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < 64 or bytes(head[:8]) != _SIGNATURE or head[8] not in _END_OF_FILE:
            raise bad(name, "not an HDF5 file")
        at = _END_OF_FILE[head[8]]
        end = int.from_bytes(head[at : at + 8], "little")
        if end != size:
            raise bad(name, f"{size} bytes where its superblock says {end}")


def _crc(memory: memoryview, size: int, places: list[tuple[tuple[int, int], Place]]) -> int:
    """CRC-32 of the file: the metadata between the arrays, and the arrays as already summed."""
    pieces, at = [], 0
    for (offset, length), place in places:
        pieces += [(crc32(memory[at:offset]), offset - at), (place.crc, length)]
        at = offset + length
    return crc32_join([*pieces, (crc32(memory[at:size]), size - at)])


def _view(dataset: Any, data: memoryview, name: str) -> Array:
    """The contiguous `dataset` as a view of the file's bytes; read by h5py when it is chunked."""
    dtype, shape = dataset.dtype, dataset.shape
    if dtype.kind not in "fiu" or not 1 <= len(shape) <= 8 or math.prod(shape) < 1:
        raise bad(name, f"its dataset {dataset.name} is not an array of numbers")
    offset, size = dataset.id.get_offset(), math.prod(shape) * dtype.itemsize
    if offset is None:
        if size > 1032 * len(data):
            raise bad(name, f"its dataset {dataset.name} claims {size} bytes")
        read: Array = dataset[...]
        return read
    if offset + size > len(data):
        raise bad(name, f"its dataset {dataset.name} is cut off")
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
