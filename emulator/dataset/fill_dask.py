"""Fill a folder with the workers of a Dask cluster: the same pure function, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from emulator.dataset.fill import Job, fill_slice
from emulator.dataset.generate import Todo, failure, job_of
from emulator.dataset.site import Site
from emulator.dataset.sizes import Index
from emulator.errors import LaunchError, MissingError
from emulator.storage.base import WriteOptions

_TASKS_PER_WORKER = 8
_FIRST_JOURNAL = 500_000
"""Number of the first task's journal: far from those of ranks."""


def cut(indices: Index, tasks: int) -> list[Index]:
    """`indices` in at most `tasks` parts, none of them empty."""
    return [part for part in np.array_split(indices, max(1, min(tasks, len(indices)))) if len(part)]


def _task(site: Site, options: WriteOptions, indices: Index, number: int) -> int:
    """What a Dask worker does: one part, with one thread (the worker has several)."""
    job: Job = job_of(site, options)
    fill_slice(job, indices, number, 1)
    return len(indices)


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
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def fill_dask(
    site: Site, todo: Todo, address: str, options: WriteOptions, workers: int,
    watch: Callable[[Iterable[int]], None] = lambda journals: None,
) -> None:  # fmt: skip
    """Make what is to do on the cluster at `address`, or on `workers` processes here ("local").

    The folder must be the same on all workers; where samples are objects, their environment has the
    keys. `watch` is told the journals of the tasks before they start. Raises StorageError, LaunchError,
    MissingError; unfinished tasks are cancelled then.
    """
    if not len(todo.indices):
        return
    with _client(address, workers) as client:
        count = len(client.scheduler_info()["workers"]) or 1
        parts = cut(todo.indices, count * _TASKS_PER_WORKER)
        numbers = [_FIRST_JOURNAL + task for task in range(len(parts))]
        watch(numbers)
        futures = [
            client.submit(_task, site, options, part, number, pure=False)
            for part, number in zip(parts, numbers, strict=True)
        ]
        try:
            client.gather(futures)
        except OSError as error:
            raise failure(site, error) from None
        finally:
            client.cancel(futures)
