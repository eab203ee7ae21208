"""Read batches of pieces of files, and discard the bytes: with io_uring, or preadv(2) in C or in Python.

The module `_reads` is optional: where it was not built, or io_uring is forbidden, the next best is used.
All three are one function, `scan`, with the same arguments and results.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.errors import storage_error
from emulator.files import Closing
from emulator.notes import phrase
from emulator.storage.base import HEAD, SKIM, CheckHead, closed, cut_short, missing, wrong_size

if TYPE_CHECKING:
    from emulator.storage.posix import PosixStorage

_reads: ModuleType | None
try:
    from emulator.storage import _reads  # type: ignore[attr-defined, no-redef]
except ImportError:
    _reads = None

Engine = Literal["io_uring", "threads", "python"]
VARIABLE = "FEEDRATE_READS"
"""Environment variable that names the Engine to use."""
DIRECT, EVICT = 1, 2
WRONG_SIZE, CUT_SHORT, CANCELLED = -1, -2, -3
MOST_DEPTH = 1024
_IOVECS = 1024
"""Most buffers of one preadv, a limit of Linux."""

Failure = tuple[int, int, int, int]
"""Row; errno, or WRONG_SIZE, CUT_SHORT or CANCELLED; bytes that the file has, or where it ended; 0 if it
could not be opened."""
GOOD = (0, 0, 0, 0)
Scanned = tuple[int, float, bytes, Failure]
"""Bytes delivered, seconds of all opens, seconds of each request (float64), the first failure or GOOD."""


class Pieces(NamedTuple):
    """Pieces of files to read."""

    names: Sequence[str]
    """The file of each piece."""
    table: NDArray[np.int64]
    """Rows of (file descriptor, offset, length, bytes that the file should have). The descriptor is -1 where
    a whole file is read, which is opened for it, and 0 where the reader keeps the file open."""


def engine_for(direct: bool, in_memory: bool, depth: int, batch: int, sample_bytes: int) -> Engine:
    """Return the engine for batches of so many samples, `depth` of them read at a time.

    io_uring reads where it saves CPU: small samples of large batches, with O_DIRECT. Its queue runs empty at
    the end of a batch.
    """
    forced = os.environ.get(VARIABLE, "")
    if _reads is None or forced == "python":
        return "python"
    suits = direct and not in_memory and sample_bytes <= 2**20 and batch >= 4 * depth and depth <= MOST_DEPTH
    if forced != "threads" and suits and has_ring():
        return "io_uring"
    return "threads"


def has_module() -> bool:
    """Return True if the C module was built."""
    return _reads is not None


def engines() -> str:
    """Say what reads batches of files here."""
    if not has_module():
        return "Python: the C module was not built"
    if not has_ring():
        return "C, preadv(2) in threads: io_uring is not allowed here"
    return "C, io_uring for small samples"


def has_ring() -> bool:
    """Return True if the kernel has an io_uring that serves, and allows it."""
    try:
        return _reads is not None and bool(_reads.ring(1))
    except OSError:
        return False


class BatchReader(Closing):
    """Reads batches for one thread, which makes it. Keeps files of many samples open."""

    def __init__(
        self,
        storage: PosixStorage,
        engine: Engine,
        depth: int,
        block: int,
        files: int = 0,
        head_bytes: int = HEAD,
    ) -> None:
        """Keep at most `files` files open. `depth` is the number of pieces that io_uring reads at a time.

        Of whole files, `head_bytes` are kept for the check of the head: HEAD, or more with O_DIRECT.
        """
        from emulator.storage.posix import aligned_buffer, padded

        self._storage = storage
        self._scan = _scan if engine == "python" or _reads is None else _reads.scan
        self._ring = _reads.ring(depth) if engine == "io_uring" and _reads is not None else None
        self._block, self._skim = block, max(SKIM, padded(block // 1000))
        self._flags = DIRECT * storage.direct + EVICT * storage.evicts_on_close
        room = block + 2 * HEAD if storage.direct else HEAD + self._skim
        self._buffer = aligned_buffer(room * (depth if self._ring else 1))
        self._head_bytes = head_bytes
        self._files = files
        self._open: OrderedDict[str, int] = OrderedDict()  # the most recently used file is last
        self._epoch = 0

    def read(
        self, pieces: Pieces, check_head: CheckHead, cancelled: bytearray, into: memoryview | None = None
    ) -> int:
        """Read the pieces, count and time each request, and return their bytes.

        They are discarded, or Python puts them back to back into `into` (not with O_DIRECT).
        Another thread sets `cancelled[0]` when they are no longer wanted. Raises DatasetError for a file that
        is missing or has another size, StorageError for one that cannot be read and if it is cancelled.
        """
        names, table = pieces
        whole = len(table) > 0 and table[0, 0] < 0
        paths = list(map(self._storage.path, names))
        tally = self._storage.stats.mine()
        begin = tally.starts(phrase("open", paths[0] if paths else ""))
        spent = time.thread_time()
        heads = bytearray()
        scan = self._scan if into is None else partial(_scan, into=into)
        try:
            if whole:
                self._storage.sample_pages(paths)
                heads = bytearray(len(names) * self._head_bytes)
            else:
                table = self._opened(pieces)
            size, opening, seconds, failure = scan(
                self._ring, "\0".join([*paths, ""]).encode(errors="surrogateescape"), table,
                heads, cancelled, self._buffer, self._block, self._skim,
                self._flags, tally.text,
            )  # fmt: skip
            tally.add_scan(size, seconds, opening, time.monotonic() - begin)
        finally:
            tally.ends()
            tally.on_core += time.thread_time() - spent
        if failure != GOOD:
            raise _error(failure, paths, table)
        if whole:
            kept, room = memoryview(heads), self._head_bytes
            for at, (name, length) in enumerate(zip(names, table[:, 3].tolist(), strict=True)):
                check_head(kept[at * room : at * room + min(length, room)], length, name)
        return int(table[:, 2].sum())

    def _opened(self, pieces: Pieces) -> NDArray[np.int64]:
        """Return the table with the descriptors of files that stay open."""
        table = pieces.table.copy()
        for at, (name, size) in enumerate(zip(pieces.names, pieces.table[:, 3].tolist(), strict=True)):
            fd = self._open.get(name)
            if fd is None:
                path = self._storage.path(name)
                fd, found = self._storage.descriptor(path)
                self._open[name] = fd
                if found != size:
                    raise wrong_size(path, found, size)
            self._open.move_to_end(name)  # none is closed here: the batch needs all of its files
            table[at, 0] = fd
        return table

    def begin(self, epoch: int) -> None:
        """Close the files of another epoch, and those that have not been used for longest."""
        if epoch != self._epoch:
            self.close()
            self._epoch = epoch
        while len(self._open) > self._files:
            self._storage.close(self._open.popitem(last=False)[1])

    def close(self) -> None:
        while self._open:
            self._storage.close(self._open.popitem()[1])


def _error(failure: Failure, paths: Sequence[str], table: NDArray[np.int64]) -> Exception:
    row, code, end, opened = failure
    if code == CANCELLED:
        return closed()
    path, size = paths[row], int(table[row, 3])
    if code == WRONG_SIZE:
        return wrong_size(path, end, size)
    if code == CUT_SHORT:
        return cut_short(path, end, size)
    if not opened and code in (errno.ENOENT, errno.ENOTDIR):
        return missing(path)
    return storage_error(OSError(code, os.strerror(code), path), "cannot read" if opened else "cannot open")


def _scan(
    ring: None,
    names: bytes,
    table: NDArray[np.int64],
    heads: bytearray,
    cancelled: bytearray,
    buffer: memoryview,
    block: int,
    skim: int,
    flags: int,
    text: memoryview,
    into: memoryview | None = None,
) -> Scanned:
    """Do what `_reads.scan` does, without a ring."""
    clock, preadv = time.monotonic, os.preadv
    direct, evicts = flags & DIRECT, flags & EVICT
    how = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    known: dict[int, Sequence[memoryview]] = {}
    times, delivered, opening = array("d"), 0, 0.0
    placed, paths, room = 0, names.split(b"\0"), len(heads) // max(1, len(table))
    for row, (kept, offset, length, size) in enumerate(table.tolist()):
        path, fd, opened = paths[row], kept, kept >= 0
        note = b"read of " + path[: len(text) - 9] + b"\0"
        text[: len(note)] = note
        try:
            if cancelled[0]:
                return delivered, opening, times.tobytes(), (row, CANCELLED, 0, 1)
            before = clock()
            if not opened:
                fd = os.open(path, how)
                opened = True
                if evicts:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                now = clock()
                opening += now - before
                before = now
            at, last = offset, offset + length
            while at < last or (kept < 0 and at == last == 0):
                if at > offset and cancelled[0]:
                    return delivered, opening, times.tobytes(), (row, CANCELLED, 0, 1)
                end = min(at + block, last)
                low = at & -HEAD if direct else at
                # The last request of a whole file asks for more than the file should have.
                asked = end - low + (kept < 0 and end == last)
                if direct:
                    asked = -(-asked // HEAD) * HEAD
                key = asked if low else -asked
                places = known.get(key) if into is None else (into[placed : placed + asked],)
                if places is None:
                    places = known[key] = request_buffers(buffer, skim, low, 0, asked, bool(direct))
                got = preadv(fd, places, low)
                while 0 < got < end - low and not (direct and got % HEAD):
                    rest = request_buffers(buffer, skim, low, got, asked, bool(direct))
                    if into is not None:
                        rest = (into[placed + got : placed + asked],)
                    more = preadv(fd, rest, low + got)
                    if not more:
                        break
                    got += more
                now = clock()
                times.append(now - before)
                before = now
                delivered += got
                if room and low == 0:
                    head = min(end, got, room)
                    first = buffer if into is None else into[placed:]
                    heads[row * room : row * room + head] = first[:head]
                placed += end - at
                if got != end - low and (got < end - low or (kept < 0 and end == last)):
                    found = os.fstat(fd).st_size if kept < 0 else size
                    if found != size:
                        return delivered, opening, times.tobytes(), (row, WRONG_SIZE, found, 1)
                    if got < end - low:
                        return delivered, opening, times.tobytes(), (row, CUT_SHORT, low + got, 1)
                if end == last:
                    break
                at = end
        except OSError as error:
            return delivered, opening, times.tobytes(), (row, error.errno or errno.EIO, 0, int(opened))
        finally:
            if kept < 0 and opened:
                if evicts:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
    return delivered, opening, times.tobytes(), GOOD


def request_buffers(
    buffer: memoryview, skim: int, low: int, got: int, asked: int, fits: bool
) -> Sequence[memoryview]:
    """Return where a request at offset `low` is read to, without its first `got` bytes.

    Unless the request `fits`, its bytes behind the head of the file overwrite each other, in pieces of `skim`
    bytes. With O_DIRECT it must fit: a device may write a request in any order, and not every driver accepts
    the same page twice.
    """
    if fits:
        return (buffer[got:asked],)
    pieces, rest = [], asked - got
    if low == 0 and got < HEAD:
        pieces.append(buffer[got : min(HEAD, asked)])
        rest -= len(pieces[0])
    whole, ragged = divmod(rest, skim)
    pieces += [buffer[HEAD : HEAD + skim]] * min(whole, _IOVECS - 2)
    if ragged and whole <= _IOVECS - 2:
        pieces.append(buffer[HEAD : HEAD + ragged])
    return pieces
