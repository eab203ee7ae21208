"""Bytes to storage: to a temporary name, O_DIRECT where it works, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from emulator.dataset.formats.base import PAGE, Encoded
from emulator.dataset.formats.layout import Hole, Key, Layout

TEMPORARY = ".part"
"""End of the name of a file that is being written."""

REQUEST = 16 << 20
"""Bytes of one write request."""

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
        """Write page-aligned memory of whole pages at a multiple of PAGE. Raises OSError."""
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
        """Cut to `size` bytes; on the disk, when that was asked for. Raises OSError."""
        if size % PAGE:
            os.ftruncate(self._descriptor, size)
        if self._sync:
            os.fsync(self._descriptor)
        self._close()

    def publish(self) -> None:
        """Give the file its name. Raises OSError."""
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


def write_encoded(target: Target, encoded: Encoded) -> None:
    """A file that was composed in memory. Raises OSError."""
    target.put(encoded.memory[: -(-encoded.size // PAGE) * PAGE], 0)
    target.end(encoded.size)


class Source(Protocol):
    """The bytes of an array, one after another."""

    crc: int
    """CRC-32 of what it has given so far."""

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        ...


def stream(target: Target, layout: Layout, sources: Mapping[Key, Source], buffer: memoryview) -> None:
    """Write a file through `buffer`, page-aligned memory of whole pages, however large the file is.

    The arrays come from `sources`, in order. Literals that depend on their checksums are written last.
    Raises OSError.
    """
    late = _Late(layout)
    base = used = 0
    for _, piece in layout.placed():
        done, size = 0, piece.size if isinstance(piece, Hole) else len(piece)
        while done < size:
            step = min(size - done, len(buffer) - used)
            if isinstance(piece, Hole):
                sources[piece.key].into(buffer[used:], step)
            else:
                buffer[used : used + step] = piece[done : done + step]
            done, used = done + step, used + step
            if used == len(buffer):
                late.keep(buffer, base)
                target.put(buffer, base)
                base, used = base + used, 0
    sums = {key: source.crc for key, source in sources.items()}
    end = -(-used // PAGE) * PAGE
    buffer[used:end] = bytes(end - used)
    patches = {at + n: byte for at, data in layout.late(sums).items() for n, byte in enumerate(data)}
    for at, byte in patches.items():
        if at >= base:
            buffer[at - base] = byte
    target.put(buffer[:end], base)
    late.write(target, patches)
    target.end(layout.size)


class _Late:
    """Blocks that were written before the checksums in them were known."""

    def __init__(self, layout: Layout) -> None:
        offsets = layout.late({"x": 0, "y": 0})
        self._blocks = sorted(
            {(at + n) // PAGE * PAGE for at, data in offsets.items() for n in range(len(data))}
        )
        self._kept: dict[int, mmap.mmap] = {}

    def keep(self, buffer: memoryview, base: int) -> None:
        """Remember the blocks of `buffer`, which is to be written at offset `base`."""
        for block in self._blocks:
            if base <= block < base + len(buffer):
                self._kept[block] = mmap.mmap(-1, PAGE)  # page-aligned, as O_DIRECT wants it
                self._kept[block][:] = buffer[block - base : block - base + PAGE]

    def write(self, target: Target, patches: Mapping[int, int]) -> None:
        """Write the blocks again with `patches`: offset in the file -> byte. Raises OSError."""
        for block, memory in self._kept.items():
            for at, byte in patches.items():
                if block <= at < block + PAGE:
                    memory[at - block] = byte
            target.put(memoryview(memory), block)


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
