"""What a loader can do, and what a rank gets from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import process
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats.base import Index, Span
from emulator.plan import Portion


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, read whole and ready for the accelerator."""

    samples: int
    """Samples in it."""
    bytes: int
    """Bytes that were read for it."""
    ready: float = field(compare=False)
    """When the last of them had arrived, in seconds of time.monotonic: maybe long before anybody looked."""


@runtime_checkable
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
    def sizes(self) -> Sequence[int] | NDArray[np.int64]:
        """Bytes of each file; of a sample in two files, both together."""
        ...

    @property
    def samples_per_file(self) -> int:
        """Samples in each file."""
        ...


class SampleFormat(Protocol):
    """What a loader asks of a file format (emulator.dataset.formats has them)."""

    def parts(self, name: str) -> tuple[str, ...]:
        """Names of the files of the sample `name`, one or two."""
        ...

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        """Raises DatasetError when a file of `size` bytes cannot begin with `head`."""
        ...

    def spans(
        self, peek: Callable[[int, int], memoryview], size: int, name: str
    ) -> Mapping[str, Span] | None:
        """Where the arrays of a file of `size` bytes lie; None when it has to be unpacked whole.

        `peek(offset, length)` gives bytes of the file. Raises DatasetError.
        """
        ...

    def arrays(self, data: memoryview, name: str) -> Mapping[str, NDArray[Any]]:
        """`x` (image), `y` (label) or both of a whole file, each (samples, depth, height, width).

        Views where the format allows it. Raises DatasetError.
        """
        ...

    @property
    def records(self) -> bool:
        """True when samples are records of bytes, which no loader crops."""
        ...

    def index(
        self,
        peek: Callable[[int, int], memoryview],
        size: int,
        name: str,
        samples: int,
        columns: Sequence[str],
    ) -> Index:
        """Where the `samples` samples of a file of `size` bytes lie. Raises DatasetError."""
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


# ---- Names of the semaphores between a rank and its worker processes: who starts the ranks can remove them.
#
# A rank that is killed cannot, and multiprocessing's resource tracker is killed with it by mpirun.


PREFIX_VARIABLE = "FEEDRATE_SEMAPHORES"
"""Environment variable with the start of the names, without a slash."""


def name_semaphores() -> None:
    """Name this process's semaphores as the launcher wants them; as Python does when nobody asked."""
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    # Python has no public way to choose it; where the private one is gone, nothing is changed.
    config = getattr(process.current_process(), "_config", None)
    if prefix and config is not None:
        config["semprefix"] = "/" + prefix
