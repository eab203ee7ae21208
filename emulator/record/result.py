"""run.json as dataclasses: the result of a run, sweep, baseline, checkpoint run, import or plan.

results/README.md explains every field. All kinds have one layout, which `analysis` and `report` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from emulator import __version__
from emulator.record.device import DeviceReads
from emulator.record.machine import utc_now

SCHEMA = 1
"""Version of the layout of run.json; a reader refuses a newer one."""

UNFINISHED = "the run has not ended, or was killed"
"""The reason of an incomplete result until `ResultFolder.complete`."""

Kind = str
"""run, sweep, baseline, checkpoint, imported, plan, or an entry point of `feedrate.kinds`."""
Status = Literal["complete", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A reason to doubt a number."""

    name: str
    """Short name, for example `client` or `page-cache`."""
    value: float
    """Of a point: the share by which it may have moved the throughput; else the measured value."""
    threshold: float
    """The value from which the flag is raised."""
    sentence: str
    """The meaning, for people."""


BoundKind = Literal[
    "compute",
    "storage",
    "bandwidth",
    "iops",
    "metadata",
    "memory",
    "latency",
    "client-cpu",
    "cpu-quota",
    "client-link",
    "straggler",
    "loader",
    "emulator",
]

STORAGE: tuple[BoundKind, ...] = ("storage", "bandwidth", "iops", "metadata")
"""Bounds at the storage; `storage` if bandwidth, IOPS and metadata could not be told apart."""
CLIENT: tuple[BoundKind, ...] = (
    "latency",
    "client-cpu",
    "cpu-quota",
    "client-link",
    "straggler",
    "loader",
    "emulator",
)
"""The kinds that say that the storage delivers at least what was measured: the client's own limits, and
`latency`, where more or larger requests at the same time would get more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The limit of a point, and the evidence for it."""

    kind: BoundKind
    """`client-link` is the network or the device of a client host; `straggler` one rank, which was stopped or
    late by itself; `emulator` its barriers between hosts."""
    help: str = ""
    """Advice with its number; empty if none is known."""
    evidence: tuple[str, ...]
    """Measurements that show the limit, one sentence each."""
    host: str = ""
    """The limited host, if the others are not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starved:
    """Causes of the time in which accelerators were idle, as shares that sum to 1.

    Measured by schedstat of the threads that read (/proc/PID/task/TID/schedstat) and by request times.
    Time that a rank waited for another at a barrier counts towards the cause that delayed the other rank.
    """

    seconds: float
    """Seconds of all ranks together, without the first step of each."""
    storage: float = 0.0
    """Share with a request in progress and its thread asleep."""
    link: float = 0.0
    """Share as in `storage`, beyond the median host's: the network or the device of one host."""
    cores: float = 0.0
    """Share with a runnable thread that waited for a core."""
    quota: float = 0.0
    """Share as in `cores`, because the CPU quota of the cgroup was used up."""
    work: float = 0.0
    """Share with a thread on a core: copying, unpacking, Python."""
    loader: float = 0.0
    """Share with no request running, though batches were due: few workers, small window, Python's lock."""
    steps: float = 0.0
    """Share in which other ranks computed for longer, because steps differ."""
    barrier: float = 0.0
    """Share at the emulator's own barriers, after the last rank arrived and before this one woke."""
    straggler: int | None = None
    """Rank that lost twice as much time by itself as any other rank, asleep for no known reason."""
    straggler_host: str = ""
    """Its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The work of one host's ranks in a point, and the host's own measurements. None: not known."""

    host: str
    ranks: int
    """Active ranks on the host."""
    bytes: int
    """Bytes that its ranks read in the loop."""
    samples: int
    cpu_seconds: float
    """User + system seconds of its ranks and their workers, during the loop."""
    cores: int
    """Cores that the ranks may use."""
    busy_share: float | None = None
    """Share of the time in which these cores were busy, with any program (0 to 1)."""
    steal_share: float | None = None
    """Share of the same time that a hypervisor took away (0 to 1)."""
    nic_bytes: int | None = None
    """Bytes received on network interfaces, loopback left out."""
    device: DeviceReads | None = None
    """Counters of the dataset's block device or NFS mount, for every process of the host."""
    wait_seconds: float = 0.0
    """Seconds that its ranks were blocked on the loader, summed."""
    starved: Starved | None = None
    """Causes of the time in which its accelerators starved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Bytes read over the time of a point, from when all ranks were reading until one had read everything."""

    begin: float
    """Seconds since the point began."""
    end: float
    bytes_per_second: tuple[float, ...]
    """Bytes/s of all ranks, in equal spans from `begin` to `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One process count, run once."""

    ranks: int
    """Number of emulated accelerators: processes that were active."""
    hosts: tuple[HostShare, ...]
    epochs: int
    steps: int
    """Steps per rank, all epochs together."""
    samples: int
    """Samples read by all ranks in the loop."""
    bytes: int
    """Bytes read by all ranks in the loop."""
    left_out: int
    """Samples per epoch that did not fill a step of all ranks."""
    seconds: float
    """Wall seconds of the loop, first step included, slowest rank."""
    samples_per_second: float
    """Samples/s of all ranks, over the steps in which all were busy, without the first step, as in AU."""
    bytes_per_second: float
    """Bytes/s of all ranks, over the same steps."""
    ideal_samples_per_second: float
    """Samples/s of accelerators that never wait: ranks x batch size / step time."""
    x_ideal: float
    """Ratio samples_per_second / ideal_samples_per_second."""
    au: float
    """Accelerator utilization (0 to 1) as MLPerf Storage defines it, from nominal compute, in the
    accelerators' time, which no late process holds up: what the storage feeds. NaN: not measured, since
    batches that were read ahead decide it: too few steps, or data that came slower than they were consumed
    (flag `short`)."""
    x_ideal_first: float
    """x_ideal over all steps, the first one included."""
    au_first: float
    """au over all steps, the first ones included."""
    wait_share: float
    """Share of the ranks' loop time in which accelerators waited for batches."""
    barrier_share: float
    """Share of the ranks' loop time waiting for other ranks."""
    barrier_seconds: float | None = None
    """Seconds of a step's barrier when all ranks come at once, before the loop; None: not measured."""
    overshoot_share: float = 0.0
    """Share of the ranks' loop time that accelerators were held up by their own processes."""
    resident_share: float | None = None
    """Share of sampled pages that were in the page cache just before they were read (0 to 1)."""
    read_latency: Mapping[str, int] = field(default_factory=dict)
    """Histogram of read requests: upper edge in microseconds -> requests, all ranks."""
    read_latency_max: float | None = None
    """Seconds of the longest read request, as measured; None: not known."""
    read_seconds: float | None = None
    """Seconds within read requests, less CPU seconds where known, summed over all readers.

    Divided by `seconds`, the mean number in flight. Opening is not included.
    """
    open_seconds: float | None = None
    """Seconds within the opening of files, eviction and the look at resident pages included, of all readers.

    With `torch` and a library that opens by path, only feedrate's own open is counted.
    """
    read_amplification: float | None = None
    """Bytes that disks or NFS delivered, read-ahead included, for each byte that the readers asked for. 0
    where the page cache answered, and where the kernel counts nothing (FUSE, objects)."""
    read_retries: Mapping[str, int] = field(default_factory=dict)
    """Requests to an object store that were repeated: `timeout`, `busy`, `cut`, `connection` -> requests."""
    starved: Starved | None = None
    """Causes of the time in which accelerators starved, all hosts together."""
    course: Course | None = None
    """Bytes read over time; None: too few steps."""
    step: Mapping[str, float] = field(default_factory=dict)
    """`compute`, `wait`, `barrier`, `overshoot` -> seconds of the mean step. Time at a barrier counts as what
    the last rank did longer; as `barrier` where the log does not tell. Empty: not computed."""
    bound: Bound | None = None
    """The limit of the point; None: not examined."""
    au_published: float | None = None
    """AU in the documents of an imported run; `au` is recomputed, NaN where that is not possible."""
    samples_per_second_published: float | None = None
    """Throughput in the documents of an imported run, over the steps that its version counts."""
    flags: tuple[Flag, ...] = ()


KneeKind = Literal["knee", "beyond", "below", "at-least", "not-identifiable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The largest number of processes that the storage feeds. None: not within the counts that were run."""

    kind: KneeKind | None = None
    """`knee`: `n_au` with its interval. `beyond` the largest count, or `below` the smallest. `at-least`: the
    client was the limit where processes starved, so the storage feeds `fed` or more. `not-identifiable`: the
    runs contradict each other or say too little; the knee is between `fed` and `starved`. null: the workload
    does not compute."""

    n_au: float | None
    """Largest number of processes with throughput >= au_threshold x ideal, interpolated."""
    n_saturation: float | None
    """Number of processes at the storage's limit: limit / demand of one process."""
    interval: tuple[float, float] | None
    """95 % interval of n_au."""
    fed: int | None = None
    """Largest number of processes that the storage was seen to feed."""
    starved: int | None = None
    """Smallest count beyond `fed` that the storage was seen not to feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The reads, or the writes, of one corner, all clients together."""

    requests: int
    """Requests that completed."""
    iops: float
    """Requests per second."""
    bytes_per_second: float
    latency_mean: float
    """Seconds from submission to completion, mean over all requests."""
    latency_p50: float | None = None
    """Seconds within which 50 % of the requests completed; None if the tool keeps no histogram."""
    latency_p90: float | None = None
    latency_p99: float | None = None
    latency_p999: float | None = None
    latency_p9999: float
    """99.99 % latency in seconds; of fewer than 10,000 requests, the slowest one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One access pattern at one queue depth, measured by fio on all clients at once."""

    pattern: Literal["random", "sequential"]
    block_bytes: int
    """Bytes of a request."""
    read_share: float
    """Share of the requests that read (0 to 1)."""
    depth: int
    """Requests that a job keeps in flight."""
    jobs: int
    """fio jobs of a client, each with a file of its own."""
    clients: int
    """fio processes that ran at the same time, each with a folder of its own."""
    beside: str = ""
    """Load at the same time: `nothing`, `writers` or `readers`; empty: the question was not asked."""
    read: Side | None = None
    """Reads of the corner; None if there were none."""
    write: Side | None = None
    files: tuple[str, ...] = ()
    """fio's JSON, one file a client, below OUT; the job file is beside it, ending in .fio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Random reads of the dataset at one request size and depth, by a process on each host at once."""

    request_bytes: int
    depth: int
    """Requests in flight, all hosts together."""
    requests_per_second: float
    latency_seconds: float
    """Mean seconds of a request."""
    device_requests_per_second: float | None = None
    """Read requests that the dataset's device completed, all hosts: large ones are split. None: unknown."""
    cores: float = 0.0
    """Seconds per second that a probe's threads were on a core or waited for one, host's mean."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of all hosts."""
        return self.request_bytes * self.requests_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, written or read back by all ranks at once."""

    direction: Literal["write", "read"]
    number: int
    """Number of the checkpoint in its folder."""
    ranks: int
    hosts: int
    bytes: int
    """Bytes of all ranks."""
    began: float
    """Seconds since the run began."""
    seconds: float
    """Duration: of the slowest rank, with fsync of files and folder, or with the comparison of checksums."""
    fastest_seconds: float
    """Seconds of the fastest rank."""
    bytes_per_second: float
    """Minimum over the ranks of bytes of all ranks / seconds of the rank, as MLPerf Storage defines it."""
    slowest_rank: int
    commit_seconds: float = 0.0
    """Seconds from the end of the slowest rank until the checkpoint was complete; 0 for a read."""
    cpu_seconds: float = 0.0
    """User + system seconds of all ranks during the checkpoint."""
    resident_share: float | None = None
    """Share of sampled pages that were in the page cache just before they were read; null: not sampled."""


class ReadFacts(TypedDict):
    """The call and the path by which samples were read."""

    call: str
    direct: bool
    request_bytes: int
    read_ahead_bytes: int | None


class EnvironmentFacts(TypedDict, total=False):
    """Facts about the machine that feedrate computes with. There are others, of any type."""

    reads: ReadFacts
    mount: Mapping[str, str]
    dataset_mount: Mapping[str, str]
    out_mount: Mapping[str, str]
    memory_bytes: int
    memory_of_hosts: Mapping[str, int]
    ranks_started: int
    hosts: tuple[str, ...]
    asked: AskedFacts


class AskedFacts(TypedDict):
    """What `feedrate ask` was asked about."""

    place: str
    up_to: int


class DatasetFacts(TypedDict, total=False):
    """Facts about the dataset that feedrate computes with. There are others, of any type."""

    files: int
    samples: int
    samples_per_file: int
    bytes: int


class StorageFacts(TypedDict, total=False):
    """Facts about the storage that feedrate computes with or prints as they are."""

    cache: str
    shaped_rate: float | None
    shaped_latency: float


class TrainingFacts(TypedDict, total=False):
    """The section `training` of a workload."""

    au_threshold: float


class JobFacts(TypedDict, total=False):
    """The section `job` of a workload that was recorded."""

    samples: float


class WorkloadFacts(TypedDict, total=False):
    """Sections of the workload that feedrate reads from a result."""

    sample: Mapping[str, Any]
    loader: Mapping[str, Any]
    accelerator: Mapping[str, Any]
    training: TrainingFacts
    job: JobFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything about one OUT folder except its step log."""

    kind: Kind
    status: Status
    reason: str = ""
    """Reason of an incomplete result."""
    version: str
    """Version of feedrate that wrote it."""
    created: str
    """Time of creation, ISO 8601, UTC."""
    command: tuple[str, ...]
    """Command line that repeats the run."""
    label: str = ""
    """Label for people (--label)."""
    workload: Annotated[Mapping[str, Any], WorkloadFacts]
    """The whole workload, as `dataclasses.asdict` returns it."""
    dataset: Annotated[Mapping[str, Any], DatasetFacts]
    """Facts about the dataset: path, files, bytes, format, recipe, seed."""
    storage: Annotated[Mapping[str, Any], StorageFacts]
    """The whole StorageSpec; `shaped_rate` not null marks emulated storage."""
    loader: str
    """Name of the loader: torch or direct."""
    environment: Annotated[Mapping[str, Any], EnvironmentFacts]
    """Facts about the machine, versions and MPI."""
    points: tuple[Point, ...] = ()
    probe: tuple[Probe, ...] = ()
    """Rates of the storage at several sizes and depths, probed after a point had waited for it."""
    knee: Knee | None = None
    baseline: tuple[Corner, ...] = ()
    """fio's measurements, in the order of the runs; only of kind `baseline`."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Checkpoints in the order they were written and read; only of kind `checkpoint`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain values of a plug-in's kind; feedrate's own kinds leave it empty."""
    flags: tuple[Flag, ...] = ()
    schema: int = SCHEMA

    @property
    def read_limit(self) -> Corner | None:
        """The undisturbed read-only corner with the most bytes/s; None without one."""

        def rate(corner: Corner) -> float:
            return corner.read.bytes_per_second if corner.read else 0.0

        alone = [corner for corner in self.baseline if corner.beside in ("", "nothing")]
        readers = [corner for corner in alone if corner.read and corner.read_share == 1]
        return max(readers, key=rate, default=None)


def new_result(kind: Kind, **fields: Any) -> RunResult:
    """Return an incomplete result with the current time and feedrate's version; `fields` are RunResult's."""
    return RunResult(
        kind=kind, status="incomplete", reason=UNFINISHED, version=__version__, created=utc_now(), **fields
    )
