"""The content of record.json: sizes, counts and times of a job, without file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from emulator.config.reader import at_least
from emulator.plugins.recorder.steps import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a DataLoader."""

    batch_size: int = 0
    """Samples per batch; 0: the job makes its batches itself, or a sampler of its own does, of any size."""
    workers: int = 0
    """Number of worker processes; 0 if the job reads between its steps."""
    prefetch_factor: int = 0
    """Batches that each worker reads ahead."""
    replacement: bool = False
    """True if the sampler draws each sample from all of them."""
    dataset_length: int = 0
    """Samples in the dataset, from len(); 0 if it has no length."""
    persistent_workers: bool = False
    """True if workers persist from one epoch to the next."""
    auto_collation: bool = True
    """False if the DataLoader does not collate: the dataset returns batches, or single samples."""
    pinned: bool = False
    """True if a thread takes batches from the workers and copies them to pinned memory, for a GPU."""
    beside: int = 0
    """Number among DataLoaders with these settings that a process uses at the same time."""

    def __post_init__(self) -> None:
        at_least(0, self, "batch_size", "workers", "prefetch_factor", "dataset_length", "beside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The reads of data files for the batches of a DataLoader while they were traced."""

    files: int = 0
    """Number of distinct files."""
    files_bytes: int = 0
    """Total size of these files, in bytes."""
    requests: int = 0
    """Number of read(2), pread(2), readv(2) and the like that returned data."""
    bytes: int = 0
    """Bytes that they returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """DataLoaders with the same settings, of all ranks."""

    settings: Settings
    ranks: int
    """Number of processes that have it."""
    accelerator: str = ""
    """Name of the accelerator that the process used; empty if none was seen."""
    epochs: int
    steps: int
    """Number of steps of all ranks."""
    batch_samples: float = 0.0
    """Mean samples of a batch for the job; 0 if unknown."""
    read_steps: int
    """Number of batches that have `reads`."""
    step_cpu_seconds: float = 0.0
    """Median CPU seconds of the training process per step, untraced if enough steps were; 0: not known."""
    batch_cpu_seconds: float = 0.0
    """Mean CPU seconds of the workers and their children per batch, or without workers of the process while
    it makes one; untraced if enough came after tracing."""
    batch_call_bytes: float | None = None
    """Mean bytes that read(2) and the like returned per batch, untraced; None: not known."""
    batch_storage_bytes: float | None = None
    """Mean bytes from storage per batch, untraced if enough came after tracing; None: not known."""
    first_storage_bytes: float | None = None
    """The same of the batches whose reads were traced."""
    reads: Reads

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the process and its workers per step; 0: not known."""
        workers = self.batch_cpu_seconds if self.settings.workers else 0.0
        return self.step_cpu_seconds and self.step_cpu_seconds + workers

    @property
    def weight(self) -> float:
        """Estimated bytes read in all steps."""
        per_step = max(self.reads.bytes / max(1, self.read_steps), self.first_storage_bytes or 0.0)
        return per_step * self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen of a job."""

    feedrate: Literal["recording"] = "recording"
    schema: int = 1
    created: str
    """Time of the recording, ISO 8601, UTC."""
    status: int = 0
    """Exit status of the job; -N for signal N."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    mount: str = ""
    """Where the data lies: mount point and type of the file system."""
    processes: int = 0
    """Number of Python processes in which the probe reported."""
    notes: tuple[str, ...] = ()
    """Sentences about gaps in the recording."""
    loaders: tuple[Loader, ...] = ()
    step: StepTime | None = None
    """Step time without waits for data, of the loader that read most bytes; None if unknown."""
    request_bytes: float | None = None
    """Mean bytes of a request that the data's device, or NFS mount, got from the job; None if others read
    from it, or if it counts none."""
    in_flight: float | None = None
    """Mean requests of the job under way at that device, while there were any; None as `request_bytes`."""
