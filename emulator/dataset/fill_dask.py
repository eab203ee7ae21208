"""Make files of a dataset with the workers of a Dask cluster: the same task, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from emulator.dataset.sizes import Index
from emulator.dataset.writer import DatasetWriter
from emulator.errors import LaunchError, MissingError
from emulator.storage.base import WriteOptions

_TASKS_PER_WORKER = 8
_FIRST_JOURNAL = 500_000
"""Number of the first task's journal: far from those of ranks."""


def _make(writer: DatasetWriter, options: WriteOptions, indices: Index, number: int) -> None:
    """What a Dask worker does: one part, with one thread (the worker has several)."""
    writer.fill(indices, number, 1, options)


def fill_dask(
    writer: DatasetWriter,
    indices: Index,
    address: str,
    workers: int,
    options: WriteOptions,
    watch: Callable[[Iterable[int]], None],
) -> None:
    """Make the files `indices` on the cluster at `address`, or with `workers` threads here ("local").

    The folder must be the same on all workers; where samples are objects, their environment has the
    keys. `watch` gets the numbers of the tasks' journals before they start. Raises StorageError, LaunchError,
    MissingError; unfinished tasks are cancelled then.
    """
    if not len(indices):
        return
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise MissingError("--dask needs dask and distributed", "pip install 'feedrate[dask]'") from None

    def tasks(count: int) -> list[tuple[Index, int]]:
        """What `count` workers have to do: the files and the number of the journal of each task."""
        parts = np.array_split(indices, min((count or 1) * _TASKS_PER_WORKER, len(indices)))
        numbers = range(_FIRST_JOURNAL, _FIRST_JOURNAL + len(parts))
        watch(numbers)
        return list(zip(parts, numbers, strict=True))

    if address == "local":
        # Dask's own threads and no LocalCluster: its scheduler runs the code of whoever connects to its port.
        make = dask.delayed(_make, pure=False)
        with ThreadPoolExecutor(workers) as pool:
            try:
                dask.compute(
                    *(make(writer, options, part, number) for part, number in tasks(workers)),
                    scheduler="threads",
                    pool=pool,
                )
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return
    try:
        client = Client(address, timeout="5s")
    except (OSError, ValueError, TimeoutError) as error:
        raise LaunchError(
            f"no Dask scheduler answers at {address} ({type(error).__name__})",
            "start one with: dask scheduler, and give its address like tcp://host:8786",
        ) from None
    with client:
        futures = [
            client.submit(_make, writer, options, part, number, pure=False)
            for part, number in tasks(len(client.scheduler_info()["workers"]))
        ]
        try:
            client.gather(futures)
        finally:
            client.cancel(futures)
