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

_TASK_BYTES = 4 * 2**20
"""Bytes of samples that a thread reads in one task. Smaller tasks cost more CPU a sample."""
_CLOSE_SECONDS = 1.0
"""Seconds for which `close` waits for running reads; those that hang end with the process."""


class _Slot:
    """One batch of which `left` tasks are unfinished.

    The reader that finishes the last one sets `ready` and releases `complete`, for which the consumer waits.
    """

    __slots__ = ("began", "bytes", "cancelled", "complete", "epoch", "error", "left", "ready", "samples")

    def __init__(self, epoch: int, samples: int, tasks: int) -> None:
        self.epoch = epoch
        self.samples = samples
        self.left = tasks
        self.bytes = 0
        self.began = math.nan
        self.ready = time.monotonic()
        self.error: BaseException | None = None
        self.cancelled = bytearray(1)
        """1 if the consumer no longer waits for it. The C module reads it without Python's lock."""
        # Held until the batch is complete or has failed: no other object is as cheap to wait for.
        self.complete = threading.Lock()
        if tasks:
            self.complete.acquire()

    def is_cancelled(self) -> bool:
        return self.cancelled[0] == 1


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
        self._threads = spec.workers
        if self._engine == "io_uring":
            # The ring of a thread runs empty at the end of each task, while those of the others stay full.
            self._threads = 4 if spec.workers >= 16 else min(2, spec.workers)
        # Reads of each thread that are under way at a time: `workers` of all threads.
        depths = [(spec.workers + number) // self._threads for number in range(self._threads)]
        self._task_reads = max(1, _TASK_BYTES // reader.sample_bytes())
        if depths[-1] > 1:
            self._task_reads = max(self._task_reads, 8 * depths[-1])
        # Recorded batches take turns at the threads, each of which goes on with the files that it has open.
        queues = self._threads if reader.calls is not None else 1
        self._queues = [SimpleQueue[_Task | None]() for _ in range(queues)]
        self._turns = cycle(self._queues)
        # Daemon threads, because a read may hang forever: concurrent.futures would join its threads at exit.
        self._readers = [
            threading.Thread(target=self._read_tasks, args=(queue, depth), daemon=True)
            for queue, depth in zip(cycle(self._queues), depths, strict=False)
        ]
        for thread in self._readers:
            thread.start()

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """See Loader.read. Reads `prefetch` batches ahead; with 0, a batch when it is requested."""
        _cancel(self._window)
        self._turns = cycle(self._queues)
        return self._deliver(iter(portions))

    def _deliver(self, portions: Iterator[Portion]) -> Iterator[Batch]:
        window = self._window = deque()

        def admit(batches: int) -> None:
            window.extend(map(self._admit, islice(portions, batches)))

        try:
            admit(max(1, self._spec.prefetch))
            while window:
                slot = window[0]
                if self._closed or not slot.complete.acquire(timeout=self._spec.stall_timeout):
                    raise stalled(self._spec.stall_timeout)
                if slot.error is not None:
                    raise slot.error
                window.popleft()
                # Admit before the yield: readers must not idle while the rank computes.
                admit(min(1, self._spec.prefetch))
                yield Batch(slot.samples, slot.bytes, slot.ready, slot.began)
                if not window:  # prefetch = 0, or the end
                    admit(1)
        finally:
            _cancel(window)

    def _admit(self, portion: Portion) -> _Slot:
        tasks: list[Any] = [portion.drawn]
        if portion.drawn is None:
            reads = portion.reads
            share = max(1, -(-len(reads) // self._threads))  # a small batch has a task for each thread
            step = min(self._task_reads, share)
            tasks = [reads[first : first + step] for first in range(0, len(reads), step)]
        slot, queue = _Slot(portion.epoch, portion.samples, len(tasks)), next(self._turns)
        for task in tasks:
            queue.put((slot, task))
        return slot

    def _read_tasks(self, tasks: SimpleQueue[_Task | None], depth: int) -> None:
        """Run the loop of a reader thread."""
        with ExitStack() as stack:
            read = self._begin(stack, depth)
            while (task := tasks.get()) is not None:
                slot, reads = task
                if not slot.is_cancelled():
                    self._perform(slot, partial(read, slot, reads))

    def _begin(self, stack: ExitStack, depth: int) -> Callable[[_Slot, Any], int]:
        """Return the function by which a thread reads a task; what it opens, `stack` closes."""
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
        batches = stack.enter_context(reader.batches(self._engine, depth, files))

        def read_batch(slot: _Slot, reads: Sequence[Read]) -> int:
            batches.begin(slot.epoch)
            return batches.read(reader.pieces(reads), reader.form.check_head, slot.cancelled)

        return read_batch

    def _perform(self, slot: _Slot, read: Callable[[], int]) -> None:
        if math.isnan(slot.began):
            slot.began = time.monotonic()
        size, failure = 0, None
        try:
            size = read()
        except BaseException as error:  # noqa: BLE001  the consumer raises it, and would wait forever without it
            failure = error
        with self._lock:
            slot.bytes += size
            slot.left -= 1
            ends = failure is not None or slot.left == 0
            if ends and slot.error is None:  # the consumer got only the first error
                slot.error = failure
                slot.ready = time.monotonic()
                slot.complete.release()

    def helper_cpu_seconds(self) -> float:
        """Return 0: there are no worker processes."""
        return 0.0

    def close(self) -> None:
        self._closed = True
        _cancel(self._window)
        for _, queue in zip(self._readers, cycle(self._queues), strict=False):
            queue.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._readers:
            thread.join(max(0.0, deadline - time.monotonic()))


def _cancel(slots: Iterable[_Slot]) -> None:
    for slot in slots:
        slot.cancelled[0] = 1
