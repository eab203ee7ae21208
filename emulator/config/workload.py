"""A workload: one training job on one kind of accelerator, as storage sees it; and how it is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from emulator.config.catalog import content_folder, find
from emulator.config.profile import load_profile
from emulator.config.reader import (
    Bytes,
    Seconds,
    Source,
    at_least,
    build,
    override,
    positive,
    read_toml,
    share,
)
from emulator.errors import SpecError
from emulator.units import BLOCK_BYTES

Provenance = Literal["published", "scaled", "measured", "recorded", "bound", "chosen"]
Compute = Literal["constant", "empirical"]
Refill = Literal["epoch", "persistent", "never"]


Placement = Literal["spread", "pack"]
"""Hosts of the active ranks: all hosts, evenly, or one host after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """The shape and size of one sample of the job's dataset."""

    format: str
    """File format of a sample, for example npz."""
    bytes_mean: Bytes
    """Mean bytes of a stored sample."""
    bytes_sd: Bytes = 0
    """Population standard deviation of the bytes of a stored sample."""
    recipe: str = ""
    """Recipe that generates such samples; empty: none does."""
    samples_per_file: int = 1
    """Samples in a file of the published dataset; the manifest says how many a generated one has."""

    def __post_init__(self) -> None:
        positive(self, "bytes_mean")
        at_least(0, self, "bytes_sd")
        at_least(1, self, "samples_per_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSpec:
    """The order in which a job reads samples, and how much of each. `emulator.order` turns it into reads."""

    pattern: Literal["random", "sequential"] = "random"
    """random: all samples shuffled, each read by itself wherever it lies in its file. sequential: files in
    shuffled order, each from its start, as tf.data reads TFRecord and as row groups of Parquet are read."""
    replacement: bool = False
    """random: each sample is drawn from all of them, as by WeightedRandomSampler with equal weights: an epoch
    has some several times and some never."""
    streams: int = 1
    """sequential: files that a rank reads at the same time, one sample of each in turn."""
    shuffle_buffer: int = 0
    """sequential: samples read ahead into a buffer, from which the next one is drawn at random."""
    run_samples: int = 0
    """sequential: samples of a run, which is read at once; runs are shuffled, as FFCV's pages are. It divides
    the samples of a file. 0: each file is read on to its end, in the loader's blocks."""
    columns: tuple[str, ...] = ()
    """Parquet: columns that are read; empty: all."""
    bytes_read: Bytes = 0
    """Mean bytes that are read for a sample: those of these columns, or of its `places`; 0: all of it."""
    places: tuple[tuple[int, ...], ...] = ()
    """Format bytes: where samples are read, if not in one place of a file: for each of some samples, offset
    from its first byte and bytes of each place in turn. Any sample is read as one of these. Samples overlap,
    as random crops do, if that reaches further than a sample, and if `bytes_read` are more than it has. Of
    mapped files, the pages that faulted."""
    head_bytes: Bytes = 0
    """Files that are read whole: bytes of a first request, as for a header; 0: it is like the others. Mapped
    files: bytes that are read by read(2) before, as np.load does."""
    tail_bytes: Bytes = 0
    """Files that are read whole: bytes at the end of a file that are read before all but the header, as the
    directory of a zip file; 0: files are read in order."""
    chunk_bytes: Bytes = 0
    """Mean bytes of a column chunk of a row group, one request each; 0: requests are the loader's blocks."""
    buffered: bool = False
    """The job reads through the page cache, whose read-ahead `--loader direct` then has, too; false: it reads
    with O_DIRECT where the file system can. Worker processes read through the page cache either way."""
    mapped: bool = False
    """The job maps its files (mmap): reads are page faults, around which the kernel reads. On a mounted file
    system it is replayed so, with either loader."""
    map_random: bool = False
    """The kernel is told that maps are read at random (MADV_RANDOM), as by LMDB without read-ahead: a page
    fault brings in one page, and nothing around it."""
    opens: int = 0
    """Times that a file is opened for a sample; each begins the kernel's read-ahead anew. 0: a file of many
    samples stays open. 2 or more: for files that are read whole, of which all but the last open read
    `head_bytes`, as nibabel does. For files on a mounted file system that are not mapped."""
    advised: bool = False
    """The job tells the kernel what it will read (posix_fadvise), as pyarrow does: the kernel requests it
    at once, without reading ahead. For files on a mounted file system, through the page cache."""
    refill: Refill = "epoch"
    """Read-ahead at an epoch's border. epoch: the DataLoader is made anew and begins with nothing, as
    in MLPerf's 3D U-Net. persistent: its workers stay, and what they read ahead begins with nothing, as in
    DLIO. never: reading goes on over the border."""

    def __post_init__(self) -> None:
        at_least(1, self, "streams")
        at_least(0, self, "shuffle_buffer", "run_samples", "bytes_read", "chunk_bytes", "opens")
        at_least(0, self, "head_bytes", "tail_bytes")
        if self.places and not self.bytes_read:
            raise SpecError("places needs access.bytes_read, the mean of their bytes", "set both")
        for one in self.places:
            if not one or len(one) % 2 or min(one) < 0 or not all(one[1::2]):
                raise SpecError(f"places has {list(one)}, which are no offsets and bytes in turn")
        if self.head_bytes % BLOCK_BYTES:
            raise SpecError(f"head_bytes must be a multiple of {BLOCK_BYTES}, not {self.head_bytes}")
        if self.tail_bytes and not self.head_bytes:
            raise SpecError("tail_bytes needs access.head_bytes, the first bytes of a file", "set both")
        if self.replacement and self.pattern != "random":
            raise SpecError("replacement needs access.pattern = 'random'", "leave it out")
        if self.opens and (self.pattern != "random" or self.mapped):
            raise SpecError("opens needs access.pattern = 'random' and no access.mapped", "leave it out")
        if self.opens > 1 and not self.head_bytes:
            raise SpecError("opens above 1 needs access.head_bytes, which all but the last read", "set both")
        if self.map_random and not self.mapped:
            raise SpecError("map_random needs access.mapped", "set both")
        if self.pattern == "random" and (self.streams > 1 or self.shuffle_buffer or self.run_samples):
            raise SpecError(
                "pattern = 'random' has no streams, no shuffle_buffer and no run_samples",
                "--set access.streams=1 --set access.shuffle_buffer=0 --set access.run_samples=0 beside it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """The settings of a rank's data loader."""

    batch_size: int
    """Samples per step of one accelerator."""
    workers: int = 4
    """DataLoader workers (`--loader torch`), or samples that a rank reads at the same time (the others)."""
    prefetch: int = 8
    """Batches read ahead of the accelerator, at most (PyTorch: workers x prefetch_factor). 0: a batch is read
    when the accelerator is free and asks for it, by the rank's own process, as with num_workers=0."""
    block_bytes: Bytes = 4 * 2**20
    """Bytes of one read request."""
    crop: tuple[int, ...] = (128, 128, 128)
    """Voxels of the random crop that the torch loader keeps of a sample; empty: the whole sample."""
    batch_cpu_seconds: Seconds = 0.0
    """CPU seconds of a recorded job's worker for a batch, as for decoding. A replay's worker
    spends as much (`--loader torch`), or sleeps (`direct`)."""
    stall_timeout: Seconds = 300.0
    """Seconds without a batch after which the run fails because the storage hangs."""

    def __post_init__(self) -> None:
        at_least(0, self, "prefetch", "batch_cpu_seconds")
        at_least(1, self, "batch_size", "workers")
        at_least(BLOCK_BYTES, self, "block_bytes")
        positive(self, "stall_timeout")
        if self.block_bytes % BLOCK_BYTES:
            raise SpecError(
                f"block_bytes must be a multiple of {BLOCK_BYTES} (O_DIRECT), not {self.block_bytes}"
            )
        if any(edge < 1 for edge in self.crop):
            raise SpecError(f"crop must have edges of at least 1 voxel, not {list(self.crop)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSpec:
    """The emulated accelerator: how long it computes on one batch."""

    name: str
    """Product name, for people."""
    step_seconds: Seconds
    """Seconds of compute per step, at `step_batch_size` samples."""
    step_batch_size: int
    """Batch size that `step_seconds` was taken at; the loader must have the same."""
    provenance: Provenance
    """Origin of the time: published, scaled (from another accelerator), measured, recorded from a job,
    bound (of a job that waited for data throughout: it takes so long or less), or chosen."""
    compute: Compute = "constant"
    """constant: every step takes `step_seconds`; empirical: step times are drawn from `quantiles`."""
    profile: str = ""
    """Profile (of feedrate calibrate) that the times come from."""
    variant: str = ""
    """Variant of the profile."""
    quantiles: tuple[float, ...] | None = None
    """Seconds of measured steps of a profile, ascending, equally likely. Their mean is `step_seconds`."""
    together: bool = False
    """True: all ranks take the same time for a step, as recorded from ranks that wait for each other. False:
    each rank draws its own time, and training waits for the slowest."""
    in_flight: int = 1
    """Steps from one wait of the host for its accelerator to the next: 1 where it waits for each step, more
    where launches are queued and the host runs ahead, as with CUDA."""
    taking_seconds: Seconds | None = None
    """Mean seconds of a recorded step in which its process took a batch that was ready. None: not known, or
    the step is the accelerator's alone."""
    host_cpu_seconds: Seconds | None = None
    """CPU seconds of a step on the job's own host, for training and loading. No replay spends them.
    None: not known."""

    @property
    def includes_taking(self) -> bool:
        """True if a step has all that taking its batch costs its process: a recorded one of which that is not
        known apart, or that ranks make together, which wait for the one that takes longest."""
        recorded = self.provenance in ("recorded", "bound")
        return recorded and (self.taking_seconds is None or self.together)

    def __post_init__(self) -> None:
        at_least(0, self, "step_seconds", "taking_seconds", "host_cpu_seconds")
        at_least(1, self, "step_batch_size", "in_flight")
        if self.compute == "empirical" and not self.quantiles:
            raise SpecError(
                "compute = 'empirical' needs measured times", "accelerator.profile names a profile"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The training loop around the steps."""

    epochs: int = 5
    """Passes over the dataset."""
    sync: Literal["step", "epoch", "none"] = "step"
    """Points at which ranks wait for each other; data-parallel training does so after every step."""
    au_threshold: float = 0.90
    """Accelerator utilization (0 to 1) that the storage has to sustain."""
    shuffle_seed: int = 0
    """Seed of the epoch orders."""

    def __post_init__(self) -> None:
        at_least(1, self, "epochs")
        at_least(0, self, "shuffle_seed")
        share("au_threshold", self.au_threshold)


UNLIKE = 0.05
"""Largest relative difference between a recorded job and its replay in rate, in bytes that storage delivers
(each is a difference in rate where its bandwidth is the limit), and in requests by opens."""
UNLIKE_REQUESTS = 0.2
"""Most requests that storage got from the job beyond each that it got from its replay. With up to 14 % more,
replays were within 5 % of the job's rate at 3 ms of latency; with 26 % more and above, 26 to 99 % too fast
(results/own-job.md)."""
UNLIKE_KEPT = 1 / 3
"""Largest share of the replay's bytes that the job may keep in memory. Batches and shuffle buffers that fill
while reads are traced make it uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """A recorded job beside its replay on the storage where it was recorded."""

    samples_per_second: float
    """The job's rate, all processes, in its own samples."""
    waited: float
    """Share of the time in which the job waited for data."""
    replay_samples_per_second: float
    replay_waited: float
    amplification: float | None = None
    """Bytes that storage delivered to the job for each byte that a replay asks for. None: memory answered."""
    replay_amplification: float | None = None
    request_bytes: float | None = None
    """Mean bytes of a request that storage got from the job. None: not known, or memory answered."""
    replay_request_bytes: float | None = None
    kept: float = 0.0
    """Share of the replay's bytes that the job, which keeps samples in memory, does not read later."""
    uncertain: float = 0.0
    """Relative uncertainty of a sample's bytes, where the job reads in large pieces and few were recorded."""
    refilled: float = 0.0
    """Largest share of the batches that are read while the job uses another DataLoader, as for validation."""
    hidden: float = 0.0
    """Share of the time in which the job waited for data and its replay computes: its step is a bound."""
    why: str = ""
    """The cause of a difference, if it is known."""

    def __post_init__(self) -> None:
        positive(self, "samples_per_second", "replay_samples_per_second")
        at_least(0, self, "waited", "replay_waited", "replay_amplification")
        at_least(0, self, "kept", "uncertain", "refilled", "hidden")
        positive(self, "amplification", "request_bytes", "replay_request_bytes")

    @property
    def reads_ratio(self) -> float:
        """Bytes from storage of the one that took more, for each of the other's; 1 if memory answered."""
        if self.amplification is None or self.replay_amplification is None:
            return 1.0
        less, more = sorted((self.amplification, self.replay_amplification))
        return more / less if less else math.inf

    @property
    def requests_ratio(self) -> float:
        """Requests that storage got from the job for each that it got from its replay; 1 if not known."""
        if not (self.amplification and self.replay_amplification):
            return 1.0
        if not (self.request_bytes and self.replay_request_bytes):
            return 1.0
        of_job = self.amplification / self.request_bytes
        return of_job / (self.replay_amplification / self.replay_request_bytes)

    @property
    def difference(self) -> float:
        """The replay's rate by the job's, less 1."""
        return self.replay_samples_per_second / self.samples_per_second - 1

    @property
    def differences(self) -> tuple[tuple[float, float], ...]:
        """The differences in bytes from storage, bytes that are kept, rate, requests, bytes that are
        uncertain, batches read while the job pauses, and waits, each with the most that is trusted."""
        return (
            (self.reads_ratio - 1, UNLIKE),
            (self.kept, UNLIKE_KEPT),
            (abs(self.difference), UNLIKE),
            (self.requests_ratio - 1, UNLIKE_REQUESTS),
            (self.uncertain, UNLIKE),
            (self.refilled, UNLIKE),
            (self.hidden, UNLIKE),
        )

    @property
    def trusted(self) -> bool:
        """True where the replay is as fast as the job, and takes as much from the storage as often."""
        return all(value <= most for value, most in self.differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The job that was recorded."""

    samples: float = 1.0
    """The job's samples in one sample of the workload: 0.5 where it reads two files a sample, 100 where
    it reads row groups of 100 rows. Results give the job's samples/s."""
    replay: ReplaySpec | None = None
    """None: it was not checked by a replay."""
    unchecked: str = ""
    """The reason why it could not be checked."""

    def __post_init__(self) -> None:
        positive(self, "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training workload on one kind of accelerator."""

    name: str
    """Short name: the file's name without .toml."""
    title: str
    """One line for people."""
    sample: SampleSpec
    loader: LoaderSpec
    accelerator: AcceleratorSpec
    training: TrainingSpec = TrainingSpec()
    access: AccessSpec = AccessSpec()
    job: JobSpec = JobSpec()
    """The recorded job, where the workload was recorded."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> where its number comes from."""

    def __post_init__(self) -> None:
        if self.loader.batch_size != self.accelerator.step_batch_size:
            raise SpecError(
                f"loader.batch_size is {self.loader.batch_size} but accelerator.step_seconds was taken at "
                f"batch size {self.accelerator.step_batch_size}",
                "set accelerator.step_seconds and accelerator.step_batch_size along with it",
            )

    @property
    def sample_read(self) -> SampleSpec:
        """The part of a sample that is read."""
        read = self.access.bytes_read
        return replace(self.sample, bytes_mean=read, bytes_sd=0) if read else self.sample

    @property
    def request_bytes(self) -> int:
        """Approximate bytes of a read request: a column chunk, a sample read by itself, or a block."""
        alone = self.access.pattern == "random"
        whole = self.sample_read.bytes_mean if alone else self.loader.block_bytes
        return min(self.loader.block_bytes, self.access.chunk_bytes or whole)

    @property
    def ideal_samples_per_second(self) -> float:
        """Samples/s of one accelerator that never waits; infinite when it does not compute."""
        seconds = self.accelerator.step_seconds
        return self.loader.batch_size / seconds if seconds > 0 else float("inf")

    @property
    def batches_ahead(self) -> int:
        """Batches beyond the one that an accelerator computes on: read ahead, or queued."""
        return self.loader.prefetch + self.accelerator.in_flight - 1

    @property
    def demand(self) -> float:
        """Bytes/s read by one accelerator that never waits; infinite when it does not compute."""
        return self.ideal_samples_per_second * self.sample_read.bytes_mean

    @property
    def batch_bytes(self) -> float:
        """Bytes that are read for a batch, mean."""
        return self.loader.batch_size * self.sample_read.bytes_mean


def load_workload(name: str, settings: Sequence[str] = ()) -> Workload:
    """Load the workload of that name or path, with `--set` settings applied.

    Its accelerator may name a profile instead of a step time. Raises SpecError, StorageError.
    """
    path = find("workloads", name)
    table, source = read_toml(path)
    source = replace(source, settings=tuple(settings))
    for setting in ("", *settings):
        table = override(table, [setting] if setting else [])
        accelerator = table.get("accelerator")
        if isinstance(accelerator, str):  # short for a table with the key `profile`
            table["accelerator"] = accelerator = {"profile": accelerator}
    if isinstance(accelerator, Mapping) and "profile" in accelerator:
        table = _with_profile(table, source, path.parent)
    return build(Workload, table, source)


def stored_workload(table: Mapping[str, Any]) -> Workload:
    """Return the workload of a result. Raises SpecError."""
    return build(Workload, table, path=("workload",))


def load_loader(name: str, settings: Sequence[str] = ()) -> LoaderSpec:
    """Load only the loader of a workload, for a real accelerator. Raises SpecError, StorageError."""
    table, source = read_toml(find("workloads", name), settings)
    return build(LoaderSpec, table.get("loader", {}), source, ("loader",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """The table [accelerator] of a workload that names a profile."""

    profile: str
    """Path of the profile, from the workload's folder or the current one."""
    variant: str = ""
    """Variant of the profile; empty: its default."""
    compute: Compute = "constant"
    copy: bool = False
    """True: every step includes the copy of its batch to the device, as when nothing overlaps that copy."""


def _with_profile(table: dict[str, Any], source: Source, folder: Path) -> dict[str, Any]:
    """Return `table` with the accelerator that its profile describes at its batch size.

    Raises SpecError, StorageError.
    """
    choice = build(ProfileChoice, table["accelerator"], source, ("accelerator",))
    loader = build(LoaderSpec, table.get("loader", {}), source, ("loader",))
    paths = [folder / choice.profile, Path(choice.profile), content_folder("workloads") / choice.profile]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        where = source.at(("accelerator", "profile"))
        raise SpecError(f"{where}: there is no profile {choice.profile}", "feedrate calibrate makes one")
    profile = load_profile(path)
    try:
        variant = profile.variant(choice.variant)
        seconds, timing = variant.step_seconds(loader.batch_size), variant.timing(loader.batch_size)
        if timing is None and (choice.copy or choice.compute == "empirical"):
            raise SpecError(
                f"batch size {loader.batch_size} was not measured, which compute = 'empirical' and copy need",
                f"feedrate calibrate --batch ...,{loader.batch_size}",
            )
    except SpecError as error:
        raise SpecError(f"{path}: {error.what}", error.hint) from None
    copy = timing.copy_seconds if timing and choice.copy else 0.0
    quantiles = None
    if timing and choice.compute == "empirical":
        quantiles = tuple(step + copy for step in timing.quantiles)
    accelerator = AcceleratorSpec(
        name=profile.device.name,
        step_seconds=seconds + copy,
        step_batch_size=loader.batch_size,
        provenance="measured",
        compute=choice.compute,
        profile=choice.profile,
        variant=variant.name,
        quantiles=quantiles,
    )
    measured = f"measured: {choice.profile}, variant {variant.name}"
    keys = ("accelerator.step_seconds", "accelerator.step_batch_size", "accelerator.quantiles")
    sources = {**table.get("sources", {}), **dict.fromkeys(keys, measured)}
    return {**table, "accelerator": accelerator, "sources": sources}
