"""One point: the active ranks read and compute, and sum up what they measured.

Each rank keeps its rows. Figures that need all of them are computed together (`analysis.parts`), the rest is
summed by host: rank 0 gets as much of a million steps as of ten.
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
from emulator.record.books import Books
from emulator.record.machine import HostActivity, HostProbe, cores, cpu_seconds
from emulator.record.result import HostShare, Kind, Point, Starved
from emulator.record.steps import Spool, StepLog, Steps
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.account import Account, Accounted
from emulator.run.barrier import StepBarrier
from emulator.run.comm import Comm
from emulator.run.links import HostLinks
from emulator.run.train import train
from emulator.storage.base import Store, TimedStorage
from emulator.storage.shaped import NodeLimiter, ShapedStorage
from emulator.units import show_bytes

SPOOL_SECONDS = 1.0
"""Rows reach the spool at least this often, so that a killed run keeps what it measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What a run or a sweep is asked to do, decided before any rank starts: the same on every rank."""

    kind: Kind
    dataset: Place
    """Its folder, or its objects."""
    workload: Workload
    loader: str
    """An entry point of `feedrate.loaders`."""
    storage: StorageSpec
    epochs: int | None
    """Epochs of a point, at most; None: as many as `steps` take."""
    steps: int | None
    """Steps of a rank in a point, at most; None: whole epochs. Without either: `enough_steps`."""
    precision: float = 0.05
    """Width of a knee's interval that is asked for: how well a point has to be known."""
    placement: Placement = "spread"
    """`spread`: over all hosts, evenly. `pack`: one host after the other."""
    verify_reads: bool = False
    """Compare every sample with the manifest's checksum while it is read."""
    out: Path
    force: bool = False
    """Overwrite the result in `out`."""
    resume: bool = False
    """Go on with the sweep in `out`."""
    command: tuple[str, ...]
    """The command line that repeats it."""
    label: str = ""
    """A name for the result, for people."""

    @property
    def direct(self) -> bool:
        """Whether files are read with O_DIRECT where the file system can."""
        return self.loader == "direct" and self.storage.cache == "cold" and not self.workload.access.buffered

    def rank_plan(self, manifest: Manifest, number: int, ranks: int) -> RankPlan:
        """The plan of point `number` for `ranks` ranks. Raises DatasetError for too few samples."""
        plan = plan_for(self.workload, manifest.samples, ranks, manifest.samples_per_file)
        plan.require_a_step()
        # A seed of its own for every point: caches behind the mount must not profit from the last point.
        seed = self.workload.training.shuffle_seed + number
        epochs, steps = self.epochs, self.steps
        if epochs is None and steps is None:
            epochs, steps = self.workload.training.epochs, enough_steps(self.workload, ranks, self.precision)
        return RankPlan(plan=plan, epochs=epochs, steps=steps, seed=seed)


POINT_SECONDS = 30.0
"""Seconds of a point whose accelerators never wait, at least: a drift of the storage shows in them."""


def enough_steps(workload: Workload, ranks: int, precision: float) -> int:
    """Steps of a rank that make a point of `ranks` ranks long enough: fewer than the workload's epochs have.

    POINT_SECONDS; as many as no read-ahead shows in (the flag `short`); and so many samples that their mean
    size, by the deviation that the workload states, is known to half of `precision`, with 95 % certainty.
    """
    sample = workload.sample_read
    samples = (2 * 1.96 / precision * sample.bytes_sd / sample.bytes_mean) ** 2
    by_size = samples / (ranks * workload.loader.batch_size)
    by_time = POINT_SECONDS / max(1e-3, workload.accelerator.step_seconds)
    return math.ceil(max(by_size, by_time, LONG * read_ahead(workload)))


MEAN_DIFFERENCE = 0.2
"""Share by which a dataset's mean sample may differ from the workload's, beyond the spread of few samples."""


def mismatch(workload: Workload, manifest: Manifest) -> str:
    """What makes this dataset another one than the workload's; empty when it is like it.

    Compared are the format, whether files hold many samples, and the mean bytes of a sample: those may differ
    by 20 % and by three standard errors, since a dataset of few samples need not meet the mean.
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
    """What a rank's requests were, or those of all ranks of a host, or of all hosts."""

    buffered: int
    """Ranks whose reads went through the page cache."""
    latency: Mapping[int, int]
    """Upper edge in microseconds -> read requests."""
    slowest: float
    """Seconds of the longest read request."""
    pages_sampled: int
    """Pages looked at just before they were read."""
    pages_resident: int
    """Those of them that were in the page cache."""
    retries: Mapping[str, int]
    """Why requests to an object store were repeated -> how many of them."""

    @classmethod
    def summed(cls, parts: Sequence[ReadTotals]) -> ReadTotals:
        """All of them together."""
        latency: Counter[int] = Counter()
        retries: Counter[str] = Counter()
        for part in parts:
            latency.update(part.latency)
            retries.update(part.retries)
        return cls(
            buffered=sum(part.buffered for part in parts),
            latency=latency,
            slowest=max(part.slowest for part in parts),
            pages_sampled=sum(part.pages_sampled for part in parts),
            pages_resident=sum(part.pages_resident for part in parts),
            retries=retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all ranks of a point measured, as rank 0 has it."""

    point: Point
    """With its hosts, without flags."""
    reads: ReadTotals
    rates: Floats
    """Samples/s of all ranks over the time in which they were busy (`analysis.throughput.rate_series`)."""
    barrier_polled: bool
    """True when what the barrier takes is in the columns of each step that ends in one."""


def run_point(
    job: TrainingJob,
    dataset: Dataset,
    number: int,
    comm: Comm,
    spool: Spool,
    progress: Callable[[int], None],
    links: HostLinks | None = None,
) -> Measured | None:
    """Run point `number` on the ranks of `comm`; what they measured on rank 0, None elsewhere.

    `links` join this host to the others; the first rank of each host has them.
    `progress(steps)` is called once a step. Raises DatasetError, StorageError.
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
    counts, rows = storage.stats.snapshot(), log.rows()
    own = ReadTotals(
        buffered=not (direct or isinstance(job.dataset, ObjectURL)),
        latency=counts.latencies,
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
    share = _host_share(rows, cpu, activity, node)
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
    """What starved the accelerators, all together and by host; None where a kernel keeps no books.

    Collective over `comm`. `activity` is what this rank's host did.
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


def _host_share(rows: Steps, cpu: float, activity: HostActivity | None, node: Comm) -> HostShare | None:
    """What the ranks of this host did, on the first of them; None on the others. Collective over `node`."""
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
        **asdict(activity),
    )


class SpoolWriter:
    """Hands the new rows of `log` to `spool`."""

    def __init__(self, log: StepLog, spool: Spool) -> None:
        self._log = log
        self._spool = spool
        self._written = 0
        self._due = 0.0

    def write_if_due(self, now: float) -> None:
        """Write them once in SPOOL_SECONDS. Raises StorageError."""
        if now >= self._due:
            self._due = now + SPOOL_SECONDS
            self.write()

    def write(self) -> None:
        """Raises StorageError."""
        rows = self._log.rows(self._written)
        if len(rows):
            self._spool.append(rows)
            self._written += len(rows)


@contextmanager
def open_storage(store: Store, spec: StorageSpec, node: Comm, *, direct: bool) -> Iterator[TimedStorage]:
    """What ranks read `store` through: timed, shaped where `spec` says so, with O_DIRECT where `direct`.

    Collective over `node`, the ranks of a host, which share one shaped device. Raises StorageError.
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
        limiter.unlink()  # everybody has it open: nothing is left behind, whatever happens next
    with limiter:
        yield TimedStorage(ShapedStorage(plain, limiter))
