"""What a rank's waits for batches went into: its loader, with the kernel's books beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from emulator.loader.base import Batch, Loader, Made
from emulator.order import Portion
from emulator.record.books import Books, Page, Stretch

_PERIOD = 0.1
"""Seconds between two waits that the books are opened for; those between are taken to be like them."""
_OFTEN = 0.05
"""The same, at the beginning, as a share of the time since then: a short run has its waits looked up, too."""
_LONG = 0.02
"""Seconds from which a wait between them is looked up all the same, from the last look on."""


class Account(NamedTuple):
    """What a rank's time went into where its accelerator had none of it, in seconds."""

    reading: Stretch
    """While it waited until a batch had been read, the first batch left out."""
    process: Stretch
    """What its threads that do not read did, and those of its workers, from the first batch to the last."""
    readers: Stretch = Stretch()
    """What those did that read: its own in all this time, those of worker processes while they had a batch to
    make."""


class Accounted:
    """A Loader whose waits are looked up in the books. Used by one thread, that which made the books."""

    def __init__(self, loader: Loader, books: Books) -> None:
        self._loader = loader
        self._books = books
        self._reading = Stretch()
        self._handing = Stretch()
        self._making = Stretch()
        self._first: Page | None = None
        self._last: Page | None = None
        self._taken, self._takings = 0.0, 0

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """As Loader.read."""
        batches = iter(self._loader.read(portions))
        while True:
            asked = time.monotonic()
            opened = self._due(asked)
            if opened:
                self._last = self._books.look()
            batch = next(batches, None)
            if batch is None:
                return
            got = time.monotonic()
            waited = max(0.0, min(got, batch.ready) - asked)
            if self._first is None:  # the pipeline was empty: AU leaves this step out
                self._first = self._last = self._books.look()
            elif batch.made is not None:
                self._add_made(batch, batch.made, asked, waited)
            elif waited > (0.0 if opened else _LONG):
                self._look_up(waited, got - batch.ready if opened else None)
            yield batch

    def _due(self, now: float) -> bool:
        if self._first is None or self._last is None:
            return False
        return now - self._last.time >= min(_PERIOD, _OFTEN * (now - self._first.time))

    def _add_made(self, batch: Batch, made: Made, asked: float, waited: float) -> None:
        """A wait for a worker process, which knows itself what it did meanwhile."""
        idle = min(waited, made.idle, max(0.0, batch.began - asked))
        busy = made.stretch.lasting(waited - idle)
        starting = min(idle, made.starting)
        self._reading = self._reading.plus(busy).plus(Stretch(cores=starting, loader=idle - starting))
        self._handing = self._handing.plus(made.others)
        self._making = self._making.plus(made.stretch)

    def _look_up(self, waited: float, taken: float | None) -> None:
        """A wait for threads of this process; `taken` is how long it took to notice that it was over."""
        assert self._last is not None
        before, self._last = self._last, self._books.look()
        if taken is not None:
            own = self._books.others(before, self._last)
            self._taken += max(0.0, taken - own.cores - own.quota - own.work)
            self._takings += 1
        lock = self._taken / max(1, self._takings)
        self._reading = self._reading.plus(self._books.reading(before, self._last, lock).lasting(waited))

    def account(self) -> Account | None:
        """Of the batches so far; None where the kernel keeps no books, or there was only one batch."""
        if not self._books.kept or self._first is None or self._first is self._last:
            return None
        end = self._books.look()
        process = self._books.others(self._first, end).plus(self._handing)
        return Account(self._reading, process, self._making.plus(self._books.readers(self._first, end)))

    def helper_cpu_seconds(self) -> float:
        """As Loader.helper_cpu_seconds."""
        return self._loader.helper_cpu_seconds()

    def close(self) -> None:
        """As Loader.close."""
        self._loader.close()
        self._books.close()
