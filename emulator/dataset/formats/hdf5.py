"""HDF5: contiguous datasets `x` and `y`, one sample a file or many of the same shape.

h5py writes and reads the metadata only; the data are composed and viewed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from emulator.dataset.formats.base import (
    PAGE,
    Array,
    Hole,
    Index,
    Key,
    Layout,
    OneFile,
    Peek,
    Seekable,
    Shape,
    Span,
    bad,
    stacked,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""Version of the superblock -> offset of the end-of-file address."""


class _Peeked(Seekable):
    """A file whose bytes somebody else has."""

    def __init__(self, peek: Peek, size: int) -> None:
        self._peek = peek
        self.size = size

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self.size - self.at))
        if length:
            target[:length] = self._peek(self.at, length)
        self.at += length
        return length


class _Metadata(Seekable):
    """A file that keeps what was written where, and takes no memory for the rest."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, bytes]] = []

    def write(self, data: ReadableBuffer) -> int:
        source = bytes(data)
        self.writes.append((self.at, source))
        self.at += len(source)
        self.size = max(self.size, self.at)
        return len(source)

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self.size - self.at))
        target[:length] = self.between(self.at, self.at + length)
        self.at += length
        return length

    def between(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`: zeros where nothing was written."""
        data = bytearray(end - start)
        for at, written in self.writes:
            first, last = max(at, start), min(at + len(written), end)
            if first < last:
                data[first - start : last - start] = written[first - at : last - at]
        return bytes(data)


class Hdf5(OneFile):
    """One .h5 file a sample, or for `samples_per_file` of them."""

    suffix = ".h5"

    def planned_bytes(self, voxels: Any) -> Any:
        return PAGE + -(-4 * voxels // PAGE) * PAGE + -(-voxels // PAGE) * PAGE + PAGE

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        import h5py

        file = _Metadata()
        holes: list[tuple[int, Hole]] = []
        keys: tuple[tuple[Key, str], ...] = (("x", "<f4"), ("y", "|u1"))
        with h5py.File(file, "w", alignment_threshold=PAGE, alignment_interval=PAGE) as store:
            for key, dtype in keys:
                properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                properties.set_layout(h5py.h5d.CONTIGUOUS)
                properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                properties.set_obj_track_times(False)
                kind = h5py.h5t.py_create(np.dtype(dtype))
                space = h5py.h5s.create_simple(shape)
                dataset = h5py.h5d.create(store.id, key.encode(), kind, space, properties)
                holes.append((dataset.get_offset(), Hole(key, math.prod(shape) * np.dtype(dtype).itemsize)))
        pieces: list[bytes | Hole] = []
        at = 0
        for offset, hole in sorted(holes, key=lambda placed: placed[0]):
            pieces += [file.between(at, offset), hole]
            at = offset + hole.size
        return (Layout([*pieces, file.between(at, max(at, file.size))]),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        def peek(offset: int, length: int) -> memoryview:
            return data[offset : offset + length]

        def view(dataset: Any) -> Array:
            span = _span(dataset, len(data), name)
            if span is None:
                read: Array = dataset[...]
                return read
            return np.frombuffer(data, span.dtype, math.prod(span.shape), span.offset).reshape(span.shape)

        return _each(view, peek, len(data), name)

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        found = _each(lambda dataset: _span(dataset, size, name), peek, size, name)
        spans = {key: span for key, span in found.items() if span is not None}
        return spans if len(spans) == len(found) else None

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        return stacked(self.spans(peek, size, name), samples, name)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < 64 or bytes(head[:8]) != _SIGNATURE or head[8] not in _END_OF_FILE:
            raise bad(name, "not an HDF5 file")
        at = _END_OF_FILE[head[8]]
        end = int.from_bytes(head[at : at + 8], "little")
        if end != size:
            raise bad(name, f"{size} bytes where its superblock says {end}")


T = TypeVar("T")


def _each(look: Callable[[Any], T], peek: Peek, size: int, name: str) -> dict[str, T]:
    """`look` at the datasets x and y of a file of `size` bytes. Raises DatasetError."""
    import h5py

    try:
        with h5py.File(_Peeked(peek, size), "r") as store:
            return {key: look(store[key]) for key in ("x", "y")}
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise bad(name, f"not an HDF5 file with x and y ({str(error)[:120]})") from None


def _span(dataset: Any, size: int, name: str) -> Span | None:
    """Where the contiguous `dataset` lies in its file of `size` bytes; None when it is chunked."""
    dtype, shape = dataset.dtype, dataset.shape
    if dtype.kind not in "fiu" or not 1 <= len(shape) <= 8 or math.prod(shape) < 1:
        raise bad(name, f"its dataset {dataset.name} is not an array of numbers")
    offset, needed = dataset.id.get_offset(), math.prod(shape) * dtype.itemsize
    if offset is None:
        if needed > 1032 * size:
            raise bad(name, f"its dataset {dataset.name} claims {needed} bytes")
        return None
    if offset + needed > size:
        raise bad(name, f"its dataset {dataset.name} is cut off")
    return Span(offset, dtype, shape)
