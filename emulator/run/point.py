"""What a run or a sweep is asked to do, decided before any rank starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.config.storage import ObjectURL, Place, StorageSpec
from emulator.config.workload import Workload
from emulator.dataset.manifest import Manifest, read_rows
from emulator.loader import make_loader
from emulator.loader.base import Loader
from emulator.plan import RankPlan, plan_for
from emulator.record.machine import HostActivity, HostProbe, cores, cpu_seconds
from emulator.record.steps import Spool, StepLog, Steps
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.barrier import StepBarrier
from emulator.run.comm import Comm
from emulator.run.train import train
from emulator.storage import open_store
from emulator.storage.base import ReadStats, Storage, TimedStorage
from emulator.storage.posix import probe_direct
from emulator.storage.shaped import NodeLimiter, ShapedStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on one dataset on one storage."""

    dataset: Place
    """Its folder, or its objects."""
    workload: Workload
    loader: str
    """A key of `registry.LOADERS`."""
    storage: StorageSpec
    epochs: int | None
    """Epochs of a point, at most; None: as many as `steps` take."""
    steps: int | None
    """Steps of a rank in a point, at most; None: whole epochs."""
    verify_reads: bool = False
    """Compare every sample with the manifest's checksum while it is read."""
    out: Path
    command: tuple[str, ...]
    """The command line that repeats it."""


# ---- One point: the active ranks read and compute, and tell rank 0 what they measured.


SPOOL_SECONDS = 1.0
"""Rows reach the spool at least this often, so that a killed run keeps what it measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank measured during a point."""

    host: str
    cores: int
    direct_io: bool
    """True when reads by-passed the page cache (O_DIRECT), as those of objects do."""
    cpu_seconds: float
    """User + system seconds of the rank and its workers, during the loop."""
    steps: Steps
    read_latency: Mapping[int, int]
    """Upper edge in microseconds -> read requests."""
    pages_sampled: int
    """Pages looked at just before they were read."""
    pages_resident: int
    """Those of them that were in the page cache."""
    retries: Mapping[str, int]
    """Why requests to an object store were repeated -> how many of them."""
    activity: HostActivity | None
    """What the host did; from the first rank of each host."""


def run_point(
    job: Job, manifest: Manifest, number: int, comm: Comm, spool: Spool, progress: Callable[[int], None]
) -> list[RankReport]:
    """Run point `number` on the ranks of `comm`; their reports in rank order on rank 0, [] elsewhere.

    `progress(steps)` is called on rank 0 once a step. Raises DatasetError, StorageError.
    """
    course = course_of(job, manifest, number, comm.size)
    node = comm.node()
    log = StepLog(number, comm.rank)
    keep = _Keeper(log, spool, progress if comm.rank == 0 else lambda _: None)
    with ExitStack() as stack:
        barrier = stack.enter_context(StepBarrier(comm, node))
        storage = stack.enter_context(_storage(job, node))
        sums = read_rows(job.dataset)["crc"] if job.verify_reads else None
        loader = make_loader(
            job.loader, job.workload.loader, storage, manifest, seed=course.seed, checksums=sums,
            columns=job.workload.access.columns,
        )  # fmt: skip
        stack.callback(loader.close)
        probe = HostProbe() if node.rank == 0 else None
        if probe:
            probe.start()
        cpu = cpu_seconds() + loader.helper_cpu_seconds()
        try:
            _train(job, course, loader, comm, barrier, log, keep)
        finally:
            keep.flush()
        cpu = cpu_seconds() + loader.helper_cpu_seconds() - cpu
        comm.barrier()
        activity = probe.stop() if probe else None
    return comm.gather(_report(job, log, cpu, storage.stats, activity))


def course_of(job: Job, manifest: Manifest, number: int, ranks: int) -> RankPlan:
    """The course of point `number` for `ranks` ranks. Raises DatasetError when there are too few samples."""
    plan = plan_for(job.workload, manifest.samples, ranks, manifest.samples_per_file)
    plan.require_a_step()
    # A seed of its own for every point: caches behind the mount must not profit from the last point.
    seed = job.workload.training.shuffle_seed + number
    return RankPlan(plan=plan, epochs=job.epochs, steps=job.steps, seed=seed)


def _train(
    job: Job, course: RankPlan, loader: Loader, comm: Comm, barrier: StepBarrier, log: StepLog, keep: _Keeper
) -> None:
    clock, training = MonotonicClock(), job.workload.training
    spec = job.workload.accelerator
    accelerator = Accelerator(spec.step_seconds, clock, endless(spec, course.seed, comm.rank))
    train(course, training, loader, accelerator, comm.rank, barrier.wait, clock, log, keep.look)


def _report(
    job: Job, log: StepLog, cpu: float, stats: ReadStats, activity: HostActivity | None
) -> RankReport:
    counts = stats.snapshot()
    return RankReport(
        host=socket.gethostname(),
        cores=cores(),
        direct_io=isinstance(job.dataset, ObjectURL) or wants_direct(job),
        cpu_seconds=cpu,
        steps=log.rows(),
        read_latency=counts.latencies,
        pages_sampled=counts.pages_sampled,
        pages_resident=counts.pages_resident,
        retries=counts.retries,
        activity=activity,
    )


def wants_direct(job: Job) -> bool:
    """True when reads should by-pass the page cache: cold, by the direct loader, where the mount can."""
    if isinstance(job.dataset, ObjectURL):
        return False
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
def _storage(job: Job, node: Comm) -> Iterator[Storage]:
    """The job's storage, timed, and shaped where it should be: one limiter for all ranks of the node."""
    plain = open_store(job.dataset).for_ranks(direct=wants_direct(job), cache=job.storage.cache)
    rate, latency = job.storage.shaped_rate, job.storage.shaped_latency
    if rate is None:
        yield TimedStorage(plain)
        return
    limiter = NodeLimiter.create(rate, latency, node.rank) if node.rank == 0 else None
    path = node.bcast(limiter.path if limiter else None)
    if limiter is None:
        limiter = NodeLimiter.join(path, rate, latency, node.rank)
    node.barrier()
    if node.rank == 0:
        limiter.unlink()  # everybody has it open: nothing is left behind, whatever happens next
    try:
        yield TimedStorage(ShapedStorage(plain, limiter))
    finally:
        limiter.close()
