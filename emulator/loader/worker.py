"""The dataset that a worker process of `--loader torch` reads."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np

from emulator import notes
from emulator.errors import DatasetError, FeedrateError, MissingError, RankError, unexpected
from emulator.loader.arrays import crop_of, load_sample
from emulator.loader.base import Batch, Made
from emulator.loader.played import Player
from emulator.loader.reading import OPEN_FILES, Reader
from emulator.order import Portion
from emulator.record.schedstat import Books, Page
from emulator.storage.base import Storage
from emulator.storage.batches import BatchReader
from emulator.storage.counts import ReadCounts
from emulator.storage.posix import aligned_buffer

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # have PyTorch allocate large tensors on huge pages
try:
    import torch.utils.data
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingError(
        "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
    ) from None

DataLoader = torch.utils.data.DataLoader
set_num_threads = torch.set_num_threads

Tensors = Sequence[torch.Tensor]
"""A batch: images (float32) and labels (uint8), each of shape (samples, 1, depth, height, width), or one
tensor (uint8) with the bytes of all records."""


class Loaded(NamedTuple):
    """A step's samples, read and collated."""

    tensors: Tensors
    bytes: int
    began: float
    """Start of the first read, in seconds of time.monotonic; NaN if nothing had to be read."""


class SampleReader:
    """Loads whole volumes, crops and collates them, as the reference 3D U-Net does. Can be pickled."""

    def __init__(self, whole: Reader, crop: tuple[int, ...], seed: int) -> None:
        self.whole = whole
        self.crop = crop
        self.seed = seed

    def __call__(self, epoch: int, index: int) -> Tensors:
        """Return image and label of sample `index`, each (1, depth, height, width).

        Raises DatasetError, StorageError.
        """
        # The crop depends on nothing else, and so not on the number of ranks.
        key = np.array([self.seed, epoch], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, index]))
        arrays = load_sample(self.whole, index)
        volumes = crop_of(arrays, self.crop, random, self.whole.samples.names[index])
        dtypes = (np.float32, np.uint8)
        return [
            torch.from_numpy(np.ascontiguousarray(volume, dtype)[None])
            for volume, dtype in zip(volumes, dtypes, strict=True)
        ]

    def load(self, portion: Portion) -> Loaded:
        """Read and collate a step's samples. Raises DatasetError, StorageError."""
        began = time.monotonic()
        files = [read.file for read in portion.reads]
        samples = [self(portion.epoch, file) for file in files]
        shapes = {sample[0].shape for sample in samples}
        if len(shapes) > 1:
            raise DatasetError(
                "samples of different shapes make no batch", "set loader.crop or a batch_size of 1"
            )
        return Loaded(torch.utils.data.default_collate(samples), sum(map(self.whole.size, files)), began)


class RecordReader:
    """Reads a step's records into one tensor and decodes nothing. Can be pickled."""

    def __init__(self, whole: Reader) -> None:
        self.whole = whole
        self._batches: BatchReader | None = None
        self._player: Player | None = None

    def close(self) -> None:
        """Close the files that are kept open."""
        for reader in (self._batches, self._player):
            if reader is not None:
                reader.close()

    def load(self, portion: Portion) -> Loaded:
        """Read the records of a step. Raises DatasetError, StorageError."""
        began = time.monotonic() if portion.reads or portion.drawn else math.nan
        if portion.drawn is not None:
            self._player = self._player or self.whole.player(sleeps=False)
            size = self._player.play(portion.drawn, portion.epoch, _never)
            return Loaded([torch.empty(0, dtype=torch.uint8)], size, began)
        if self._batches is None and self.whole.engine(1, len(portion.reads)) is not None:
            self._batches = self.whole.batches("python", 1, OPEN_FILES)
        if self._batches is None:
            tensor = self._streamed(portion)
        else:
            tensor = self._read_together(self._batches, portion)
        return Loaded([tensor], len(tensor), began)

    def _streamed(self, portion: Portion) -> torch.Tensor:
        buffer, data = aligned_buffer(self.whole.room()), bytearray()
        for read in portion.reads:
            for piece in self.whole.stream(read, buffer, _never):
                data += piece
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def _read_together(self, batches: BatchReader, portion: Portion) -> torch.Tensor:
        batches.begin(portion.epoch)
        pieces = self.whole.pieces(portion.reads)
        tensor = torch.empty(int(pieces.table[:, 2].sum()), dtype=torch.uint8)
        # In shared memory, as default_collate does in a worker, so that the rank gets it without a copy.
        if torch.utils.data.get_worker_info() is not None:
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        batches.read(pieces, self.whole.form.check_head, bytearray(1), tensor.numpy().data)
        return tensor


def _never() -> bool:
    """Return False: a worker always finishes its step."""
    return False


@dataclass(frozen=True, slots=True)
class Collated:
    """The message of a worker to its rank: one batch."""

    tensors: Tensors
    batch: Batch
    """The batch; it is ready when it is collated, before it is sent."""
    worker: int
    """Process ID of the worker."""
    cpu_seconds: float
    """User + system seconds of the worker so far."""
    counts: ReadCounts
    """The worker's read requests since its last batch."""


class StepDataset(torch.utils.data.Dataset[Tensors]):
    """A map-style dataset that reads whole steps.

    It returns errors, because DataLoader would pass a raised one on as a traceback of the worker.
    """

    def __init__(self, reader: SampleReader | RecordReader | FeedrateError) -> None:
        """Take the reader, or the error of opening it, which all steps then return."""
        self.reader = reader
        self._diary: _Diary | None = None

    def __reduce__(self) -> tuple[Callable[[bytes], StepDataset], tuple[bytes]]:
        # Pickled here, so that an error of opening files does not end the new worker while it unpickles.
        return _opened, (bytes(ForkingPickler.dumps(self.reader)),)

    def close(self) -> None:
        """Close the open files; steps return an error afterwards."""
        if isinstance(self.reader, RecordReader):
            self.reader.close()
        self._diary = None
        self.reader = RankError("the worker ends")

    def __getitems__(self, portions: Sequence[Portion]) -> Collated | FeedrateError:
        """Load the only one of `portions`."""
        (portion,) = portions
        if isinstance(self.reader, FeedrateError):
            return self.reader
        info = torch.utils.data.get_worker_info()
        if self._diary is None and info is not None:  # without workers the rank reads its own schedstat
            self._diary = _Diary(self.reader.whole.storage, info.num_workers)
        return _collated(self.reader, portion, self._diary)


def _opened(packed: bytes) -> StepDataset:
    try:
        return StepDataset(ForkingPickler.loads(packed))
    except FeedrateError as error:
        return StepDataset(error)


def _collated(
    reader: SampleReader | RecordReader, portion: Portion, diary: _Diary | None
) -> Collated | FeedrateError:
    before = diary.books.look() if diary else None
    try:
        loaded = reader.load(portion)
    except FeedrateError as error:
        return error
    except Exception as error:  # noqa: BLE001  the rank reports it without torch's tracebacks
        if "shared memory" in str(error):
            return RankError(
                f"/dev/shm has no room for a batch that a DataLoader worker hands over: {error}",
                "mount it larger (docker: --shm-size=1g), or use fewer workers or --loader direct",
            )
        return RankError(unexpected(error))
    ready, counts = time.monotonic(), reader.whole.storage.stats.drain()
    made = diary.end(before) if diary and before else None
    batch = Batch(portion.samples, loaded.bytes, ready, loaded.began, made)
    return Collated(loaded.tensors, batch, os.getpid(), time.process_time(), counts)


class _Diary:
    """A worker's time by cause, from its threads' schedstat, batch by batch."""

    def __init__(self, storage: Storage, workers: int) -> None:
        self._last: Page | None = None
        self.books = Books(storage.stats.tallies, together=workers if storage.turns else 1)

    def end(self, before: Page) -> Made | None:
        """Return the account of the batch since `before`; None without schedstat."""
        page, last = self.books.look(), self._last
        self._last = page
        if not self.books.kept:
            return None
        stretch, others = self.books.reading(before, page), self.books.others(last or before, page)
        if last is None:
            return Made(stretch, math.inf, others, sum(entry.ready for entry in before.entries.values()))
        return Made(stretch, before.time - last.time, others)


def as_it_is(collated: Any) -> Any:
    """Return `collated`, which the dataset has collated already."""
    return collated


def begin_worker(worker: int) -> None:
    """Have the alarm look at this worker, and end it with its rank."""
    notes.mine()
    # The kernel's death signal does not help: a worker's parent is the fork server, which outlives its rank.
    rank = multiprocessing.parent_process()

    def end_with_rank() -> None:
        if rank is not None:
            rank.join()
            os._exit(RankError.exit_code)

    threading.Thread(target=end_with_rank, name="ends with its rank", daemon=True).start()
    Finalize(None, _let_go, exitpriority=0)


def _let_go() -> None:
    """Close the dataset's files with a note: the close may hang."""
    info = torch.utils.data.get_worker_info()
    if info is not None and isinstance(info.dataset, StepDataset):
        with notes.doing("close", "the files of a DataLoader worker"):
            info.dataset.close()
