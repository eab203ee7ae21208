"""A workload: one training job on one kind of accelerator, as storage sees it; and how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from emulator.config.catalog import content_folder, find
from emulator.config.profile import Profile, load_profile
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
    bytes_read: Bytes = 0
    """Mean bytes that are read for a sample, where that is not all of it: those of some columns, or what a
    recorded job reads; 0: all of it."""

    def __post_init__(self) -> None:
        positive(self, "bytes_mean")
        at_least(0, self, "bytes_sd", "bytes_read")
        at_least(1, self, "samples_per_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSpec:
    """The order in which a job reads samples, and how much of each. `emulator.order` turns it into reads."""

    pattern: Literal["random", "sequential"] = "random"
    """random: all samples shuffled, each read by itself wherever it lies in its file. sequential: files in
    shuffled order, each from its start, as tf.data reads TFRecord and as row groups of Parquet are read."""
    streams: int = 1
    """sequential: files that a rank reads at the same time, one sample of each in turn."""
    shuffle_buffer: int = 0
    """sequential: samples read ahead into a buffer, from which the next one is drawn at random."""
    columns: tuple[str, ...] = ()
    """Parquet: columns that are read; empty: all."""
    chunk_bytes: Bytes = 0
    """Mean bytes of a column chunk of a row group, one request each; 0: requests are the loader's blocks."""
    calls: str = ""
    """Recorded batches to play instead, a Parquet file (`emulator.calls`): a path from the workload's
    folder. Files are then read through the page cache, as the job read them."""

    def __post_init__(self) -> None:
        at_least(1, self, "streams")
        at_least(0, self, "shuffle_buffer", "chunk_bytes")
        if self.pattern == "random" and (self.streams > 1 or self.shuffle_buffer):
            raise SpecError(
                "pattern = 'random' has no streams and no shuffle_buffer",
                "--set access.streams=1 --set access.shuffle_buffer=0 beside it",
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
    refill: Refill = "epoch"
    """Read-ahead at an epoch's border. epoch: the DataLoader is made anew and begins with nothing, as
    in MLPerf's 3D U-Net. persistent: its workers stay, and what they read ahead begins with nothing, as in
    DLIO. never: reading goes on over the border."""
    stall_timeout: Seconds = 300.0
    """Seconds without a batch after which the run fails because the storage hangs."""

    def __post_init__(self) -> None:
        at_least(0, self, "prefetch")
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
        share("au_threshold", self.au_threshold, 0.999)  # no accelerator gets all of its demand


MOST_UNLIKE = {
    "rate": 0.05,
    "bytes of a batch": 0.1,
    "bytes from storage": 0.05,
    # With up to 14 % more, replays were within 5 % of the job's rate at 3 ms of latency; with 26 % more and
    # above, 26 to 99 % too fast.
    "requests": 0.2,
    # Tracing slows the job down, so that it has fewer.
    "requests in flight": 1.0,
    "waits within the step time": 0.05,
}
"""Largest relative differences between a recorded job and its replay that are trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """A recorded job beside its replay on the storage where it was recorded."""

    samples_per_second: float
    """The job's rate, all processes, in its own samples."""
    waited: float
    """Share of the time in which the job waited for data."""
    replay_samples_per_second: float
    replay_waited: float
    from_storage: bool = False
    """True if both read from storage, False if memory answered."""
    differences: Mapping[str, float] = field(default_factory=dict)
    """What differs (names of MOST_UNLIKE), and by how much relative to the smaller one."""
    why: str = ""
    """The cause of a difference, if it is known."""

    def __post_init__(self) -> None:
        positive(self, "samples_per_second", "replay_samples_per_second")
        at_least(0, self, "waited", "replay_waited")
        if unknown := self.differences.keys() - MOST_UNLIKE.keys():
            raise SpecError(f"differences has an unknown name, {min(unknown)!r}")

    @property
    def difference(self) -> float:
        """The replay's rate by the job's, less 1."""
        return self.replay_samples_per_second / self.samples_per_second - 1

    @property
    def distrusted(self) -> str:
        """The first difference that is too large; empty if the replay is like the job."""
        too_large = [name for name, most in MOST_UNLIKE.items() if self.differences.get(name, 0.0) > most]
        return too_large[0] if too_large else ""


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

    @property
    def doubt(self) -> str:
        """Why the recording is not to be trusted; empty if nothing says so."""
        if self.unchecked:
            return f"it was not checked by a replay: {self.unchecked}"
        if self.replay and (what := self.replay.distrusted):
            differ = f"job and replay differ by {self.replay.differences[what]:.0%} in {what}"
            why = f": {self.replay.why}" if self.replay.why else ""
            return f"where it was made, {differ}{why}"
        return ""


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
        read = self.sample.bytes_read
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
    workload = build(Workload, table, source)
    if calls := workload.access.calls:
        workload = replace(workload, access=replace(workload.access, calls=str(path.parent / calls)))
    return workload


def stored_workload(table: Mapping[str, Any]) -> Workload:
    """Return the workload of a result. Raises SpecError."""
    return build(Workload, table, path=("workload",))


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
        accelerator = _measured(profile, choice, loader.batch_size)
    except SpecError as error:
        raise SpecError(f"{path}: {error.what}", error.hint) from None
    measured = f"measured: {choice.profile}, variant {accelerator.variant}"
    keys = ("accelerator.step_seconds", "accelerator.step_batch_size", "accelerator.quantiles")
    sources = {**table.get("sources", {}), **dict.fromkeys(keys, measured)}
    return {**table, "accelerator": accelerator, "sources": sources}


def _measured(profile: Profile, choice: ProfileChoice, batch_size: int) -> AcceleratorSpec:
    """Return the accelerator of a profile at a batch size. Raises SpecError."""
    variant = profile.variant(choice.variant)
    seconds, timing = variant.step_seconds(batch_size), variant.timing(batch_size)
    empirical = choice.compute == "empirical"
    if timing is None and (choice.copy or empirical):  # a fit has neither single steps nor copies
        raise SpecError(
            f"batch size {batch_size} was not measured, which compute = 'empirical' and copy need",
            f"feedrate calibrate --batch ...,{batch_size}",
        )
    copy = timing.copy_seconds if timing and choice.copy else 0.0
    return AcceleratorSpec(
        name=profile.device.name,
        step_seconds=seconds + copy,
        step_batch_size=batch_size,
        provenance="measured",
        compute=choice.compute,
        profile=choice.profile,
        variant=variant.name,
        quantiles=tuple(step + copy for step in timing.quantiles) if timing and empirical else None,
    )
