"""The random crop of the reference 3D U-Net training, out of a stream of blocks.

A buffer for a whole sample is as large as the largest one, and every byte of it would fall out of the
processor's caches between the read and the copy. Here samples pass through a small buffer, block by block,
and a block is looked at while it is still in the cache: only the voxels of the crop are kept. Where files are
packed (nii.gz, deflated npz) there is no way around unpacking them whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import Span
from emulator.errors import DatasetError
from emulator.loader.reading import WholeReader
from emulator.storage.base import Blob, Cancelled
from emulator.storage.posix import aligned_buffer, padded
from emulator.units import BLOCK_BYTES

OVERSAMPLING = 0.4
"""Share of the crops that are sure to hold a labelled voxel (MLPerf Training, 3D U-Net reference)."""

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

Search = Callable[[int], tuple[int, Array] | None]
"""First plane -> number and voxels of the first one from there on, around the end, with a label."""

Allocate = Callable[[tuple[int, ...]], Sequence[Array]]
"""Shape of a crop -> C-ordered arrays for its image and its label."""

Located = Mapping[str, tuple["FileBlocks", Span]]
"""Where image "x" and label "y" of a sample lie."""


def crop_of(
    arrays: Mapping[str, Array], edges: Sequence[int], random: np.random.Generator, name: str
) -> tuple[Array, Array]:
    """Views of image `x` and label `y` of one sample, cut to `edges` voxels; whole when there are none.

    Raises DatasetError when the sample has other axes or is smaller.
    """
    image, label = arrays["x"], arrays["y"]
    if not edges:
        return image, label
    shape = _cropped_shape(image.shape, label.shape, edges, name)
    image, label = image.reshape(shape), label.reshape(shape)

    def search(start: int) -> tuple[int, Array] | None:
        numbers = (*range(start, shape[0]), *range(start))
        return next(((number, label[number]) for number in numbers if label[number].any()), None)

    corner = _choose_corner(shape, edges, random, search)
    box = tuple(slice(start, start + edge) for start, edge in zip(corner, edges, strict=True))
    return image[box], label[box]


def _cropped_shape(
    image: tuple[int, ...], label: tuple[int, ...], edges: Sequence[int], name: str
) -> tuple[int, ...]:
    """The shape that is cropped: less the leading axis of length 1 that the reference puts first.

    Raises DatasetError when image and label differ in it, or `edges` do not fit into it.
    """
    image, label = (
        shape[1:] if len(shape) == len(edges) + 1 and shape[0] == 1 else shape for shape in (image, label)
    )
    if len(image) != len(edges) or image != label:
        raise DatasetError(
            f"the sample {name} has an image of shape {list(image)} and a label of shape {list(label)}, "
            f"which a crop of {list(edges)} voxels does not fit",
            "set loader.crop to [] to use samples whole",
        )
    if any(have < want for have, want in zip(image, edges, strict=True)):
        raise DatasetError(
            f"the sample {name} has {list(image)} voxels, fewer than the crop of {list(edges)}",
            "set loader.crop to a smaller one",
        )
    return image


def _choose_corner(
    shape: Sequence[int], edges: Sequence[int], random: np.random.Generator, search: Search
) -> tuple[int, ...]:
    """Lowest corner of the crop: anywhere in `shape`, or so that some labelled voxel lies inside.

    `search` is asked in the latter case only, with a random plane: a few planes instead of a pass over
    all of the label, which would cost as much as reading it.
    """
    room = [have - want for have, want in zip(shape, edges, strict=True)]
    corner = random.integers(0, room, endpoint=True)
    if random.random() < OVERSAMPLING:
        found = search(int(random.integers(shape[0])))
        if found is not None:
            depth, plane = found
            voxels = np.flatnonzero(plane)
            inside = np.unravel_index(voxels[random.integers(len(voxels))], plane.shape)
            voxel = np.array([depth, *inside], dtype=np.int64)
            low = np.maximum(0, voxel - np.asarray(edges) + 1)
            corner = random.integers(low, np.minimum(room, voxel), endpoint=True)
    return tuple(corner.tolist())


class CropReader:
    """Reads samples whole and keeps their crops. Used by one thread."""

    def __init__(self, whole: WholeReader, edges: tuple[int, ...]) -> None:
        self._whole = whole
        self._edges = edges
        self._buffers = _Buffers(whole.room())
        self._unpacked: memoryview | None = None

    def read(self, index: int, random: np.random.Generator, allocate: Allocate, cancelled: Cancelled) -> None:
        """Read every byte of sample `index` once, and its crop into what `allocate` gives.

        Raises DatasetError, and StorageError also when `cancelled` says so.
        """
        whole = self._whole
        with ExitStack() as stack:
            files = []
            parts = whole.form.parts(whole.samples.names[index])
            for part in parts:
                blob = stack.enter_context(whole.open(index, part, parts))
                files.append(FileBlocks(whole, part, blob, self._buffers, cancelled))
                stack.callback(files[-1].drop_all)
            whole.check_size(index, sum(file.blob.size for file in files), files[-1].blob)
            located = self._locate(files)
            if located is None:
                self._unpack(files, random, allocate)
            else:
                self._stream(files, located, random, allocate)
            if whole.checksums is not None:
                whole.check_sum(index, crc32_join(pair for file in files for pair in file.sums()))

    def _locate(self, files: Sequence[FileBlocks]) -> Located | None:
        located: dict[str, tuple[FileBlocks, Span]] = {}
        for file in files:
            spans = self._whole.form.spans(file.peek, file.blob.size, file.part)
            if spans is None:
                return None
            located |= {key: (file, span) for key, span in spans.items()}
        return located

    def _stream(
        self, files: Sequence[FileBlocks], located: Located, random: np.random.Generator, allocate: Allocate
    ) -> None:
        (_, image), (label_file, label) = located["x"], located["y"]
        edges = self._edges
        if edges:
            shape = _cropped_shape(image.shape, label.shape, edges, files[0].part)
            corner = _choose_corner(
                shape, edges, random, lambda start: label_file.labelled_plane(label, shape, start)
            )
            shapes = [shape, shape]
        else:
            shapes, corner = [image.shape, label.shape], ()
        targets = allocate(edges or image.shape)
        boxes = [
            _Box(span, whole, corner or (0,) * len(whole), target)
            for span, whole, target in zip((image, label), shapes, targets, strict=True)
        ]
        for file in files:
            mine = [box for box, key in zip(boxes, ("x", "y"), strict=True) if located[key][0] is file]

            def wanted(begin: int, end: int, mine: Sequence[_Box] = mine) -> bool:
                return any(box.begin < end and begin < box.end for box in mine)

            for offset, data in file.stream(wanted):
                for box in mine:
                    box.take(offset, np.frombuffer(data, np.uint8))
        for box in boxes:
            box.finish()

    def _unpack(self, files: Sequence[FileBlocks], random: np.random.Generator, allocate: Allocate) -> None:
        if self._unpacked is None:  # as large as the largest sample, and its files' ends padded
            largest = self._whole.largest()
            self._unpacked = aligned_buffer(padded(largest) + len(files) * BLOCK_BYTES)
        arrays: dict[str, Array] = {}
        start = 0
        for file in files:
            data = file.whole(self._unpacked[start:])
            arrays.update(self._whole.form.arrays(data, file.part))
            start += padded(len(data))
        views = crop_of(arrays, self._edges, random, files[0].part)
        for target, view in zip(allocate(views[0].shape), views, strict=True):
            np.copyto(target, view, casting="unsafe")


class _Buffers:
    """Buffers of the same size, used again and again; the one that was used last comes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """A buffer; a new one when all are in use."""
        return self._free.pop() if self._free else aligned_buffer(self._size)

    def give(self, buffer: memoryview) -> None:
        """Back for the next one."""
        self._free.append(buffer)


class FileBlocks:
    """One open file of a sample, whose blocks are read once each, in whatever order they are wanted.

    Used by one thread. What reads raises DatasetError when the file ends early or cannot be a sample, and
    StorageError when it cannot be read or the loader is closed.
    """

    def __init__(
        self, whole: WholeReader, part: str, blob: Blob, buffers: _Buffers, cancelled: Cancelled
    ) -> None:
        self.part = part
        self.blob = blob
        self._whole = whole
        self._buffers = buffers
        self._cancelled = cancelled
        self._count = -(-blob.size // whole.block)
        self._kept: dict[int, memoryview] = {}  # blocks that somebody looked at
        self._seen: set[int] = set()
        self._sums: dict[int, tuple[int, int]] = {}

    def peek(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset` on; their blocks are kept."""
        if length <= 0:
            return memoryview(b"")
        block = self._whole.block
        first, last = offset // block, (offset + length - 1) // block
        for number in range(first, last + 1):
            if number not in self._kept:
                self._kept[number] = self._buffers.take()
                self._read(number, self._kept[number])
        begin = offset - first * block
        if first == last:
            return self._kept[first][begin : begin + length]
        joined = b"".join(self._kept[number][:block] for number in range(first, last + 1))
        return memoryview(joined)[begin : begin + length]

    def labelled_plane(self, span: Span, shape: tuple[int, ...], start: int) -> tuple[int, Array] | None:
        """As Search, in the label at `span`: reads on until it finds one, and drops what was empty."""
        size = span.size // shape[0]
        for number in (*range(start, shape[0]), *range(start)):
            at = span.offset + number * size
            plane = np.frombuffer(self.peek(at, size), span.dtype).reshape(shape[1:])
            # A bool a byte is looked at five times faster than a number.
            if (plane.view(np.bool_) if span.dtype.itemsize == 1 else plane).any():
                return number, plane
            self._drop_within(span.offset + (start if number >= start else 0) * size, at + size)
        return None

    def _drop_within(self, begin: int, end: int) -> None:
        """Keep no longer the blocks that lie within the bytes `begin` to `end`."""
        for number in list(self._kept):
            offset, length = self._extent(number)
            if begin <= offset and offset + length <= end:
                self._buffers.give(self._kept.pop(number))

    def drop_all(self) -> None:
        """Keep no block any longer."""
        self._drop_within(0, self.blob.size)

    def stream(self, wanted: Callable[[int, int], bool]) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) of the blocks, each until the next: first those kept, then what was not read.

        Blocks of which `wanted(begin, end)` says that none of their bytes is are read, but left out.
        """
        unread = [number for number in range(self._count) if number not in self._seen]
        for number in list(self._kept):
            offset, length = self._extent(number)
            yield offset, self._kept[number][:length]
            self._buffers.give(self._kept.pop(number))
        buffer = self._buffers.take()
        try:
            for number in unread:
                offset, length = self._extent(number)
                if wanted(offset, offset + length) or not self._whole.can_skim(self.blob):
                    yield offset, self._read(number, buffer)
                else:
                    self._whole.skim_block(self.part, self.blob, offset, length, buffer, self._cancelled)
        finally:
            self._buffers.give(buffer)

    def whole(self, buffer: memoryview) -> memoryview:
        """All bytes of the file, in `buffer`, which has room for the padding of its last block."""
        for number in range(self._count):
            offset, length = self._extent(number)
            if number in self._seen:
                buffer[offset : offset + length] = self._kept[number][:length]
            else:
                self._read(number, buffer[offset:])
        return buffer[: self.blob.size]

    def _extent(self, number: int) -> tuple[int, int]:
        """Offset and length of block `number`."""
        offset = number * self._whole.block
        return offset, min(self._whole.block, self.blob.size - offset)

    def _read(self, number: int, buffer: memoryview) -> memoryview:
        offset, length = self._extent(number)
        self._seen.add(number)
        data = self._whole.read_block(self.part, self.blob, offset, length, buffer, self._cancelled)
        if self._whole.checksums is not None:
            self._sums[number] = (crc32(data), length)
        return data

    def sums(self) -> list[tuple[int, int]]:
        """(CRC-32, bytes) of the blocks, in order. Raises KeyError unless all have been read."""
        return [self._sums[number] for number in range(self._count)]


class _Box:
    """The part of an array in a file that is kept."""

    def __init__(self, span: Span, shape: tuple[int, ...], corner: Sequence[int], target: Array) -> None:
        self._span = span
        self._target = target
        self._kept = target if span.dtype == target.dtype else np.empty(target.shape, span.dtype)
        if target.dtype == np.uint8:
            self._kept[...] = 0  # planes of a label that were found empty are not copied
        width = span.dtype.itemsize
        self._bytes = self._kept.view(np.uint8)
        self._shape = (*shape[:-1], shape[-1] * width)
        self._corner = (*corner[:-1], corner[-1] * width)

        plane = math.prod(self._shape[1:])
        self.begin = span.offset + self._corner[0] * plane
        """Bytes of the file before the first that may be kept."""
        self.end = span.offset + (self._corner[0] + target.shape[0]) * plane

    def take(self, offset: int, data: Bytes) -> None:
        """`data` are bytes of the file from `offset` on."""
        begin = max(offset, self._span.offset)
        end = min(offset + len(data), self._span.offset + self._span.size)
        if begin < end:
            piece = data[begin - offset : end - offset]
            copy_box(self._bytes, self._corner, self._shape, begin - self._span.offset, piece)

    def finish(self) -> None:
        """All bytes have been taken."""
        if self._kept is not self._target:
            np.copyto(self._target, self._kept, casting="unsafe")


def copy_box(target: Bytes, corner: Sequence[int], shape: Sequence[int], begin: int, data: Bytes) -> None:
    """Copy into `target` what `data` has of it.

    `target` is the box at `corner` of a C-ordered array of `shape`, whose last axis counts bytes; `data`
    are bytes of that array from number `begin` on. Whole items of the first axis go at once, the ragged
    ones at both ends axis by axis.
    """
    first, end = corner[0], corner[0] + len(target)
    if len(shape) == 1:
        low, high = max(begin, first), min(begin + len(data), end)
        if low < high:
            target[low - first : high - first] = data[low - begin : high - begin]
        return
    item = math.prod(shape[1:])
    stop = begin + len(data)
    whole, behind = -(-begin // item), stop // item
    low, high = max(whole, first), min(behind, end)
    if low < high:
        items = data[low * item - begin : high * item - begin].reshape(high - low, *shape[1:])
        box = tuple(slice(at, at + size) for at, size in zip(corner[1:], target.shape[1:], strict=True))
        target[low - first : high - first] = items[(slice(None), *box)]
    if whole > behind:
        ragged = [(behind, begin, stop)]
    else:
        ragged = [(whole - 1, begin, whole * item), (behind, behind * item, stop)]
    for number, start, last in ragged:
        if start < last and first <= number < end:
            piece = data[start - begin : last - begin]
            copy_box(target[number - first], corner[1:], shape[1:], start - number * item, piece)
