"""Samples as tensors, a batch at a time: what PyTorch's DataLoader is given to read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from emulator.errors import DatasetError, FeedrateError, StorageError
from emulator.loader.reading import WholeReader
from emulator.loader.streaming import CropReader
from emulator.loader.threads import DaemonPool
from emulator.plan.reads import Portion
from emulator.storage.stats import ReadCounts

Key = tuple[int, int]
"""(epoch, sample index): all that the random state of a sample depends on, beside the seed."""

Request = tuple[int, Portion]
"""(epoch, step): what the DataLoader is asked for."""

Tensors = tuple[torch.Tensor, ...]
"""Image (float32) and label (uint8), (channel = 1, depth, height, width), or batches of them. Of records
their bytes, all in one."""


@dataclass(frozen=True, slots=True)
class Collated:
    """One batch as the DataLoader delivers it."""

    tensors: Tensors
    samples: int
    bytes: int
    """Bytes that were read."""
    worker: int
    """Process that made it."""
    cpu_seconds: float
    """User + system seconds of that process so far."""
    counts: ReadCounts | None
    """What its reads cost since the last batch, from a process of its own."""


class BatchReader(Protocol):
    """Reads what a step takes, from any number of threads; can be pickled for a worker process."""

    cancelled_before: int
    """What earlier epochs asked for is given up."""

    @property
    def whole(self) -> WholeReader:
        """What reads the files."""
        ...

    def batch(self, request: Request, pool: DaemonPool | None) -> tuple[Tensors, int]:
        """The tensors of a step and the bytes that were read for them, by the pool's threads or this one.

        Raises DatasetError, StorageError, CancelledError.
        """
        ...


class SampleReader:
    """Reads samples whole and crops them, from any number of threads."""

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

        def place(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
            nonlocal tensors
            tensors = tensors or _empty((1, *shape))
            return [tensor.numpy()[0] for tensor in tensors]

        self._crops().read(index, random, place, lambda: epoch < self.cancelled_before)
        assert tensors is not None
        return tensors

    def batch(self, request: Request, pool: DaemonPool | None) -> tuple[Tensors, int]:
        """As BatchReader.batch."""
        epoch, portion = request
        keys = [(epoch, read.file) for read in portion.reads]
        size = sum(self.whole.size(file) for _, file in keys)
        if pool is None:  # a worker process: default_collate puts the batch into shared memory
            return _stacked([self(key) for key in keys]), size
        batch = _empty((len(keys), 1, *self.crop)) if self.crop else None
        places: Iterable[Tensors | None] = zip(*batch, strict=True) if batch else [None] * len(keys)
        futures = [pool.submit(self, *pair) for pair in zip(keys, places, strict=True)]
        samples = [future.result() for future in futures]
        return batch or _stacked(samples), size

    def _crops(self) -> CropReader:
        """This thread's."""
        crops: CropReader | None = getattr(self._local, "crops", None)
        if crops is None:
            crops = self._local.crops = CropReader(self.whole, self.crop)
        return crops


def _empty(shape: tuple[int, ...]) -> Tensors:
    return torch.empty(shape), torch.empty(shape, dtype=torch.uint8)


class SampleDataset(Dataset[Tensors]):
    """Map-style dataset over requests, a batch at a time.

    Errors are returned, not raised: the traceback that DataLoader makes of them helps nobody.
    """

    def __init__(self, reader: BatchReader, pool: DaemonPool | None = None) -> None:
        self.reader = reader
        self.pool = pool
        self._home = os.getpid()

    def __getitems__(self, requests: Sequence[Request]) -> Collated | FeedrateError:
        """What a step takes, read by the pool's threads or in this one. `requests` is one, in a list."""
        (request,) = requests
        try:
            tensors, size = self.reader.batch(request, self.pool)
        except FeedrateError as error:
            return error
        except CancelledError:
            return StorageError("the loader is closed")
        away = os.getpid() != self._home
        return Collated(
            tensors, request[1].samples, size, os.getpid(), time.process_time() if away else 0.0,
            self.reader.whole.storage.stats.drain() if away else None,
        )  # fmt: skip


def _stacked(samples: Sequence[Tensors]) -> Tensors:
    """Samples as a batch. Raises DatasetError."""
    if len({image.shape for image, _ in samples}) > 1:
        raise DatasetError(
            "samples of different shapes make no batch", "set loader.crop or a batch_size of 1"
        )
    images, labels = default_collate(list(samples))
    return images, labels


def as_it_is(collated: Any) -> Any:
    """Collate function: the dataset has put the batch together already."""
    return collated
