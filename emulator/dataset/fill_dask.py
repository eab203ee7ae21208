"""Make files of a dataset with the workers of a Dask cluster: the same task, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def _client(address: str, workers: int) -> Iterator[Any]:
    """A client of the scheduler at `address`, or of a cluster on this machine. Raises LaunchError."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingError("--dask needs dask and distributed", "pip install 'feedrate[dask]'") from None
    if address != "local":
        try:
            client = Client(address, timeout="5s")
        except (OSError, ValueError, TimeoutError) as error:
            raise LaunchError(
                f"no Dask scheduler answers at {address} ({type(error).__name__})",
                "start one with: dask scheduler, and give its address like tcp://host:8786",
            ) from None
        with client:
            yield client
        return
    # In this process (inproc://): a scheduler on a port runs the code of whoever connects to it.
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


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
    with _client(address, workers) as client:
        tasks = (len(client.scheduler_info()["workers"]) or 1) * _TASKS_PER_WORKER
        parts = np.array_split(indices, min(tasks, len(indices)))
        numbers = range(_FIRST_JOURNAL, _FIRST_JOURNAL + len(parts))
        watch(numbers)
        futures = [
            client.submit(_make, writer, options, part, number, pure=False)
            for part, number in zip(parts, numbers, strict=True)
        ]
        try:
            client.gather(futures)
        finally:
            client.cancel(futures)
