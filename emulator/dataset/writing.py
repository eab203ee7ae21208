"""Bytes to storage: to a temporary name, O_DIRECT where it works, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from emulator.dataset.formats.base import PAGE, Encoded

TEMPORARY = ".part"
"""End of the name of a file that is being written."""

_REQUEST = 16 << 20
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How files are written."""

    direct: bool = True
    """Past the page cache (O_DIRECT) where the file system can."""
    sync: bool = True
    """fsync each file before it gets its name."""


def _temporary(path: Path) -> Path:
    """A name that no other thread, process or host uses: a worker that was given up may still write."""
    writer = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident():x}"
    return path.with_name(f"{path.name}.{writer}{TEMPORARY}")


def write_encoded(path: Path, encoded: Encoded, options: WriteOptions) -> None:
    """The file `path`, whole or not at all. Raises OSError; leaves no temporary file behind then."""
    temporary = _temporary(path)
    try:
        try:
            _write(temporary, encoded, options.sync, os.O_DIRECT if options.direct else 0)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not options.direct:
                raise
            _write(temporary, encoded, options.sync, 0)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _write(path: Path, encoded: Encoded, sync: bool, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | flags, 0o644)
    try:
        end = -(-encoded.size // PAGE) * PAGE if flags else encoded.size
        at = 0
        while at < end:
            at += os.pwrite(descriptor, encoded.memory[at : min(at + _REQUEST, end)], at)
        if end != encoded.size:
            os.ftruncate(descriptor, encoded.size)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_small(path: Path, data: bytes) -> None:
    """A small file, whole or not at all, on the disk before it gets its name. Raises OSError."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """The names in `folder` on the disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
