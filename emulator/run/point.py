"""One point: the active ranks read and compute, and tell rank 0 what they measured."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from emulator.accelerator.occupy import Accelerator
from emulator.clock import MonotonicClock
from emulator.dataset.manifest import Manifest
from emulator.loader.choose import make_loader
from emulator.plan.epoch import Course, EpochPlan
from emulator.record.machine import HostActivity, HostProbe, cores, cpu_seconds
from emulator.record.step import StepLog, Steps
from emulator.record.store import Spool
from emulator.run.comm import STEP_POLL, Comm
from emulator.run.job import Job
from emulator.run.train import train
from emulator.spec.storage import StorageSpec
from emulator.storage.base import Storage
from emulator.storage.posix import PosixStorage, probe_direct
from emulator.storage.shaped import NodeLimiter, ShapedStorage
from emulator.storage.timed import ReadStats, TimedStorage

SPOOL_SECONDS = 1.0
"""Rows reach the spool at least this often, so that a killed run keeps what it measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank measured during a point."""

    host: str
    cores: int
    direct_io: bool
    """True when reads by-passed the page cache (O_DIRECT)."""
    loop_seconds: float
    cpu_seconds: float
    """User + system seconds of the rank and its workers, during the loop."""
    steps: Steps
    read_latency: Mapping[int, int]
    """Upper edge in microseconds -> read requests."""
    pages_sampled: int
    """Pages looked at just before they were read."""
    pages_resident: int
    """Those of them that were in the page cache."""
    activity: HostActivity | None
    """What the host did; from the first rank of each host."""


def run_point(
    job: Job,
    manifest: Manifest,
    number: int,
    comm: Comm,
    spool: Spool,
    progress: Callable[[int], None],
) -> list[RankReport]:
    """Run point `number` on the ranks of `comm`; their reports in rank order on rank 0, [] elsewhere.

    `progress(steps)` is called on rank 0 once a step. Raises DatasetError, StorageError.
    """
    loader_spec = job.workload.loader
    plan = EpochPlan(samples=len(manifest.names), ranks=comm.size, batch_size=loader_spec.batch_size)
    plan.require_a_step()
    # A seed of its own for every point: caches behind the mount must not profit from the last point.
    seed = job.workload.training.shuffle_seed + number
    course = Course(plan=plan, epochs=job.epochs, steps=job.steps, seed=seed)
    node = comm.node()
    clock, training = MonotonicClock(), job.workload.training
    accelerator = Accelerator(job.workload.accelerator.step_seconds, clock)
    log = StepLog(number, comm.rank)
    with ExitStack() as stack:
        stats = ReadStats()
        posix = PosixStorage(job.dataset, direct=wants_direct(job), cache=job.storage.cache)
        storage = stack.enter_context(_shaped(posix, job.storage, node))
        loader = make_loader(job.loader, loader_spec, TimedStorage(storage, stats), manifest, seed=seed)
        stack.callback(loader.close)
        probe = HostProbe() if node.rank == 0 else None
        keep = _Keeper(log, spool, progress if comm.rank == 0 else lambda _: None)
        if probe:
            probe.start()
        comm.barrier(STEP_POLL)  # the common start of all ranks' clocks
        cpu = cpu_seconds() + loader.helper_cpu_seconds()
        try:
            seconds = train(course, training, loader, accelerator, comm, clock, log, keep.look)
        finally:
            keep.flush()
        cpu = cpu_seconds() + loader.helper_cpu_seconds() - cpu
        comm.barrier()
        activity = probe.stop() if probe else None
    return comm.gather(
        RankReport(
            host=socket.gethostname(),
            cores=cores(),
            direct_io=posix.direct,
            loop_seconds=seconds,
            cpu_seconds=cpu,
            steps=log.rows(),
            read_latency=stats.histogram(),
            pages_sampled=posix.pages_sampled,
            pages_resident=posix.pages_resident,
            activity=activity,
        )
    )


def wants_direct(job: Job) -> bool:
    """True when reads should by-pass the page cache: cold, by the direct loader, where the mount can."""
    return job.loader == "direct" and job.storage.cache == "cold" and probe_direct(job.dataset)


class _Keeper:
    """Hands new rows to the spool about once a second, from within the compute time of a step."""

    def __init__(self, log: StepLog, spool: Spool, progress: Callable[[int], None]) -> None:
        self._log = log
        self._spool = spool
        self._progress = progress
        self._kept = 0
        self._next = 0.0

    def look(self, now: float) -> None:
        self._progress(len(self._log))
        if now >= self._next:
            self._next = now + SPOOL_SECONDS
            self.flush()

    def flush(self) -> None:
        rows = self._log.rows(self._kept)
        if len(rows):
            self._spool.append(rows)
            self._kept += len(rows)


@contextmanager
def _shaped(storage: Storage, spec: StorageSpec, node: Comm) -> Iterator[Storage]:
    """`storage`, shaped where the spec says so: one limiter for all ranks of the node."""
    if spec.shaped_rate is None:
        yield storage
        return
    limiter = None
    if node.rank == 0:
        limiter = NodeLimiter.create(spec.shaped_rate, spec.shaped_latency, node.rank)
    path = node.bcast(limiter.path if limiter else None)
    if limiter is None:
        limiter = NodeLimiter.join(path, spec.shaped_rate, spec.shaped_latency, node.rank)
    node.barrier()
    if node.rank == 0:
        limiter.unlink()  # everybody has it open: nothing is left behind, whatever happens next
    try:
        yield ShapedStorage(storage, limiter)
    finally:
        limiter.close()
