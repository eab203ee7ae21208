"""A workload: one training job on one accelerator, as far as storage can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from emulator.config.reader import Bytes, Seconds, at_least, positive, share
from emulator.errors import SpecError

Provenance = Literal["published", "scaled", "measured", "chosen"]
Compute = Literal["constant", "empirical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """What one sample of the job's dataset looks like."""

    format: str
    """File format of a sample, for example npz."""
    bytes_mean: Bytes
    """Mean bytes of a stored sample."""
    bytes_sd: Bytes = 0
    """Population standard deviation of the bytes of a stored sample."""
    samples_per_file: int = 1
    """Samples in a file of the published dataset; the manifest says how many a generated one has."""

    def __post_init__(self) -> None:
        positive("bytes_mean", self.bytes_mean)
        at_least("bytes_sd", self.bytes_sd, 0)
        at_least("samples_per_file", self.samples_per_file, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSpec:
    """In which order, and how much of them, a job reads samples. `emulator.plan` makes the reads of it."""

    pattern: Literal["random", "sequential"] = "random"
    """random: a shuffle of all samples, each read by itself wherever it lies in its file. sequential: files
    in shuffled order, each from its start, as tf.data reads TFRecord and readers of Parquet row groups."""
    streams: int = 1
    """sequential: files that a rank reads at the same time, a sample of each in turn."""
    shuffle_buffer: int = 0
    """sequential: samples that are read before the first is used; the next is drawn out of them."""
    columns: tuple[str, ...] = ()
    """Parquet: the columns that are read; empty: all."""
    bytes_read: Bytes = 0
    """Bytes of a sample in these columns; 0: all of it."""
    chunk_bytes: Bytes = 0
    """Mean bytes of a column chunk of a row group, one request; 0: requests are blocks of the loader."""

    def __post_init__(self) -> None:
        at_least("streams", self.streams, 1)
        at_least("shuffle_buffer", self.shuffle_buffer, 0)
        at_least("bytes_read", self.bytes_read, 0)
        at_least("chunk_bytes", self.chunk_bytes, 0)
        if self.pattern == "random" and (self.streams > 1 or self.shuffle_buffer):
            raise SpecError(
                "pattern = 'random' has no streams and no shuffle_buffer",
                "--set access.streams=1 --set access.shuffle_buffer=0 beside it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """How a rank reads: the knobs of the data loader."""

    batch_size: int
    """Samples per step of one accelerator."""
    workers: int = 4
    """Samples that a rank reads at the same time: DataLoader workers, or reader threads."""
    worker_kind: Literal["thread", "process"] = "thread"
    """Torch loader only: reader threads inside the rank, or DataLoader worker processes."""
    prefetch: int = 8
    """Batches read ahead of the accelerator, at most (PyTorch: workers x prefetch_factor)."""
    block_bytes: Bytes = 4 * 2**20
    """Bytes of one read request."""
    crop: tuple[int, ...] = (128, 128, 128)
    """Voxels of the random crop that the torch loader keeps of a sample; empty: the whole sample."""
    stall_timeout: Seconds = 300.0
    """Seconds without a batch after which a run is given up: the storage hangs."""

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        at_least("workers", self.workers, 1)
        at_least("prefetch", self.prefetch, 1)
        at_least("block_bytes", self.block_bytes, 4096)
        positive("stall_timeout", self.stall_timeout)
        if self.block_bytes % 4096:
            raise SpecError(f"block_bytes must be a multiple of 4096 (O_DIRECT), not {self.block_bytes}")
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
    """Batch size that `step_seconds` belongs to; another one is refused."""
    provenance: Provenance
    """Where the time comes from: published, scaled (from another accelerator), measured, or chosen."""
    compute: Compute = "constant"
    """constant: every step takes `step_seconds`; empirical: step times are drawn from `quantiles`."""
    profile: str = ""
    """Profile that the times come from (feedrate calibrate), instead of step_seconds in the workload."""
    variant: str = ""
    """Variant of the profile."""
    quantiles: tuple[float, ...] | None = None
    """Seconds of measured steps, ascending, equally likely; their mean is `step_seconds`. From a profile."""

    def __post_init__(self) -> None:
        at_least("step_seconds", self.step_seconds, 0)
        at_least("step_batch_size", self.step_batch_size, 1)
        if self.compute == "empirical" and not self.quantiles:
            raise SpecError(
                "compute = 'empirical' needs measured times", "accelerator.profile names a profile"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The shape of the job around the steps."""

    epochs: int = 5
    """Passes over the dataset."""
    sync: Literal["step", "epoch", "none"] = "step"
    """Where ranks wait for each other, as data-parallel training does after every step."""
    au_threshold: float = 0.90
    """Accelerator utilisation (0 to 1) that a storage has to sustain."""
    shuffle_seed: int = 0
    """Seed of the epoch orders."""

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        at_least("shuffle_seed", self.shuffle_seed, 0)
        share("au_threshold", self.au_threshold)


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
        """As much of a sample as is read."""
        read = self.access.bytes_read
        return replace(self.sample, bytes_mean=read, bytes_sd=0) if read else self.sample

    @property
    def request_bytes(self) -> int:
        """Bytes of a read request, about: a block, a sample where each is read by itself, a column chunk."""
        alone = self.access.pattern == "random"
        whole = self.sample_read.bytes_mean if alone else self.loader.block_bytes
        return min(self.loader.block_bytes, self.access.chunk_bytes or whole)

    @property
    def ideal_samples_per_second(self) -> float:
        """Samples/s of one accelerator that never waits (infinite when it does not compute)."""
        seconds = self.accelerator.step_seconds
        return self.loader.batch_size / seconds if seconds > 0 else float("inf")
