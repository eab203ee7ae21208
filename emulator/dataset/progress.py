"""How far a long job is: counted by its threads, shown once in a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emulator.units import show_rate, show_seconds

Count = Callable[[], tuple[int, int]]
"""(files, bytes) that are done."""


class Tally:
    """Files and bytes that are done, counted by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = 0
        self._bytes = 0

    def add(self, files: int, size: int) -> None:
        """So many more are done."""
        with self._lock:
            self._files += files
            self._bytes += size

    def now(self) -> tuple[int, int]:
        """(files, bytes) so far."""
        with self._lock:
            return self._files, self._bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a job is at some moment."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int
    seconds: float
    cpu_seconds: float
    """User + system seconds of this process since the start."""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float:
        """Seconds until it is done at this rate; infinite when nothing is done yet."""
        left = max(self.bytes_all - self.bytes, 0)
        return left / self.bytes_per_second if self.bytes_per_second > 0 else float("inf")

    def line(self) -> str:
        """For people."""
        share = self.bytes / self.bytes_all if self.bytes_all else 1.0
        return (
            f"{self.files}/{self.files_all} files, {share:4.0%}, {show_rate(self.bytes_per_second)}, "
            f"{show_seconds(self.eta_seconds)} left"
        )


@contextmanager
def shown(
    count: Count, files: int, size: int, show: Callable[[State], None], every: float
) -> Iterator[Callable[[], State]]:
    """Call `show` every so many seconds while the block runs; gives a function for the state now."""
    start, cpu = time.monotonic(), time.process_time()
    over = threading.Event()

    def state() -> State:
        done_files, done_bytes = count()
        return State(
            files=done_files,
            files_all=files,
            bytes=done_bytes,
            bytes_all=size,
            seconds=time.monotonic() - start,
            cpu_seconds=time.process_time() - cpu,
        )

    def watch() -> None:
        while not over.wait(every):
            show(state())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        over.set()
        thread.join()


def show_on_terminal(state: State) -> None:
    """One line on stderr that is written over, when stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{state.line()}", end="", file=sys.stderr, flush=True)


def clear_terminal() -> None:
    """Remove the line that show_on_terminal left."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
