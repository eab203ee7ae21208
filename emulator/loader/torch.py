"""`--loader torch`: PyTorch's DataLoader, with its reads and its CPU cost.

The DataLoader loads whole steps: a batch sampler gives it one `Portion` at a time, and the dataset
(`loader.worker`) returns the collated batch.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, forkserver, process, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from emulator.config.workload import LoaderSpec
from emulator.errors import FeedrateError, RankError
from emulator.files import PREFIX_VARIABLE
from emulator.launch.launched import started_by_mpi
from emulator.launch.process import die_with_parent
from emulator.loader.base import Batch, stalled
from emulator.loader.reading import Reader
from emulator.loader.worker import (
    Collated,
    DataLoader,
    RecordReader,
    SampleReader,
    StepDataset,
    as_it_is,
    begin_worker,
    set_num_threads,
)
from emulator.order import Portion

_END_SECONDS = 2.0
"""Seconds for worker processes to end by themselves."""
_CHECK_SECONDS = 1.0
"""Seconds between two checks that workers are alive and do not hang."""
_DEATH_SECONDS = 1.0
"""Seconds between the end of a worker's connections and of its process, at most."""
_WORKER_DIED = (RuntimeError, OSError, EOFError)
"""Errors by which torch and its queues report a dead worker."""
_CUT_OFF = (ConnectionError, EOFError)
"""Those of an end while it handed a batch over, which may be seen before the end of its process."""
_DEAD = "DataLoader worker (pid"
"""Start of torch's message about a dead worker, also about one that died before it was counted here."""


class TorchLoader:
    """Reads one rank's batches through one DataLoader.

    The DataLoader has `spec.workers` worker processes, or reads in this process if `spec.prefetch` is 0.
    """

    def __init__(self, spec: LoaderSpec, whole: Reader, seed: int) -> None:
        """Make the DataLoader. `seed` is for random crops."""
        set_num_threads(1)  # ranks share the cores, so thread pools would compete for them
        self._spec = spec
        self._storage = whole.storage
        self._helper_cpu: dict[int, float] = {}
        reader: SampleReader | RecordReader
        reader = SampleReader(whole, spec.crop, seed) if whole.arrays else RecordReader(whole)
        self._batches = _Batches()
        self._workers: list[Any] = []
        self._reading: list[Any] = []  # workers of this epoch; those of one that was left early may end late
        self._iterator: Any = None
        by_workers: dict[str, Any] = {}
        if spec.prefetch:
            try:
                context = _server([type(whole.form).__module__, *whole.form.imports])
            except (OSError, EOFError):
                raise _worker_died() from None
            by_workers = {
                "num_workers": spec.workers,
                "multiprocessing_context": context,
                "persistent_workers": spec.refill != "epoch",  # else `read` starts workers
                "prefetch_factor": math.ceil(spec.prefetch / spec.workers),
                "timeout": min(_CHECK_SECONDS, spec.stall_timeout),
                "worker_init_fn": begin_worker,
            }
        with _quiet():
            self._loader: DataLoader[Any] | None = DataLoader(
                StepDataset(reader), batch_sampler=self._batches, collate_fn=as_it_is, **by_workers
            )

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        """Yield batches as Loader.read does. The tensors are freed when the next batch is requested."""
        assert self._loader is not None
        self._batches.portions = list(portions)
        self._iterator = None
        before = multiprocessing.active_children()
        try:
            with _quiet():
                self._iterator = iter(self._loader)
        except _WORKER_DIED:  # or the fork server
            raise _worker_died() from None
        started = [child for child in multiprocessing.active_children() if child not in before]
        self._workers += started
        if started:  # persistent workers stay
            self._reading = started
        for _ in self._batches.portions:
            collated, taken = self._next(), time.monotonic()
            yield replace(self._batch(collated), taken=taken)
        with suppress(*_WORKER_DIED):  # all batches have been delivered
            next(self._iterator, None)  # ends workers that are not persistent
        self._workers = [worker for worker in self._workers if worker.is_alive()]

    def _batch(self, collated: Collated | FeedrateError) -> Batch:
        if isinstance(collated, FeedrateError):
            raise collated
        self._storage.stats.absorb(collated.counts)
        if collated.worker != os.getpid():
            self._helper_cpu[collated.worker] = collated.cpu_seconds
        return collated.batch

    def _next(self) -> Any:
        """Return the next batch; None after the last one. Raises FeedrateError."""
        # In this thread, as in a training. Another thread would add two wake-ups a step, each of which waits
        # for a core on a busy host.
        deadline = time.monotonic() + self._spec.stall_timeout
        while True:
            try:
                return next(self._iterator, None)
            except _WORKER_DIED as error:
                timed_out = "timed out" in str(error)  # DataLoader's own timeout
                if self._is_dead_worker(error, 0.0 if timed_out else _DEATH_SECONDS):
                    raise _worker_died() from None
                if not timed_out:
                    raise
            if time.monotonic() >= deadline:
                raise stalled(self._spec.stall_timeout)

    def _is_dead_worker(self, error: Exception, seconds: float) -> bool:
        """Return True if `error` is that of a worker that has died, or does within so many seconds."""
        if isinstance(error, _CUT_OFF) or str(error).startswith(_DEAD):
            return True
        return bool(connection.wait([worker.sentinel for worker in self._reading], seconds))

    def helper_cpu_seconds(self) -> float:
        """Return the user + system seconds of the worker processes until their last delivered batches."""
        return sum(self._helper_cpu.values(), 0.0)

    def close(self) -> None:
        # On shutdown, workers remove their sockets in the temporary folder. One that hangs in a read would
        # block the call, so its thread is not joined.
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            threading.Thread(target=shutdown, daemon=True).start()
        deadline = time.monotonic() + _END_SECONDS
        for child in self._workers:
            child.join(max(0.0, deadline - time.monotonic()))
            child.kill()  # no other signal ends a worker that hangs in a read
        self._workers.clear()  # each holds two open files
        self._reading.clear()
        self._iterator = None
        self._loader = None
        gc.collect()  # iterator and loader are in reference cycles and hold named semaphores


class _Batches:
    """A batch sampler whose batches the rank replaces before each epoch, for persistent workers."""

    def __init__(self) -> None:
        self.portions: Sequence[Portion] = ()

    def __iter__(self) -> Iterator[list[Portion]]:
        return ([portion] for portion in self.portions)


def _worker_died() -> RankError:
    return RankError("a DataLoader worker died", "memory may have run out; see the system log")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warning about more workers than cores: the user has chosen their number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


_NEEDED = (__name__, "numpy.random", "multiprocessing.queues", "multiprocessing.sharedctypes")
"""Modules that every worker needs. A training has imported them before its workers start."""


def fork_server() -> None:
    """Fork this process's server of workers, which then need not import PyTorch again.

    Call it before this process has threads. From Python 3.14 on, a server needs a key, and is started later.
    """
    if sys.version_info >= (3, 14) or started_by_mpi():  # MPI's threads run
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(tempfile.mkdtemp(prefix="workers-")) / "server"))
        listener.listen()
        alive, alive_here = os.pipe()
        rank, server = os.getpid(), os.fork()
        if not server:
            die_with_parent(rank)
            os.close(alive_here)
            try:
                forkserver.main(listener.fileno(), alive, list(_NEEDED))
            finally:
                os._exit(0)
        os.close(alive)
        state: Any = forkserver._forkserver
        state._forkserver_address = listener.getsockname()
        state._forkserver_alive_fd, state._forkserver_pid = alive_here, server


def _server(imports: Iterable[str]) -> Forkserver:
    """Return a fork server that has imported what workers need, `imports` too. Raises OSError, EOFError.

    A fork of the rank itself would inherit locks that its threads hold, and some MPI libraries fail after a
    fork.
    """
    _name_semaphores()
    _start_tracker()
    context = Forkserver()
    if getattr(forkserver._forkserver, "_forkserver_pid", None) is None:
        context.set_forkserver_preload([*_NEEDED, *imports])
    # The server starts with its first child. Without this one, its imports would be part of the first step.
    first = context.Process(target=int)
    first.start()
    first.join()
    return context


class _Flag:
    """An Event without a lock, which a killed worker could hold forever."""

    def __init__(self, set_already: ctypes.c_bool) -> None:
        self._set = set_already

    def set(self) -> None:
        self._set.value = True

    def is_set(self) -> bool:
        return self._set.value


class Forkserver(ForkServerContext):
    """multiprocessing's fork server, with a lock-free Event.

    A DataLoader ends its workers with an Event. If a worker is killed while it holds the lock of
    multiprocessing's Event, the rank waits for the lock forever.
    """

    def Event(self) -> Any:  # noqa: N802 - the name of the overridden method
        return _Flag(self.RawValue(ctypes.c_bool))


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker without warnings.

    When a rank ends with an error, it leaves semaphores, which the launcher removes: the tracker would print
    a page about them.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def _name_semaphores() -> None:
    """Name the semaphores between this rank and its workers with the launcher's prefix.

    A killed rank cannot remove them, and mpirun kills multiprocessing's resource tracker with it. So the
    launcher removes all semaphores with its prefix.
    """
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    # Private, because Python has no public way to choose the names. Without it, they keep their names.
    config = getattr(process.current_process(), "_config", None)
    if prefix and config is not None:
        config["semprefix"] = "/" + prefix
