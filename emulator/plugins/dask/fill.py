"""Make files of a dataset with the workers of a Dask cluster: the same task, the same bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from emulator import live
from emulator.dataset.progress import Done, DoneCount
from emulator.dataset.sizes import Index
from emulator.dataset.writer import DatasetWriter
from emulator.errors import FeedrateError, LaunchError, MissingError
from emulator.storage.base import WriteOptions

_TASKS_PER_WORKER = 8
_WORKERS_SECONDS = 30
"""Longest time to wait for the first worker of a scheduler that has none."""


def fill(writer: DatasetWriter, indices: Index, address: str, options: WriteOptions, done: Done) -> None:
    """Make the files `indices` on the cluster at `address`.

    The folder must be the same on all workers; where samples are objects, their environment has the
    keys. `done` is called after each task. Raises StorageError, LaunchError, MissingError; unfinished tasks
    are cancelled then.
    """
    if not len(indices):
        return
    try:
        from distributed import KilledWorker, as_completed
        from distributed.client import CancelledError
        from distributed.comm import CommClosedError
    except ImportError:
        raise MissingError("--dask needs dask and distributed", "pip install 'feedrate[dask]'") from None

    client = _connected(address)
    with _unlogged(), client:  # a lost scheduler is reported below, in one line
        tasks = _workers(client, address) * _TASKS_PER_WORKER
        parts = np.array_split(indices, min(tasks, len(indices)))
        futures = [
            client.submit(_make, writer, options, part, journal, pure=False)
            for journal, part in enumerate(parts, start=500_000)  # far from the journals of ranks
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
        except FeedrateError as error:
            raise type(error)(f"a Dask worker: {error.what}", error.hint) from None
        finally:
            with suppress(CancelledError, CommClosedError):
                client.cancel(futures)


def _make(writer: DatasetWriter, options: WriteOptions, indices: Index, journal: int) -> tuple[int, int]:
    """Make one part on a Dask worker, with one thread (the worker has several); return files and bytes."""
    tally = DoneCount()
    writer.fill(indices, journal, 1, options, tally.add)
    return tally.now()


def _connected(address: str) -> Any:
    """Return a client of the scheduler. Raises LaunchError."""
    from distributed import Client

    try:
        return Client(address, timeout="5s")
    except (OSError, ValueError, TimeoutError) as error:
        raise LaunchError(
            f"no Dask scheduler answers at {address} ({type(error).__name__})",
            "start one with: dask scheduler, and give its address like tcp://host:8786",
        ) from None


def _workers(client: Any, address: str) -> int:
    """Return the number of workers, once there is one. Raises LaunchError."""
    if not client.nthreads():
        live.say(f"waiting for a worker of the Dask scheduler at {address}")
        try:
            client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
        except TimeoutError:
            raise LaunchError(
                f"the Dask scheduler at {address} has no worker after {_WORKERS_SECONDS} s",
                f"start some: dask worker {address}",
            ) from None
    return len(client.nthreads()) or 1  # it may have ended again


@contextmanager
def _unlogged() -> Iterator[None]:
    """Turn off logging in the whole process while the block runs."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
