"""Divide a rank's waits for batches by cause, with schedstat: storage, cores, quota, work or loader."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator

from emulator.analysis.starved import RankAccount
from emulator.loader.base import Batch, Loader, Made
from emulator.order import Portion
from emulator.record.schedstat import Books, Page, Stretch

_PERIOD = 0.1
"""Seconds between two waits for which schedstat is read; waits in between are divided in proportion."""
_OFTEN = 0.05
"""The interval early in a run, as a share of the time so far, so that short runs are sampled, too."""
_LONG = 0.02
"""Seconds of a wait from which schedstat is read before the interval has passed."""


class Accounted:
    """A Loader that divides the waits for it by cause. Only the thread that made `books` may use it."""

    def __init__(self, loader: Loader, books: Books) -> None:
        self._loader = loader
        self._books = books
        self._reading = Stretch()
        self._handing = Stretch()
        self._making = Stretch()
        self._first: Page | None = None
        self._last: Page | None = None
        self._delay, self._delays = 0.0, 0
        self._made = False  # True if worker processes, which keep their own accounts, make the batches

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        batches = iter(self._loader.read(portions))
        while True:
            asked = time.monotonic()
            due = self._due(asked)
            if due:
                self._last = self._books.look()
            batch = next(batches, None)
            if batch is None:
                return
            got = time.monotonic()
            waited = max(0.0, min(got, batch.ready) - asked)
            if self._first is None:  # the pipeline was empty: AU excludes this step
                self._first = self._last = self._books.look()
            elif batch.made is not None:
                self._add_made(batch, batch.made, asked, waited)
            elif waited > (0.0 if due else _LONG):
                self._add_read(waited, got - batch.ready if due else None)
            yield batch

    def _due(self, now: float) -> bool:
        if self._first is None or self._last is None or self._made:
            return False
        return now - self._last.time >= min(_PERIOD, _OFTEN * (now - self._first.time))

    def _add_made(self, batch: Batch, made: Made, asked: float, waited: float) -> None:
        """Account for a wait for a worker process, from the worker's account of its time."""
        idle = min(waited, made.idle, max(0.0, batch.began - asked))
        busy = made.stretch.lasting(waited - idle)
        starting = min(idle, made.starting)
        self._reading = self._reading.plus(busy).plus(Stretch(cores=starting, loader=idle - starting))
        self._handing = self._handing.plus(made.others)
        self._making = self._making.plus(made.stretch)
        self._made = True

    def _add_read(self, waited: float, delay: float | None) -> None:
        """Account for a wait for threads of this process, which noticed the batch after `delay` seconds."""
        assert self._last is not None
        before, self._last = self._last, self._books.look()
        if delay is not None:
            # A reader waits for the GIL at the end of each request, which looks like sleep in the request.
            # The delay of this thread, less its wait for a core, estimates that wait, which is deducted.
            others = self._books.others(before, self._last)
            self._delay += max(0.0, delay - others.cores - others.quota - others.work)
            self._delays += 1
        lock = self._delay / max(1, self._delays)
        self._reading = self._reading.plus(self._books.reading(before, self._last, lock).lasting(waited))

    def account(self) -> RankAccount | None:
        """Return the account of the batches so far; None without schedstat or before the second batch."""
        if not self._books.kept or self._first is None or (self._first is self._last and not self._made):
            return None
        end = self._books.look()
        process = self._books.others(self._first, end).plus(self._handing)
        return RankAccount(
            host=socket.gethostname(),
            reading=self._reading,
            process=process,
            readers=self._making.plus(self._books.readers(self._first, end)),
        )

    def helper_cpu_seconds(self) -> float:
        return self._loader.helper_cpu_seconds()

    def close(self) -> None:
        self._loader.close()
        self._books.close()
