"""Work on the files of a dataset with many threads, and show how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator import live
from emulator.live import Now
from emulator.units import show_bytes

Done = Callable[[int, int], None]
"""Called with the (files, bytes) that were just finished; from many threads."""

READERS = 16
"""Files that a process reads at once unless told otherwise: storage that answers late needs many."""

Value = TypeVar("Value")
_TOGETHER = 64
"""Most indices of a task. Handing one to a thread takes as long as a small file."""
_AHEAD = 1024
"""Most tasks that wait for a thread; each takes a kilobyte or two."""


def by_threads(work: Callable[[int], Value], indices: NDArray[np.int64], threads: int) -> Iterator[Value]:
    """Yield work(index) for each of `indices`, in order, by `threads` threads. Raises what it raises."""
    together, over = min(_TOGETHER, 1 + len(indices) // (32 * threads)), threading.Event()

    def task(begin: int) -> list[Value]:
        return [work(index) for index in indices[begin : begin + together].tolist() if not over.is_set()]

    with ThreadPoolExecutor(threads) as pool:
        try:
            for begin in range(0, len(indices), _AHEAD * together):  # so that few tasks wait for a thread
                end = min(begin + _AHEAD * together, len(indices))
                yield from chain.from_iterable(pool.map(task, range(begin, end, together)))
        except BaseException:
            over.set()
            pool.shutdown(cancel_futures=True)
            raise


class DoneCount:
    """Files and bytes that this process has finished; its threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = self._bytes = 0

    def add(self, files: int, size: int) -> None:
        """Count files and bytes."""
        with self._lock:
            self._files += files
            self._bytes += size

    def now(self) -> tuple[int, int]:
        """Return files and bytes so far."""
        with self._lock:
            return self._files, self._bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesDone:
    """Files and bytes that are done, and the time that they took."""

    files: int
    bytes: int
    seconds: float
    cpu_seconds: float
    """User + system seconds of this process since the start."""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@contextmanager
def showing(
    verb: str, tally: DoneCount, files: int, size: int, processes: int = 1
) -> Iterator[Callable[[], FilesDone]]:
    """Show the progress of `verb` while the block runs; yields a function that returns it.

    `files` and `size` are those of the whole job. Each of `processes` is taken to have done as much as this.
    """
    start, cpu = time.monotonic(), time.process_time()

    def progress() -> FilesDone:
        done_files, done_bytes = tally.now()
        return FilesDone(
            files=min(files, done_files * processes),
            bytes=min(size, done_bytes * processes),
            seconds=time.monotonic() - start,
            cpu_seconds=time.process_time() - cpu,
        )

    def now() -> Now:
        done = progress()
        # Files that are being worked on are half done, on average; only whole files are counted.
        working = min(READERS * processes, files - done.files) / 2 * size / max(1, files)
        rate = (done.bytes + working) / done.seconds if done.files and done.seconds > 0 else 0.0
        left = max(0.0, size - done.bytes - working)
        return Now(
            verb=verb,
            doing=f"{show_bytes(done.bytes)} of {show_bytes(size)}",
            unit="file",
            part=done.files,
            parts=files,
            about=processes > 1,
            share=done.bytes / size if size else 1.0,
            seconds=done.seconds,
            eta_seconds=left / rate if rate else None,
            bytes_per_second=done.bytes_per_second,
        )

    with live.telling(now):
        yield progress
