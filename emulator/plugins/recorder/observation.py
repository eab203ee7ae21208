"""The content of record.json: sizes, counts and times of a job; file names only with --keep-names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from emulator.config.reader import at_least
from emulator.errors import SpecError
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.steps import StepTime

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a DataLoader."""

    batch_size: int = 0
    """Samples per batch; 0: the job makes its batches itself."""
    workers: int = 0
    """Number of worker processes; 0 if the job reads between its steps."""
    prefetch_factor: int = 0
    """Batches that each worker reads ahead."""
    sampler: str = "custom"
    """Name of PyTorch's sampler class; custom: a class of the job; iterable: no sampler."""
    replacement: bool = False
    """True if the sampler draws each sample from all of them."""
    iterable: bool = False
    """True for an IterableDataset."""
    dataset_length: int = -1
    """Samples in the dataset, from len(); -1 if it has no length."""
    persistent_workers: bool = False
    """True if workers persist from one epoch to the next."""
    auto_collation: bool = True
    """False if the DataLoader does not collate: the dataset returns batches, or single samples."""
    pinned: bool = False
    """True if a thread takes batches from the workers and copies them to pinned memory, for a GPU."""
    marked: bool = False
    """True if the job marks its steps, without a DataLoader. `workers` are then threads that read ahead."""

    def __post_init__(self) -> None:
        at_least(0, self, "batch_size", "workers", "prefetch_factor")

    @property
    def length(self) -> int:
        """Samples in the dataset; 0 if unknown."""
        return max(0, self.dataset_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One DataLoader of one rank."""

    rank: int
    host: str
    process: int
    settings: Settings
    torch: str = ""
    """PyTorch's version."""
    accelerator: str = ""
    """Name of the accelerator that the process used; empty if none was seen."""
    epochs: int
    steps: int
    samples: int
    """Samples in the delivered batches, where a batch of the dataset itself counts as one; 0 if unknown."""
    batch_samples: float = 0.0
    """Mean samples of a batch for the job; 0 if unknown."""
    read_steps: int | None = None
    """Number of steps during which `reads` were seen; None: all."""
    ahead: float = 1.0
    """Batches requested per batch delivered, while reads were seen."""
    others: float = 0.0
    """Median number of batches of other DataLoaders that the job takes between two of this one."""
    step_cpu_seconds: float = 0.0
    """Median CPU seconds of the training process per step, untraced if enough steps were; 0: not known."""
    batch_cpu_seconds: float = 0.0
    """Mean CPU seconds of the workers per batch, or without workers of the process while it makes one;
    untraced if batches came after tracing."""
    batch_call_bytes: float | None = None
    """Mean bytes that read(2) and the like returned per batch, untraced; None: not known."""
    batch_storage_bytes: float | None = None
    """Mean bytes from storage per batch, untraced if batches came after tracing; None: not known."""
    uneven: float = 0.0
    """Relative uncertainty of `batch_call_bytes` where an iterable dataset reads in large pieces; else 0."""
    reads: Reads

    def __post_init__(self) -> None:
        at_least(1, self, "ahead")
        at_least(0, self, "rank", "epochs", "steps", "samples", "batch_samples", "others", "uneven")
        at_least(0, self, "step_cpu_seconds", "batch_cpu_seconds", "batch_storage_bytes")

    @property
    def seen_steps(self) -> int:
        """Number of steps during which `reads` were seen."""
        return self.steps if self.read_steps is None else self.read_steps

    @property
    def share_read(self) -> float:
        """Share of the steps during which `reads` were seen."""
        return 1.0 if self.read_steps is None else self.read_steps / max(1, self.steps)

    @property
    def asked_batches(self) -> float:
        """Batches that `reads` served, including those requested but not delivered."""
        return self.seen_steps * self.ahead

    @property
    def asked_samples(self) -> float:
        """Approximate samples in these batches."""
        known = self.samples * self.share_read * self.ahead
        return known or self.asked_batches * max(1, self.settings.batch_size)

    def moves(self, samples: float) -> float:
        """Return the approximate number of moves of a process between two of `samples` in the same file.

        Only reads whose offsets were kept count.
        """
        kept = self.reads.followed_bytes / self.reads.bytes if self.reads.bytes else 0.0
        return max(0.0, kept * samples - self.reads.followed_files)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the process and its workers per step; 0: not known."""
        workers = self.batch_cpu_seconds if self.settings.workers else 0.0
        return self.step_cpu_seconds and self.step_cpu_seconds + workers

    @property
    def weight(self) -> float:
        """Estimated bytes read in all steps."""
        return max(self.reads.bytes, self.reads.storage_bytes or 0) / (self.share_read or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One recorder's observation of a job, or of one of its ranks."""

    feedrate: Literal["recording"] = "recording"
    schema: int = SCHEMA
    created: str
    """Time of the recording, ISO 8601, UTC."""
    how: Literal["strace", "python", "chrome-trace", "darshan"]
    """Source of the reads: traced system calls, opened files and byte counters, or another tool's trace."""
    why: str = ""
    """Why strace was not used; may be empty."""
    status: int = 0
    """Exit status of the job; -N for signal N."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 0
    """Number of Python processes in which the probe reported."""
    complete: bool = True
    """False if the job ended by an error or a signal, or only a part of it was recorded."""
    notes: tuple[str, ...] = ()
    """Sentences about gaps in the recording."""
    loaders: tuple[Loader, ...] = ()
    rest: Reads = field(default_factory=Reads)
    """Reads for no DataLoader."""
    traced_step_seconds: float | None = None
    """Median seconds from batch to batch while calls were traced, after the warm-up; None if unknown."""
    step_seconds: float | None = None
    """The same in steps that were not traced."""
    step: StepTime | None = None
    """Step time without waits for data, of the loader that read most bytes; None if unknown."""
    request_bytes: float | None = None
    """Mean bytes of a request that the data's device, or NFS mount, got from the job; None if others read
    from it, or if it counts none."""
    of_map: int | None = None
    """Bytes of a sample in mapped files, found by replays; None: they were not looked for."""
    names: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each data file by name, with --keep-names; otherwise empty."""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise SpecError(f"schema {self.schema} is not supported")
