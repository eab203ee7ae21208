"""Reader threads that read every byte and keep none: the client that costs next to nothing.

What the plan asks for is read in order by `workers` threads, each in requests of `block_bytes` into a
buffer of its own, which is overwritten by its next request: memory is workers x block_bytes, whatever the
samples' size. The queue depth that the storage sees is `workers`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from queue import SimpleQueue

from emulator.config.workload import LoaderSpec
from emulator.errors import FeedrateError
from emulator.loader.base import Batch
from emulator.loader.reading import WholeReader, aligned_buffer, stalled
from emulator.plan import Portion, Read

_CLOSE_SECONDS = 1.0
"""How long `close` waits for reads that are under way; what hangs longer is left to the exit."""


class _Slot:
    """One batch on its way."""

    __slots__ = ("bytes", "cancelled", "complete", "error", "left", "ready", "samples")

    def __init__(self, samples: int, reads: int) -> None:
        self.samples = samples
        self.left = reads
        self.bytes = 0
        self.ready = time.monotonic()
        self.error: BaseException | None = None
        self.cancelled = False
        self.complete = threading.Lock()  # held until the batch is complete or has failed
        if reads:
            self.complete.acquire()

    def is_cancelled(self) -> bool:
        """True when nobody waits for it any more."""
        return self.cancelled


class DirectLoader:
    """See the module's docstring. Data are discarded as soon as they have arrived."""

    def __init__(self, spec: LoaderSpec, reader: WholeReader) -> None:
        self._spec = spec
        self._reader = reader
        self._tasks: SimpleQueue[tuple[_Slot, Read] | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the counts of all slots
        self._window: deque[_Slot] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._read_tasks, name=f"reader-{number}", daemon=True)
            for number in range(spec.workers)
        ]
        for thread in self._threads:
            thread.start()

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """As Loader.read; at most `prefetch` batches are read ahead of the consumer."""
        self._abandon()
        return self._deliver(iter(portions))

    def _deliver(self, portions: Iterator[Portion]) -> Iterator[Batch]:
        window = self._window = deque()
        try:
            for portion in islice(portions, self._spec.prefetch):
                window.append(self._admit(portion))
            while window:
                slot = window[0]
                self._wait(slot)
                window.popleft()
                for portion in islice(portions, 1):
                    window.append(self._admit(portion))
                yield Batch(slot.samples, slot.bytes, slot.ready)
        finally:
            for slot in window:
                slot.cancelled = True

    def _admit(self, portion: Portion) -> _Slot:
        slot = _Slot(portion.samples, len(portion.reads))
        for read in portion.reads:
            self._tasks.put((slot, read))
        return slot

    def _wait(self, slot: _Slot) -> None:
        """Until the batch is complete. Raises what its readers met, StorageError when nothing comes."""
        if self._closed or not slot.complete.acquire(timeout=self._spec.stall_timeout):
            raise stalled(self._spec.stall_timeout)
        if slot.error is not None:
            raise slot.error

    def _read_tasks(self) -> None:
        """Life of a reader thread."""
        buffer = aligned_buffer(self._reader.room())  # pages that are never touched take no memory
        while (task := self._tasks.get()) is not None:
            slot, read = task
            if slot.cancelled:
                continue
            try:
                size = self._reader.fetch(read, buffer, slot.is_cancelled)
            except FeedrateError as error:
                self._fail(slot, error)
            except BaseException as error:
                self._fail(slot, error)  # a bug: the consumer shall see it, not wait for ever
                raise
            else:
                with self._lock:
                    slot.bytes += size
                    slot.left -= 1
                    if slot.left == 0 and slot.error is None:
                        slot.ready = time.monotonic()
                        slot.complete.release()

    def _fail(self, slot: _Slot, error: BaseException) -> None:
        with self._lock:
            if slot.error is None:
                slot.error = error
                slot.complete.release()

    def helper_cpu_seconds(self) -> float:
        """0: there are no helper processes."""
        return 0.0

    def _abandon(self) -> None:
        for slot in self._window:
            slot.cancelled = True

    def close(self) -> None:
        """As Loader.close."""
        self._closed = True
        self._abandon()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
