"""`--loader torch`: PyTorch's DataLoader, which costs and reads as PyTorch does.

A worker process reads a sample through the library that a training uses (np.load, nibabel, h5py), so through
the page cache, in that library's requests. The random crop and default_collate follow, as in the reference
3D U-Net. The DataLoader is asked for steps, each as one batch of its own: a batch sampler hands it a
`Request`, and the dataset returns the batch put together.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, process
from multiprocessing.context import ForkServerContext
from typing import Any, NamedTuple

import numpy as np

from emulator.config.workload import LoaderSpec, Refill
from emulator.errors import DatasetError, FeedrateError, MissingError, RankError, StorageError
from emulator.files import PREFIX_VARIABLE
from emulator.launch.watch import watch_worker
from emulator.loader.base import Batch, Made, stalled
from emulator.loader.crop import crop_of
from emulator.loader.library import load_sample
from emulator.loader.reading import PartReader, WholeReader
from emulator.order import Portion
from emulator.record.books import Books, Page
from emulator.storage.base import ReadCounts, Scanner, Storage
from emulator.storage.posix import aligned_buffer

# Large tensors lie on huge pages; PyTorch reads this when it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, default_collate
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingError(
        "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
    ) from None

_END_SECONDS = 2.0
"""How long worker processes have to end by themselves."""
_GLANCE_SECONDS = 5.0
"""How often a rank that waits for a batch looks whether its workers live, as DataLoader does by itself."""
_DEATH_SECONDS = 1.0
"""How long after its connections have closed a dead worker is known to be dead, at most."""
_FILES = 64
"""Files of many samples that a worker keeps open during an epoch: as a job does, so that it finds what the
kernel has read ahead, and no worker pushes out what another is about to read."""

Tensors = Sequence[torch.Tensor]
"""A batch: images (float32) and labels (uint8), each (samples, channel = 1, depth, height, width). Of records
one tensor with all their bytes."""


class Request(NamedTuple):
    """What the DataLoader is asked for."""

    epoch: int
    portion: Portion
    """The step."""


class Loaded(NamedTuple):
    """The samples of a step as a worker has read them."""

    batch: Tensors
    bytes: int
    """Bytes that were read."""
    began: float
    """When that began, in seconds of time.monotonic; NaN where nothing had to be read."""


class SampleReader:
    """Reads volumes whole and crops them. Can be pickled for a worker process."""

    def __init__(self, whole: WholeReader, crop: tuple[int, ...], seed: int) -> None:
        self.whole = whole
        self.crop = crop
        self.seed = seed

    def __call__(self, epoch: int, index: int) -> Tensors:
        """Image and label of sample `index`, each (1, depth, height, width).

        The crop depends on (seed, epoch, index) alone, so that it is the same for any number of ranks. Raises
        DatasetError, StorageError.
        """
        key = np.array([self.seed, epoch], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, index]))
        arrays = load_sample(self.whole, index)
        volumes = crop_of(arrays, self.crop, random, self.whole.samples.names[index])
        kinds = (np.float32, np.uint8)
        return [
            torch.from_numpy(np.ascontiguousarray(volume, kind)[None])
            for volume, kind in zip(volumes, kinds, strict=True)
        ]

    def load(self, request: Request) -> Loaded:
        """The samples of a step, collated. Raises DatasetError, StorageError."""
        began = time.monotonic()
        files = [read.file for read in request.portion.reads]
        samples = [self(request.epoch, file) for file in files]
        shapes = {sample[0].shape for sample in samples}
        if len(shapes) > 1:
            raise DatasetError(
                "samples of different shapes make no batch", "set loader.crop or a batch_size of 1"
            )
        return Loaded(default_collate(samples), sum(map(self.whole.size, files)), began)


class RecordReader:
    """Reads records: all bytes that a step asks for, in one tensor. Nothing is decoded.

    Can be pickled for a worker process.
    """

    def __init__(self, whole: PartReader, files: int) -> None:
        """`files` of many samples stay open until the next epoch."""
        self.whole = whole
        self.files = files
        self._scanner: Scanner | None = None
        self._epoch = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (RecordReader, (self.whole, self.files))

    def load(self, request: Request) -> Loaded:
        """The records of a step. Raises DatasetError, StorageError."""
        reads = request.portion.reads
        began = time.monotonic() if reads else math.nan
        if self._scanner is None:
            self._scanner, self._epoch = self.whole.scanner(memoryview(b""), self.files, _none), request.epoch
        if self._scanner is None:  # objects, shaped storage, checksums: every request goes through a Blob
            buffer = aligned_buffer(self.whole.room())
            data = bytearray()
            for read in reads:
                for piece in self.whole.pieces(read, buffer, _never):
                    data += piece
            tensor = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            return Loaded([tensor], len(data), began)
        if self._epoch != request.epoch:
            self._scanner.close()
            self._epoch = request.epoch
        wanted = [self.whole.wanted(read) for read in reads]
        size = sum(one.bytes for one in wanted)
        # In shared memory from the start, as default_collate has it in a worker.
        tensor = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._scanner.scan(wanted, self.whole.form.check_head, _never, tensor.numpy().data)
        return Loaded([tensor], size, began)


def _never() -> bool:
    """Workers finish what they were given before they take the next epoch's."""
    return False


def _none() -> None:
    """A worker reads alone: there is nobody to make way for."""


@dataclass(frozen=True, slots=True)
class Collated:
    """One batch as the DataLoader delivers it."""

    loaded: Loaded
    samples: int
    ready: float
    """When it was put together, in seconds of time.monotonic, which all processes of a machine share: before
    it was handed to the rank."""
    worker: int
    """Process that made it."""
    cpu_seconds: float
    """User + system seconds of that process so far."""
    counts: ReadCounts
    """What its reads cost since the last batch."""
    made: Made | None
    """What its time went into; None without schedstat."""


class StepDataset(Dataset[Tensors]):
    """Map-style dataset over requests, a batch at a time, in a worker process.

    Errors are returned, not raised: the rank says them in one line, as `direct` does, without DataLoader's
    traceback of the worker.
    """

    def __init__(self, reader: SampleReader | RecordReader) -> None:
        self.reader = reader
        self._diary: _Diary | None = None

    def __getitems__(self, requests: Sequence[Request]) -> Collated | FeedrateError:
        """What a step takes. `requests` is one, in a list."""
        (request,) = requests
        if self._diary is None:
            self._diary = _Diary(self.reader.whole.storage)
        before = self._diary.begin()
        try:
            loaded = self.reader.load(request)
        except FeedrateError as error:
            return error
        ready, counts = time.monotonic(), self.reader.whole.storage.stats.drain()
        made = self._diary.end(before)
        samples, cpu = request.portion.samples, time.process_time()
        return Collated(loaded, samples, ready, os.getpid(), cpu, counts, made)


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
        """The batch that was begun with `before` is ready; None without schedstat."""
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


class TorchLoader:
    """Batches of one rank through one DataLoader with `spec.workers` worker processes.

    They come from a forkserver: a fork of the rank itself would inherit its threads' locks as they happened
    to be, and MPI does not survive one everywhere. The server imports this module once for all of them.
    """

    def __init__(self, spec: LoaderSpec, whole: WholeReader, seed: int, refill: Refill = "never") -> None:
        """`seed` is that of the random crops; `refill` = epoch starts workers anew with each `read`."""
        torch.set_num_threads(1)  # ranks share the cores: a pool of theirs each would only fight
        self._spec = spec
        self._storage = whole.storage
        self._epoch = 0
        self._helper_cpu: dict[int, float] = {}
        self._take: Callable[[Tensors], None] | None = None
        reader: SampleReader | RecordReader
        if isinstance(whole, PartReader):
            reader = RecordReader(whole, 0 if refill == "never" else _FILES)
        else:
            reader = SampleReader(whole, spec.crop, seed)
        self._batches = _Batches()
        self._workers: list[Any] = []
        self._iterator: Any = None
        name_semaphores()
        context = Forkserver()
        context.set_forkserver_preload([__name__])
        self._hung, self._tell = context.Pipe(duplex=False)
        """The error of a worker that hung in the storage, and ended for it."""
        try:
            ready = context.Process(target=_nothing)
            ready.start()  # now, and not in the first step: before its first child the server imports PyTorch
            ready.join()
        except (OSError, EOFError):
            raise self._worker_died() from None
        with _quiet():
            self._loader: DataLoader[Any] | None = DataLoader(
                StepDataset(reader),
                batch_sampler=self._batches,
                collate_fn=as_it_is,
                num_workers=spec.workers,
                multiprocessing_context=context,
                persistent_workers=refill != "epoch",
                prefetch_factor=math.ceil(spec.prefetch / spec.workers),
                timeout=min(_GLANCE_SECONDS, spec.stall_timeout),
                worker_init_fn=partial(_watched, self._tell),
            )

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """As Loader.read. The tensors are dropped when the next batch is asked for."""
        assert self._loader is not None
        self._batches.requests = [Request(self._epoch, portion) for portion in portions]
        self._epoch += 1
        self._iterator = None
        before = multiprocessing.active_children()
        try:
            with _quiet():
                self._iterator = iter(self._loader)
        except (RuntimeError, OSError, EOFError):  # a worker, or the server that starts them, is gone
            raise self._worker_died() from None
        self._workers += [child for child in multiprocessing.active_children() if child not in before]
        for _ in self._batches.requests:
            yield self._batch(self._next())
        self._next()  # as a for loop over a DataLoader ends: this is where workers end that do not stay
        self._workers = [worker for worker in self._workers if worker.is_alive()]

    def _batch(self, collated: Collated | FeedrateError) -> Batch:
        if isinstance(collated, FeedrateError):
            raise collated
        self._storage.stats.absorb(collated.counts)
        self._helper_cpu[collated.worker] = collated.cpu_seconds
        batch, size, began = collated.loaded
        if self._take is not None:
            self._take(batch)
        return Batch(collated.samples, size, collated.ready, began, collated.made)

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

    def helper_cpu_seconds(self) -> float:
        """User + system seconds of the worker processes, up to the batches they delivered."""
        return sum(self._helper_cpu.values(), 0.0)

    def hand_over(self, take: Callable[[Tensors], None]) -> None:
        """Give the tensors of every batch to `take` before the batch is returned: for a job that trains."""
        self._take = take

    def close(self) -> None:
        # In a thread that nobody waits for: a worker that hangs in a read would hold up its shutdown.
        # Workers that are told to end take their sockets in the temporary folder with them.
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            threading.Thread(target=shutdown, daemon=True).start()
        deadline = time.monotonic() + _END_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.kill()  # one that hangs in a read does not listen to anything else
        self._hung.close()
        self._tell.close()
        self._workers.clear()  # each holds two open files
        self._iterator = None
        self._loader = None
        gc.collect()  # both are in cycles, and their semaphores have names that the system keeps


class _Batches:
    """A batch sampler whose batches change from epoch to epoch, for workers that stay."""

    def __init__(self) -> None:
        self.requests: Sequence[Request] = ()

    def __iter__(self) -> Iterator[list[Request]]:
        return ([request] for request in self.requests)


class _Flag:
    """An Event without a lock: a worker that is killed while it looks holds nothing."""

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


def _watched(hung: Any, number: int) -> None:
    """Give the calls of this worker process into the storage the deadline that those of a rank have."""

    def end(error: StorageError) -> None:
        hung.send(error)
        os._exit(error.exit_code)

    watch_worker(end)


def _nothing() -> None:
    """The target of a process that only starts the server."""


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
