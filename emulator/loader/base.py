"""The interface of loaders, and the batches that they yield."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from emulator.config.workload import LoaderSpec
from emulator.errors import StorageError
from emulator.order import Portion
from emulator.record.schedstat import Stretch
from emulator.units import show_seconds


class Made(NamedTuple):
    """A worker process's account of making one batch."""

    stretch: Stretch
    """The time from the start of the batch until it was ready, by cause."""
    idle: float
    """Seconds before the start in which the worker was idle."""
    others: Stretch
    """Time of the worker's other threads, which send batches, since its last batch."""
    starting: float = 0.0
    """Seconds of `idle` in which a new worker waited for a core; 0 after its first batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, read completely."""

    samples: int
    bytes: int
    ready: float = field(compare=False)
    """Arrival of the last byte, in seconds of time.monotonic; may be long before the rank takes the batch."""
    began: float = field(default=math.nan, compare=False)
    """Start of the first read, in seconds of time.monotonic; NaN if unknown or nothing was read."""
    made: Made | None = field(default=None, compare=False)
    """None if threads of this process read the batch."""
    taken: float | None = field(default=None, compare=False)
    """When the process had the batch, in seconds of time.monotonic, before any bookkeeping. None: when `read`
    yields it."""


class Loader(Protocol):
    """Reads batches ahead of the accelerator. Used by one thread at a time."""

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """Yield the batches of `portions` in order, each when it has been read completely.

        The next call, or `close`, ends an unfinished iterator. Raises DatasetError for a missing, truncated
        or corrupt sample, StorageError for one that cannot be read and after `stall_timeout` seconds without
        data.
        """
        ...

    def helper_cpu_seconds(self) -> float:
        """Return the user + system seconds of worker processes so far; threads count for the rank itself."""
        ...

    def close(self) -> None:
        """Stop reading and release memory and workers. Never hangs, even if the storage does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlugin:
    """A loader that `--loader` may name. Its module is imported for `--help`: keep it light."""

    get: Callable[[], Callable[[LoaderSpec, Any, int], Loader]]
    """Imports the loader and returns its class, which takes the workload's LoaderSpec, a reader of
    `loader.reading`, and the seed of random crops."""
    begin: Callable[[], None] = lambda: None
    """Called in each rank before that has threads of ours, to fork a process of its own."""
    summary: str
    """Its line in `--help`."""
    tensors: bool = False
    """True if it needs PyTorch: its worker processes turn samples into tensors and crop them."""
    as_training: bool = False
    """True if a step begins when its process has the batch, as in a training, so that the client's delays
    count. Otherwise it begins when the batch has arrived: AU is the storage's alone."""


def stalled(timeout: float) -> StorageError:
    """Return the error of a consumer that has waited for `timeout` seconds."""
    return StorageError(
        f"no batch for {show_seconds(timeout)}", "the storage hangs, or is too slow for loader.stall_timeout"
    )
