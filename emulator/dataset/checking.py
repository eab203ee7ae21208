"""Is a file on storage what it was when it was written? By its size and head, or by every byte."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from emulator.dataset.checksum import crc32
from emulator.dataset.formats import Format
from emulator.errors import DatasetError, storage_error

_HEAD = 4096
_READ = 1 << 20


def looks_right(form: Format, paths: Sequence[tuple[Path, str]], size: int) -> str:
    """Why the files of a sample (path, name) cannot be it: by size and head. Empty: they can.

    `size` is the bytes of all of them. Raises StorageError when the storage fails.
    """
    total = 0
    for path, name in paths:
        try:
            with path.open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                form.check_head(memoryview(file.read(_HEAD)), length, name)
        except FileNotFoundError:
            return f"{name}: missing"
        except DatasetError as error:
            return error.what
        except OSError as error:
            raise storage_error(error, "cannot read a sample") from None
        total += length
    if total != size:
        names = ", ".join(name for _, name in paths)
        return f"{names}: {total} bytes where {size} were written"
    return ""


def file_crc(path: Path, value: int = 0, room: bytearray | None = None) -> int:
    """CRC-32 of the file behind bytes of CRC-32 `value`; the pages it went through are given back.

    Raises OSError.
    """
    memory = memoryview(room or bytearray(_READ))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while count := os.readv(descriptor, [memory]):
            value = crc32(memory[:count], value)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return value


def sums_right(paths: Sequence[tuple[Path, str]], crc: int) -> bool:
    """True when the CRC-32 over the files of a sample is `crc`. Raises StorageError."""
    value = 0
    try:
        for path, _ in paths:
            value = file_crc(path, value)
    except OSError as error:
        raise storage_error(error, "cannot read a sample") from None
    return value == crc
