"""Is a sample on storage what it was when it was written? By its size and head, or by every byte."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.dataset.checksum import crc32
from emulator.dataset.formats import Format
from emulator.errors import DatasetError, storage_error
from emulator.storage.base import Blob, Store

_HEAD = 4096


def looks_right(store: Store, form: Format, parts: Sequence[str], size: int) -> str:
    """Why the files of a sample cannot be it: by size and head. Empty: they can.

    `size` is the bytes of all of them. Raises StorageError when the storage fails.
    """
    total = 0
    head = memoryview(bytearray(_HEAD))
    for name in parts:
        try:
            length = store.size(name)
        except OSError as error:
            raise storage_error(error, "cannot read a sample") from None
        if length is None:
            return f"{name}: missing"
        try:
            with store.open(name, length) as blob:
                form.check_head(head[: blob.read_into(0, head)] if length else head[:0], length, name)
        except DatasetError as error:
            return error.what
        total += length
    if total != size:
        names = ", ".join(parts)
        return f"{names}: {total} bytes where {size} were written"
    return ""


def blob_crc(blob: Blob, room: memoryview, value: int = 0) -> int:
    """CRC-32 of the whole sample behind bytes of CRC-32 `value`, read through `room`. Raises StorageError."""
    for offset in range(0, blob.size, len(room)):
        got = blob.read_into(offset, room[: min(len(room), blob.size - offset)])
        value = crc32(room[:got], value)
    return value


def sums(store: Store, parts: Sequence[str], room: memoryview) -> int:
    """CRC-32 over the files of a sample. Raises DatasetError when one is missing, StorageError."""
    value = 0
    for part in parts:
        with store.open(part) as blob:
            value = blob_crc(blob, room, value)
    return value


def sums_right(store: Store, parts: Sequence[str], crc: int) -> bool:
    """True when the CRC-32 over the files of a sample is `crc`. Raises StorageError."""
    try:
        return sums(store, parts, memoryview(bytearray(store.request))) == crc
    except DatasetError:
        return False
