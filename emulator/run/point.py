"""One point: the active ranks train, and sum up what they measured.

Each rank keeps its rows. Figures over all rows are reductions (`analysis.parts`); other totals are summed by
host. So rank 0 receives as much after a million steps as after ten.
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from emulator.analysis.flags import LONG, read_ahead
from emulator.analysis.here import here
from emulator.analysis.parts import Floats
from emulator.analysis.point import point_of
from emulator.analysis.starved import RankAccount, starved
from emulator.analysis.throughput import busy, rate_series
from emulator.config.storage import ObjectURL, Place, StorageSpec
from emulator.config.workload import Placement, Workload
from emulator.dataset.manifest import Dataset, Manifest
from emulator.loader import make_loader
from emulator.order import RankPlan, plan_for
from emulator.record.device import DeviceReads, read_counters
from emulator.record.machine import HostActivity, HostProbe, cores, cpu_seconds
from emulator.record.result import HostShare, Kind, Point, Starved
from emulator.record.schedstat import Books
from emulator.record.steps import Spool, StepLog, Steps
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.account import Account, Accounted
from emulator.run.barrier import StepBarrier
from emulator.run.comm import Comm
from emulator.run.links import HostLinks
from emulator.run.train import train
from emulator.storage.base import Store
from emulator.storage.counts import TimedStorage
from emulator.storage.shaped import NodeLimiter, ShapedStorage
from emulator.units import show_bytes

SPOOL_SECONDS = 1.0
"""Longest time between two writes to the spool: what a killed run loses, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A run or sweep as the user asked for it. The same on every rank."""

    kind: Kind
    dataset: Place
    """Its folder or object URL."""
    workload: Workload
    loader: str
    """An entry point of `feedrate.loaders`."""
    storage: StorageSpec
    epochs: int | None
    """Most epochs of a point; None: as many as `steps` need."""
    steps: int | None
    """Most steps of a rank in a point; None: whole epochs. With neither, `enough_steps`."""
    precision: float = 0.05
    """Requested width of the knee's interval, as a share."""
    placement: Placement = "spread"
    """`spread`: evenly over all hosts. `pack`: fill one host after the other."""
    verify_reads: bool = False
    """Compare every sample that is read with the manifest's checksum."""
    out: Path
    force: bool = False
    """Overwrite a result in `out`."""
    resume: bool = False
    """Continue the sweep in `out`."""
    command: tuple[str, ...]
    """The command line that repeats it."""
    label: str = ""
    """A name for the result, for people."""

    @property
    def direct(self) -> bool:
        """True if files are read with O_DIRECT where the file system supports it."""
        return self.loader == "direct" and self.storage.cache == "cold" and not self.workload.access.buffered

    def rank_plan(self, manifest: Manifest, number: int, ranks: int) -> RankPlan:
        """The plan of point `number` for `ranks` ranks. Raises DatasetError for too few samples."""
        plan = plan_for(self.workload, manifest.samples, ranks, manifest.samples_per_file)
        plan.require_a_step()
        # Each point has its own order: the head of one order, read at every count, would come from caches
        # behind the mount.
        seed = self.workload.training.shuffle_seed + number
        epochs, steps = self.epochs, self.steps
        if epochs is None and steps is None:
            epochs, steps = self.workload.training.epochs, enough_steps(self.workload, ranks, self.precision)
        return RankPlan(plan=plan, epochs=epochs, steps=steps, seed=seed)


POINT_SECONDS = 30.0
"""Shortest point, in seconds of compute: long enough for the storage's drift to show."""


def enough_steps(workload: Workload, ranks: int, precision: float) -> int:
    """Steps of a rank that make a point of `ranks` ranks long enough.

    The largest of: steps that compute for POINT_SECONDS; steps after which read-ahead no longer matters (the
    flag `short`); and steps whose mean sample size is known to half of `precision` with 95 % confidence, by
    the workload's standard deviation.
    """
    sample = workload.sample_read
    samples = (2 * 1.96 / precision * sample.bytes_sd / sample.bytes_mean) ** 2
    by_size = samples / (ranks * workload.loader.batch_size)
    by_time = POINT_SECONDS / max(1e-3, workload.accelerator.step_seconds)
    return math.ceil(max(by_size, by_time, LONG * read_ahead(workload)))


MEAN_DIFFERENCE = 0.2
"""Largest relative difference between a dataset's mean sample and the workload's, beyond sampling error."""


def mismatch(workload: Workload, manifest: Manifest) -> str:
    """Say how the dataset differs from the workload's; empty if it does not.

    Compares the format, one or many samples a file, and the mean bytes of a sample, which may differ by
    MEAN_DIFFERENCE and three standard errors.
    """
    sample, mean = workload.sample, manifest.total / max(1, manifest.samples)
    spread = 3 * sample.bytes_sd / math.sqrt(max(1, manifest.samples))
    if manifest.format.removesuffix("-array") != sample.format:
        return f"its files are {manifest.format}, the workload {workload.name} reads {sample.format}"
    if (manifest.samples_per_file > 1) != (sample.samples_per_file > 1):
        held = "one sample a file" if manifest.samples_per_file == 1 else "many samples a file"
        return f"it has {held}, the workload {workload.name} reads {sample.samples_per_file} of each"
    if abs(mean - sample.bytes_mean) > MEAN_DIFFERENCE * sample.bytes_mean + spread:
        return (
            f"its mean sample has {show_bytes(mean)}, that of the workload {workload.name} "
            f"{show_bytes(sample.bytes_mean)}"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTotals:
    """The read requests of a rank, of a host's ranks, or of all ranks."""

    buffered: int
    """Number of ranks that read through the page cache."""
    latency: Mapping[int, int]
    """Histogram: upper edge in microseconds -> read requests."""
    seconds: float
    """Seconds within read requests, summed over all readers."""
    opening: float
    """Seconds within the opening of files, summed over all readers."""
    slowest: float
    """Seconds of the longest read request."""
    pages_sampled: int
    """Pages whose residency was checked just before they were read."""
    pages_resident: int
    """Pages among those that were in the page cache."""
    retries: Mapping[str, int]
    """Reason -> number of repeated requests to an object store."""

    @classmethod
    def summed(cls, parts: Sequence[ReadTotals]) -> ReadTotals:
        """Sum up `parts`; at least one."""
        latency: Counter[int] = Counter()
        retries: Counter[str] = Counter()
        for part in parts:
            latency.update(part.latency)
            retries.update(part.retries)
        return cls(
            buffered=sum(part.buffered for part in parts),
            latency=latency,
            seconds=sum(part.seconds for part in parts),
            opening=sum(part.opening for part in parts),
            slowest=max(part.slowest for part in parts),
            pages_sampled=sum(part.pages_sampled for part in parts),
            pages_resident=sum(part.pages_resident for part in parts),
            retries=retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement of a point by all its ranks, on rank 0."""

    point: Point
    """The point with its hosts, without flags."""
    reads: ReadTotals
    rates: Floats
    """Samples/s of all ranks while all were busy (`analysis.throughput.rate_series`)."""
    barrier_polled: bool
    """True if the barrier's own time is part of a step's columns."""


def run_point(
    job: TrainingJob,
    dataset: Dataset,
    number: int,
    comm: Comm,
    spool: Spool,
    progress: Callable[[int], None],
    links: HostLinks | None = None,
) -> Measured | None:
    """Run point `number` on the ranks of `comm`; return the measurement on rank 0, None elsewhere.

    `links` are this host's connections, on its first rank. `progress(steps)` is called once a step. Raises
    DatasetError, StorageError.
    """
    workload = job.workload
    plan = job.rank_plan(dataset.manifest, number, comm.size)
    node = comm.node()
    log, clock = StepLog(number, comm.rank), MonotonicClock()
    direct = job.direct and dataset.store.takes_direct()
    accelerator = Accelerator(endless(workload.accelerator, plan.seed, comm.rank), clock)
    writer = SpoolWriter(log, spool)

    def meanwhile(now: float) -> None:
        progress(len(log))
        writer.write_if_due(now)

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
                checksums=dataset.rows["crc"] if job.verify_reads else None,
            ),
            Books(storage.stats.tallies, together=workload.loader.workers if storage.turns else 1),
        )
        stack.callback(loader.close)
        barrier_seconds = barrier.cost()
        probe = HostProbe() if node.rank == 0 else None
        folder = job.dataset if probe and isinstance(job.dataset, Path) else None
        counters = read_counters(folder) if folder else None
        if probe:
            probe.start()
        before = cpu_seconds() + loader.helper_cpu_seconds()
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
                meanwhile=meanwhile,
            )
        finally:
            writer.write()
        account = loader.account()
        cpu = cpu_seconds() + loader.helper_cpu_seconds() - before
        comm.barrier()
        activity = probe.stop() if probe else None
        now = read_counters(folder) if folder else None
        device = now.since(counters) if now and counters else None
    counts, rows = storage.stats.snapshot(), log.rows()
    own = ReadTotals(
        buffered=not (direct or isinstance(job.dataset, ObjectURL)),
        latency=counts.latencies,
        seconds=counts.seconds,
        opening=counts.opening,
        slowest=counts.slowest,
        pages_sampled=counts.pages_sampled,
        pages_resident=counts.pages_resident,
        retries=counts.retries,
    )
    played = here(rows, workload.training.sync, comm)
    lost = _starved(rows, played, comm, account, node.bcast(activity))
    by_host = lost[1] if lost else {}
    point = point_of(
        workload,
        dataset.manifest.samples,
        comm.size,
        rows,
        played,
        comm,
        starved=lost[0] if lost else None,
        barrier_seconds=barrier_seconds,
    )
    rates = rate_series(busy(rows, comm), over=comm).rates
    share = _host_share(rows, cpu, activity, device, node)
    if share is not None:
        share = replace(share, starved=by_host.get(share.host))
    of_node = node.gather(own)
    gathered = comm.gather((share, ReadTotals.summed(of_node)) if of_node else None)
    if not gathered:
        return None
    hosts, reads = zip(*filter(None, gathered), strict=True)
    return Measured(
        point=replace(point, hosts=hosts),
        reads=ReadTotals.summed(reads),
        rates=rates,
        barrier_polled=barrier.polled,
    )


def _starved(
    rows: Steps, played: Steps | None, comm: Comm, account: Account | None, activity: HostActivity
) -> tuple[Starved, dict[str, Starved]] | None:
    """Compute what starved the accelerators, in total and by host; None if a host has no schedstat.

    Collective over `comm`. `activity` is that of this rank's host.
    """
    if comm.max(np.array([float(account is None)]))[0] or account is None:
        return None
    share = activity.busy_share or 0.0
    stolen = min(0.9, (activity.steal_share or 0.0) / share) if share else 0.0
    own = RankAccount(
        host=socket.gethostname(),
        reading=account.reading,
        process=account.process,
        readers=account.readers,
        stolen=stolen,
    )
    return starved(rows, played, [own], comm)


def _host_share(
    rows: Steps, cpu: float, activity: HostActivity | None, device: DeviceReads | None, node: Comm
) -> HostShare | None:
    """Sum up this host's ranks, on the first of them; None on the others. Collective over `node`."""
    own = (rows["bytes"].sum(), rows["samples"].sum(), rows["wait"].sum(), cpu)
    size, samples, waited, used = node.sum(np.array(own, np.float64)).tolist()
    if activity is None:
        return None
    return HostShare(
        host=socket.gethostname(),
        ranks=node.size,
        bytes=int(size),
        samples=int(samples),
        cpu_seconds=used,
        cores=cores(),
        wait_seconds=waited,
        device=device,
        **asdict(activity),
    )


class SpoolWriter:
    """Appends the new rows of `log` to `spool`."""

    def __init__(self, log: StepLog, spool: Spool) -> None:
        self._log = log
        self._spool = spool
        self._written = 0
        self._due = 0.0

    def write_if_due(self, now: float) -> None:
        """Write new rows if SPOOL_SECONDS have passed. Raises StorageError."""
        if now >= self._due:
            self._due = now + SPOOL_SECONDS
            self.write()

    def write(self) -> None:
        """Write new rows. Raises StorageError."""
        rows = self._log.rows(self._written)
        if len(rows):
            self._spool.append(rows)
            self._written += len(rows)


@contextmanager
def open_storage(store: Store, spec: StorageSpec, node: Comm, *, direct: bool) -> Iterator[TimedStorage]:
    """Open what ranks read `store` through: timed, shaped if `spec` says so, with O_DIRECT if `direct`.

    Collective over `node`: the ranks of a host share one shaped device. Raises StorageError.
    """
    plain = store.for_ranks(direct=direct, cache=spec.cache)
    if spec.shaped_rate is None:
        yield TimedStorage(plain)
        return
    shape = (spec.shaped_rate, spec.shaped_latency, node.rank)
    limiter = NodeLimiter.create(*shape) if node.rank == 0 else None
    path = node.bcast(limiter.path if limiter else None)
    if limiter is None:
        limiter = NodeLimiter.join(path, *shape)
    node.barrier()
    if node.rank == 0:
        limiter.unlink()  # every rank has it open: a killed run leaves nothing behind
    with limiter:
        yield TimedStorage(ShapedStorage(plain, limiter))
