"""Samples pass through a small buffer, block by block, and only the voxels of their crop are kept.

A buffer for a whole sample is as large as the largest one, and every byte of it falls out of the
processor's caches between the read and the copy. Here a block is looked at while it is still there.
Where files are packed (nii.gz, deflated npz) there is no way around unpacking them whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats.base import Span
from emulator.loader.blocks import FileBlocks, Ring, check_sum
from emulator.loader.buffers import PAGE, aligned_buffer, padded
from emulator.loader.crop import choose_corner, copy_box, crop_of, cropped_shape
from emulator.loader.reading import WholeReader

Array = NDArray[Any]
Place = Callable[[tuple[int, ...]], Sequence[Array]]
"""Shape of a crop -> C-ordered arrays for its image and its label."""

Located = Mapping[str, tuple[FileBlocks, Span]]
"""Where image "x" and label "y" of a sample lie."""


class CropReader:
    """Reads samples whole and keeps their crops. Used by one thread."""

    def __init__(self, whole: WholeReader, edges: tuple[int, ...]) -> None:
        self._whole = whole
        self._edges = edges
        self._ring = Ring(whole.room())
        self._room: memoryview | None = None

    def read(
        self, index: int, random: np.random.Generator, place: Place, cancelled: Callable[[], bool]
    ) -> None:
        """Read every byte of sample `index` once, and its crop into what `place` gives.

        Raises DatasetError, and StorageError also when `cancelled` says so.
        """
        whole = self._whole
        with ExitStack() as stack:
            files = []
            parts = whole.form.parts(whole.samples.names[index])
            for part in parts:
                blob = stack.enter_context(whole.storage.open(part, whole.known_size(index, parts)))
                files.append(FileBlocks(whole, part, blob, self._ring, cancelled))
                stack.callback(files[-1].drop_all)
            whole.check_size(index, sum(file.blob.size for file in files), files[-1].blob)
            located = self._locate(files)
            if located is None:
                self._unpack(files, random, place)
            else:
                self._stream(files, located, random, place)
            check_sum(whole, index, files)

    def _locate(self, files: Sequence[FileBlocks]) -> Located | None:
        located: dict[str, tuple[FileBlocks, Span]] = {}
        for file in files:
            spans = self._whole.form.spans(file.peek, file.blob.size, file.part)
            if spans is None:
                return None
            located |= {key: (file, span) for key, span in spans.items()}
        return located

    def _stream(
        self, files: Sequence[FileBlocks], located: Located, random: np.random.Generator, place: Place
    ) -> None:
        (_, image), (label_file, label) = located["x"], located["y"]
        edges = self._edges
        if edges:
            shape = cropped_shape(image.shape, label.shape, edges, files[0].part)
            search = partial(_labelled_plane, label_file, label, shape)
            corner = choose_corner(shape, edges, random, search)
            shapes = [shape, shape]
        else:
            shapes, corner = [image.shape, label.shape], ()
        targets = place(edges or image.shape)
        boxes = [
            _Box(span, whole, corner or (0,) * len(whole), target)
            for span, whole, target in zip((image, label), shapes, targets, strict=True)
        ]
        for file in files:
            mine = [box for box, key in zip(boxes, ("x", "y"), strict=True) if located[key][0] is file]

            def wanted(begin: int, end: int, mine: Sequence[_Box] = mine) -> bool:
                return any(box.reaches(begin, end) for box in mine)

            for offset, data in file.stream(wanted):
                for box in mine:
                    box.take(offset, np.frombuffer(data, np.uint8))
        for box in boxes:
            box.finish()

    def _unpack(self, files: Sequence[FileBlocks], random: np.random.Generator, place: Place) -> None:
        if self._room is None:  # as large as the largest sample, and its files' ends padded
            largest = int(np.max(self._whole.samples.sizes))
            self._room = aligned_buffer(padded(largest, PAGE) + len(files) * PAGE)
        arrays: dict[str, Array] = {}
        start = 0
        for file in files:
            data = file.whole(self._room[start:])
            arrays.update(self._whole.form.arrays(data, file.part))
            start += padded(len(data), PAGE)
        views = crop_of(arrays, self._edges, random, files[0].part)
        for target, view in zip(place(views[0].shape), views, strict=True):
            np.copyto(target, view, casting="unsafe")


class _Box:
    """The part of an array in a file that is kept."""

    def __init__(self, span: Span, shape: tuple[int, ...], corner: Sequence[int], target: Array) -> None:
        self._span = span
        self._target = target
        same = span.dtype == target.dtype
        self._kept = target if same else np.empty(target.shape, span.dtype)
        if target.dtype == np.uint8:
            self._kept[...] = 0  # planes of a label that were found empty are not copied
        width = span.dtype.itemsize
        self._bytes = self._kept.view(np.uint8)
        self._shape = (*shape[:-1], shape[-1] * width)
        self._corner = (*corner[:-1], corner[-1] * width)

        plane = math.prod(self._shape[1:])
        self._begin = span.offset + self._corner[0] * plane
        self._end = span.offset + (self._corner[0] + target.shape[0]) * plane

    def reaches(self, begin: int, end: int) -> bool:
        """Whether the bytes `begin` to `end` of the file may hold some of it."""
        return begin < self._end and self._begin < end

    def take(self, offset: int, data: NDArray[np.uint8]) -> None:
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


def _labelled_plane(
    file: FileBlocks, span: Span, shape: tuple[int, ...], start: int
) -> tuple[int, Array] | None:
    """As crop.Search: reads on until it finds one, and drops what it saw to be empty."""
    size = span.size // shape[0]
    for number in (*range(start, shape[0]), *range(start)):
        at = span.offset + number * size
        plane = np.frombuffer(file.peek(at, size), span.dtype).reshape(shape[1:])
        # A bool a byte is looked at five times faster than a number.
        if (plane.view(np.bool_) if span.dtype.itemsize == 1 else plane).any():
            return number, plane
        file.drop_within(span.offset + (start if number >= start else 0) * size, at + size)
    return None
