"""A storage whose reads are counted and timed."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from emulator.storage.base import Blob, ReadStats, Storage

__all__ = ["ReadStats", "TimedBlob", "TimedStorage"]


class TimedStorage:
    """`inner`, with every read request counted and timed into `stats` (those of `inner` by default)."""

    def __init__(self, inner: Storage, stats: ReadStats | None = None) -> None:
        self.inner = inner
        self.stats = stats or inner.stats

    def open(self, name: str, size: int | None = None) -> TimedBlob:
        """As `inner` does."""
        return TimedBlob(self.inner.open(name, size), self.stats)


class TimedBlob:
    """One open sample, timed."""

    __slots__ = ("_inner", "_stats", "alignment", "name", "size")

    def __init__(self, inner: Blob, stats: ReadStats) -> None:
        self.name = inner.name
        self.size = inner.size
        self.alignment = inner.alignment
        self._inner = inner
        self._stats = stats

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """As the inner blob does."""
        begin = time.perf_counter_ns()
        got = self._inner.read_into(offset, buffer)
        self._stats.add_read(got, time.perf_counter_ns() - begin)
        return got

    def skim(self, offset: int, length: int, buffer: memoryview) -> int:
        """As the inner blob does."""
        begin = time.perf_counter_ns()
        got = self._inner.skim(offset, length, buffer)
        self._stats.add_read(got, time.perf_counter_ns() - begin)
        return got

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
