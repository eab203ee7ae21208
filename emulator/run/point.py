"""One point: the active ranks train, and combine their measurements.

Each rank keeps its rows. Figures over all rows are reductions (`analysis.parts`); other totals are summed by
host. So the data that rank 0 receives do not grow with the steps.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from emulator.analysis.flags import (
    costly_barrier,
    jobs_cpu,
    neighbour,
    no_o_direct,
    non_stationary,
    point_flags,
    short_run,
)
from emulator.analysis.point import point_of
from emulator.analysis.starved import RankAccount, starved
from emulator.analysis.throughput import busy, rate_series
from emulator.config.storage import ObjectURL, StorageSpec
from emulator.dataset.manifest import Dataset
from emulator.launch.barrier import StepBarrier
from emulator.launch.comm import Comm
from emulator.launch.links import HostLinks
from emulator.loader import make_loader
from emulator.record.host import HostProbe
from emulator.record.machine import cores
from emulator.record.result import HostShare, Point, Starved
from emulator.record.schedstat import Books
from emulator.record.steps import Spool, StepLog, Steps
from emulator.registry import LOADERS
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.account import Accounted
from emulator.run.job import TrainingJob
from emulator.run.train import train
from emulator.storage.base import Storage, Store
from emulator.storage.counts import ReadCounts
from emulator.storage.shaped import NodeLimiter, ShapedStorage

SPOOL_SECONDS = 1.0
"""Longest time between two writes to the spool, and so the most that a killed run loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """The measurement of one rank."""

    rows: Steps
    reads: ReadCounts
    account: RankAccount | None
    cpu_seconds: float
    """User + system seconds of the rank and its workers during the loop."""
    host: HostProbe | None
    """The host's probe, stopped; on its first rank only."""
    barrier_seconds: float


def run_point(
    job: TrainingJob,
    dataset: Dataset,
    number: int,
    comm: Comm,
    spool: Spool,
    progress: Callable[[StepLog], None],
    links: HostLinks | None = None,
    until: float = math.inf,
) -> Point | None:
    """Run point `number` on the ranks of `comm`; return it with its flags on rank 0, None on others.

    `links` are this host's connections, on its first rank. `progress(log)` is called once a step. No step
    is begun after `until`, in seconds of this host's time.monotonic. Raises DatasetError, StorageError.
    """
    direct = job.direct and dataset.store.takes_direct()
    trained = _trained(job, dataset, number, comm, spool, progress, links, until, direct)
    workload, node = job.workload, comm.node()
    lost, by_host = _starved(trained, comm) or (None, {})
    point = point_of(
        workload,
        dataset.manifest.samples,
        comm.size,
        trained.rows,
        comm,
        starved=lost,
        barrier_seconds=trained.barrier_seconds,
    )
    rates = rate_series(busy(trained.rows, comm), over=comm).rates
    share = _host_share(trained, node, by_host)
    # Summed, because hosts may have mounted the dataset in different ways.
    (buffered,) = comm.sum(np.array([float(not (direct or isinstance(job.dataset, ObjectURL)))]))
    node_reads = node.gather(trained.reads)
    gathered = comm.gather((share, reduce(ReadCounts.plus, node_reads)) if node_reads else None)
    if not gathered:
        return None
    hosts, reads = zip(*filter(None, gathered), strict=True)
    point = _with_reads(replace(point, hosts=hosts), reduce(ReadCounts.plus, reads))
    of_job = (
        non_stationary(rates),
        no_o_direct(comm.size, int(buffered)) if job.direct else None,
        short_run(point, workload),
        jobs_cpu(point, workload),
        neighbour(point, workload),
        costly_barrier(point, workload),
    )
    return replace(point, flags=(*point_flags(point), *filter(None, of_job)))


def _with_reads(point: Point, reads: ReadCounts) -> Point:
    """Return `point` with what its ranks' reads counted."""
    return replace(
        point,
        resident_share=reads.pages_resident / reads.pages_sampled if reads.pages_sampled else None,
        read_latency={str(edge): count for edge, count in reads.latencies.items()},
        read_latency_max=reads.slowest or None,
        read_seconds=reads.seconds,
        open_seconds=reads.opening,
        read_amplification=reads.stored / reads.bytes if reads.bytes else None,
        read_retries=reads.retries,
    )


def _trained(
    job: TrainingJob,
    dataset: Dataset,
    number: int,
    comm: Comm,
    spool: Spool,
    progress: Callable[[StepLog], None],
    links: HostLinks | None,
    until: float,
    direct: bool,
) -> _Own:
    """Train on this rank; return when all ranks have finished. Arguments are those of `run_point`."""
    workload, node = job.workload, comm.node()
    plan = job.rank_plan(dataset.manifest, number, comm.size)
    log, clock = StepLog(number, comm.rank), MonotonicClock()
    accelerator = Accelerator(
        endless(workload.accelerator, plan.seed, comm.rank), clock, workload.accelerator.in_flight
    )
    spooled, due = 0, 0.0

    def write() -> None:
        nonlocal spooled
        rows = log.rows(spooled)
        spool.append(rows)
        spooled += len(rows)

    def meanwhile(now: float) -> None:
        nonlocal due
        progress(log)
        if now >= due:
            due = now + SPOOL_SECONDS
            write()

    with ExitStack() as stack:
        barrier = stack.enter_context(StepBarrier(comm, node, links))
        storage = stack.enter_context(open_storage(dataset.store, job.storage, node, direct=direct))
        loader = Accounted(
            make_loader(
                job.loader,
                workload.loader,
                storage,
                dataset.manifest,
                seed=plan.seed,
                access=workload.access,
                calls=job.calls,
            ),
            Books(storage.stats.tallies, together=workload.loader.workers if storage.turns else 1),
        )
        stack.callback(loader.close)
        barrier_seconds = barrier.cost()
        folder = job.dataset if isinstance(job.dataset, Path) else None
        probe = HostProbe(folder) if node.rank == 0 else None
        if probe:
            probe.start()
        before = time.process_time() + loader.helper_cpu_seconds()
        try:
            train(
                plan,
                loader,
                accelerator.compute,
                log,
                clock,
                sync=workload.training.sync,
                rank=comm.rank,
                barrier=barrier.wait,
                as_training=LOADERS.load(job.loader).as_training and not workload.accelerator.includes_taking,
                taking=workload.accelerator.taking_seconds,
                meanwhile=meanwhile,
                until=until,
            )
        finally:
            write()
        account = loader.account()
        cpu = time.process_time() + loader.helper_cpu_seconds() - before
        comm.barrier()
        if probe:
            probe.stop()
    return _Own(
        rows=log.rows(),
        reads=storage.stats.snapshot(),
        account=account,
        cpu_seconds=cpu,
        host=probe,
        barrier_seconds=barrier_seconds,
    )


def _starved(own: _Own, comm: Comm) -> tuple[Starved, dict[str, Starved]] | None:
    """Return what starved the accelerators, in total and by host; None if a host has no schedstat.

    Collective over `comm`.
    """
    activity = comm.node().bcast(own.host.activity if own.host else None)
    if comm.max(np.array([float(own.account is None)]))[0] or own.account is None:
        return None
    share = activity["busy_share"] or 0.0
    stolen = min(0.9, (activity["steal_share"] or 0.0) / share) if share else 0.0
    return starved(own.rows, [replace(own.account, stolen=stolen)], comm)


def _host_share(own: _Own, node: Comm, by_host: dict[str, Starved]) -> HostShare | None:
    """Return this host's share on its first rank; None on its others. Collective over `node`."""
    rows, host = own.rows, socket.gethostname()
    sums = (rows["bytes"].sum(), rows["samples"].sum(), rows["wait"].sum(), own.cpu_seconds)
    size, samples, waited, used = node.sum(np.array(sums, np.float64)).tolist()
    if own.host is None:
        return None
    return HostShare(
        host=host,
        ranks=node.size,
        bytes=int(size),
        samples=int(samples),
        cpu_seconds=used,
        cores=cores(),
        wait_seconds=waited,
        device=own.host.device,
        starved=by_host.get(host),
        **own.host.activity,
    )


@contextmanager
def open_storage(store: Store, spec: StorageSpec, node: Comm, *, direct: bool) -> Iterator[Storage]:
    """Open `store` for reading: shaped if `spec` says so, with O_DIRECT if `direct`.

    Collective over `node`: the ranks of a host share one shaped device. Raises StorageError.
    """
    plain = store.for_ranks(direct=direct, cache=spec.cache)
    if spec.shaped_rate is None:
        yield plain
        return
    shape = (spec.shaped_rate, spec.shaped_latency, node.rank)
    limiter = NodeLimiter.create(*shape) if node.rank == 0 else None
    path = node.bcast(limiter.path if limiter else None)
    if limiter is None:
        limiter = NodeLimiter.join(path, *shape)
    node.barrier()
    if node.rank == 0:
        limiter.unlink()  # every rank has it open, and a killed run would leave the name behind
    with limiter:
        yield ShapedStorage(plain, limiter)
