"""What a loader can do, what a rank gets from it, and the threads that it reads with."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, runtime_checkable

from emulator.config.workload import LoaderSpec, Refill
from emulator.errors import StorageError
from emulator.order import Portion
from emulator.record.books import Stretch
from emulator.units import show_seconds

_CLOSE_SECONDS = 1.0
"""How long `DaemonThreads.close` waits for work that is under way; what hangs longer is left to the exit."""


class Made(NamedTuple):
    """How a worker process came by a batch."""

    stretch: Stretch
    """What the time went into from its begin until it was ready."""
    idle: float
    """Seconds before its begin in which the worker had nothing to do."""
    others: Stretch
    """What threads of the worker that do not read did since its last batch: they hand batches over."""
    starting: float = 0.0
    """Of a worker's first batch: seconds of `idle` in which the worker, just born, had no core."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, read whole and ready for the accelerator."""

    samples: int
    """Samples in it."""
    bytes: int
    """Bytes that were read for it."""
    ready: float = field(compare=False)
    """When the last of them had arrived, in seconds of time.monotonic: maybe long before anybody looked."""
    began: float = field(default=math.nan, compare=False)
    """When reading for it began, in seconds of time.monotonic; NaN: nothing was read, or nobody noted it."""
    made: Made | None = field(default=None, compare=False)
    """None: threads of this process have read it."""


class Numbers(Protocol):
    """Whole numbers by index: an array, or a column that is read when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class SampleList(Protocol):
    """The files of a dataset, as its manifest lists them."""

    @property
    def format(self) -> str:
        """Name of the file format."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Names by file index; of a sample in two files, the first."""
        ...

    @property
    def sizes(self) -> Numbers:
        """Bytes of each file; of a sample in two files, both together."""
        ...

    @property
    def samples_per_file(self) -> int:
        """Samples in each file."""
        ...


@runtime_checkable
class Loader(Protocol):
    """Reads batches ahead of the accelerator. Used by one thread at a time."""

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """The batches, in order, each when all that its portion and those before ask for has been read.

        An iterator that is left early is closed by the next call, or by `close`. Raises DatasetError
        for a sample that is missing, truncated or corrupt, StorageError for one that cannot be read
        and when nothing arrives for `stall_timeout` seconds.
        """
        ...

    def helper_cpu_seconds(self) -> float:
        """User + system seconds of worker processes so far (threads count for the rank itself)."""
        ...

    def close(self) -> None:
        """Stop reading and let go of memory and workers. Never hangs, even when the storage does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlugin:
    """A loader that `--loader` may name. Its module is imported for `--help`: keep it light."""

    get: Callable[[], Callable[[LoaderSpec, Any, int, Refill], Loader]]
    """Imports the loader and returns its class, which is called with the workload's LoaderSpec, a reader of
    `loader.reading`, the seed of the crops, and what becomes of workers between two reads."""
    summary: str
    """What `--help` says of it."""
    tensors: bool = False
    """True when worker processes make tensors of samples and crop them: it needs PyTorch."""


def stalled(timeout: float) -> StorageError:
    """What a consumer raises that has waited for `timeout` seconds."""
    return StorageError(
        f"no batch for {show_seconds(timeout)}",
        "the storage hangs, or it is too slow for loader.stall_timeout",
    )


class DaemonThreads:
    """Threads that take their work from one queue, in order, until a None comes.

    A read may hang for ever. These threads never keep a process alive: `concurrent.futures` joins its own
    when the interpreter exits, however long that takes.
    """

    def __init__(self, count: int, name: str, work: Callable[[SimpleQueue[Any]], None]) -> None:
        """Each of the `count` threads runs `work(tasks)`."""
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, args=(self.tasks,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads that are idle, and wait a little for the others."""
        for _ in self._threads:
            self.tasks.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
