"""Make files of a dataset with the workers of a Dask cluster: the same task, the same bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from emulator import live
from emulator.dataset.progress import Done, DoneCount
from emulator.dataset.sizes import Index
from emulator.dataset.writer import DatasetWriter
from emulator.errors import LaunchError, MissingError
from emulator.storage.base import WriteOptions

_TASKS_PER_WORKER = 8
_WORKERS_SECONDS = 30
"""Longest time to wait for the first worker of a scheduler that has none."""
_FIRST_JOURNAL = 500_000
"""Number of the first task's journal: far from those of ranks."""


def _make(writer: DatasetWriter, options: WriteOptions, indices: Index, number: int) -> tuple[int, int]:
    """Make one part on a Dask worker, with one thread (the worker has several); return files and bytes."""
    tally = DoneCount()
    writer.fill(indices, number, 1, options, tally.add)
    return tally.now()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Turn off logging in the whole process while the block runs."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def fill_dask(writer: DatasetWriter, indices: Index, address: str, options: WriteOptions, done: Done) -> None:
    """Make the files `indices` on the cluster at `address`.

    The folder must be the same on all workers; where samples are objects, their environment has the
    keys. `done` is called after each task. Raises StorageError, LaunchError, MissingError; unfinished tasks
    are cancelled then.
    """
    if not len(indices):
        return
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.client import CancelledError
        from distributed.comm import CommClosedError
    except ImportError:
        raise MissingError("--dask needs dask and distributed", "pip install 'feedrate[dask]'") from None

    try:
        client = Client(address, timeout="5s")
    except (OSError, ValueError, TimeoutError) as error:
        raise LaunchError(
            f"no Dask scheduler answers at {address} ({type(error).__name__})",
            "start one with: dask scheduler, and give its address like tcp://host:8786",
        ) from None
    with _unlogged(), client:  # a lost scheduler is reported below, in one line
        if not client.nthreads():
            live.say(f"waiting for a worker of the Dask scheduler at {address}")
            try:
                client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
            except TimeoutError:
                raise LaunchError(
                    f"the Dask scheduler at {address} has no worker after {_WORKERS_SECONDS} s",
                    f"start some: dask worker {address}",
                ) from None
        parts = np.array_split(indices, min((len(client.nthreads()) or 1) * _TASKS_PER_WORKER, len(indices)))
        futures = [
            client.submit(_make, writer, options, part, number, pure=False)
            for number, part in enumerate(parts, start=_FIRST_JOURNAL)
        ]
        try:
            for future in as_completed(futures):
                done(*future.result())
        except (CancelledError, CommClosedError):
            raise LaunchError(
                f"the Dask scheduler at {address} is lost",
                "what was made stays; start it again, and the same command goes on",
            ) from None
        except KilledWorker as error:
            raise LaunchError(
                f"a task was lost with {error.allowed_failures + 1} Dask workers, one after the other",
                "see the workers' logs; the same command goes on",
            ) from None
        finally:
            with suppress(CancelledError, CommClosedError):
                client.cancel(futures)
