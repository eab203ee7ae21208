"""Load a sample's arrays with the library of a training (np.load, nibabel or h5py), and crop them.

The library gets a mounted file's path, or the open file if it reads that by the same calls. So the storage
gets the system calls of a training, through the page cache and read-ahead: on a device with 12 ms of latency,
a training got an AU of 20 % with np.load, and 80 % with requests of 1 to 4 MiB. Objects and shaped storage
have no path; the library reads them as a buffered file, as through s3fs.
"""

from __future__ import annotations

import io
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats.base import Array, PeekFile
from emulator.errors import DAMAGE, DatasetError, damaged, storage_error
from emulator.loader.reading import Reader
from emulator.notes import phrase
from emulator.storage.base import Blob, Storage, wrong_size
from emulator.storage.posix import PosixStorage

_DAMAGE = (*DAMAGE, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors that libraries raise for a damaged file."""


def load_sample(whole: Reader, index: int) -> dict[str, Array]:
    """Load the arrays "x" and "y" of sample `index`. Raises DatasetError, StorageError."""
    parts = whole.form.parts(whole.samples.names[index])
    size = whole.size(index) if len(parts) == 1 else None
    arrays: dict[str, Array] = {}
    total = 0
    for part in parts:
        try:
            with ExitStack() as stack:
                file = _opened(whole, part, size, stack)
                total += file.size
                if part == parts[-1] and total != whole.size(index):
                    raise wrong_size(file.name, total, whole.size(index))
                arrays |= _load(whole, part, file)
        except OSError as error:  # some file systems report a failed read only when the file is closed
            error.filename = whole.storage.path(part)
            raise storage_error(error, "cannot read") from None
    return arrays


class _File(NamedTuple):
    name: str
    size: int
    opened: Any
    """A path, or an open file."""


def _opened(whole: Reader, part: str, size: int | None, stack: ExitStack) -> _File:
    storage = whole.storage
    if isinstance(storage, PosixStorage):
        opened, length = storage.library_file(part, whole.form.library_opens)
        if not isinstance(opened, str):
            stack.enter_context(opened)
        stack.enter_context(_timed(storage, storage.path(part), length))
        return _File(storage.path(part), length, opened)
    blob = stack.enter_context(storage.open(part, size))
    # np.load reads the start of a zip file, its end, and its start again: the cache avoids a second read.
    peek = lru_cache(maxsize=4)(partial(_peek, blob))
    return _File(blob.name, blob.size, io.BufferedReader(PeekFile(peek, blob.size), whole.block))


def _peek(blob: Blob, offset: int, length: int) -> memoryview:
    data = memoryview(bytearray(length))
    return data[: blob.read_into(offset, data)]


def _load(whole: Reader, part: str, file: _File) -> dict[str, Array]:
    try:
        return whole.form.load(file.opened, part)
    except _DAMAGE as error:
        raise damaged(file.name, error) from None
    except OSError as error:
        if error.errno is None:  # from gzip and h5py: not a file of that format
            raise damaged(file.name, error) from None
        error.filename = file.name
        raise storage_error(error, "cannot read") from None


@contextmanager
def _timed(storage: Storage, name: str, size: int) -> Iterator[None]:
    """Count the library's call as one request of `size` bytes, because its system calls are hidden."""
    tally = storage.stats.mine()
    begin = tally.starts(phrase("load", name))
    worked = time.thread_time()
    try:
        yield
        tally.add(size, (time.monotonic() - begin,))
    finally:
        tally.ends()
        tally.on_core += time.thread_time() - worked  # CRC-32 and copies do not wait for the storage


OVERSAMPLING = 0.4
"""Share of crops that must contain a labelled voxel (3D U-Net reference of MLPerf Training)."""


def crop_of(
    arrays: Mapping[str, Array], edges: Sequence[int], random: np.random.Generator, name: str
) -> tuple[Array, Array]:
    """Return views of image `x` and label `y` of a sample, cropped at random to `edges` voxels if given.

    Raises DatasetError if the sample has other axes or is smaller.
    """
    image, label = arrays["x"], arrays["y"]
    if not edges:
        return image, label
    image, label = (  # the reference puts an axis of length 1 first
        array[0] if array.ndim == len(edges) + 1 and len(array) == 1 else array for array in (image, label)
    )
    if image.ndim != len(edges) or image.shape != label.shape:
        raise DatasetError(
            f"the sample {name} has an image of shape {list(image.shape)} and a label of shape "
            f"{list(label.shape)}, which a crop of {list(edges)} voxels does not fit",
            "set loader.crop to [] to use samples whole",
        )
    if any(have < want for have, want in zip(image.shape, edges, strict=True)):
        raise DatasetError(
            f"the sample {name} has {list(image.shape)} voxels, fewer than the crop of {list(edges)}",
            "set loader.crop to a smaller one",
        )
    corner = _choose_corner(label, edges, random)
    box = tuple(map(slice, corner, corner + edges))
    return image[box], label[box]


def _choose_corner(label: Array, edges: Sequence[int], random: np.random.Generator) -> NDArray[np.int64]:
    """Return the lowest corner of a crop, at random or so that the crop contains a labelled voxel."""
    room = np.subtract(label.shape, edges)
    corner = random.integers(0, room, endpoint=True)
    if random.random() < OVERSAMPLING:
        # Search plane by plane: a pass over the whole label would cost as much as reading it.
        start = int(random.integers(len(label)))
        planes = (*range(start, len(label)), *range(start))
        depth = next((plane for plane in planes if label[plane].any()), None)
        if depth is not None:
            voxels = np.flatnonzero(label[depth])
            inside = np.unravel_index(voxels[random.integers(len(voxels))], label.shape[1:])
            voxel = np.array([depth, *inside])
            low = np.maximum(0, voxel - edges + 1)
            corner = random.integers(low, np.minimum(room, voxel), endpoint=True)
    return corner
