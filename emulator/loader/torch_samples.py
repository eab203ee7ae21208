"""Samples as tensors, a batch at a time: what PyTorch's DataLoader is given to read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from emulator.errors import DatasetError, FeedrateError, StorageError
from emulator.loader.reading import WholeReader
from emulator.loader.streaming import CropReader
from emulator.loader.threads import DaemonPool
from emulator.storage.stats import ReadCounts

Key = tuple[int, int]
"""(epoch, sample index): all that the random state of a sample depends on, beside the seed."""


Tensors = tuple[torch.Tensor, torch.Tensor]
"""Image (float32) and label (uint8), (channel = 1, depth, height, width), or batches of them."""


@dataclass(frozen=True, slots=True)
class Collated:
    """One batch as the DataLoader delivers it."""

    tensors: Tensors
    samples: int
    bytes: int
    """Bytes of the files that were read."""
    worker: int
    """Process that made it."""
    cpu_seconds: float
    """User + system seconds of that process so far."""
    counts: ReadCounts | None
    """What its reads cost since the last batch, from a process of its own."""


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

    def _crops(self) -> CropReader:
        """This thread's."""
        crops: CropReader | None = getattr(self._local, "crops", None)
        if crops is None:
            crops = self._local.crops = CropReader(self.whole, self.crop)
        return crops


def _empty(shape: tuple[int, ...]) -> Tensors:
    return torch.empty(shape), torch.empty(shape, dtype=torch.uint8)


class SampleDataset(Dataset[Tensors]):
    """Map-style dataset over keys, a batch at a time.

    Errors are returned, not raised: the traceback that DataLoader makes of them helps nobody.
    """

    def __init__(self, reader: SampleReader, pool: DaemonPool | None = None) -> None:
        self.reader = reader
        self.pool = pool
        self._home = os.getpid()

    def __getitems__(self, keys: Sequence[Key]) -> Collated | FeedrateError:
        """The samples of a batch, read by the pool's threads or one after the other."""
        try:
            tensors = self._tensors(keys)
        except FeedrateError as error:
            return error
        except CancelledError:
            return StorageError("the loader is closed")
        whole = self.reader.whole
        away = os.getpid() != self._home
        return Collated(
            tensors, len(keys), sum(whole.size(index) for _, index in keys), os.getpid(),
            time.process_time() if away else 0.0, whole.storage.stats.drain() if away else None,
        )  # fmt: skip

    def _tensors(self, keys: Sequence[Key]) -> Tensors:
        if self.pool is None:  # a worker process: default_collate puts the batch into shared memory
            return _stacked([self.reader(key) for key in keys])
        crop = self.reader.crop
        batch = _empty((len(keys), 1, *crop)) if crop else None
        places: Iterable[Tensors | None] = zip(*batch, strict=True) if batch else [None] * len(keys)
        futures = [self.pool.submit(self.reader, *pair) for pair in zip(keys, places, strict=True)]
        samples = [future.result() for future in futures]
        return batch or _stacked(samples)


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
