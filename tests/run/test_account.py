"""What a rank's waits went into: those of a short run are looked up as well."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from emulator.loader.base import Batch
from emulator.record.schedstat import Books
from emulator.run.account import Accounted
from emulator.storage.counts import ReadStats


class Reading:
    """A loader with one thread that is in a request for 3 ms a batch, and asleep in it or at work."""

    def __init__(self, stats: ReadStats, *, works: bool) -> None:
        self._stats = stats
        self._works = works
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        tally = self._stats.mine()
        while self._asked.get():
            began, worked = time.monotonic(), time.thread_time()
            tally.begin = began
            if self._works:
                while time.monotonic() - began < 0.003:
                    pass
            else:
                time.sleep(0.003)
            tally.begin = 0.0
            tally.add(1, (time.monotonic() - began,))
            tally.on_core += time.thread_time() - worked
            self._made.put(Batch(1, 1, time.monotonic(), began))

    def read(self, portions: object) -> Iterator[Batch]:
        for _ in range(20):
            self._asked.put(True)
            yield self._made.get()

    def helper_cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        self._asked.put(False)
        self._thread.join()


@pytest.mark.alone
@pytest.mark.parametrize("works", [False, True])
def test_waits_of_a_run_of_60_ms_are_looked_up(works):
    stats = ReadStats()
    loader = Accounted(Reading(stats, works=works), Books(stats.tallies))
    try:
        for _ in loader.read(()):
            pass
        account = loader.account()
    finally:
        loader.close()
    assert account is not None
    reading = account.reading
    assert sum(reading) > 0.02, "most waits were looked up"
    if works:
        assert reading.work + reading.cores > 0.7 * sum(reading)
        assert account.readers.work + account.readers.cores > 0.03
    else:
        assert reading.storage > 0.7 * 0.02, "it sleeps, however long it waits for a core afterwards"
        assert reading.storage + reading.cores > 0.7 * sum(reading)
