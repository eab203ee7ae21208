"""What was seen of a job: record.json. Sizes, counts and times; names only where they were asked for."""

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
    """What a DataLoader was set to."""

    batch_size: int = 0
    """0: the job makes its batches itself."""
    workers: int = 0
    """Worker processes; 0: the job reads between its steps."""
    prefetch_factor: int = 0
    """Batches that each worker reads ahead."""
    sampler: str = "custom"
    """PyTorch's class; custom: one of the job's own; iterable: none."""
    iterable: bool = False
    """An IterableDataset."""
    dataset_length: int = -1
    """len() of the dataset; -1: it has none."""
    pin_memory: bool = False
    drop_last: bool = False
    persistent_workers: bool = False
    context: str = ""
    """How workers were started: fork, spawn, forkserver."""
    auto_collation: bool = True
    """False: the dataset gives batches, or single samples."""
    marked: bool = False
    """No DataLoader: the job said where a step ends. `workers` are threads and processes that read ahead."""

    def __post_init__(self) -> None:
        at_least(0, self, "batch_size", "workers", "prefetch_factor")


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
    """Name of the accelerator that the process used; empty: none."""
    epochs: int
    steps: int
    samples: int
    """Samples in the batches that were delivered, of which a batch that the dataset makes is one; 0: batches
    do not tell."""
    batch_samples: float = 0.0
    """Mean samples of a batch, as the job sees it; 0: batches do not tell."""
    seconds: float = 0.0
    """From the first batch that was asked for to the last."""
    read_steps: int | None = None
    """Steps in whose time `reads` were seen; None: all."""
    ahead: float = 1.0
    """Batches that were asked for in that time, per batch that was delivered."""
    others: float = 0.0
    """Batches of other DataLoaders that the job takes between two of its own, as a rule."""
    step_cpu_seconds: float = 0.0
    """Median CPU seconds of the process that trains, in a step that nobody traced; 0: not known."""
    batch_cpu_seconds: float = 0.0
    """CPU seconds of its workers for a batch, while nobody traced them."""
    stored: float | None = None
    """Bytes from storage for each byte that was read, while nobody traced; None: not known."""
    reads: Reads

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "epochs", "steps", "samples")
        at_least(1, self, "ahead")
        at_least(0, self, "others", "step_cpu_seconds", "batch_cpu_seconds", "stored", "batch_samples")

    @property
    def share_read(self) -> float:
        """Share of its steps in whose time reads were seen."""
        return 1.0 if self.read_steps is None else self.read_steps / max(1, self.steps)

    @property
    def asked_samples(self) -> float:
        """Samples that `reads` were for, those on their way at the end included; 0: not known."""
        return self.samples * self.share_read * self.ahead

    def moves(self, samples: float) -> float:
        """Return how often a process went from one of `samples` to the next of the same file, about, within
        the reads whose places were kept."""
        kept = self.reads.followed_bytes / self.reads.bytes if self.reads.bytes else 0.0
        return max(0.0, kept * samples - self.reads.followed_files)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the process and its workers in a step; 0: not known."""
        return self.step_cpu_seconds and self.step_cpu_seconds + self.batch_cpu_seconds

    @property
    def weight(self) -> float:
        """Bytes that it read in all its steps, about, however they were seen."""
        return max(self.reads.bytes, self.reads.storage_bytes or 0) / (self.share_read or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What recording cost."""

    calls: int
    """Calls that the tracer told."""
    recorder_cpu_seconds: float
    """CPU of feedrate."""
    job_seconds: float
    """How long the job ran."""
    traced_step_seconds: float | None = None
    """Median seconds from batch to batch while calls were traced, after the warm-up."""
    step_seconds: float | None = None
    """The same of the steps that were only timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one recorder saw: a job, or one rank of it."""

    feedrate: Literal["recording"] = "recording"
    schema: int = SCHEMA
    created: str
    """ISO 8601, UTC."""
    how: Literal["strace", "python", "chrome-trace", "darshan"]
    """How reads were seen: traced system calls; or opened files and the bytes of all calls; or another tool's
    trace."""
    why: str = ""
    """Why not better."""
    status: int = 0
    """Exit status of the job; -N: signal N."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 0
    """Python processes that could be looked into."""
    complete: bool = True
    """False: the job ended by an error or a signal, or only a part of it was recorded."""
    notes: tuple[str, ...] = ()
    """What was not seen."""
    loaders: tuple[Loader, ...] = ()
    rest: Reads = field(default_factory=Reads)
    """What was read for no DataLoader."""
    overhead: Overhead | None = None
    step: StepTime | None = None
    """What a step takes without waiting for data, of the loader with most bytes."""
    names: Mapping[str, int] = field(default_factory=dict)
    """With --keep-names: data file -> bytes."""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise SpecError("schema is another one")
