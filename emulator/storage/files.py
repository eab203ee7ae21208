"""Files on their way to storage: under a temporary name, O_DIRECT where it works, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator.storage.base import WriteOptions
from emulator.storage.posix import DIRECT_ALIGNMENT

TEMPORARY = ".part"
"""End of the name of a file that is being written."""

REQUEST = 16 << 20
"""Bytes of one write request."""

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)


def _temporary(path: Path) -> Path:
    """A name that no other thread, process or host uses: a worker that was given up may still write."""
    writer = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident():x}"
    return path.with_name(f"{path.name}.{writer}{TEMPORARY}")


class Target:
    """A file that is written under a temporary name. A context manager: not published, it is removed."""

    def __init__(self, path: Path, options: WriteOptions) -> None:
        """Raises OSError."""
        self._path = path
        self._sync = options.sync
        self._temporary = _temporary(path)
        self._descriptor = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._direct = options.direct
            self._descriptor = os.open(self._temporary, flags | (os.O_DIRECT if options.direct else 0), 0o644)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not options.direct:
                raise
            self._direct = False
            self._descriptor = os.open(self._temporary, flags, 0o644)

    def put(self, memory: memoryview, at: int) -> None:
        """As Draft.put. Raises OSError."""
        done = 0
        while done < len(memory):
            piece = memory[done : done + REQUEST]
            try:
                done += os.pwrite(self._descriptor, piece, at + done)
            except OSError as error:
                if error.errno not in _UNSUPPORTED or not self._direct:
                    raise
                self._direct = False
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def end(self, size: int) -> None:
        """As Draft.end. Raises OSError."""
        if size % DIRECT_ALIGNMENT:
            os.ftruncate(self._descriptor, size)
        if self._sync:
            os.fsync(self._descriptor)
        self._close()

    def publish(self) -> None:
        """As Draft.publish. Raises OSError."""
        self._temporary.replace(self._path)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._close()
        if error is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()


class FileAppender:
    """Records of `unit` bytes at the end of a file. Each is one write, so that threads may share it."""

    def __init__(self, path: Path, unit: int) -> None:
        """Opens the file and cuts off a torn record. Raises OSError."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        torn = os.fstat(self._descriptor).st_size % unit
        if torn:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - torn)

    def append(self, record: bytes) -> None:
        """As Appender.append. Raises OSError."""
        written = os.write(self._descriptor, record)
        if written != len(record):  # the disk is full: the torn record counts for nothing
            os.write(self._descriptor, record[written:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


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
