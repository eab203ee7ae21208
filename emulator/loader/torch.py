"""PyTorch's DataLoader, as a training job reads: whole samples, random crops, collated batches.

The DataLoader is asked for steps, each as one batch of its own: a batch sampler hands it a `Request`, and the
dataset returns the batch put together. Worker processes read, as in a training (`ProcessLoader`), or for less
CPU into memory that is used again (`RingLoader`), or threads of this process do (`ThreadLoader`): the same
files at the same time for one interpreter instead of five, so that few cores do for a host that has enough.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import multiprocessing
import os
import select
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from multiprocessing import connection, process, queues, reduction
from multiprocessing.context import ForkServerContext
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from emulator.config.workload import LoaderSpec, Refill
from emulator.errors import DatasetError, FeedrateError, MissingError, RankError, StorageError
from emulator.files import PREFIX_VARIABLE
from emulator.launch.watch import watch_worker
from emulator.loader.base import Batch, DaemonThreads, Made, stalled
from emulator.loader.crop import CropReader
from emulator.loader.reading import PartReader, WholeReader
from emulator.order import Portion, Read
from emulator.record.books import Books, Page
from emulator.storage.base import ReadCounts, Storage, Wanted
from emulator.storage.posix import aligned_buffer, padded

os.environ.setdefault(
    "THP_MEM_ALLOC_ENABLE", "1"
)  # large tensors on huge pages; PyTorch reads it when loaded

try:
    import torch
    from torch.utils.data import DataLoader, Dataset
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingError(
        "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
    ) from None

P = ParamSpec("P")
T = TypeVar("T")

_END_SECONDS = 2.0
"""How long worker processes have to end by themselves."""
_GLANCE_SECONDS = 5.0
"""How often a rank that waits for a batch looks whether its workers live, as DataLoader does by itself."""
_DEATH_SECONDS = 1.0
"""How long after its connections have closed a dead worker is known to be dead, at most."""
_MOST_BYTES = 2**40
"""Of a batch."""
_SHORT = select.PIPE_BUF - 8
"""Bytes of a message that a pipe takes whole, and without waiting while poll(2) says that there is room."""

_FILES = 64
"""Files of many samples that a reader keeps open while an epoch lasts: as a job does, so that it finds what
the kernel has read ahead, and no reader pushes out what another is about to read."""

Key = tuple[int, int]
"""(epoch, sample index): all that the random state of a sample depends on, beside the seed."""


class Request(NamedTuple):
    """What the DataLoader is asked for."""

    epoch: int
    portion: Portion
    """The step."""
    place: int = 0
    """Where a worker puts it, in the rank's Places."""


Tensors = tuple[torch.Tensor, ...]
"""Image (float32) and label (uint8), (channel = 1, depth, height, width), or batches of them. Of records
their bytes, all in one."""

Shape = tuple[torch.dtype, tuple[int, ...]]
"""Of a tensor."""

Allocate = Callable[[Sequence[Shape]], Tensors]
"""Gives memory for the tensors of a batch."""


class Placed(NamedTuple):
    """A batch that lies in a rank's Places."""

    place: int
    shapes: Sequence[Shape]


class Places:
    """Memory that a rank shares with its workers: a place for each batch that is on its way.

    Memory of its own for every batch, as default_collate has it, costs more than all else: its pages are
    cleared, found one by one when they are first written, and taken apart; its file is handed over through a
    connection.
    """

    def __init__(self, file: int) -> None:
        """`file` is a descriptor of a file in memory, from now on this object's."""
        self._file = open(file, "r+b", buffering=0)  # noqa: SIM115 - that can be closed twice
        self._mapped: dict[int, torch.Tensor] = {}

    @classmethod
    def create(cls, count: int) -> Places:
        """So many places."""
        file = os.memfd_create("feedrate-batches")
        os.ftruncate(file, count * _MOST_BYTES)  # what is never written takes no memory
        return cls(file)

    def __reduce__(self) -> tuple[object, ...]:
        return (_inherited, (reduction.DupFd(self._file.fileno()),))

    def tensors(self, batch: Placed) -> Tensors:
        """The batch as it lies there."""
        ends = [0, *accumulate(kind.itemsize * math.prod(shape) for kind, shape in batch.shapes)]
        area = self._mapped.get(batch.place)
        if area is None or len(area) < ends[-1]:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # all pages at once, not one by one
            length = padded(ends[-1] or 1)
            room = mmap.mmap(self._file.fileno(), length, flags, offset=batch.place * _MOST_BYTES)
            area = self._mapped[batch.place] = torch.frombuffer(room, dtype=torch.uint8)
        return tuple(
            area[begin:end].view(kind).view(shape)
            for (kind, shape), begin, end in zip(batch.shapes, ends, ends[1:], strict=False)
        )

    def close(self) -> None:
        """Let go of it."""
        self._mapped.clear()
        self._file.close()


def _inherited(file: Any) -> Places:
    return Places(file.detach())


def fresh(shapes: Sequence[Shape]) -> Tensors:
    """Memory of this process. An Allocate."""
    return tuple(torch.empty(shape, dtype=kind) for kind, shape in shapes)


def fresh_shared(shapes: Sequence[Shape]) -> Tensors:
    """Memory that can be handed to another process, as default_collate has it in workers. An Allocate."""
    new = torch.UntypedStorage._new_shared
    return tuple(
        torch.empty(0, dtype=kind).set_(new(kind.itemsize * math.prod(shape))).view(shape)  # type: ignore[no-untyped-call]
        for kind, shape in shapes
    )


class Task(Future[T]):
    """A call that a thread will run."""

    began: float = math.nan
    """When a thread began with it, in seconds of time.monotonic."""


class DaemonPool(DaemonThreads):
    """Daemon threads that run calls in the order in which they were handed in."""

    def __init__(self, threads: int, name: str) -> None:
        self._closed = False
        self.threads = threads
        super().__init__(threads, name, _run_tasks)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """`call(*args)`, later, by one of the threads; cancelled when the pool is closed."""
        future: Task[T] = Task()
        self.tasks.put((future, partial(call, *args, **kwargs)))
        if self._closed:  # looked at after the put: `close` sets it before it empties the queue
            future.cancel()
        return future

    def close(self) -> None:
        """Cancel what has not begun, wait a little for what has."""
        self._closed = True
        with suppress(Empty):
            while True:
                task = self.tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        super().close()


def _run_tasks(tasks: SimpleQueue[tuple[Task[Any], Callable[[], Any]] | None]) -> None:
    while (task := tasks.get()) is not None:
        _run(*task)
        del task  # or it would keep its arguments and its result until the next one comes


def _run(future: Task[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    future.began = time.monotonic()
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future shall see it
        future.set_exception(error)
    else:
        future.set_result(result)


class SampleReader:
    """Reads samples whole and crops them, from any number of threads; can be pickled for a worker process."""

    def __init__(self, whole: WholeReader, crop: tuple[int, ...], seed: int) -> None:
        self.whole = whole
        self.crop = crop
        self.seed = seed
        self.cancelled_before = 0
        """Samples of earlier epochs are given up."""
        self._local = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return (SampleReader, (self.whole, self.crop, self.seed))

    def __call__(self, key: Key, into: Tensors | None = None) -> Tensors:
        """The sample `key`, in `into` when given. Raises DatasetError, StorageError."""
        epoch, index = key
        key64 = np.array([self.seed, epoch], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key64, counter=[0, 0, 0, index]))
        tensors = into

        def allocate(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
            nonlocal tensors
            tensors = tensors or fresh(_volumes((1, *shape)))
            return [tensor.numpy()[0] for tensor in tensors]

        if not hasattr(self._local, "crops"):
            self._local.crops = CropReader(self.whole, self.crop)
        self._local.crops.read(index, random, allocate, lambda: epoch < self.cancelled_before)
        assert tensors is not None
        return tensors

    def batch(
        self, request: Request, pool: DaemonPool | None, allocate: Allocate
    ) -> tuple[Tensors, int, float]:
        """The tensors of a step, the bytes that were read for them, and when that began (time.monotonic).

        By the pool's threads or this one. Raises DatasetError, StorageError, CancelledError.
        """
        keys = [(request.epoch, read.file) for read in request.portion.reads]
        size = sum(self.whole.size(file) for _, file in keys)
        if self.crop:  # samples are read into their places in the batch: nothing is copied to collate them
            batch = allocate(_volumes((len(keys), 1, *self.crop)))
            calls = [
                partial(self, key, place) for key, place in zip(keys, zip(*batch, strict=True), strict=True)
            ]
            return batch, size, _results(calls, pool)[1]
        samples, began = _results([partial(self, key) for key in keys], pool)
        shape, *others = {image.shape for image, _ in samples}
        if others:
            raise DatasetError(
                "samples of different shapes make no batch", "set loader.crop or a batch_size of 1"
            )
        batch = allocate(_volumes((len(keys), *shape)))
        for whole, parts in zip(batch, zip(*samples, strict=True), strict=True):
            torch.stack(parts, out=whole)
        return batch, size, began


def _volumes(shape: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Image and label of so many voxels."""
    return (torch.float32, shape), (torch.uint8, shape)


class RecordReader:
    """As SampleReader, of records: all bytes that a step reads, in one tensor. Nothing is decoded."""

    def __init__(self, whole: PartReader) -> None:
        self.whole = whole
        self.cancelled_before = 0
        self._local = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.whole,))

    def __call__(self, epoch: int, read: Read) -> torch.Tensor:
        """The bytes of `read`. Raises DatasetError, StorageError."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = aligned_buffer(self.whole.room())
        data = bytearray()
        for piece in self.whole.pieces(read, self._local.buffer, lambda: epoch < self.cancelled_before):
            data += piece
        return torch.from_numpy(np.frombuffer(data, np.uint8))

    def batch(
        self, request: Request, pool: DaemonPool | None, allocate: Allocate
    ) -> tuple[Tensors, int, float]:
        """As SampleReader.batch; NaN where nothing had to be read."""
        calls = [partial(self, request.epoch, read) for read in request.portion.reads]
        parts, began = _results(calls, pool)
        size = sum(map(len, parts))
        (joined,) = allocate([(torch.uint8, (size,))])
        if parts:
            torch.cat(parts, out=joined)
        return (joined,), size, began


class PlacedRecordReader(RecordReader):
    """As RecordReader, from a storage with a scanner: that reads each record into its place in the tensor."""

    def __init__(self, whole: PartReader, files: int) -> None:
        """`files` of many samples stay open until the next epoch."""
        super().__init__(whole)
        self.files = files

    def __reduce__(self) -> tuple[object, ...]:
        return (PlacedRecordReader, (self.whole, self.files))

    def batch(
        self, request: Request, pool: DaemonPool | None, allocate: Allocate
    ) -> tuple[Tensors, int, float]:
        wanted = [self.whole.wanted(read) for read in request.portion.reads]
        (joined,) = allocate([(torch.uint8, (sum(one.bytes for one in wanted),))])
        rest = joined.numpy().data
        together = -(-len(wanted) // (pool.threads if pool else 1)) or 1
        calls = []
        for first in range(0, len(wanted), together):
            some = wanted[first : first + together]
            calls.append(partial(self._scan, request.epoch, some, rest))
            rest = rest[sum(one.bytes for one in some) :]
        _, began = _results(calls, pool)
        return (joined,), joined.numel(), began

    def _scan(self, epoch: int, wanted: Sequence[Wanted], into: memoryview) -> None:
        if not hasattr(self._local, "scanner"):
            # Files that stay open are closed when a worker process ends; a thread would leave them behind.
            files = self.files if torch.utils.data.get_worker_info() is not None else 0
            self._local.scanner = self.whole.scanner(memoryview(b""), files, lambda: None)
            self._local.epoch = epoch
        if self._local.epoch != epoch:
            self._local.scanner.close()
            self._local.epoch = epoch
        check_head = self.whole.form.check_head
        self._local.scanner.scan(wanted, check_head, lambda: epoch < self.cancelled_before, into)


def _results(calls: Sequence[Callable[[], T]], pool: DaemonPool | None) -> tuple[list[T], float]:
    """What the calls return, by the pool's threads or this one, and when the first began; NaN: none did."""
    if pool is None:
        began = time.monotonic() if calls else math.nan
        return [call() for call in calls], began
    futures = [pool.submit(call) for call in calls]
    found = [future.result() for future in futures]
    return found, min((future.began for future in futures), default=math.nan)


@dataclass(frozen=True, slots=True)
class Collated:
    """One batch as the DataLoader delivers it."""

    batch: Tensors | Placed
    samples: int
    bytes: int
    """Bytes that were read."""
    began: float
    """When reading them began, in seconds of time.monotonic, which all processes of a machine share."""
    ready: float
    """When it was over and the batch put together: before it was handed to the rank."""
    worker: int
    """Process that made it."""
    cpu_seconds: float
    """User + system seconds of that process so far."""
    counts: ReadCounts | None
    """What its reads cost since the last batch, from a process of its own."""
    made: Made | None
    """What its time went into, from a process of its own."""


class StepDataset(Dataset[Tensors]):
    """Map-style dataset over requests, a batch at a time.

    Errors are returned, not raised: the traceback that DataLoader makes of them helps nobody.
    """

    def __init__(
        self,
        reader: SampleReader | RecordReader,
        pool: DaemonPool | None = None,
        places: Places | None = None,
    ) -> None:
        """`pool` reads in this process; in others a batch is put into one of the `places`, without any into
        memory of its own."""
        self.reader = reader
        self.pool = pool
        self.places = places
        self._diary: _Diary | None = None

    def __getitems__(self, requests: Sequence[Request]) -> Collated | FeedrateError:
        """What a step takes, read by the pool's threads or in this one. `requests` is one, in a list."""
        (request,) = requests
        placed: list[Placed] = []

        def allocate(shapes: Sequence[Shape]) -> Tensors:
            if self.places is None:
                return fresh(shapes) if self.pool else fresh_shared(shapes)
            placed.append(Placed(request.place, shapes))
            return self.places.tensors(placed[0])

        if self.pool is None and self._diary is None:
            self._diary = _Diary(self.reader.whole.storage)
        before = None if self._diary is None else self._diary.begin()
        try:
            tensors, size, began = self.reader.batch(request, self.pool, allocate)
        except FeedrateError as error:
            return error
        except CancelledError:
            return StorageError("the loader is closed")
        batch = placed[0] if placed else tensors
        made = partial(Collated, batch, request.portion.samples, size, began, time.monotonic(), os.getpid())
        if self._diary is None or before is None:
            return made(0.0, None, None)
        counts = self.reader.whole.storage.stats.drain()
        return made(time.process_time(), counts, self._diary.end(before))


class _Diary:
    """What a worker process does with its time, batch by batch."""

    def __init__(self, storage: Storage) -> None:
        self._last: Page | None = None
        info = torch.utils.data.get_worker_info()
        workers = info.num_workers if info is not None and storage.turns else 1
        self._books = Books(storage.stats.tallies, together=workers)

    def begin(self) -> Page:
        """Begin with a batch."""
        return self._books.look()

    def end(self, before: Page) -> Made | None:
        """The batch that was begun with `before` is ready; None where the kernel keeps no books."""
        page, last = self._books.look(), self._last
        self._last = page
        if not self._books.kept:
            return None
        stretch, others = self._books.reading(before, page), self._books.others(last or before, page)
        if last is None:
            return Made(stretch, math.inf, others, sum(entry.ready for entry in before.entries.values()))
        return Made(stretch, before.time - last.time, others)


def as_it_is(collated: Any) -> Any:
    """Collate function: the dataset has put the batch together already."""
    return collated


Fetched = Collated | FeedrateError
"""What the DataLoader delivers."""


def _fetch(iterator: Iterator[Any]) -> Any:
    """The next batch; None after the last one."""
    return next(iterator, None)


class TorchLoader:
    """Batches of one rank through torch.utils.data.DataLoader. Those who read are the subclass's."""

    def __init__(self, spec: LoaderSpec, whole: WholeReader, seed: int, refill: Refill = "never") -> None:
        """`seed` is that of the random crops; workers are started anew by each `read` for `refill` =
        epoch."""
        torch.set_num_threads(1)  # ranks share the cores: a pool of theirs each would only fight
        self._storage = whole.storage
        self._epoch = 0
        self._helper_cpu: dict[int, float] = {}
        self._take: Callable[[Tensors], None] | None = None
        reader: SampleReader | RecordReader
        if not isinstance(whole, PartReader):
            reader = SampleReader(whole, spec.crop, seed)
        elif whole.storage.alignment > 1 or whole.scanner(memoryview(b""), 0, lambda: None) is None:
            reader = RecordReader(whole)
        else:
            reader = PlacedRecordReader(whole, 0 if refill == "never" else _FILES)
        self._engine = self._readers(spec, reader, refill)

    def _readers(
        self, spec: LoaderSpec, reader: SampleReader | RecordReader, refill: Refill
    ) -> _Threads | _Processes:
        raise NotImplementedError

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """As Loader.read. The tensors are dropped when the next batch is asked for."""
        number, self._epoch = self._epoch, self._epoch + 1
        self._engine.abandon(number)
        return map(self._batch, self._engine.read([Request(number, portion) for portion in portions]))

    def _batch(self, collated: Fetched) -> Batch:
        if isinstance(collated, FeedrateError):
            raise collated
        if collated.counts is not None:
            self._storage.stats.absorb(collated.counts)
            self._helper_cpu[collated.worker] = collated.cpu_seconds
        if self._take is not None:
            self._take(self._engine.tensors(collated.batch))
        return Batch(collated.samples, collated.bytes, collated.ready, collated.began, collated.made)

    def helper_cpu_seconds(self) -> float:
        """User + system seconds of the worker processes, up to the batches they delivered."""
        return sum(self._helper_cpu.values(), 0.0)

    def close(self) -> None:
        self._engine.abandon(self._epoch + 1)
        self._engine.close()

    def hand_over(self, take: Callable[[Tensors], None]) -> None:
        """Give the tensors of every batch to `take` before the batch is returned: for a job that trains."""
        self._take = take


class ProcessLoader(TorchLoader):
    """`--loader torch`."""

    def _readers(
        self, spec: LoaderSpec, reader: SampleReader | RecordReader, refill: Refill
    ) -> _Threads | _Processes:
        return _Processes(spec, reader, refill)


class RingLoader(TorchLoader):
    """`--loader ring`. Whoever takes a batch has it until the next one is asked for."""

    def _readers(
        self, spec: LoaderSpec, reader: SampleReader | RecordReader, refill: Refill
    ) -> _Threads | _Processes:
        return _Processes(spec, reader, refill, ring=True)


class ThreadLoader(TorchLoader):
    """`--loader threads`."""

    def _readers(
        self, spec: LoaderSpec, reader: SampleReader | RecordReader, refill: Refill
    ) -> _Threads | _Processes:
        return _Threads(spec, reader)


class _Threads:
    """`prefetch` DataLoaders, each advanced by a fetcher thread, over one pool of `workers` readers.

    DataLoader number w has the batches w, w + prefetch, ...; the oldest is taken and asked for its
    next at once, so that exactly `prefetch` batches are on their way. Samples are read in order, and
    reading goes on across the borders of batches.
    """

    def __init__(self, spec: LoaderSpec, reader: SampleReader | RecordReader) -> None:
        self._spec = spec
        self._reader = reader
        self._readers = DaemonPool(spec.workers, "reader")
        self._fetchers = DaemonPool(spec.prefetch, "fetcher")
        self._dataset = StepDataset(reader, self._readers)

    def read(self, requests: Sequence[Request]) -> Iterator[Fetched]:
        width = self._spec.prefetch
        window: deque[tuple[Iterator[Any], Future[Any]]] = deque()
        for first in range(min(width, len(requests))):
            mine = [[request] for request in requests[first::width]]
            loader: DataLoader[Any] = DataLoader(self._dataset, batch_sampler=mine, collate_fn=as_it_is)
            iterator: Iterator[Any] = iter(loader)
            window.append((iterator, self._fetchers.submit(_fetch, iterator)))
        for _ in requests:
            iterator, future = window.popleft()
            try:
                fetched = future.result(self._spec.stall_timeout)
            except TimeoutError:
                raise stalled(self._spec.stall_timeout) from None
            # Before the batch is handed over: the readers must not idle while the rank computes on it.
            window.append((iterator, self._fetchers.submit(_fetch, iterator)))
            yield fetched
            del fetched, future  # or the loader would hold one batch more than `prefetch`

    def tensors(self, batch: Tensors | Placed) -> Tensors:
        """The tensors of a batch."""
        assert not isinstance(batch, Placed)
        return batch

    def abandon(self, epoch: int) -> None:
        """Give up what was asked for in epochs before `epoch`."""
        self._reader.cancelled_before = epoch

    def close(self) -> None:
        self._readers.close()  # first: a fetcher waits for readers
        self._fetchers.close()


class _Batches:
    """A batch sampler whose batches change from epoch to epoch, for workers that stay.

    It is asked for a batch when the one is taken that it gave `places` - 1 batches before: the one before
    that is not used any more, and its place is free.
    """

    def __init__(self, places: int) -> None:
        self.requests: Sequence[Request] = ()
        self._places = cycle(range(places))

    def __iter__(self) -> Iterator[list[Request]]:
        return ([request._replace(place=next(self._places))] for request in self.requests)


class _Flag:
    """An Event that nobody waits for, without a lock: whoever is killed while it looks would keep that."""

    def __init__(self, set_already: ctypes.c_bool) -> None:
        self._set = set_already

    def set(self) -> None:
        self._set.value = True

    def is_set(self) -> bool:
        return self._set.value


class Forkserver(ForkServerContext):
    """As multiprocessing's, for a DataLoader: the Event by which it tells workers to end is a `_Flag`."""

    def Event(self) -> Any:  # noqa: N802 - as the method is called there
        return _Flag(self.RawValue(ctypes.c_bool))


class DirectQueue(queues.Queue):  # type: ignore[type-arg]  # cannot be subscripted
    """A Queue whose `put` writes a short message into the pipe itself, unless the pipe is full.

    Else a thread does that, which has to be woken and takes Python's lock: up to a fifth of the CPU of a
    batch of 4 MB.
    """

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        state: Any = self  # the names are private, and the same from Python 3.11 to 3.14
        if state._thread is None and len(data := reduction.ForkingPickler.dumps(obj)) < _SHORT:
            room = select.poll()
            room.register(state._writer, select.POLLOUT)
            with state._wlock:
                if room.poll(0):
                    state._sem.acquire()
                    state._writer.send_bytes(data)
                    return
        super().put(obj, block, timeout)


class RingContext(Forkserver):
    """For a DataLoader whose batches are short messages: they lie in Places."""

    def Queue(self, maxsize: int = 0) -> DirectQueue:  # noqa: N802 - as the method is called there
        return DirectQueue(maxsize, ctx=self.get_context())


class _Processes:
    """One DataLoader with `workers` processes.

    They come from a forkserver. A fork of the rank itself would inherit its threads' locks as they happened
    to be, and MPI does not survive one everywhere. The server imports this module once for all of them.
    """

    def __init__(
        self, spec: LoaderSpec, reader: SampleReader | RecordReader, refill: Refill, *, ring: bool = False
    ) -> None:
        self._spec = spec
        each = math.ceil(spec.prefetch / spec.workers)
        places = spec.workers * each + 1  # on their way, and one that the rank works on
        self._places = Places.create(places) if ring else None
        self._batches = _Batches(places)
        self._workers: list[Any] = []
        self._iterator: Any = None
        name_semaphores()
        context = RingContext() if ring else Forkserver()
        context.set_forkserver_preload([__name__])
        self._hung, self._tell = context.Pipe(duplex=False)
        """The error of a worker that hung in the storage, and ended for it."""
        ready = context.Process(target=_nothing)
        ready.start()  # now, and not in the first step: before its first child the server imports PyTorch
        ready.join()
        self._closer = DaemonPool(1, "closer")
        with _quiet():
            self._loader: DataLoader[Any] | None = DataLoader(
                StepDataset(reader, places=self._places),
                batch_sampler=self._batches,
                collate_fn=as_it_is,
                num_workers=spec.workers,
                multiprocessing_context=context,
                persistent_workers=refill != "epoch",
                prefetch_factor=each,
                timeout=min(_GLANCE_SECONDS, spec.stall_timeout),
                worker_init_fn=partial(_watched, self._tell),
            )

    def read(self, requests: Sequence[Request]) -> Iterator[Fetched]:
        assert self._loader is not None
        self._iterator = None  # workers of one that was left early end: they would write into the same places
        self._batches.requests = requests
        before = multiprocessing.active_children()
        try:
            with _quiet():
                self._iterator = iter(self._loader)
        except (
            RuntimeError,
            OSError,
            EOFError,
        ):  # what starting workers raises when one or its server is gone
            raise self._worker_died() from None
        self._workers += [child for child in multiprocessing.active_children() if child not in before]
        for _ in requests:
            yield self._next()
        self._next()  # as a for loop over a DataLoader ends: this is where workers end that do not stay
        self._workers = [worker for worker in self._workers if worker.is_alive()]

    def _next(self) -> Any:
        """The next batch, taken by this very thread as a training takes it; None after the last one.

        A thread that waited in its place would have to be woken, and wake this one: on busy cores that is
        paid for in each step.
        """
        deadline = time.monotonic() + self._spec.stall_timeout
        while True:
            try:
                return next(self._iterator, None)
            except (RuntimeError, OSError, EOFError) as error:  # as torch or its queues notice a dead worker
                if connection.wait([worker.sentinel for worker in self._workers], 0):
                    raise self._worker_died() from None
                if "timed out" in str(error):  # DataLoader's glance at its workers, who live
                    if time.monotonic() >= deadline:
                        raise stalled(self._spec.stall_timeout) from None
                elif connection.wait([worker.sentinel for worker in self._workers], _DEATH_SECONDS):
                    raise self._worker_died() from None
                else:
                    raise

    def _worker_died(self) -> FeedrateError:
        if self._hung.poll():
            error: FeedrateError = self._hung.recv()
            return error
        return RankError("a DataLoader worker died", "was memory short? see the system log")

    def tensors(self, batch: Tensors | Placed) -> Tensors:
        """The tensors of a batch."""
        if isinstance(batch, Placed):
            assert self._places is not None
            return self._places.tensors(batch)
        return batch

    def abandon(self, epoch: int) -> None:
        """Nothing: the workers finish what they were given before they take the next epoch's."""

    def close(self) -> None:
        # Workers that are told to end take their sockets in the temporary folder with them.
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            self._closer.submit(shutdown)
        deadline = time.monotonic() + _END_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.kill()  # one that hangs in a read does not listen to anything else
        self._closer.close()
        self._hung.close()
        self._tell.close()
        self._workers.clear()  # each holds two open files
        self._iterator = None
        self._loader = None
        if self._places is not None:
            self._places.close()
        gc.collect()  # both are in cycles, and their semaphores have names that the system keeps


def _watched(hung: Any, number: int) -> None:
    """In a worker process: its calls into the storage have a deadline, as those of a rank have."""

    def end(error: StorageError) -> None:
        hung.send(error)
        os._exit(error.exit_code)

    watch_worker(end)


def _nothing() -> None:
    """What a process does that only shows that the server is there."""


@contextmanager
def _quiet() -> Iterator[None]:
    """No warning of more workers than cores: how many there are is the user's to choose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


def name_semaphores() -> None:
    """Name the semaphores between this rank and its workers as the launcher wants them.

    A rank that is killed cannot remove them, and multiprocessing's resource tracker is killed with it by
    mpirun. So whoever starts the ranks chooses how the names begin, and removes them. Python has no public
    way to choose the names; where the private one is gone, nothing is changed.
    """
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    config = getattr(process.current_process(), "_config", None)
    if prefix and config is not None:
        config["semprefix"] = "/" + prefix
