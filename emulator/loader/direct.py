"""`--loader direct`: reader threads read every byte and discard it, to show what the storage can do.

`workers` threads read the plan in order, in requests of `block_bytes`, each into its own buffer, which the
next request overwrites. So memory is workers x block_bytes for any size of samples, and the queue depth of
the storage is `workers`.
"""

from __future__ import annotations

import math
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from queue import SimpleQueue
from typing import Any

from emulator.config.workload import LoaderSpec
from emulator.loader.base import Batch, stalled
from emulator.loader.reading import OPEN_FILES, Reader
from emulator.order import Portion, Read
from emulator.storage.posix import aligned_buffer

_TOGETHER = 4 * 2**20
"""Bytes of samples that a thread reads in one task."""
_CLOSE_SECONDS = 1.0
"""Seconds for which `close` waits for running reads; those that hang end with the process."""


class _Slot:
    """One batch of which `left` tasks are unfinished.

    The reader that finishes the last one sets `ready` and releases `complete`, for which the consumer waits.
    """

    __slots__ = ("began", "bytes", "complete", "epoch", "error", "flag", "left", "ready", "samples")

    def __init__(self, epoch: int, samples: int, tasks: int) -> None:
        self.epoch = epoch
        self.samples = samples
        self.left = tasks
        self.bytes = 0
        self.began = math.nan
        self.ready = time.monotonic()
        self.error: BaseException | None = None
        self.flag = bytearray(1)
        """1 if the consumer no longer waits for it."""
        # Held until the batch is complete or has failed: no other object is as cheap to wait for.
        self.complete = threading.Lock()
        if tasks:
            self.complete.acquire()

    def is_cancelled(self) -> bool:
        return self.flag[0] == 1


_Task = tuple[_Slot, Any]
"""A batch, and a part of its reads; or a recorded batch."""


class DirectLoader:
    """Reads one rank's batches by threads and discards the data."""

    def __init__(self, spec: LoaderSpec, reader: Reader, seed: int) -> None:
        """Start the reader threads. `seed` is unused: it does not crop."""
        self._spec = spec
        self._reader = reader
        self._lock = threading.Lock()  # guards the counts of all slots
        self._window: deque[_Slot] = deque()
        self._closed = False
        self._engine = reader.engine(spec.workers, spec.batch_size)
        self._threads = min(2, spec.workers) if self._engine == "io_uring" else spec.workers
        self._depth = -(-spec.workers // self._threads)
        """Pieces that a thread reads at a time. Two threads: the queue of one runs empty at its end."""
        self._together = max(1, _TOGETHER // reader.sample_bytes(), 8 * self._depth if self._depth > 1 else 1)
        # Recorded batches take turns at the threads, each of which goes on with the files that it has open.
        queues = self._threads if reader.calls is not None else 1
        self._queues = [SimpleQueue[_Task | None]() for _ in range(queues)]
        self._turns = cycle(self._queues)
        # Daemon threads, because a read may hang forever: concurrent.futures would join its threads at exit.
        self._readers = [
            threading.Thread(target=self._read_tasks, args=(queue,), daemon=True)
            for queue in islice(cycle(self._queues), self._threads)
        ]
        for thread in self._readers:
            thread.start()

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """See Loader.read. Reads `prefetch` batches ahead; with 0, a batch when it is requested."""
        self._abandon()
        self._turns = cycle(self._queues)
        return self._deliver(iter(portions))

    def _deliver(self, portions: Iterator[Portion]) -> Iterator[Batch]:
        window = self._window = deque()
        try:
            for portion in islice(portions, max(1, self._spec.prefetch)):
                window.append(self._admit(portion))
            while window:
                slot = window[0]
                if self._closed or not slot.complete.acquire(timeout=self._spec.stall_timeout):
                    raise stalled(self._spec.stall_timeout)
                if slot.error is not None:
                    raise slot.error
                window.popleft()
                # Admit before the yield: readers must not idle while the rank computes.
                for portion in islice(portions, min(1, self._spec.prefetch)):
                    window.append(self._admit(portion))
                yield Batch(slot.samples, slot.bytes, slot.ready, slot.began)
                if not window:  # prefetch = 0, or the end
                    for portion in islice(portions, 1):
                        window.append(self._admit(portion))
        finally:
            for slot in window:
                slot.flag[0] = 1

    def _admit(self, portion: Portion) -> _Slot:
        reads = portion.reads
        together = min(self._together, -(-len(reads) // self._threads) or 1)
        work = [portion.drawn]
        if portion.drawn is None:
            work = [reads[first : first + together] for first in range(0, len(reads), together)]
        slot, queue = _Slot(portion.epoch, portion.samples, len(work)), next(self._turns)
        for part in work:
            queue.put((slot, part))
        return slot

    def _read_tasks(self, tasks: SimpleQueue[_Task | None]) -> None:
        """Run the loop of a reader thread."""
        with ExitStack() as stack:
            read = self._begin(stack)
            while (task := tasks.get()) is not None:
                slot, work = task
                self._perform(slot, partial(read, slot, work))

    def _begin(self, stack: ExitStack) -> Callable[[_Slot, Any], int]:
        """Return the function by which a thread reads the work of a task; what it opens, `stack` closes."""
        reader = self._reader
        if reader.calls is not None:
            player = stack.enter_context(reader.player(sleeps=True))
            return lambda slot, drawn: player.play(drawn, slot.epoch, slot.is_cancelled)
        if self._engine is None:
            buffer = aligned_buffer(reader.room())  # untouched pages use no memory
            return lambda slot, reads: sum(reader.fetch(read, buffer, slot.is_cancelled) for read in reads)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = OPEN_FILES
        if limit != resource.RLIM_INFINITY:  # all threads use at most a quarter
            files = min(files, limit // 4 // self._threads)
        batches = stack.enter_context(reader.batches(self._engine, self._depth, files))

        def read_batch(slot: _Slot, reads: Sequence[Read]) -> int:
            batches.begin(slot.epoch)
            return batches.read(reader.pieces(reads), reader.form.check_head, slot.flag)

        return read_batch

    def _perform(self, slot: _Slot, read: Callable[[], int]) -> None:
        if slot.flag[0]:
            return
        if math.isnan(slot.began):
            slot.began = time.monotonic()
        try:
            size = read()
        except BaseException as error:  # noqa: BLE001  the consumer raises it, and would wait forever without it
            self._fail(slot, error)
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

    def _abandon(self) -> None:
        for slot in self._window:
            slot.flag[0] = 1

    def helper_cpu_seconds(self) -> float:
        """Return 0: there are no worker processes."""
        return 0.0

    def close(self) -> None:
        self._closed = True
        self._abandon()
        for _, queue in zip(self._readers, cycle(self._queues), strict=False):
            queue.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._readers:
            thread.join(max(0.0, deadline - time.monotonic()))
