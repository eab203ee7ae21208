"""A sample's arrays through the library that a training reads its format with: np.load, nibabel, h5py.

The library opens a file of a mounted file system itself, by its path: the same system calls, of the same
sizes, at the same offsets, through the page cache and the kernel's read-ahead. Objects and shaped storage
have no path; there the library reads a buffered file, as it does through s3fs.
"""

from __future__ import annotations

import io
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from emulator.dataset.formats.base import Array, PeekFile
from emulator.errors import DAMAGE, DatasetError, damaged, storage_error
from emulator.loader.reading import WholeReader
from emulator.order import Read
from emulator.storage.base import Blob, Storage, wrong_size
from emulator.storage.posix import aligned_buffer

_DAMAGE = (*DAMAGE, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""How libraries say that a file is not what it should be."""


def load_sample(whole: WholeReader, index: int) -> dict[str, Array]:
    """The arrays "x" and "y" of sample `index`. Raises DatasetError, StorageError.

    With checksums its bytes are read in blocks and compared, and the arrays are taken from them.
    """
    parts = whole.form.parts(whole.samples.names[index])
    if whole.checksums is not None:
        return _checked(whole, index, parts)
    arrays: dict[str, Array] = {}
    with ExitStack() as stack:
        files = [_opened(whole, index, part, parts, stack) for part in parts]
        if (total := sum(file.size for file in files)) != whole.size(index):
            raise wrong_size(files[-1].name, total, whole.size(index))
        for part, file in zip(parts, files, strict=True):
            with _timed(whole.storage, file.size) if isinstance(file.opened, str) else nullcontext():
                arrays |= _load(whole, part, file)
    return arrays


class _File(NamedTuple):
    name: str
    size: int
    opened: Any
    """Its path, or the open file."""


def _opened(whole: WholeReader, index: int, part: str, parts: Sequence[str], stack: ExitStack) -> _File:
    path = whole.storage.library_path(part)
    if path is not None:
        return _File(path[0], path[1], path[0])
    blob = stack.enter_context(whole.open(index, part, parts))
    file = io.BufferedReader(PeekFile(partial(_peek, blob), blob.size), whole.block)
    return _File(blob.name, blob.size, file)


def _peek(blob: Blob, offset: int, length: int) -> memoryview:
    data = memoryview(bytearray(length))
    return data[: blob.read_into(offset, data)]


def _load(whole: WholeReader, part: str, file: _File) -> dict[str, Array]:
    try:
        return whole.form.load(file.opened, part)
    except DatasetError:
        raise
    except _DAMAGE as error:
        raise damaged(file.name, error) from None
    except OSError as error:
        if error.errno is None:  # how gzip and h5py say that the file is none of theirs
            raise damaged(file.name, error) from None
        error.filename = file.name
        raise storage_error(error, "cannot read") from None


@contextmanager
def _timed(storage: Storage, size: int) -> Iterator[None]:
    """Count the library's call as one request of `size` bytes: its system calls are not seen singly."""
    tally = storage.stats.mine()
    tally.begin = begin = time.monotonic()
    worked = time.thread_time()
    try:
        yield
        tally.add(size, time.monotonic() - begin)
    finally:
        tally.begin = 0.0
        tally.on_core += time.thread_time() - worked  # CRC-32 and copies are no waiting for the storage


def _checked(whole: WholeReader, index: int, parts: tuple[str, ...]) -> dict[str, Array]:
    buffer, data = aligned_buffer(whole.room()), bytearray()
    for piece in whole.pieces(Read(index), buffer, lambda: False):
        data += piece
    arrays: dict[str, Array] = {}
    rest = memoryview(data)
    for part in parts:
        with whole.open(index, part, parts) as blob:
            arrays |= whole.form.arrays(rest[: blob.size], part)
            rest = rest[blob.size :]
    return arrays
